"""Training modes with real daemons: joins and deaths in the middle of a phase of local steps, rates that follow
the sites, and the same state everywhere after it."""

from __future__ import annotations

import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.integration.gated_worker import NUMBERS, Training
from tests.integration.reference import read_rounds
from tests.integration.small_training import train
from tests.rigs.site import Site, cluster_of, end_level, wait_for

from chaos import LearningRateRule

TRIO = {"cleveland": "Cleveland", "hungary": "Hungary", "va": "VA Long Beach"}
STREAMING = ["--every", "36", "--fragments", "3", "--delay", "5", "--encoding", "int8"]


def test_local_steps_through_a_refusal_a_join_and_a_death(tmp_path: Path) -> None:
    """A round of a third of the model after every 12 steps, in 8 bits, taken over 5 steps later. The third site first
    comes with another mode, then joins in the middle of a phase; the script of the second one is killed in the middle
    of another."""
    with cluster_of(tmp_path, TRIO, min_sites=2, exit_with_worker=False) as cluster:
        first, second, third = cluster.sites
        for site in cluster.sites:
            site.start()
        train(first, 1, extra=STREAMING)
        train(second, 2, extra=STREAMING)
        wait_for(lambda: first.round() >= 3 and second.round() >= 3, "two sites train")
        train(third, 3, extra=["--every", "7"])
        told = "outer=SGD(lr=0.7, momentum=0.9, nesterov=True) warmup_rounds=10' here and 'DiLoCo every=36"
        wait_for(lambda: told in third.worker_log.read_text(), "both modes are named")
        wait_for(lambda: third.worker is not None and third.worker.poll() is not None, "the other mode is out")
        train(third, 3, extra=STREAMING)
        wait_for(third.is_member, "the right one is in")
        came = third.round()
        wait_for(lambda: third.round() >= came + 2, "three sites train")
        second.signal("worker", signal.SIGKILL)
        assert second.worker is not None
        second.worker.wait(60)
        wait_for(second.is_in_standby, "its daemon goes on with weight 0")
        went = first.round()
        wait_for(lambda: first.round() >= went + 2, "the others go on")
        train(second, 2, extra=STREAMING)
        wait_for(second.is_member, "its script is back")
        back = second.round()
        wait_for(lambda: second.round() >= back + 4, "three sites train again")
        assert not first.events("drift") and not second.events("drift")
        end_level(cluster)


@pytest.mark.long
def test_a_long_phase_is_no_stall_for_a_joiner(tmp_path: Path) -> None:
    """Nothing is averaged for longer than a transfer may stand still: the joiner gets the state between two steps."""
    with cluster_of(tmp_path, dict(list(TRIO.items())[:2]), min_sites=1, failure_timeout_s=0.3) as cluster:
        first, second = cluster.sites
        for site in cluster.sites:
            site.start()
        slow = ["--every", "100"]  # 5 s a round; a transfer stalls after 3 s
        train(first, 1, pace_s=0.05, extra=slow)
        wait_for(lambda: first.round() >= 1, "a site alone")
        train(second, 2, pace_s=0.05, extra=slow)
        wait_for(second.is_member, "it is in")
        came = second.round()
        wait_for(lambda: second.round() > came, "and averages")
        assert not [event for event in first.events("scale-out") if event.outcome == "failed"]
        for site in cluster.sites:
            site.signal("worker", signal.SIGINT)
        for site in cluster.sites:
            wait_for(site.report_path.exists, f"{site.name}: report")
        one, other = (site.read_report()["digests"] for site in cluster.sites)
        common = set(one) & set(other)
        assert common and all(one[number] == other[number] for number in common)


def test_sites_of_different_speed_work_for_the_same_seconds(tmp_path: Path) -> None:
    """A step of the second site takes ten times as long: once both have measured, it makes fewer in a round than the
    first one, and nobody's state differs."""
    with cluster_of(tmp_path, dict(list(TRIO.items())[:2]), min_sites=2) as cluster:
        first, second = cluster.sites
        for site in cluster.sites:
            site.start()
        paced = ["--every", "6", "--by-time"]
        train(first, 1, pace_s=0.02, extra=paced)
        train(second, 2, pace_s=0.2, extra=paced)
        wait_for(lambda: min(site.round() for site in cluster.sites) >= 6, "both train")
        common = end_level(cluster)
        quick, slow = ({int(r): n for r, n in site.read_report()["steps"].items()} for site in cluster.sites)
        whole = [number for number in range(2, max(map(int, common))) if number in quick and number in slow]
        assert len(whole) >= 2 and sum(slow[number] for number in whole) < sum(quick[number] for number in whole)


def left(*sites: Site) -> list[dict[str, Any]]:
    """Their scripts end; what each has reported."""
    for site in sites:
        site.signal("worker", signal.SIGINT)
    for site in sites:
        wait_for(site.report_path.exists, f"{site.name}: report")
    return [site.read_report() for site in sites]


def weights_of_rounds(*sites: Site) -> dict[int, dict[str, float]]:
    """By round, as the daemons' logs have them."""
    return read_rounds(*(site.data_dir / "rounds.jsonl" for site in sites))


def test_learning_rates_follow_a_site_that_joins_and_one_that_leaves(tmp_path: Path) -> None:
    """Linear in the weight: sites of 1 and 2 samples train, one of 3 joins, the one of 2 leaves (FlexiTrain 3.1). Each
    round has the factor of the weight of the round before, the same at all sites, and the weights are those of the
    training calculated here, bit for bit."""
    rule = LearningRateRule(kind="linear", reference=3)
    ruled = ["--rule", "linear:3"]
    with cluster_of(tmp_path, TRIO, min_sites=2, exit_with_worker=False) as cluster:
        first, second, third = cluster.sites
        for site in cluster.sites:
            site.start()
        train(first, 1, extra=ruled)
        train(second, 2, extra=ruled)
        wait_for(lambda: min(first.round(), second.round()) >= 4, "two sites train")
        train(third, 3, extra=ruled)
        wait_for(third.is_member, "the third is in")
        came = third.round()
        wait_for(lambda: min(site.round() for site in cluster.sites) >= came + 4, "three sites train")
        (gone,) = left(second)
        wait_for(lambda: len(first.client.status().sites) == 2, "the second is out")
        went = first.round()
        wait_for(lambda: min(first.round(), third.round()) >= went + 4, "the others go on")
        reports = [gone, *left(first, third)]
        logged = weights_of_rounds(first, third)
    for one, other in pairwise(reports):
        for kind in ("digests", "factors", "weights"):
            common = set(one[kind]) & set(other[kind])
            assert len(common) >= 4 and all(one[kind][number] == other[kind][number] for number in common), kind
    factors = {int(number): factor for report in reports for number, factor in report["factors"].items()}
    found = {int(number): digest for report in reports for number, digest in report["weights"].items()}
    for samples in (3, 6, 4):
        assert any(factor == pytest.approx(samples / 3) for factor in factors.values()), f"rounds of {samples} samples"
    training, last = Training(NUMBERS), rule.reference
    for number in range(1, max(factors) + 1):
        given = [weight for weight in logged[number].values() if weight > 0]
        mean = sum(weight * training.gradient(int(weight), number) for weight in given) / sum(given)
        assert factors[number] == pytest.approx(rule.factor(last), rel=1e-12), f"round {number}, one round later"
        training.apply({"weights": mean}, number, factors[number])
        assert training.digest() == found[number], f"round {number}"
        last = sum(given)
