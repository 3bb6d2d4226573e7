"""A script that hangs, one that evaluates, one that computes a NaN: the others go on, and everybody says what lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.integration.small_training import train
from tests.rigs.site import Site, cluster_of, end_level, wait_for

PAIR = {"cleveland": "Cleveland", "hungary": "Hungary"}
FAILURE_TIMEOUT_S = 0.5
"""A round then waits 5 s for a script; the rounds here take a hundredth of that."""
PATIENT_S = 4.0
"""It is told for whom a round waits after 8 s: who only lacks a processor is not meant."""


def causes(site: Site, kind: str) -> list[Any]:
    return [event.cause for event in site.events(kind)]


def test_a_script_that_hangs_is_named_then_not_waited_for_and_catches_up(tmp_path: Path) -> None:
    with cluster_of(tmp_path, PAIR, min_sites=2, failure_timeout_s=FAILURE_TIMEOUT_S) as cluster:
        first, second = cluster.sites
        config = second.config_path
        command = f'on_hang = "echo $CHAOS_WORKER_PID > {second.folder}/overdue"'
        config.write_text(command + "\n" + config.read_text())
        for site in cluster.sites:
            site.start()
        train(first, 1)
        train(second, 2, gate=12)
        wait_for(lambda: [one.name for one in first.client.status().waits_for] == ["hungary"], "it is named")
        wait_for(lambda: "waits for hungary" in first.client.status().paused, "status says why")
        wait_for(lambda: "waits for this site's script" in second.worker_log.read_text(), "its own script is told")
        wait_for(lambda: "waits for hungary" in first.worker_log.read_text(), "and the one that waits")
        wait_for(lambda: first.round() > 20, "the other goes on without it")
        assert any("its part was waited for" in cause for cause in causes(second, "rest"))
        wait_for(lambda: [one.name for one in first.client.status().resting] == ["hungary"], "why it has weight 0")
        assert second.worker is not None
        overdue = second.folder / "overdue"
        wait_for(lambda: overdue.exists() and overdue.read_text().strip() == str(second.worker.pid), "on_hang was run")
        wait_for(lambda: not first.client.status().paused and second.is_in_standby(), "nobody waits")
        (second.folder / "go").touch()
        wait_for(second.is_member, "it has caught up and contributes")
        assert len(causes(second, "transfer")) == 1, "but for its joining, by results alone"
        before = second.round()
        wait_for(lambda: second.round() > before + 5, "both train")
        end_level(cluster, over=10)


def test_a_nan_and_an_evaluation_cost_the_others_nothing(tmp_path: Path) -> None:
    with cluster_of(tmp_path, PAIR, min_sites=2, failure_timeout_s=PATIENT_S) as cluster:
        first, second = cluster.sites
        for site in cluster.sites:
            site.start()
        train(first, 1)
        train(second, 2, extra=["--nan", "6", "--evaluate", "12"])
        wait_for(lambda: "its script evaluates" in causes(second, "rest"), "it evaluates")
        assert causes(second, "skip")[0] == "the gradient of 'weights' is not finite"
        assert "round 6: the gradient of 'weights' is not finite" in second.worker_log.read_text()
        before = first.round()
        wait_for(lambda: first.round() > before + 20, "the other trains on")
        assert not first.events("pause") or all("waits for" not in cause for cause in causes(first, "pause"))
        (second.folder / "evaluated").touch()
        wait_for(second.is_member, "it goes on")
        before = second.round()
        wait_for(lambda: second.round() > before + 5, "both train")
        end_level(cluster, over=10)
