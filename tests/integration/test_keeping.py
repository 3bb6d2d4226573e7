"""Real processes: a killed worker goes on from its own daemon. (A run that was killed everywhere: test_power_cut.)"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.integration.gated_worker import NUMBERS, Training
from tests.integration.reference import read_rounds
from tests.integration.small_training import train
from tests.rigs.site import Site, cluster_of, environment, wait_for

from chaos.frameworks.numpy import NumpyFramework
from chaos.state import State

GATE = 30
LAST = 60
HOSPITALS = {"cleveland": "Cleveland", "hungary": "Hungary", "va": "VA Long Beach"}


def report(site: Site) -> dict[str, object]:
    wait_for(site.report_path.exists, f"{site.name}: report\n{site.tail()}")
    return site.read_report()


def digests_alone(rounds: dict[int, dict[str, float]]) -> dict[str, str]:
    """Of the state after each round, calculated here from who gave which weight; a site's weight is its number."""
    training = Training(NUMBERS)
    framework = NumpyFramework(training.arrays, training.apply, {"weights": np.zeros(NUMBERS)})
    found = {}
    for number in range(1, LAST + 1):
        given = [weight for weight in rounds[number].values() if weight]
        whole = sum(weight * training.gradient(int(weight), number) for weight in given)
        training.apply({"weights": np.asarray(whole / sum(given))}, number)
        found[str(number)] = State(framework.items).digest()
    return found


def test_a_killed_worker_goes_on_from_its_own_daemon_bit_for_bit(tmp_path: Path) -> None:
    """Three sites; at round GATE the third waits, and the second's worker is killed and started again. No transfer, no
    negotiation, and in every round the state that the training has where nobody is killed."""
    with cluster_of(tmp_path, HOSPITALS, min_sites=3) as cluster:
        cluster.wire(min_sites=len(cluster.sites), extra="memory_checkpoint_every_rounds = 4")
        for number, site in enumerate(cluster.sites, start=1):
            site.start()
            train(site, number, gate=GATE if number == 3 else 0, rounds=LAST, pace_s=0.0)
        victim, gated = cluster.sites[1], cluster.sites[2]
        wait_for(lambda: all(site.round() == GATE - 1 for site in cluster.sites), "everybody waits for the third")
        wait_for(lambda: victim.client.status().worker.phase == "reduce", "the second has given its part of the round")
        before = [len(site.events()) for site in cluster.sites]
        victim.kill("worker")
        wait_for(lambda: not victim.client.status().worker.connected, "the death is seen")
        started_s = time.monotonic()
        train(victim, 2, rounds=LAST, pace_s=0.0)
        wait_for(lambda: victim.client.status().worker.phase != "standby", f"it trains again\n{victim.tail()}")
        took_s = time.monotonic() - started_s
        later = [event for site, known in zip(cluster.sites, before, strict=True) for event in site.events()[known:]]
        negotiated = ("transfer", "scale-out", "scale-in", "restore-point")
        assert [event.kind for event in later if event.kind in negotiated] == []
        (restored,) = [event for event in later if event.kind == "restore"]
        assert restored.outcome == "done" and f"round {GATE - 2}" in restored.reason, restored
        assert "in-memory checkpoint" in restored.reason
        print(f"restored in {1000 * restored.duration_s:.1f} ms ({restored.reason}); worker back in {took_s:.2f} s")
        (gated.folder / "go").touch()
        reports = [report(site) for site in cluster.sites]
        rounds = read_rounds(*(site.folder / "rounds.jsonl" for site in cluster.sites))
        assert all(sorted(rounds[number].values()) == [1.0, 2.0, 3.0] for number in range(GATE - 10, LAST)), (
            "it missed no round"
        )
        expected = digests_alone(rounds)
        for found in reports:
            digests: dict[str, str] = found["digests"]  # type: ignore[assignment]
            assert len(digests) > LAST - GATE and digests.items() <= expected.items()
        assert "Traceback" not in victim.daemon_log.read_text()


def test_a_run_that_all_scripts_have_left_goes_on_from_its_last_round(tmp_path: Path) -> None:
    """While it trained one checkpoint was written, in its first rounds: the next would have come after 10 s."""
    with cluster_of(tmp_path, {"cleveland": "Cleveland", "hungary": "Hungary"}, min_sites=2) as cluster:
        cluster.wire(min_sites=len(cluster.sites))
        for number, site in enumerate(cluster.sites, start=1):
            site.start()
            train(site, number, rounds=LAST, pace_s=0.0)
        digests: list[dict[str, str]] = [report(site)["digests"] for site in cluster.sites]  # type: ignore[misc]
        assert digests[0][str(LAST)] == digests[1][str(LAST)]
        for site in cluster.sites:
            wait_for(lambda site=site: site.worker.poll() is not None, "the script ends")
            assert site.newest_checkpoint() == LAST, site.tail()
            assert site.worker.returncode == 0, site.tail()
        for number, site in enumerate(cluster.sites, start=1):
            site.report_path.unlink()
            wait_for(lambda site=site: site.daemon.poll() is not None, "its daemon ends with it")
            site.start()
            train(site, number, rounds=2 * LAST, pace_s=0.05)
        for site in cluster.sites:
            again = report(site)
            assert again["rounds"] == 2 * LAST
            digests_again: dict[str, str] = again["digests"]  # type: ignore[assignment]
            assert min(map(int, digests_again)) > LAST, "none was done twice"
        wait_for(lambda: {site.newest_checkpoint() for site in cluster.sites} == {2 * LAST}, "both have kept the end")


def test_an_interrupted_daemon_leaves_nothing_of_a_memory_checkpoint_or_checkpoint(tmp_path: Path) -> None:
    """Ctrl+C while copies and files of every round are under way."""
    with cluster_of(tmp_path, {"cleveland": "Cleveland"}, min_sites=1) as cluster:
        cluster.wire(
            min_sites=len(cluster.sites),
            extra='memory_checkpoint_every_rounds = 1\ncheckpoint = "fixed"\ncheckpoint_every_rounds = 1',
        )
        (site,) = cluster.sites
        site.start()
        train(site, 1, pace_s=0.0)
        wait_for(lambda: site.round() > 20, "it trains")
        assert site.daemon is not None and site.worker is not None
        site.daemon.send_signal(signal.SIGINT)
        wait_for(lambda: site.daemon.poll() is not None, "the daemon ends")  # type: ignore[union-attr]
        assert site.daemon.returncode == 0, site.tail()
        wait_for(lambda: site.worker.poll() is not None, "the worker ends")  # type: ignore[union-attr]
        assert not list((site.folder / "checkpoints").glob(".*"))
        assert list((site.folder / "checkpoints").glob("*.safetensors"))
        assert "Traceback" not in site.daemon_log.read_text()
        wait_for(lambda: not cluster.leftovers(), "nothing left behind")


@pytest.mark.parametrize("way", ["its script is started again", "its checkpoint is imported"])
def test_what_a_leaver_alone_has_is_waited_for_and_can_be_had(tmp_path: Path, way: str) -> None:
    """Hungary's worker dies, and Cleveland trains on alone to the end and leaves. The worker that comes back to Hungary
    does not go on from the older checkpoint there."""
    with cluster_of(tmp_path, {"cleveland": "Cleveland", "hungary": "Hungary"}, min_sites=2) as cluster:
        cluster.wire(min_sites=2, extra='checkpoint = "fixed"\ncheckpoint_every_rounds = 5')
        leaver, stays = cluster.sites
        for number, site in enumerate(cluster.sites, start=1):
            site.start()
            train(site, number, rounds=LAST, pace_s=0.02)
        wait_for(lambda: stays.round() > LAST // 4, "they train")
        stays.kill("worker")
        assert report(leaver)["rounds"] == LAST, leaver.tail()
        wait_for(lambda: leaver.daemon.poll() is not None, "its daemon ends")  # type: ignore[union-attr]
        assert stays.newest_checkpoint() < leaver.newest_checkpoint() == LAST
        assert f"warning: no other site has the state of round {LAST}: hungary" in leaver.worker_log.read_text()
        train(stays, 2, rounds=2 * LAST, pace_s=0.02)
        wait_for(lambda: "it has left" in stays.client.status().paused, "it says for whom it waits")
        told = stays.client.status().paused
        assert "cleveland (it has left with what nobody else had" in told
        assert f"the newest here: round {stays.newest_checkpoint()} at hungary" in told
        leaver.report_path.unlink()
        if "script" in way:
            leaver.start()
            train(leaver, 1, rounds=2 * LAST, pace_s=0.02)
        else:
            (newest,) = (leaver.folder / "checkpoints").glob(f"round-*{LAST}-*")
            command = [sys.executable, "-m", "chaosd", "checkpoint", "import", str(newest), "--config"]
            subprocess.run([*command, str(stays.config_path)], check=True, env=environment())
            stays.kill("daemon")
            stays.start()
        last = report(stays)
        assert last["rounds"] == 2 * LAST, "it goes on"
        assert min(map(int, last["digests"])) > LAST, "and does no round twice"  # type: ignore[call-overload]
        if "script" in way:
            assert report(leaver)["digests"][str(2 * LAST)] == last["digests"][str(2 * LAST)]  # type: ignore[index]
