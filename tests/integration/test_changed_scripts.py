"""What a user does to a running site's script: another model, a second start, an end without the daemon's."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.integration.small_training import train
from tests.rigs.site import cluster_of, wait_for

from chaos_lab.running import status_of
from chaos_protocols.wire.versions import CHECKS_SINCE

PAIR = {"cleveland": "Cleveland", "hungary": "Hungary"}


def test_a_script_with_another_model_is_refused_and_everybody_else_trains_on(tmp_path: Path) -> None:
    """The open round, the results and what is averaged stay as they are; the right script trains again."""
    with cluster_of(tmp_path, PAIR, min_sites=2) as cluster:
        first, second = cluster.sites
        for number, site in enumerate(cluster.sites, start=1):
            site.start()
            train(site, number)
        wait_for(lambda: first.round() > 5 and second.round() > 5, "both train")
        vector = (second.data_dir / "vector.msgpack").read_bytes()
        second.kill("worker")
        train(second, 2, extra=["--numbers", "31"])
        assert second.worker is not None
        wait_for(lambda: second.worker.poll() is not None, "the other model is sent away")
        said = second.worker_log.read_text()
        assert "the model or optimizer differs" in said and "'momentum'" in said, said
        assert (second.data_dir / "vector.msgpack").read_bytes() == vector
        before = first.round()
        wait_for(lambda: first.round() > before + 5, "the first trains on")
        wait_for(lambda: not first.client.status().paused, "and does not wait")
        assert second.client.status().worker.phase == "standby"
        train(second, 2)
        wait_for(second.is_member, "with the right model it trains again")
        before = second.round()
        wait_for(lambda: second.round() > before + 5, "both train")


def test_a_daemon_stays_when_its_script_has_left_and_takes_the_next_one(tmp_path: Path) -> None:
    """Left for good, and in the roster no more; the next script joins through the same process."""
    with cluster_of(tmp_path, PAIR, min_sites=1, exit_with_worker=False) as cluster:
        first, second = cluster.sites
        for number, site in enumerate(cluster.sites, start=1):
            site.start()
            train(site, number)
        wait_for(lambda: first.round() > 5 and second.round() > 5, "both train")
        assert second.worker is not None and second.daemon is not None
        second.signal("worker", signal.SIGINT)
        wait_for(second.report_path.exists, "its script has left")
        wait_for(lambda: len(first.client.status().sites) == 1, "it is out of the roster")
        before = first.round()
        wait_for(lambda: first.round() > before + 5, "the other trains on")
        waiting = wait_for(
            lambda: (one := status_of(second.client)) and one.state == "starting" and one, "the daemon answers"
        )
        assert second.daemon_runs() and waiting.state == "starting" and not waiting.worker.connected
        assert waiting.outside.startswith("this site has left the run after round ") and waiting.averaging is None
        assert [one.site for one in waiting.sites] == [first.identity.site] and waiting.epoch > 1, "what it last knew"
        assert [event.kind for event in first.events("scale-in") if event.outcome == "failed"] == []
        assert second.worker.wait(timeout=90) == 0
        train(second, 2)
        wait_for(second.is_member, "the next script trains")
        assert second.client.status().outside == ""
        first.signal("worker", signal.SIGINT)
        gone = wait_for(
            lambda: (one := status_of(first.client)) and one.state == "starting" and one, "it has left, too"
        )
        assert {one.state for one in gone.sites if one.site == gone.site} <= {"starting"}, "no member, in no line of it"
        second.client.leave("its operator")
        wait_for(lambda: not second.daemon_runs(), "a daemon whose operator lets it leave ends")
        assert second.daemon.returncode == 0


@pytest.mark.parametrize("meddles_after", [20, pytest.param(800, marks=pytest.mark.long)])
def test_a_state_that_was_changed_by_hand_is_found_named_and_set_right(tmp_path: Path, meddles_after: int) -> None:
    """At one of three sites: all hear whose state differs and in which array, and it gets that of the others. Later the
    run has agreed that what sites say of their states is signed."""
    with cluster_of(tmp_path, {**PAIR, "va": "VA"}, min_sites=3) as cluster:
        odd = cluster.sites[2]
        for number, site in enumerate(cluster.sites, start=1):
            site.start()
            train(site, number, extra=["--meddle", str(meddles_after)] if site is odd else ())
        wait_for(lambda: all(site.events("drift") for site in cluster.sites), "every site hears of it", limit_s=120.0)
        (agreed,) = [one for site in cluster.sites for one in site.events("rules")] or [None]
        assert (agreed is not None) == (meddles_after == 800)
        assert agreed is None or f"speak protocol {CHECKS_SINCE}" in agreed.reason
        for site in cluster.sites:
            (told,) = site.events("drift")
            assert told.subject == odd.name and "first in 'momentum'" in told.reason, told
        wait_for(odd.is_member, "it trains again")
        before = odd.round()
        wait_for(lambda: odd.round() > before + 5, "it goes on")
        for site in cluster.sites:
            site.signal("worker", signal.SIGINT)
        wait_for(lambda: all(site.report_path.exists() for site in cluster.sites), "all end")
        digests = [site.read_report()["digests"] for site in cluster.sites]
        common = set.intersection(*({int(number) for number in one} for one in digests))
        late = [str(number) for number in sorted(common) if number > before]
        assert late and all(len({one[number] for one in digests}) == 1 for number in late), "the same states again"
        assert "first in 'momentum'" in odd.worker_log.read_text()
