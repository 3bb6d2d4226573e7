"""Real daemons, real training processes, real connections: what a run must be when sites join, die and leave."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import numpy as np
import pytest
from tests.integration.reference import read_rounds, replay
from tests.integration.small_training import train
from tests.rigs.site import Cluster, Site, cluster_of, wait_for

HOSPITALS = {"cleveland": "Cleveland", "hungary": "Hungary", "va": "VA Long Beach", "swiss": "Switzerland"}
SEED = 7
PACE_S = 0.1
"""Of a round: whoever trains on leaves the processor to those that start, and there is less to repeat at the end."""
TOLERANCE = 1e-6
"""Float64 sums in another order differ by about 1e-15 a round."""


def start(cluster: Cluster, *names: str, rounds: int, pace_s: float = 0.02, extra: list[str] | None = None) -> None:
    for site in cluster.sites:
        if site.name in names:
            site.start()
            site.train(rounds=rounds, pace_s=pace_s, seed=SEED, extra=extra)


def start_small(cluster: Cluster) -> None:
    """All of them, with the training that is not torch's: for tests of who goes on and who waits."""
    for number, site in enumerate(cluster.sites, start=1):
        site.start()
        train(site, number)


def by_name(cluster: Cluster, name: str) -> Site:
    return next(site for site in cluster.sites if site.name == name)


def compare_with_reference(cluster: Cluster, final: Site) -> None:
    """The final model of a site against the same training in one process."""
    report = final.read_report()
    logs = [site.folder / "rounds.jsonl" for site in cluster.sites if (site.folder / "rounds.jsonl").exists()]
    hospital_of = {site.identity.site: site.hospital for site in cluster.sites}
    model = replay(read_rounds(*logs), hospital_of, seed=SEED, last=report["rounds"])
    for name, value in model.state_dict().items():
        np.testing.assert_allclose(np.array(report["parameters"][name]), value.numpy(), rtol=0, atol=TOLERANCE)


def test_three_hospitals_end_with_the_same_bits_and_the_reference_model(tmp_path: Path) -> None:
    with cluster_of(tmp_path, dict(list(HOSPITALS.items())[:3]), min_sites=3) as cluster:
        start(cluster, *HOSPITALS, rounds=60, pace_s=0.0)
        for site in cluster.sites:
            wait_for(lambda site=site: site.report_path.exists(), f"{site.name}: report")
        reports = [site.read_report() for site in cluster.sites]
        assert len({report["parameters_digest"] for report in reports}) == 1
        assert len({report["state_digest"] for report in reports}) == 1
        assert {report["rounds"] for report in reports} == {60}
        compare_with_reference(cluster, cluster.sites[0])
        for site in cluster.sites:
            assert site.daemon is not None and wait_for(
                lambda site=site: site.daemon.poll() is not None, f"{site.name}: the daemon ends after the leave"
            )
            assert site.daemon.returncode == 0, site.tail()
        wait_for(lambda: not cluster.leftovers(), f"nothing left behind: {cluster.leftovers()}")


def test_join_kill_and_leave_change_nothing_but_who_contributes(tmp_path: Path) -> None:
    """The demo's schedule: one joins, one is killed and comes back, one leaves by Ctrl+C; the model is the
    reference's."""
    with cluster_of(tmp_path, HOSPITALS, min_sites=3) as cluster:
        swiss, va, hungary = by_name(cluster, "swiss"), by_name(cluster, "va"), by_name(cluster, "hungary")
        cleveland = by_name(cluster, "cleveland")
        start(cluster, "cleveland", "hungary", "va", rounds=100_000, pace_s=PACE_S, extra=["--digests"])
        wait_for(lambda: cleveland.round() > 5, "three hospitals train")
        swiss.start()
        swiss.train(pace_s=PACE_S, seed=SEED, extra=["--digests"])
        wait_for(swiss.is_member, "Switzerland is a member")
        va.kill()
        before = cleveland.round()
        wait_for(lambda: cleveland.round() > before + 5, "the others go on")
        va.start()
        va.train(pace_s=PACE_S, seed=SEED, extra=["--digests"])
        wait_for(va.is_member, "VA is back")
        assert hungary.worker is not None and hungary.daemon is not None
        hungary.worker.send_signal(signal.SIGINT)
        wait_for(lambda: hungary.report_path.exists(), "Hungary has left")
        assert (
            wait_for(lambda: hungary.daemon.poll() is not None, "its daemon has ended")
            and hungary.daemon.returncode == 0
        )
        before = cleveland.round()
        wait_for(lambda: cleveland.round() > before + 5, "the others go on")
        for site in (cleveland, swiss, va):
            assert site.worker is not None
            site.worker.send_signal(signal.SIGINT)
        for site in (cleveland, swiss, va):
            wait_for(lambda site=site: site.report_path.exists(), f"{site.name} has left")
        digests: dict[str, set[str]] = {}
        for site in cluster.sites:
            for number, digest in site.read_report()["state_digests"].items():
                digests.setdefault(number, set()).add(digest)
        assert len(digests) > 20 and all(len(seen) == 1 for seen in digests.values())
        last = max((site.read_report()["rounds"], site.name) for site in (cleveland, swiss, va))
        compare_with_reference(cluster, by_name(cluster, last[1]))
        kinds = [(event.kind, event.cause) for event in hungary_events(tmp_path)]
        assert not any("failed" in cause for kind, cause in kinds if kind == "scale-in" and "hungary" in cause)


def hungary_events(folder: Path) -> list[object]:
    from chaosd.storage.history import History

    with History.open(folder / "cleveland" / "history.sqlite") as history:
        return list(history.latest(500))


@pytest.mark.parametrize("victim", ["follower's daemon", "follower's worker", "scheduler's daemon", "whole follower"])
def test_survivors_go_on_after_a_kill_and_stay_equal(tmp_path: Path, victim: str) -> None:
    with cluster_of(tmp_path, dict(list(HOSPITALS.items())[:3]), min_sites=3) as cluster:
        start_small(cluster)
        wait_for(lambda: all(site.round() > 5 for site in cluster.sites), "all three train")
        wait_for(lambda: sum(site.voter for site in cluster.sites[0].client.status().sites) == 3, "three voters")
        scheduler = next(
            site for site in cluster.sites if site.identity.site == cluster.sites[0].client.status().scheduler
        )
        followers = [site for site in cluster.sites if site is not scheduler]
        dead = scheduler if victim.startswith("scheduler") else followers[0]
        survivors = [site for site in cluster.sites if site is not dead]
        before = max(site.round() for site in survivors)
        dead.kill({"follower's worker": "worker", "whole follower": "both"}.get(victim, "daemon"))
        killed_s = time.monotonic()
        wait_for(lambda: all(site.round() > before + 1 for site in survivors), "the survivors' next rounds")
        print(f"{victim}: next rounds after {time.monotonic() - killed_s:.2f} s")
        for site in survivors:
            assert site.worker is not None
            site.worker.send_signal(signal.SIGINT)
        for site in survivors:
            wait_for(lambda site=site: site.report_path.exists(), f"{site.name}: report")
        one, other = (site.read_report()["digests"] for site in survivors)
        common = set(one) & set(other)
        assert len(common) > 5 and all(one[number] == other[number] for number in common)


def test_of_two_sites_the_scheduler_goes_on_and_the_other_waits(tmp_path: Path) -> None:
    """Spec 5.13: no split brain with two sites."""
    with cluster_of(tmp_path, dict(list(HOSPITALS.items())[:2]), min_sites=2) as cluster:
        first, second = cluster.sites
        start_small(cluster)
        wait_for(lambda: first.round() > 5 and second.round() > 5, "both train")
        second.kill()
        before = first.round()
        wait_for(lambda: first.round() > before + 3, "the scheduler goes on alone")
        second.start()
        train(second, 2)
        wait_for(second.is_member, "the other is back")
        wait_for(lambda: second.round() > before + 8, "both train again")
        first.kill()
        wait_for(lambda: "no scheduler" in second.client.status().paused, "the other pauses and says why")
        stuck = second.round()
        time.sleep(1.0)
        assert second.round() <= stuck + 1
        first.start()
        train(first, 1)
        wait_for(lambda: second.round() > stuck + 3 and first.is_member(), "both train when the first is back")
