"""Real daemons behind slow links: a join ends, by being let in or by being refused with the figures and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integration.small_training import train
from tests.rigs.site import Cluster, Site, cluster_of, wait_for

from chaos_protocols.membership.join_hold import CANNOT_FOLLOW
from chaos_protocols.state.outrun import OUTRUN_MAX

HOSPITALS = {"cleveland": "Cleveland", "hungary": "Hungary", "va": "VA Long Beach"}
NUMBERS = 10_000
"""A round moves 80 kB, the state is twice that."""
HOLD_S = 5.0
SLOW_MBIT, TOO_SLOW_MBIT = 0.8, 0.16
"""The state takes 2.3 s over the one, 11 s over the other."""


FAR_MBIT, FAR_MS = 1000.0, 200.0
"""Latency one way: longer than a lone founder takes for all the rounds whose results it keeps."""
FEW_NUMBERS = 1_000
"""So few that by the figures the link carries rounds and state beside each other, whatever the machine's pace."""


def behind(cluster: Cluster, site: Site, rate_mbit: float, latency_ms: float = 5.0) -> None:
    """Its only link, with the founder, has this rate, both ways."""
    founder = cluster.sites[0]
    for one, other in ((founder, site), (site, founder)):
        with one.shapes_path.open("a", encoding="utf-8") as file:
            file.write(
                f'[[shapes]]\nsite = "{other.identity.site}"\nrate_mbit = {rate_mbit}\nlatency_ms = {latency_ms}\n'
            )


def judged(founder: Site, outcome: str) -> str:
    """What the founder's history says of a join that came to this, empty as long as none has."""
    return next((event.reason for event in founder.events("scale-out") if event.outcome == outcome), "")


def test_a_join_over_a_slow_link_ends_with_the_figures_at_both_ends(tmp_path: Path) -> None:
    with cluster_of(tmp_path, HOSPITALS, min_sites=1, extra=f"join_hold_s = {HOLD_S}") as cluster:
        founder, slow, too_slow = cluster.sites
        text = too_slow.config_path.read_text(encoding="utf-8")
        too_slow.config_path.write_text(text[: text.rindex("[[peers]]")], encoding="utf-8")
        behind(cluster, slow, SLOW_MBIT)
        behind(cluster, too_slow, TOO_SLOW_MBIT)
        for number, site in enumerate(cluster.sites, start=1):
            site.start()
            train(site, number, extra=["--numbers", str(NUMBERS)])
            if site is founder:
                wait_for(lambda: founder.round() > 10, "the founder trains")
        wait_for(slow.is_member, "the slow one has joined")
        reason = wait_for(lambda: judged(founder, "refused"), "the other one is refused")
        for told in (reason, wait_for(lambda: paused(too_slow, "too slow"), "and knows why")):
            assert "its links are too slow to follow this run: a round moves 0.08 MB every" in told
            assert "the state of 0.16 MB takes about" in told and "the run waits for a joiner for at most 5 s" in told
            assert "Give it a faster link, call step() less often" in told and "raise join_hold_s at all sites" in told
        wait_for(lambda: "its links are too slow" in too_slow.worker_log.read_text(), "so does its script")
        (held,) = [event.reason for event in founder.events("scale-out") if event.cause == CANNOT_FOLLOW]
        assert "rounds wait for it, 5 s at most: a round moves 0.08 MB every" in held, "the founder has the figures"
        assert "rounds wait until hungary has the state, 5 s at most" in founder.worker_log.read_text()
        before = slow.round()
        wait_for(lambda: slow.round() > before + 3, "rounds go on, at the pace of the slow link")
        assert too_slow.daemon_runs() and too_slow.worker_runs()


def paused(site: Site, words: str) -> str:
    """Why it waits, as soon as these words are in it."""
    text = site.client.status().paused
    return text if words in text else ""


@pytest.mark.long
def test_a_site_that_is_further_away_than_a_lone_founders_rounds_last_is_counted(tmp_path: Path) -> None:
    """It is outrun, again and again, until the rounds wait for it (spec 8.16), or catches up before: the founder's
    worker may have stood for the moment that it takes."""
    with cluster_of(tmp_path, {"cleveland": "Cleveland", "hungary": "Hungary"}, min_sites=1) as cluster:
        founder, far = cluster.sites
        behind(cluster, far, FAR_MBIT, FAR_MS)
        for number, site in enumerate(cluster.sites, start=1):
            site.start()
            train(site, number, pace_s=0.0, extra=["--numbers", str(FEW_NUMBERS)])
            if site is founder:
                wait_for(lambda: founder.round() > 100, "the founder trains")
        wait_for(far.is_member, "the far one has joined")
        wait_for(lambda: counts_both(founder), "a round counts both")
        outrun = [event for event in far.events("scale-out") if event.reason == "the state is fetched again"]
        waited = [event.reason for event in founder.events("scale-out") if event.cause == CANNOT_FOLLOW]
        assert bool(waited) == (len(outrun) >= OUTRUN_MAX)
        assert all("the rounds were too fast for it each time before" in reason for reason in waited)
        before = founder.round()
        wait_for(lambda: founder.round() > before + 20, "rounds go on")
        assert counts_both(founder)


def counts_both(site: Site) -> bool:
    """Whether the last round that its log has counts two sites."""
    last = site.rounds()[-1]
    weights = last["weights"]
    assert isinstance(weights, dict)
    return len(weights) == 2 and all(weight > 0 for weight in weights.values())
