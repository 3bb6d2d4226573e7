"""Real daemons: a majority of the voters is gone for good, data directories and all, and the run is recovered."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.integration.small_training import train
from tests.rigs.site import Site, cluster_of, end_level, wait_for
from tests.tidy.test_docs import blocks
from tests.tidy.tree import ROOT
from typer.testing import CliRunner

from chaosd.api.client import NoDaemonError
from chaosd.cli.app import app

pytestmark = pytest.mark.long

QUIET_S = 10.0
"""Of a failure timeout of one second: a scheduler that was heard no longer ago may come back."""


LOOK, GIVE_UP, FOLLOW = (block.split() for block in blocks(ROOT / "docs/how-to/replace-a-lost-majority.md", ""))
"""The commands of the page, as a reader would type them."""


def command(site: Site, *words: str) -> tuple[int, str]:
    """What `chaosd recover` prints on one line, and how it ends."""
    done = CliRunner().invoke(app, ["recover", *words, "--data-dir", str(site.folder)], catch_exceptions=False)
    return done.exit_code, " ".join(done.output.split())


def burn_down(site: Site) -> None:
    site.kill()
    shutil.rmtree(site.folder)


def begin(site: Site, number: int) -> None:
    site.start()
    train(site, number)


def goes_on(site: Site, above: int) -> None:
    wait_for(lambda: trains(site, above + 5), f"{site.name} trains on\n{site.tail()}")


def trains(site: Site, above: int) -> bool:
    """Between two lives of its daemon nobody answers."""
    with contextlib.suppress(NoDaemonError):
        return site.is_member() and site.round() > above
    return False


def reached(site: Site) -> int:
    return int((site.folder / "round").read_text())


def restore_point(site: Site) -> Any:
    return site.events("restore-point")[-1]


def test_of_two_sites_the_other_goes_on_when_the_founder_is_destroyed(tmp_path: Path) -> None:
    hospitals = {"Cleveland": "Cleveland", "Hungary": "Hungary", "va": "VA Long Beach"}
    with cluster_of(tmp_path, hospitals, min_sites=2) as cluster:
        cleveland, hungary, va = cluster.sites
        begin(cleveland, 1)
        begin(hungary, 2)
        goes_on(hungary, 10)
        assert hungary.worker is not None
        worker = hungary.worker.pid
        code, told = command(hungary)
        assert code == 0 and "nothing to recover" in told, told
        code, told = command(hungary, "--without", "Cleveland")
        assert code == 1 and "Cleveland schedules the run" in told, told

        burn_down(cleveland)
        wait_for(lambda: hungary.client.status().paused_cause == "no-quorum", "it stands")
        stood = reached(hungary)
        code, told = command(hungary, "--without", "Cleveland")
        assert code == 1 and "ask again when none was heard for 10 s" in told, told
        wait_for(lambda: "Not here and now" not in command(hungary)[1], "long enough", limit_s=3 * QUIET_S)
        code, told = command(hungary, *LOOK[2:])
        assert "1 of 1 voters cannot be reached, or have lost their journals: Cleveland." in told, told
        assert "chaosd recover --without Cleveland" in told and f"the state of round {stood}" in told, told
        code, told = command(hungary, "--without", "va")
        assert code == 1 and "none of the sites of the run is 'va'" in told, told
        code, told = command(hungary, "--without", "Hungary")
        assert code == 1 and "Cleveland cannot be reached, or has lost its journal, and has a vote" in told, told
        before = hungary.client.status().run_id
        code, told = command(hungary, *GIVE_UP[2:])
        assert code == 0 and "only member and voter now" in told, told

        goes_on(hungary, stood)
        status = hungary.client.status()
        assert status.run_id not in ("", before) and [site.name for site in status.sites] == ["Hungary"]
        assert re.search(rf"goes on from its worker, at round {stood}\b", restore_point(hungary).reason)
        assert not hungary.events("transfer")[1:], "it was given its state once, when it joined"
        assert hungary.worker.pid == worker and hungary.worker_runs()
        begin(va, 3)
        goes_on(va, hungary.round())
        goes_on(va, va.round())
        cluster.sites.remove(cleveland)
        digests = end_level(cluster)
        rounds = sorted(map(int, digests))
        assert rounds == list(range(rounds[0], rounds[-1] + 1)) and rounds[0] < stood < rounds[-1], "it counts on"


def test_of_two_sites_the_other_goes_on_when_the_founder_comes_back_without_its_journal(tmp_path: Path) -> None:
    """Its vote is gone with the journal, though its daemon is linked and asks to join."""
    with cluster_of(tmp_path, {"Cleveland": "Cleveland", "Hungary": "Hungary"}, min_sites=1) as cluster:
        cleveland, hungary = cluster.sites
        begin(cleveland, 1)
        begin(hungary, 2)
        goes_on(hungary, 10)
        cleveland.kill()
        (cleveland.folder / "journal").unlink()
        shutil.rmtree(cleveland.folder / "checkpoints", ignore_errors=True)
        cleveland.configure("test", bootstrap=False, trust=[hungary], peers=[hungary], start_sites=1)
        begin(cleveland, 1)
        lost = "Cleveland came back without its journal"
        wait_for(lambda: lost in hungary.client.status().paused, "it stands, and says why")
        wait_for(lambda: cleveland.client.status().paused_cause == "run-without-scheduler", "so does the other")
        stood = reached(hungary)
        wait_for(lambda: "Not here and now" not in command(hungary)[1], "long enough", limit_s=3 * QUIET_S)
        code, told = command(hungary, *GIVE_UP[2:])
        assert code == 0 and "only member and voter now" in told, told
        goes_on(hungary, stood)
        goes_on(cleveland, hungary.round())
        goes_on(cleveland, cleveland.round())
        end_level(cluster)


def test_of_five_sites_with_three_gone_another_survivor_follows(tmp_path: Path) -> None:
    names = ("Cleveland", "Basel", "Switzerland", "Hungary", "va")
    with cluster_of(tmp_path, dict.fromkeys(names, "Cleveland"), min_sites=5) as cluster:
        sites = cluster.sites
        for number, site in enumerate(sites, start=1):
            begin(site, number)
        wait_for(lambda: all(site.is_member() and site.round() > 5 for site in sites), "they train")
        wait_for(lambda: all(one.voter for one in sites[0].client.status().sites), "all five vote")
        for site in sites[:3]:
            site.signal("daemon", signal.SIGKILL)  # at once: one after the other the rest would go on
        for site in sites[:3]:
            burn_down(site)
        hungary, va = sites[3:]
        wait_for(lambda: all(one.client.status().paused_cause == "no-quorum" for one in (hungary, va)), "both stand")
        wait_for(lambda: "Not here and now" not in command(hungary)[1], "long enough", limit_s=3 * QUIET_S)
        code, told = command(va, *FOLLOW[2:])
        assert code == 1 and "there is none" in told, told
        gone = [word for site in sites[:3] for word in ("--without", site.name)]
        code, told = command(hungary, *gone, "--without", "va")
        assert code == 1 and "va is in reach" in told, told
        code, told = command(hungary, *gone[:4])
        assert code == 1 and "Switzerland cannot be reached, or has lost its journal, and has a vote" in told, told
        stood = reached(hungary)
        code, told = command(hungary, *gone)
        assert code == 0, told
        goes_on(hungary, stood)

        wait_for(lambda: va.client.status().recovered, f"va hears of it\n{cluster.tails()}")
        assert va.client.status().paused_cause == "no-quorum", "nothing moves it but its operator"
        assert "without Cleveland" in (told := command(va)[1]) and "chaosd recover --follow" in told, told
        code, told = command(va, *FOLLOW[2:])
        assert code == 0 and "joins" in told, told
        goes_on(va, hungary.round())
        goes_on(va, va.round())
        assert va.client.status().run_id == hungary.client.status().run_id
        del cluster.sites[:3]
        end_level(cluster)
