"""A real browser for tests: Chromium without a window, driven by its own driver over the WebDriver protocol (W3C).

Only what these tests need, over the standard library: a page is opened, a script reads what stands on it, keys are
pressed. Needs `chromium` and `chromedriver` (Debian: the packages chromium and chromium-driver).
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from chaos_lab.children import free_port

START_S, ANSWER_S = 90.0, 90.0
ARGUMENTS = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions"]
KEYS = {"Tab": "\ue004", "Enter": "\ue007", "Escape": "\ue00c"}


def missing() -> str:
    """Why there is no browser here; empty where there is one."""
    lacking = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"{' and '.join(lacking)} not installed (Debian: chromium, chromium-driver)" if lacking else ""


class Browser:
    """One window. Made by `browser`."""

    def __init__(self, port: int) -> None:
        self._port, self._session = port, ""

    def begin(self, profile: Path, *, width: int, height: int, dark: bool, flags: Sequence[str] = ()) -> None:
        arguments = [*ARGUMENTS, *flags, f"--user-data-dir={profile}", f"--window-size={width},{height}"]
        if os.geteuid() == 0:
            arguments.append("--no-sandbox")  # Chromium as root has none
        if dark:
            arguments.append("--blink-settings=preferredColorScheme=0")
        options = {"args": arguments, "binary": shutil.which("chromium")}
        logs = {"browser": "ALL"}
        wanted = {"alwaysMatch": {"goog:chromeOptions": options, "goog:loggingPrefs": logs}}
        self._session = "/session/" + self._ask("POST", "/session", {"capabilities": wanted})["sessionId"]

    def open(self, url: str) -> None:
        self._ask("POST", f"{self._session}/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script returns that runs in the page."""
        return self._ask("POST", f"{self._session}/execute/sync", {"script": script, "args": list(arguments)})

    def press(self, *keys: str) -> None:
        """Keys of a keyboard, one after the other, wherever the focus is."""
        strokes = [
            {"type": kind, "value": KEYS.get(key, key)} for key in keys for kind in ("keyDown", "keyUp")
        ]  # the protocol's way to type
        self._ask("POST", f"{self._session}/actions", {"actions": [{"type": "key", "id": "keys", "actions": strokes}]})

    def picture(self) -> bytes:
        """A PNG of the window."""
        return base64.b64decode(self._ask("GET", f"{self._session}/screenshot"))

    def complaints(self) -> list[str]:
        """What the browser's console has said since the last call, warnings and errors only."""
        entries = self._ask("POST", f"{self._session}/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]

    def end(self) -> None:
        if self._session:
            self._ask("DELETE", self._session)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=ANSWER_S)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            value = json.loads(answer.read())["value"]
        finally:
            connection.close()
        if answer.status != 200:
            raise AssertionError(f"{method} {path}: {value.get('error')}: {value.get('message')}")
        return value


@contextlib.contextmanager
def browser(
    folder: Path, *, width: int = 1280, height: int = 1000, dark: bool = False, flags: Sequence[str] = ()
) -> Iterator[Browser]:
    """A window while the block runs; its profile lies in `folder`. Driver and browser are ended in any case. `flags`:
    further ones of Chromium."""
    port = free_port()
    log = (folder / "chromedriver.log").open("wb")
    driver = subprocess.Popen(["chromedriver", f"--port={port}"], stdout=log, stderr=log, start_new_session=True)
    try:
        found = Browser(port)
        _await_driver(driver, port)
        found.begin(folder / "profile", width=width, height=height, dark=dark, flags=flags)
        try:
            yield found
        finally:
            found.end()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(driver.pid, 9)
        driver.wait(10)
        log.close()


def _await_driver(driver: subprocess.Popen[bytes], port: int) -> None:
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s:
        assert driver.poll() is None, "chromedriver ended at once"
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
        try:
            connection.request("GET", "/status")
            if json.loads(connection.getresponse().read())["value"]["ready"]:
                return
        except OSError:
            time.sleep(0.02)
        finally:
            connection.close()
    raise AssertionError(f"chromedriver is not ready within {START_S:g} s")
