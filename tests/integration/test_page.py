"""The page in a real browser: what stands on it is what the daemon says; what a site says is text, and no more."""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import msgspec
import pytest
from tests.integration.browser import Browser, missing
from tests.integration.served_page import HOSTILE, TURNED, many_sites, quiet_console, served, shown, window
from tests.rigs.site import cluster_of, environment, wait_for
from tests.unit.daemon.api.local_api import FakeControl, record

from chaos_lab.children import free_port
from chaosd.api.status import (
    AveragingStatus,
    LoggedFigure,
    RefusedSite,
    StorageStatus,
    TransferStatus,
    WaitStatus,
)
from chaosd.worker_group.board import BOARD_NAME, FOLDER_PREFIX, GroupView, WorkerView

__all__ = ["quiet_console", "window"]

LINES_OF = """
    return [...document.querySelectorAll("td")].filter((cell) => cell.textContent === arguments[0]).map((cell) => {
        const range = document.createRange();
        range.selectNodeContents(cell);
        return new Set([...range.getClientRects()].map((one) => one.top)).size;
    })"""
"""On how many lines cells with this text stand."""

pytestmark = pytest.mark.skipif(missing() != "", reason=missing() or "there is a browser")


def test_the_page_equals_the_status_and_a_killed_daemon_is_shown_as_such(tmp_path: Path, window: Browser) -> None:
    with cluster_of(tmp_path, {"Cleveland": "Cleveland"}, min_sites=1) as cluster:
        (site,) = cluster.sites
        site.start()
        wait_for(lambda: site.client.status().paused, "it waits for a script")
        command = [sys.executable, "-m", "chaosd", "page", "--no-browser", "--config", str(site.config_path)]
        command += ["--address", f"127.0.0.1:{free_port()}"]
        url = subprocess.run(command, capture_output=True, text=True, check=True, env=environment()).stdout.strip()
        window.open(url)
        page = shown(
            window,
            "the page is live, and has what the daemon has",
            lambda now: now["connection"] == "live" and len(now["events"]) == len(site.events()) and now["paused"],
        )
        command = [sys.executable, "-m", "chaosd", "status", "--json", "--config", str(site.config_path)]
        told = subprocess.run(command, capture_output=True, text=True, check=True, env=environment()).stdout
        status = json.loads(told)
        assert page["address"] == url.partition("?")[0]
        assert (page["name"], page["state"]) == (status["name"], status["state"])
        assert all(text in page["line"] for text in (status["site"], status["run"], status["address"]))
        assert page["paused"] == f"paused: {status['paused']}"
        assert page["round"] == str(status["round"])
        assert [row[1:6] for row in page["sites"]] == [
            [one["site"][:8], one["state"], "yes" if one["voter"] else "no", str(one["round"]), one["phase"]]
            for one in status["sites"]
        ]
        assert [int(row[4]) for row in page["events"]] == [event.round for event in reversed(site.events())]
        os.kill(site.daemon.pid, signal.SIGKILL)
        dead = shown(window, "the page says that the daemon is gone", lambda now: now["connection"] == "no daemon")
        assert "does not answer" in dead["alarm"] and "chaosd start" in dead["alarm"]
        assert dead["round"] == str(status["round"])


def test_twenty_sites_with_hostile_names_are_text_on_a_telephone_in_the_dark(window: Browser) -> None:
    control = FakeControl()
    control.current = many_sites(20)
    control.history = [record(1, kind=HOSTILE, reason=TURNED)]
    with served(control) as page:
        window.open(page.client.page().url)
        seen = shown(window, "twenty sites", lambda now: len(now["sites"]) == 20 and now["events"])
        assert (seen["nodes"], seen["lines"], seen["tree"], seen["images"]) == (20, 20, 19, 0)
        assert seen["name"] == HOSTILE and seen["sites"][0][0] == f"{HOSTILE} (this)"
        assert seen["sites"][1][0] == "gnissim\ufffd\ufffd (scheduler)"
        assert seen["events"][0][1] == HOSTILE and seen["events"][0][6].endswith("gnissim\ufffd\ufffd")
        assert seen["overflow"] <= 0, "the page is wider than the telephone"
        assert seen["ground"] == "rgb(20, 23, 26)"
        assert window.run(LINES_OF, "192.0.2.1:7400") == [1] * 20, "an address is to be copied"
        assert window.complaints() == []


def test_what_an_encoding_loses_is_told_over_all_sites_and_nothing_in_fp32(window: Browser) -> None:
    control = FakeControl()
    with served(control) as page:
        window.open(page.client.page().url)
        assert shown(window, "two sites", lambda now: len(now["sites"]) == 2)["encoding"] == ""
        three = many_sites(3)
        averaging = AveragingStatus(
            trees=1, rate_bytes_per_s=1e6, predicted_s=None, took_s=None, reason="one tree", encoding="int8",
            relative_error=0.016, errors_known=3, mean_error=0.0175, worst_error=0.021, worst_site=three.sites[0].site,
        )  # fmt: skip
        control.current = msgspec.structs.replace(three, averaging=averaging)
        seen = shown(window, "three sites", lambda now: len(now["sites"]) == 3)
        assert seen["encoding"] == f"int8: mean 0.018 of 3, worst 0.021 at {HOSTILE}"
        assert seen["images"] == 0 and window.complaints() == []


def test_what_stands_for_whom_and_what_helps_are_on_the_page(window: Browser) -> None:
    """All that `chaosd status` says of a standstill: the page is no poorer."""
    control = FakeControl()
    three = many_sites(3)
    one, two, _ = (site.site for site in three.sites)
    sites = (msgspec.structs.replace(three.sites[0], age_s=0.0), msgspec.structs.replace(three.sites[1], age_s=75.0))
    down = msgspec.structs.replace(three.links[0], up=False, why=f"{HOSTILE} does not run")
    control.current = msgspec.structs.replace(
        three,
        sites=(*sites, three.sites[2]),
        links=(down, *three.links[1:]),
        paused=f"waits for {HOSTILE}",
        paused_for="the scripts of the sites that are named",
        paused_s=75.0,
        paused_remedy="look at the script there",
        waits_for=(WaitStatus(site=two, name=HOSTILE, seconds=75.0),),
        resting=(WaitStatus(site=one, name="St. Mary", seconds=3.0, reason="it evaluates"),),
        skips="a gradient is not finite",
        refused=(RefusedSite(site="e" * 32, cause="refused-other-version", reason="it is older", count=2, ago_s=61.0),),
        storage=StorageStatus(
            folder="/srv",
            bytes=1,
            checkpoints=2,
            checkpoint_round=120,
            interval_s=60.0,
            checkpoint_failure="the disk is full",
        ),
        averaging=AveragingStatus(trees=2, rate_bytes_per_s=1e6, predicted_s=0.2, took_s=0.25, reason="two"),
    )
    with served(control) as page:
        window.open(page.client.page().url)
        seen = shown(window, "three sites", lambda now: len(now["sites"]) == 3)
        assert seen["paused"] == f"paused: waits for {HOSTILE}"
        waits = "Waits for the scripts of the sites that are named, for 0:01:15. "
        assert seen["more"] == f"{waits}What to do: look at the script there."
        assert seen["absent"] == [
            f"waits for {HOSTILE}, for 0:01:15 without its part of round 141",
            "weight 0: St. Mary, for 0:00:03: it evaluates",
            "weight 0: this site: a gradient is not finite",
        ]
        assert [row[5] for row in seen["sites"]] == ["reduce", "reduce, 0:01:15 ago", "reduce"]
        assert seen["links"][0][0].endswith(f"{HOSTILE} does not run")
        assert seen["refused"] == [f"{'e' * 32}, 0:01:01 ago: it is older"]
        assert seen["stored"] == "round 120, one every 60 s; the last try failed: the disk is full"
        told = "Rounds go along 2 trees, 8.0 Mbit/s, 0.200 s predicted, 0.250 s taken since this site gave its part."
        assert (seen["averaging"], seen["alone"], seen["images"]) == (told, "", 0)
        assert seen["overflow"] <= 0 and window.complaints() == []
        control.current = msgspec.structs.replace(three, sites=three.sites[:1], links=(), name="St. Mary's")
        seen = shown(window, "one site", lambda now: len(now["sites"]) == 1)
        peer = rf"'St. Mary'\''s={one}@127.0.0.1:7400'"
        assert seen["alone"] == f"chaosd up --run heart --peer {peer}"
        assert (seen["absent"], seen["refused"]) == ([], [])


def test_a_join_with_its_transfer_and_the_end_of_the_daemon_are_seen(window: Browser) -> None:
    control = FakeControl()
    with served(control) as page:
        window.open(page.client.page().url)
        shown(window, "two sites", lambda now: len(now["sites"]) == 2)
        joined = many_sites(3)
        transfer = TransferStatus(
            round=9,
            verified_bytes=1 << 20,
            total_bytes=4 << 20,
            rate_of_source={"b" * 32: 5e6},
            bytes_of_source={"b" * 32: 3 << 19},
        )
        control.current = msgspec.structs.replace(joined, paused="waiting for two sites", transfer=transfer)
        seen = shown(window, "three sites", lambda now: len(now["sites"]) == 3)
        assert "1.0 MiB of 4.0 MiB verified, 40.0 Mbit/s, 1 s left" in seen["transfer"]
        assert seen["sources"] == [["from bbbbbbbb: 1.5 MiB, 40.0 Mbit/s", 0.375]]
        assert seen["paused"] == "paused: waiting for two sites"
        page.end("left the run")
        ended = shown(window, "the end", lambda now: now["connection"] == "ended")
        assert "left the run" in ended["alarm"]


def test_the_workers_of_a_site_of_several_stand_on_its_page_and_go_with_them(
    window: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = FakeControl()
    mine = msgspec.structs.replace(control.current.worker, pid=os.getpid(), connected=True)
    control.current = msgspec.structs.replace(control.current, worker=mine)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    board = tmp_path / f"{FOLDER_PREFIX}1" / BOARD_NAME
    board.parent.mkdir()
    one = WorkerView(worker=2, pid=77, device="cpu", stage="0 to 3", state="trains", since=10.0, doing=HOSTILE)
    group = GroupView(
        pid=os.getpid(),
        command=HOSTILE,
        phase="training",
        generation=3,
        step=41,
        shape="2 x 2",
        run="given",
        written=75.0,
        workers=(one, msgspec.structs.replace(one, worker=3, pid=78, stage="", state="waits for a place")),
    )
    board.write_bytes(msgspec.json.encode(group))
    look = """const part = document.getElementById("group");
      if (part.hidden) return null;
      return [document.getElementById("group-text").textContent,
        ...[...part.querySelectorAll("tbody tr")].map((row) => [...row.children].map((cell) => cell.textContent))];"""
    with served(control) as page:
        window.open(page.client.page().url)
        found = wait_for(lambda: window.run(look), "the workers")
        assert found[0] == f"{HOSTILE}: training, step 41, plan 3 2 x 2; in its run: given"
        assert found[1:] == [
            ["2", "77", "cpu", "0 to 3", "trains", "0:01:05", HOSTILE],
            ["3", "78", "cpu", "-", "waits for a place", "0:01:05", HOSTILE],
        ]
        assert window.complaints() == []
        board.unlink()
        wait_for(lambda: window.run(look) is None, "no workers any more")


def test_what_a_script_logs_is_drawn_and_goes_with_it(window: Browser) -> None:
    control = FakeControl()
    read_script = """const part = document.getElementById("script");
    const lines = [...part.querySelectorAll("polyline")];
    return { hidden: part.hidden, points: lines.map((one) => one.getAttribute("points")),
             names: [...part.querySelectorAll("h3")].map((one) => one.textContent) };"""
    with served(control) as page:
        window.open(page.client.page().url)
        shown(window, "two sites", lambda now: len(now["sites"]) == 2)
        assert window.run(read_script)["hidden"]
        before = control.current.worker
        for number, loss in enumerate((2.0, 1.5, -0.25), 1):
            figures = (
                LoggedFigure(name="loss", round=number, value=loss),
                LoggedFigure(name="norm", round=number, value=None),
            )
            worker = msgspec.structs.replace(before, figures=figures)
            control.current = msgspec.structs.replace(control.current, worker=worker, uptime_s=10.0 + number)
            names = [f"loss: {loss:g} (round {number})", f"norm: not finite (round {number})"]
            wait_for(lambda names=names: window.run(read_script)["names"] == names, "the newest figures")
        curves = window.run(read_script)["points"]
        assert len(curves[0].split()) == 3 and curves[1] is None
        heights = [float(point.split(",")[1]) for point in curves[0].split()]
        assert heights == sorted(heights) and heights[0] == 7.0 and heights[-1] == 105.0
        control.current = msgspec.structs.replace(control.current, worker=before)
        wait_for(lambda: window.run(read_script)["hidden"], "a script that logs nothing")
        assert window.complaints() == []


class Elsewhere(http.server.BaseHTTPRequestHandler):
    """Another service of this machine, with a page that forbids itself nothing."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>elsewhere</title>")

    def log_message(self, *_: object) -> None:
        """Nothing."""


def test_a_page_of_another_service_of_this_machine_neither_reads_nor_changes_anything(window: Browser) -> None:
    control = FakeControl()
    other = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere)
    threading.Thread(target=other.serve_forever, name="elsewhere", daemon=True).start()
    try:
        with served(control) as page:
            found = page.client.page()
            window.open(found.url)
            shown(window, "live", lambda now: now["connection"] == "live")
            window.open(f"http://127.0.0.1:{other.server_port}/")  # the same site to a browser: it sends our cookie
            window.run(
                """
                window.got = [];
                const [own, told] = [arguments[0], (answer) => got.push(answer)];
                for (const path of ["/", "/v1/session", "/v1/live", "/metrics"])
                  fetch(own + path, { credentials: "include" }).then((a) => told(a.status), () => told("refused"));
                fetch(own + "/v1/leave", { method: "POST", mode: "no-cors", credentials: "include", body: "{}" })
                  .then((a) => told(a.type), () => told("refused"));
                """,
                f"http://{found.address}",
            )
            wait_for(lambda: window.run("return got.length") == 5, "the answers to the other page")
            assert set(window.run("return got")) <= {"refused", "opaque"}
            assert control.asked == []
    finally:
        other.shutdown()
        other.server_close()
