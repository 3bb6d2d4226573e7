"""The Docker demo without an engine: what a site's container does with its daemon, what is told where nothing runs."""

from __future__ import annotations

import contextlib
import importlib.util
import signal
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

DOCKER = Path(__file__).resolve().parents[3] / "docker"
DAEMON = """
import signal, sys, time
told = []
signal.signal(signal.SIGINT, lambda *_: told.append(1))
print("up", flush=True)
while not told:
    time.sleep(0.01)
time.sleep(1)  # it leaves: the round is finished
print("forced" if len(told) > 1 else "left", flush=True)
"""


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], types.ModuleType]:
    """A file of docker/; others import one another by name."""
    monkeypatch.syspath_prepend(str(DOCKER))
    for name in ("compose", "engine"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    def loaded(name: str) -> types.ModuleType:
        found = importlib.util.spec_from_file_location(f"docker_{name}", DOCKER / f"{name}.py")
        assert found is not None and found.loader is not None
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
        return module

    return loaded


def test_a_site_whose_script_fails_leaves_and_is_not_forced(
    load: Callable[[str], types.ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon takes a second signal for the wish to end at once."""
    entrypoint, said = load("entrypoint"), tmp_path / "said"
    (tmp_path / "chaosd.toml").touch()
    monkeypatch.setattr(entrypoint, "SITE", tmp_path)
    monkeypatch.setattr(entrypoint, "shape", lambda *_: None)
    monkeypatch.setattr(entrypoint, "LOOK_S", 0.02)

    def answers(*_: object) -> bool:
        while not said.read_text().startswith("up\n"):
            pass
        return True

    monkeypatch.setattr(entrypoint, "_answers", answers)

    def started(command: list[str]) -> subprocess.Popen[bytes]:
        daemon = "chaos_lab.daemon" in command
        with said.open("ab") as output:
            code = DAEMON if daemon else "raise SystemExit(3)"
            return subprocess.Popen([sys.executable, "-c", code], stdout=output if daemon else None)

    monkeypatch.setattr(entrypoint, "subprocess", types.SimpleNamespace(Popen=started))
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        code = entrypoint.run(entrypoint.load_scenario(entrypoint.OVERLAY), "basel")
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
    assert code == 3 and said.read_text() == "up\nleft\n"


def test_what_a_killed_demo_left_is_no_end_of_the_next_one_where_docker_is_missing(
    load: Callable[[str], types.ModuleType],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    engine, left = load("engine"), tmp_path / "chaos-docker-left"
    left.mkdir()
    (left / "owner").write_text("1 1\n", encoding="ascii")  # another process had the first one's number
    monkeypatch.setenv("PATH", str(tmp_path))
    engine._clean(left)
    assert not left.exists() and f"removed: {left}" in capsys.readouterr().out


class Services:
    """In the place of docker compose: nothing runs; `kill` fails, and somebody presses Ctrl+C once more."""

    def __init__(self, *_: object, **__: object) -> None:
        self.done: list[str] = []
        services.append(self)

    def __call__(self, *arguments: str) -> str:
        self.done.append(arguments[0])
        match arguments[0]:
            case "run":
                raise KeyboardInterrupt
            case "kill":
                signal.raise_signal(signal.SIGINT)
                raise RuntimeError("no such service")
        return ""


services: list[Services] = []


def test_a_demo_that_is_interrupted_twice_leaves_no_container_and_no_network(
    load: Callable[[str], types.ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo, removed = load("demo"), list[int]()
    monkeypatch.setattr(demo, "probe", lambda _: types.SimpleNamespace(netem=True))
    monkeypatch.setattr(demo, "engine", lambda _: contextlib.nullcontext("an engine"))
    monkeypatch.setattr(demo, "make_image", lambda **_: "an image")
    monkeypatch.setattr(demo, "remove_image", lambda: removed.append(1))
    monkeypatch.setattr(demo, "Compose", Services)
    with pytest.raises((KeyboardInterrupt, RuntimeError)):
        demo.demo(tmp_path, registry=False)
    assert services.pop().done == ["run", "kill", "down"] and removed == [1]


def test_a_container_that_has_ended_is_told_with_its_last_words(
    load: Callable[[str], types.ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load("engine")
    monkeypatch.setattr(engine, "_program", lambda: ["docker-compose"])
    compose = engine.Compose(tmp_path, project="x", host_python=False)
    monkeypatch.setattr(engine.Compose, "__call__", lambda _, *words: "basel: no key\n" if words[0] == "logs" else "")
    with pytest.raises(RuntimeError, match=r"basel has no container any more:\nbasel: no key"):
        compose.container("basel")
