"""Which site is meant when nobody says, by the commands and by a script alike; `chaosd up`."""

from __future__ import annotations

import shlex
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.unit.daemon.api.local_api import FakeControl, served
from typer.testing import CliRunner, Result

from chaos.connection import no_daemon_text
from chaos.paths import socket_path
from chaos_lab.children import free_port
from chaosd.addresses import split_address
from chaosd.cli.app import app
from chaosd.cli.beside import demand_there
from chaosd.config import contexts
from chaosd.config.contexts import SITES_REMEMBERED_MAX, choose, remember, remembered
from chaosd.config.making import listen_at
from chaosd.config.model import SiteConfig, load_config
from chaosd.transport.errors import ListenError


@pytest.fixture(autouse=True)
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was ever made by this user."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("CHAOS_CONFIG", raising=False)
    monkeypatch.delenv("CHAOS_SOCKET", raising=False)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[SiteConfig]:
    """Configurations of the daemons that were started, instead of daemons."""
    found: list[SiteConfig] = []

    def run_daemon(config: SiteConfig, **how: Any) -> int:
        found.append(config)
        how["greeting"]()
        return 0

    monkeypatch.setattr("chaosd.daemon.run_daemon", run_daemon)
    return found


def run(*words: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def made(folder: Path) -> Path:
    run("init", folder)
    return folder / "chaosd.toml"


@pytest.mark.parametrize("lost", ["x" * 300, "closed"])
def test_a_former_site_that_cannot_be_looked_at_is_passed_over(tmp_path: Path, lost: str) -> None:
    """Another user's folder, a disk that has failed: one line of the list must not be the end of every command."""
    kept = made(tmp_path / "kept")
    (tmp_path / "closed").mkdir()
    contexts.remember(tmp_path / lost / "chaosd.toml")
    (tmp_path / "closed").chmod(0)  # to root it is open all the same, and there is no file in it
    assert len(remembered()) == 2
    assert choose(None).path == kept
    assert socket_path() == kept.parent / "data" / "worker.sock"


def test_the_site_made_last_is_meant_and_that_is_said_where_there_are_others(tmp_path: Path) -> None:
    a = made(tmp_path / "a")
    assert choose(None) == contexts.Choice(a)
    b = made(tmp_path / "b")
    assert choose(None) == contexts.Choice(b, guessed=True)
    assert str(b) in run("status", code=3).stderr.splitlines()[0]
    b.unlink()
    assert choose(None) == contexts.Choice(a)
    assert "made last" not in run("status", code=3).stderr


def test_the_command_line_wins_then_the_environment_then_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = made(tmp_path / "a"), made(tmp_path / "b")
    monkeypatch.chdir(tmp_path / "a")
    assert choose(None).path == Path("chaosd.toml")
    monkeypatch.setenv("CHAOS_CONFIG", str(b))
    assert choose(None) == contexts.Choice(b)
    assert choose(a).path == a


def test_without_any_site_the_default_data_directory_is_meant_as_before(tmp_path: Path) -> None:
    assert choose(None).path is None
    place = tmp_path / "share" / "chaosd"
    place.mkdir(parents=True)
    with served(place / "api.sock", FakeControl()):
        assert "round 140" in run("status").output
    assert "`chaosd up`" in run("status", code=3).stderr


@pytest.mark.parametrize("where", ["default", "remembered", "folder", "environment"])
def test_a_script_finds_the_daemon_that_the_commands_mean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    if where != "default":
        a, b = made(tmp_path / "a"), made(tmp_path / "b")
        if where == "folder":
            monkeypatch.chdir(tmp_path / "a")
        elif where == "environment":
            monkeypatch.setenv("CHAOS_CONFIG", str(a))
        del b
    path = choose(None).path
    assert socket_path().absolute() == load_config(path).worker_socket


def test_a_script_reads_the_socket_that_the_configuration_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "own.toml"
    monkeypatch.setenv("CHAOS_CONFIG", str(path))
    for text in (
        'worker_socket = "w.sock"\n',
        'data_dir = "d"\nworker_socket = "x/w.sock"\n',
        f'data_dir = "{tmp_path}"',
    ):
        path.write_text(text)
        assert socket_path().absolute() == load_config(path).worker_socket
    for text in ("data_dir = 3", "= broken", ""):
        path.write_text(text)
        assert socket_path() == tmp_path / "share" / "chaosd" / "worker.sock"


def test_a_script_whose_configuration_is_not_there_goes_to_no_other_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path / "a")
    missing = tmp_path / "typo" / "chaosd.toml"
    monkeypatch.setenv("CHAOS_CONFIG", str(missing))
    assert socket_path() == missing.parent / "data" / "worker.sock"
    assert str(missing.parent) in no_daemon_text(socket_path(), FileNotFoundError(2, "No such file"))


def test_a_script_without_a_daemon_is_told_the_one_command_that_helps(tmp_path: Path) -> None:
    error = FileNotFoundError(2, "No such file")
    assert "Start it in another terminal: `chaosd up`" in no_daemon_text(socket_path(), error)
    path = made(tmp_path / "a")
    assert f"`chaosd start --config {path}`" in no_daemon_text(socket_path(), error)


def test_a_command_with_the_path_of_a_site_can_be_copied_wherever_the_site_lies(tmp_path: Path) -> None:
    folder = tmp_path / "our site (1)"
    told = run("init", folder).output
    path = folder / "chaosd.toml"
    command = f"chaosd start --config '{path}'"
    assert f"  {command}\n" in told and f"chaosd doctor --config '{path}'" in told
    assert f"# One site of a Chaos run. Start it with:  {command}" in path.read_text()
    assert f"`{command}`" in no_daemon_text(socket_path(), FileNotFoundError(2, "No such file"))
    assert f"`{command}`" in run("status", code=3).stderr


def test_what_is_remembered_is_bounded_and_survives_nonsense(tmp_path: Path) -> None:
    for number in range(SITES_REMEMBERED_MAX + 5):
        remember(tmp_path / str(number))
    remember(tmp_path / "7")
    found = remembered()
    assert len(found) == SITES_REMEMBERED_MAX and found[-1] == tmp_path / "7" and found.count(tmp_path / "7") == 1
    contexts.sites_file().write_bytes(b"\xff\xfe\nrelative\n/there\n")
    assert remembered() == [Path("/there")]
    contexts.sites_file().unlink()
    contexts.sites_file().mkdir()
    assert remembered() == []
    remember(tmp_path / "x")  # costs only the convenience


def test_up_makes_a_founder_that_waits_for_a_second_site_and_tells_how_that_joins(
    tmp_path: Path, started: list[SiteConfig]
) -> None:
    told = run("up", tmp_path / "a", "--name", "Cleveland", "--run", "heart").output
    (config,) = started
    assert (config.name, config.run, config.bootstrap, config.start_sites) == ("Cleveland", "heart", True, 2)
    assert config == load_config(tmp_path / "a" / "chaosd.toml")
    (line,) = [line for line in told.splitlines() if line.startswith("  chaosd up")]
    words = line.split()[2:]
    run("up", tmp_path / "b", *words)
    joiner = started[1]
    assert (joiner.bootstrap, joiner.start_sites, joiner.run) == (False, 1, "heart")
    assert [f"{peer.name}={peer.site}@{peer.address}" for peer in joiner.peers] == [words[-1]]
    assert load_config(tmp_path / "b" / "chaosd.toml").peers == joiner.peers


def test_a_shell_takes_what_up_prints_for_a_second_site_as_it_stands(tmp_path: Path, started: list[SiteConfig]) -> None:
    """The brackets of IPv6 are a pattern to a shell: zsh refuses one that no file fits."""
    told = run(
        "up", tmp_path / "a", "--name", "VA Long Beach", "--listen", "[::1]:7400", "--run", "heart & lung"
    ).output
    (line,) = [line for line in told.splitlines() if line.startswith("  chaosd up")]
    assert all(shlex.quote(word) in line for word in shlex.split(line))
    run("up", tmp_path / "b", *shlex.split(line)[2:])
    (peer,) = started[1].peers
    assert (started[1].run, peer.name, peer.address) == ("heart & lung", "VA Long Beach", "[::1]:7400")


def test_up_tells_nobody_how_to_join_a_site_that_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon of this site runs already, say: its port and its folder are taken."""
    made(tmp_path / "a")

    def run_daemon(config: SiteConfig, **how: Any) -> int:
        raise ListenError(f"cannot listen on {config.listen}: another program uses that port")

    monkeypatch.setattr("chaosd.daemon.run_daemon", run_daemon)
    told = run("up", tmp_path / "a", code=2)
    assert "another program uses that port" in told.stderr and told.stdout == ""


def test_up_starts_the_site_that_is_made_and_keeps_its_file(tmp_path: Path, started: list[SiteConfig]) -> None:
    run("up", tmp_path / "a", "--alone")
    before = (tmp_path / "a" / "chaosd.toml").read_text()
    told = run("up", "--page", "127.0.0.1:7481").output
    assert f"this is the site of {tmp_path / 'a' / 'chaosd.toml'}; a further one" in told
    assert (tmp_path / "a" / "chaosd.toml").read_text() == before
    assert started[0].start_sites == 1 and started[1].data_dir == started[0].data_dir
    assert [one.page for one in started] == ["", "127.0.0.1:7481"]


def test_up_without_anything_makes_the_site_of_this_user(tmp_path: Path, started: list[SiteConfig]) -> None:
    run("up")
    assert started[0].data_dir == tmp_path / "share" / "chaosd" / "data"
    assert choose(None).path == tmp_path / "share" / "chaosd" / "chaosd.toml"


def test_up_takes_the_next_port_where_another_site_has_the_usual_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, started: list[SiteConfig]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        usual = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setattr("chaosd.cli.up.DEFAULT_LISTEN", usual)
        run("up", tmp_path / "a")
        assert started[0].listen not in (usual, "")
        refused = run("up", tmp_path / "b", "--listen", usual, code=2).output
        assert f"another program listens on {usual}" in refused and not (tmp_path / "b").exists()
    run("up", tmp_path / "b", "--listen", usual)
    assert started[1].listen == usual  # what was asked for is not improved upon


def test_up_tells_what_was_meant_by_a_command_without_its_dashes_and_by_a_file(
    tmp_path: Path, started: list[SiteConfig]
) -> None:
    assert "follows `--`" in " ".join(run("up", tmp_path / "a", "python", "train.py", code=2).output.split())
    script = tmp_path / "train.py"
    script.touch()
    assert "is a file, no folder of a site" in run("up", script, code=2).output
    assert started == [] and not (tmp_path / "a").exists()


def test_the_folder_of_a_site_names_its_file(tmp_path: Path) -> None:
    made(tmp_path / "a")
    assert choose(tmp_path / "a").path == tmp_path / "a" / "chaosd.toml"
    assert run("id", "--config", tmp_path / "a").output == run("id", "--config", tmp_path / "a" / "chaosd.toml").output


def test_two_sites_made_at_the_same_moment_never_choose_the_same_port() -> None:
    found = [listen_at(f"127.0.0.1:{free_port()}") for _ in range(2)]
    found += [listen_at(address) for address, _ in found]
    addresses = [address for address, _ in found]
    assert len(set(addresses)) == 4
    for address, one in found:
        assert one is not None and one.getsockname() == split_address(address)
        one.close()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--peer", "nobody"], "must be SITE@HOST:PORT"),
        (["--peer", "x@y:1"], "must be a site id"),
        (["--page", "0.0.0.0:80"], "must be an address of this machine alone"),
        (["--listen", "nowhere"], "must be host:port"),
        (["--listen", "192.0.2.1:7400"], "is no address of this machine"),
        (["--listen", "no-such-name.invalid:7400"], "leads to no address"),
    ],
)
def test_up_says_what_is_wrong_and_starts_nothing(
    tmp_path: Path, started: list[SiteConfig], words: list[str], told: str
) -> None:
    assert told in run("up", tmp_path / "a", *words, code=2).stderr
    assert started == [] and not (tmp_path / "a").exists()


def test_a_site_whose_key_is_missing_is_told_how_it_gets_one_and_gets_it(
    tmp_path: Path, started: list[SiteConfig]
) -> None:
    file = made(tmp_path / "a")
    written, key = file.read_text(), tmp_path / "a" / "data" / "site.key"
    key.unlink()
    assert "Put its copy back; `chaosd init FOLDER` makes a new one" in run("up", tmp_path / "a", code=2).stderr
    run("init", tmp_path / "a")
    assert key.exists() and file.read_text() == written
    assert "exists already" in run("init", tmp_path / "a", code=2).stderr


def test_every_new_command_explains_itself() -> None:
    words: Any
    for words in (["up"], ["page"], ["metrics"], ["pending"], ["accept"], ["trust", "add"], ["peer", "add"]):
        assert "$ chaosd" in run(*words, "--help").output


def test_a_script_is_run_by_the_interpreter_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    assert demand_there(["train.py", "1"]) == [sys.executable, "-u", "train.py", "1"]
    assert demand_there(["python3", "train.py", "1"]) == ["python3", "train.py", "1"]


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["/no/such/program"], "there is no program '/no/such/program'"),
        (["python3", "nosuch.py", "--site", "0"], "there is no script 'nosuch.py' in "),
        (["nosuch.py", "--site", "0"], "there is no script 'nosuch.py' in "),
    ],
)
def test_up_with_a_script_that_is_not_there_makes_nothing(tmp_path: Path, command: list[str], told: str) -> None:
    error = run("up", tmp_path / "site", "--", *command, code=127).stderr
    assert told in error and "nothing was started" in error
    assert not (tmp_path / "site").exists()
