"""The daemon of the site with the only vote is started anew, as an upgrade does: nobody is removed for it."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.rigs.site import cluster_of, wait_for

PAIR = {"cleveland": "Cleveland", "hungary": "Hungary"}


def test_of_two_sites_the_first_is_upgraded_and_the_second_keeps_its_state(tmp_path: Path) -> None:
    with cluster_of(tmp_path, PAIR, min_sites=2, exit_with_worker=False) as cluster:
        first, second = cluster.sites
        for site in cluster.sites:
            site.start()
            site.train()
        wait_for(lambda: min(first.round(), second.round()) >= 10, "two sites train")
        first.signal("daemon", signal.SIGKILL)
        assert first.daemon is not None
        first.daemon.wait(20)
        at = second.round()
        first.start()
        wait_for(lambda: min(first.round(), second.round()) >= at + 10, "both train on")
        assert first.is_member() and second.is_member()
        decided = [(event.kind, event.subject) for event in first.events() if event.kind.startswith("scale-")]
        assert ("scale-in", "cleveland") in decided, "it is the same site, started anew"
        assert not second.events("scale-in") and ("scale-in", "hungary") not in decided
        assert [event.round for event in first.events("restore-point")] == [0], "that of the beginning, no other"
