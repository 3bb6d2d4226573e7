"""The demo's page in a real browser, over real sites: a button kills one and lets it join again, and at the end the
page shows what the hospitals gain. Nobody else may ask for that, and no daemon's page can."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.integration.browser import Browser, browser, missing
from tests.rigs.site import wait_for

from chaos_lab.demo_page.server import DemoPage
from chaos_lab.demo_page.visit import Wish
from chaos_lab.run import run_scenario
from chaos_lab.scenario import load_scenario

pytestmark = pytest.mark.long

HEART = Path(__file__).resolve().parents[2] / "examples" / "heart"
SCENARIO = f"""
name = "played"
limit_s = 240
last_rounds = 10
[worker]
script = "{HEART / "train.py"}"
arguments = ["--hospital", "{{hospital}}", "--digests", "--rounds", "100000", "--pace", "0.02",
  "--socket", "{{socket}}", "--report", "{{report}}", "--until", "{{until}}"]
[[sites]]
name = "cleveland"
values = {{ hospital = "Cleveland" }}
[[sites]]
name = "hungary"
values = {{ hospital = "Hungary" }}
[[links]]
between = ["cleveland", "hungary"]
"""
HOSTILE = "<img src=x onerror=alert(1)>"
FIGURES = {
    "common": {"name": "all together", "everybody": [0.9, 0.92], "brier": [0.1], "reliability": [[0.1, 0.9], [0, 1]]},
    "hospitals": [
        {
            "name": HOSTILE,
            "everybody": [0.8, 0.84],
            "home": [0.95, 0.95],
            "common_at": [0.9, 0.9],
            "brier": [0.2],
            "reliability": [[0.2, 0.7], [0.1, 0.8]],
        },
    ],
}
READ = """
const cells = (row) => [...row.children].map((one) => one.textContent);
const rows = (id) => [...document.querySelectorAll(`#${id} tr`)].map(cells);
const shown = (id) => (document.getElementById(id).hidden ? [] : rows("gain-rows"));
const button = (one) => ({ text: one.textContent, hidden: one.hidden, off: one.disabled, why: one.title });
return {
  stage: document.getElementById("stage").textContent, outcome: document.getElementById("outcome").textContent,
  sites: rows("sites"), told: rows("told"), finish: !document.getElementById("finish").hidden,
  buttons: [...document.querySelectorAll("#sites tr")].map((row) => [...row.querySelectorAll("button")].map(button)),
  gain: shown("gain"), words: document.getElementById("gain-text").textContent,
  bars: document.querySelectorAll("#bars .bar").length, nodes: document.querySelectorAll("#overlay .node").length,
  images: document.querySelectorAll("img").length, alarm: document.getElementById("alarm").textContent,
};
"""


@pytest.fixture
def window(tmp_path: Path) -> Iterator[Browser]:
    with browser(tmp_path) as found:
        yield found


class Viewer:
    """Somebody at the browser, on a thread while the lab runs: kills Hungary, lets it join, ends the demo."""

    def __init__(self, window: Browser, page: DemoPage) -> None:
        self._window, self._page = window, page
        self.failed: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name="viewer")

    def seen(self, what: str, condition: Any) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            now: dict[str, Any] = self._window.run(READ)
            return now if condition(now) else None

        found: dict[str, Any] = wait_for(look, what, limit_s=120)
        return found

    def press(self, row: int, place: int) -> None:
        self._window.run(f"document.querySelectorAll('#sites tr')[{row}].querySelectorAll('button')[{place}].focus()")
        self._window.press("Enter")

    def _run(self) -> None:
        try:
            self._play()
        except BaseException as error:  # told by the test, whose thread this is not
            self.failed = error
        finally:
            self._page.visit.wishes.put(Wish("finish", ""))

    def _play(self) -> None:
        self._window.open(self._page.url)
        both = [["cleveland", "member"], ["hungary", "member"]]
        self.seen("two members", lambda now: [row[:2] for row in now["sites"]] == both and now["nodes"] == 2)
        ready = self.seen("Hungary may be killed", lambda now: not now["buttons"][1][0]["off"])
        (kill, join), (founder, _) = ready["buttons"][1], ready["buttons"][0]
        assert (kill["text"], kill["hidden"], join["hidden"]) == ("Kill", False, True)
        assert founder["off"] and founder["why"] == "of 1 vote 0 would be left, no majority"
        self.press(1, 0)
        self.seen("it is killed", lambda now: now["sites"][1][1] == "killed")
        told = self.seen("the other goes on", lambda now: now["told"] and "their next round" in now["told"][0][3])
        assert "hungary: daemon and worker are killed (SIGKILL), by the viewer" in told["told"][0][1]
        self.seen("it may join", lambda now: not now["buttons"][1][1]["off"] and not now["buttons"][1][1]["hidden"])
        self.press(1, 1)
        self.seen("it trains again", lambda now: now["told"] and "a member from round" in now["told"][0][3])
        self.seen("two members again", lambda now: [row[:2] for row in now["sites"]] == both and now["finish"])
        self._window.run("document.getElementById('finish').focus()")
        self._window.press("Enter")
        self.seen("the sites stop together", lambda now: now["stage"] == "stopping together")


@pytest.mark.skipif(missing() != "", reason=missing() or "there is a browser")
@pytest.mark.timeout(300)
def test_a_viewer_kills_a_site_lets_it_join_and_sees_what_the_hospitals_gain(tmp_path: Path, window: Browser) -> None:
    path = tmp_path / "played.toml"
    path.write_text(SCENARIO, encoding="utf-8")
    with DemoPage() as page:
        viewer = Viewer(window, page)
        viewer.thread.start()
        try:
            verdict = run_scenario(
                load_scenario(path), Console(quiet=True), plain=True, keep=False, network="shaped", page=page
            )
        finally:
            viewer.thread.join(150)
        if viewer.failed is not None:
            raise viewer.failed
        assert verdict.failures == []
        assert len(verdict.figures["final_digests"]) == 2 and len(set(verdict.figures["final_digests"].values())) == 1
        page.show_stage("comparing")
        page.show_picture(FIGURES)
    gain = viewer.seen("the picture, and the end", lambda now: now["bars"] == 2 and now["stage"] == "over")
    assert gain["gain"] == [[HOSTILE, "0.820", "0.910", "0.950", "0.900"]] and gain["images"] == 0
    assert "best of them in 2 of 2 trainings" in gain["words"] and gain["alarm"] == ""
    assert all(button["off"] for row in gain["buttons"] for button in row)
    assert window.complaints() == []


def ask(page: DemoPage, method: str, path: str, body: object = None, **headers: str) -> http.client.HTTPResponse:
    """As any program of this machine could."""
    host = page.url.partition("//")[2].partition("/")[0]
    connection = http.client.HTTPConnection(host, timeout=60)
    given = {"Content-Type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    try:
        connection.request(method, path, None if body is None else json.dumps(body), given)
        answer = connection.getresponse()
        answer.read()
        return answer
    finally:
        connection.close()


def test_only_the_page_itself_with_a_session_may_wish_for_something() -> None:
    wish = {"what": "kill", "site": "hungary"}
    with DemoPage() as page:
        origin = page.url.partition("/?")[0]
        assert ask(page, "GET", "/").status == 401
        assert ask(page, "GET", "/?ticket=guessed").status == 401
        assert ask(page, "GET", "/v1/live").status == 401
        assert ask(page, "GET", "/site/hungary").status == 401
        assert ask(page, "POST", "/v1/wish", wish, Origin=origin).status == 401
        entered = ask(page, "GET", "/" + page.url.partition("/?")[2].join(("?", "")))
        assert entered.status == 200
        assert "default-src 'none'" in str(entered.getheader("Content-Security-Policy"))
        cookie = str(entered.getheader("Set-Cookie")).partition(";")[0]
        assert ask(page, "POST", "/v1/wish", wish, Origin=origin, Cookie=cookie).status == 403
        assert ask(page, "POST", "/v1/wish", wish, Origin="http://evil.example", Cookie=cookie).status == 403
        assert ask(page, "GET", "/v1/session", Cookie=cookie, Sec_Fetch_Site="cross-site").status == 403
        assert ask(page, "GET", "/v1/session", Cookie=cookie, Host="evil.example").status == 403
        assert ask(page, "GET", "/site/hungary", Cookie=cookie).status == 404
        assert page.visit.wishes.empty(), "nothing of this came through"
