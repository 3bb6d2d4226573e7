"""A page over a control in memory, on a loop of its own thread; and what stands on it in a real browser, whose window a
test module takes by importing the two fixtures."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.integration.browser import Browser, browser
from tests.rigs.site import wait_for
from tests.unit.daemon.api.local_api import HERE, FakeControl, sample_status
from tests.unit.sdk.line import ShortFolder

from chaos_lab.children import free_port
from chaosd.api.client import LocalClient
from chaosd.api.server import LocalApi
from chaosd.api.status import LinkStatus, Outcome, SiteSummary, Status
from chaosd.page.access import PageDoor
from chaosd.page.server import PageServer
from chaosd.trust import BlockBody

HOSTILE = "<img src=x onerror=alert(1)>"
TURNED = "gnissim\u202e\u0007"
READ = """
const texts = (row) => [...row.children].map((cell) => cell.textContent);
const cells = (id) => [...document.querySelectorAll(`#${id} tr`)].map(texts);
const text = (id) => document.getElementById(id).textContent;
return {
  title: document.title, connection: text("connection"), alarm: text("alarm"), name: text("site-name"),
  state: text("site-state"), line: text("site-line"), paused: text("paused-why"), round: text("f-round"),
  scheduler: text("f-scheduler"), worker: text("f-worker"), transfer: text("transfer-text"), outcome: text("outcome"),
  more: text("paused-more"), stored: text("f-stored"), averaging: text("averaging-text"),
  absent: [...document.querySelectorAll("#absent li")].map((one) => one.textContent),
  refused: [...document.querySelectorAll("#refused li")].map((one) => one.textContent),
  alone: document.getElementById("alone").hidden ? "" : text("alone-command"),
  sources: [...document.querySelectorAll("#transfer-sources li")].map((one) => [one.textContent, one.firstChild.value]),
  encoding: document.getElementById("encoding").hidden ? "" : text("f-encoding"),
  sites: cells("sites"), links: cells("links"), events: cells("events"), address: location.href,
  nodes: document.querySelectorAll("#overlay .node").length, lines: document.querySelectorAll("#overlay .link").length,
  tree: document.querySelectorAll("#overlay .link.tree").length, images: document.querySelectorAll("img").length,
  dialog: document.getElementById("ask").open ? text("ask-title") + " | " + text("ask-text") : "",
  focus: document.activeElement.id, overflow: document.documentElement.scrollWidth - innerWidth,
  ground: getComputedStyle(document.body).backgroundColor,
};
"""


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
