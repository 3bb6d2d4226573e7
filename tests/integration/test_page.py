"""The page in a real browser: what stands on it is what the daemon says; what a site says is text, and no more."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.integration.browser import Browser, browser, missing
from tests.rigs.site import cluster_of, environment, wait_for
from tests.unit.daemon.api.local_api import HERE, FakeControl, record, sample_status
from tests.unit.sdk.line import ShortFolder

from chaos_lab.children import free_port
from chaos_protocols.fingerprint import words_of
from chaos_protocols.names import SiteId
from chaosd.api.client import LocalClient
from chaosd.api.server import LocalApi
from chaosd.api.status import LinkStatus, LoggedFigure, Outcome, RefusedSite, SiteSummary, Status, TransferStatus
from chaosd.page.access import PageDoor
from chaosd.page.server import PageServer
from chaosd.trust import BlockBody
from chaosd.worker_group.board import BOARD_NAME, FOLDER_PREFIX, GroupView, WorkerView

pytestmark = pytest.mark.skipif(missing() != "", reason=missing() or "there is a browser")

HOSTILE = "<img src=x onerror=alert(1)>"
TURNED = "gnissim\u202e\u0007"
READ = """
const texts = (row) => [...row.children].map((cell) => cell.textContent);
const cells = (id) => [...document.querySelectorAll(`#${id} tr`)].map(texts);
const text = (id) => document.getElementById(id).textContent;
return {
  title: document.title, connection: text("connection"), alarm: text("alarm"), name: text("site-name"),
  state: text("site-state"), line: text("site-line"), paused: text("paused"), round: text("f-round"),
  scheduler: text("f-scheduler"), worker: text("f-worker"), transfer: text("transfer-text"), outcome: text("outcome"),
  sites: cells("sites"), links: cells("links"), events: cells("events"), address: location.href,
  nodes: document.querySelectorAll("#overlay .node").length, lines: document.querySelectorAll("#overlay .link").length,
  tree: document.querySelectorAll("#overlay .link.tree").length, images: document.querySelectorAll("img").length,
  dialog: document.getElementById("ask").open ? text("ask-title") + " | " + text("ask-text") : "",
  focus: document.activeElement.id, overflow: document.documentElement.scrollWidth - innerWidth,
  ground: getComputedStyle(document.body).backgroundColor,
};
"""


def read(window: Browser) -> dict[str, Any]:
    found: dict[str, Any] = window.run(READ)
    return found


def shown(window: Browser, what: str, condition: Any) -> dict[str, Any]:
    """What stands on the page as soon as `condition` holds of it."""

    def look() -> dict[str, Any] | None:
        now = read(window)
        return now if condition(now) else None

    found: dict[str, Any] = wait_for(look, what)
    return found


class Served:
    """A page over a control in memory, on a loop of its own thread."""

    def __init__(self, control: FakeControl, client: LocalClient, end: Any) -> None:
        self.control, self.client, self.end = control, client, end


class FakeLists:
    """Whom a site lets connect: remembers what it was asked."""

    def __init__(self) -> None:
        self.let_in: list[str] = []
        self.blocks: list[BlockBody] = []

    def accept(self, site: str) -> Outcome:
        self.let_in.append(site)
        return Outcome(done=True, reason="it may connect", duration_s=0.0)

    def change_block(self, asked: BlockBody) -> Outcome:
        self.blocks.append(asked)
        return Outcome(done=True, reason=f"change {len(self.blocks)}", duration_s=0.0)


@contextlib.contextmanager
def served(control: FakeControl, lists: FakeLists | None = None) -> Iterator[Served]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="page of a test")
    thread.start()
    with ShortFolder() as folder:
        door = PageDoor(f"127.0.0.1:{free_port()}")
        page = PageServer(control, site=HERE, door=door, metrics_token_file=None, lists=lists)
        api = LocalApi(Path(folder) / "api.sock", control, further=page.local_routes())

        def on_loop(work: Any) -> None:
            asyncio.run_coroutine_threadsafe(work, loop).result(timeout=90)

        on_loop(api.start())
        on_loop(page.start())
        try:
            yield Served(control, LocalClient(Path(folder) / "api.sock"), lambda why: on_loop(page.close(why)))
        finally:
            on_loop(api.close())
            on_loop(page.close("the test is over"))
            loop.call_soon_threadsafe(loop.stop)
            thread.join(timeout=90)
            loop.close()


def many_sites(count: int) -> Status:
    """A ring, with names that try to be more than names."""
    ids = [f"{number:032x}" for number in range(count)]
    names = [HOSTILE, TURNED, "x" * 64] + [f"site {number}" for number in range(3, count)]
    sites = tuple(
        SiteSummary(
            site=site, name=name, address="192.0.2.1:7400", state="member", voter=False, round=140, phase="reduce"
        )
        for site, name in zip(ids, names, strict=True)
    )
    links = tuple(
        LinkStatus(one=one, other=other, rate_bytes_per_s=12.5e6, rtt_s=0.02, up=None)
        for one, other in zip(ids, [*ids[1:], ids[0]], strict=True)
    )
    tree = tuple((child, parent) for parent, child in itertools.pairwise(ids))
    own = msgspec.structs.replace(sample_status(), site=ids[0], name=HOSTILE, scheduler=ids[1], sites=sites)
    return msgspec.structs.replace(own, links=links, tree=tree)


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A telephone's, in the dark: what fits there fits anywhere."""
    with browser(tmp_path_factory.mktemp("browser"), width=500, height=900, dark=True) as found:
        yield found


@pytest.fixture(autouse=True)
def quiet_console(window: Browser) -> None:
    """What the browser complained of before is no complaint about this test's page."""
    window.open("about:blank")
    window.complaints()


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
        assert window.complaints() == []


def test_a_join_with_its_transfer_and_the_end_of_the_daemon_are_seen(window: Browser) -> None:
    control = FakeControl()
    with served(control) as page:
        window.open(page.client.page().url)
        shown(window, "two sites", lambda now: len(now["sites"]) == 2)
        joined = many_sites(3)
        transfer = TransferStatus(round=9, verified_bytes=1 << 20, total_bytes=4 << 20, rate_of_source={"b" * 32: 5e6})
        control.current = msgspec.structs.replace(joined, paused="waiting for two sites", transfer=transfer)
        seen = shown(window, "three sites", lambda now: len(now["sites"]) == 3)
        assert "1.0 MiB of 4.0 MiB verified, 40.0 Mbit/s, 1 s left" in seen["transfer"]
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


def test_who_waits_is_let_in_by_a_button_that_shows_the_words_first(window: Browser) -> None:
    control = FakeControl()
    stranger = RefusedSite(
        site="c" * 32, cause="untrusted", reason=f"let it in: {words_of(SiteId('c' * 32))}", count=2, ago_s=1.0
    )
    other = RefusedSite(site="d" * 32, cause="refused-other-version", reason="2 and 3", count=1, ago_s=1.0)
    control.current = msgspec.structs.replace(sample_status(), refused=(stranger, other))
    lists = FakeLists()
    with served(control, lists) as page:
        window.open(page.client.page().url)
        read_list = "return [...document.querySelectorAll('#strangers li')].map((one) => one.textContent)"
        (row,) = wait_for(lambda: window.run(read_list), "who waits")
        assert row.startswith("c" * 32) and "tried 2 times" in row
        window.run("document.querySelector('#strangers button').focus()")
        window.press("Enter")
        asked = shown(window, "the question", lambda now: now["dialog"])
        assert words_of(SiteId("c" * 32)) in asked["dialog"] and lists.let_in == []
        window.press("Tab", "Enter")
        shown(window, "the outcome", lambda now: "it may connect" in now["outcome"])
        assert lists.let_in == ["c" * 32]
        control.current = sample_status()
        wait_for(lambda: not window.run(read_list), "nobody waits")
        assert window.complaints() == []


def test_who_waits_is_turned_away_by_a_button_and_what_is_blocked_can_be_unblocked(window: Browser) -> None:
    control, lists = FakeControl(), FakeLists()
    stranger = RefusedSite(site="c" * 32, cause="untrusted", reason="let it in", count=2, ago_s=1.0)
    control.current = msgspec.structs.replace(sample_status(), refused=(stranger,))
    with served(control, lists) as page:
        window.open(page.client.page().url)
        rows = "return [...document.querySelectorAll('#strangers li, #blocked li')].map((one) => one.textContent)"
        wait_for(lambda: len(window.run(rows)) == 1, "who waits")
        window.run("document.querySelectorAll('#strangers button')[1].focus()")
        window.press("Enter")
        asked = shown(window, "the question", lambda now: now["dialog"])
        assert "Block cccccccc | It is turned away from now on, also after a restart" in asked["dialog"]
        window.press("Tab", "Enter")
        shown(window, "the outcome", lambda now: "change 1" in now["outcome"])
        control.current = msgspec.structs.replace(control.current, blocked=("c" * 32,))
        wait_for(lambda: window.run(rows) == ["c" * 32 + " Unblock ..."], "it is blocked, and waits no more")
        window.run("document.querySelector('#blocked button').focus()")
        window.press("Enter")
        asked = shown(window, "the question", lambda now: now["dialog"])
        assert "It may connect again, if it is trusted" in asked["dialog"]
        window.press("Tab", "Enter")
        shown(window, "the outcome", lambda now: "change 2" in now["outcome"])
        first, second = lists.blocks
        assert (first.site, first.add, first.ban, first.reason) == ("c" * 32, True, False, "asked for on the page")
        assert (second.site, second.add) == ("c" * 32, False)
        assert window.complaints() == []


def test_a_site_is_blocked_or_dropped_by_buttons_that_say_who_has_to_agree(window: Browser) -> None:
    control, lists = FakeControl(), FakeLists()
    control.current = many_sites(4)
    buttons = "[...document.querySelectorAll('#sites tr')].map((row) => [...row.querySelectorAll('button')]"
    with served(control, lists) as page:
        window.open(page.client.page().url)
        shown(window, "four sites", lambda now: len(now["sites"]) == 4)
        offered = window.run(f"return {buttons}.filter((one) => !one.hidden).map((one) => one.textContent))")
        assert offered == [[], ["Block ...", "Drop ..."], ["Add link ...", "Block ...", "Drop ..."], offered[1]]
        window.run(f"{buttons})[3][1].focus()")
        window.press("Enter")
        asked = shown(window, "the question", lambda now: now["dialog"])["dialog"]
        assert "The link to site 3 ends at once" in asked and "as long as another site has a link with it" in asked
        assert "holds the overlay together" not in asked
        window.press("Escape")
        shown(window, "no question", lambda now: not now["dialog"])
        window.run(f"{buttons})[3][2].focus()")
        window.press("Enter")
        asked = shown(window, "the question", lambda now: now["dialog"])["dialog"]
        assert "the operators of 2 of the 3 other members" in asked and "for good" in asked and lists.blocks == []
        window.press("Tab", "Enter")
        shown(window, "the outcome", lambda now: "change 1" in now["outcome"])
        (asked_for,) = lists.blocks
        assert (asked_for.site, asked_for.add, asked_for.ban) == (f"{3:032x}", True, True)
        assert window.complaints() == []


def test_a_change_says_its_consequence_first_and_is_made_by_keyboard_alone(window: Browser) -> None:
    control = FakeControl()
    control.current = many_sites(3)
    with served(control) as page:
        window.open(page.client.page().url)
        shown(window, "three sites", lambda now: len(now["links"]) == 3)
        window.run("document.querySelector('#links tr button').focus()")
        window.press("Enter")
        asked = shown(window, "the question", lambda now: now["dialog"])
        assert "Remove the link to" in asked["dialog"] and "stays connected" in asked["dialog"]
        window.press("Enter")  # on Cancel, where the focus is
        shown(window, "no question any more", lambda now: not now["dialog"])
        assert control.asked == []
        window.press("Enter")
        shown(window, "the question again", lambda now: now["dialog"])
        window.press("Tab", "Enter")
        shown(window, "the outcome", lambda now: "as asked" in now["outcome"])
        assert control.asked == [("link", f"{1:032x}", False)]
        window.run("document.getElementById('leave').focus()")
        window.press("Enter")
        leaving = shown(window, "the other question", lambda now: now["dialog"])
        assert "2 other sites go on without it" in leaving["dialog"] and "its training script end" in leaving["dialog"]
        window.press("Escape")
        shown(window, "no question", lambda now: not now["dialog"])
        assert len(control.asked) == 1
        assert window.complaints() == []


def test_a_removal_that_splits_the_overlay_is_announced_as_such(window: Browser) -> None:
    control = FakeControl()  # two sites, one link
    with served(control) as page:
        window.open(page.client.page().url)
        shown(window, "the link", lambda now: len(now["links"]) == 1)
        window.run("document.querySelector('#links tr button').click()")
        asked = shown(window, "the question", lambda now: now["dialog"])
        assert "would split it, and will be refused" in asked["dialog"]


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
