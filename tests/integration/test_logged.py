"""What a script tells its operator (`Coordinator.log`): kept by its daemon, shown, bounded; nothing follows from it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.rigs.site import cluster_of, wait_for
from typer.testing import CliRunner

from chaos import Coordinator
from chaos.testing import LocalRun
from chaos_protocols.wire.worker import FIGURES_MAX
from chaosd.cli.app import app


def registered(coordinator: Coordinator) -> Coordinator:
    weights = {"w": np.zeros(2)}
    coordinator.register(arrays=weights, apply=lambda averaged, round: None)
    return coordinator


def test_the_newest_figures_stand_in_status_and_metrics_of_the_site(tmp_path: Path) -> None:
    with cluster_of(tmp_path, {"a": "Cleveland"}, min_sites=1, exit_with_worker=False) as cluster:
        (site,) = cluster.sites
        site.start()
        with registered(Coordinator(site.worker_socket, handle_signals=False, verbose=False)) as coordinator:
            for loss in (3.0, 2.0):
                coordinator.step()
                coordinator.log(loss=loss, norm=float("nan"))
            found = wait_for(
                lambda: [one for one in site.client.status().worker.figures if (one.round, one.value) == (2, 2.0)],
                "the newest loss",
            )
            assert found[0].name == "loss"
            assert {one.name: one.value for one in site.client.status().worker.figures}["norm"] is None
            told = site.client.metrics()
            assert 'chaosd_script_figure{figure="loss"} 2.0' in told
            assert 'chaosd_script_figure{figure="norm"} NaN' in told
            shown = CliRunner().invoke(app, ["status", "--config", str(site.config_path)]).output
            assert "loss 2" in shown and "norm not finite" in shown
            for number in range(FIGURES_MAX + 8):
                coordinator.log(**{f"layer.{number}": number})
            wait_for(lambda: f"layer.{FIGURES_MAX + 7}" in names(site), "the last name")
            assert len(names(site)) == FIGURES_MAX and "loss" not in names(site)
        with registered(Coordinator(site.worker_socket, handle_signals=False, verbose=False)):
            assert names(site) == set(), "those of the script before"


def names(site: object) -> set[str]:
    return {one.name for one in site.client.status().worker.figures}  # type: ignore[attr-defined]


def test_a_name_that_is_none_is_refused_and_without_a_daemon_nothing_is_sent() -> None:
    alone = registered(Coordinator(standalone=True, handle_signals=False, verbose=False))
    alone.log(loss=1.0)
    for figures in ({"a b": 1.0}, {"x" * 33: 1.0}, {"1st": 1.0}, {f"f{n}": 0.0 for n in range(FIGURES_MAX + 1)}):
        with pytest.raises(ValueError):
            alone.log(**figures)
    with pytest.raises((ValueError, TypeError)):
        alone.log(loss="high")  # type: ignore[arg-type]


def test_a_local_run_takes_figures_and_goes_on() -> None:
    def script(socket: Path) -> int:
        with registered(Coordinator(socket, handle_signals=False, verbose=False)) as coordinator:
            coordinator.log(loss=1.0)
            coordinator.step()
            return coordinator.round

    with LocalRun(sites=2) as run:
        assert run.together(script, script) == [1, 1]
