"""The commands, run as a user runs them, against a served fake daemon: what they print and how they end."""

from __future__ import annotations

import json
import re
import sys
import types
from pathlib import Path

import msgspec
import pytest
import typer
from tests.unit.daemon.api.local_api import HERE, THERE, FakeControl, sample_status, served
from tests.unit.daemon.cli.invoking import Run, away, run
from typer.testing import CliRunner

from chaosd.api.status import EventRecord, Outcome, Status
from chaosd.cli.app import app
from chaosd.cli.start import overrides_of, start
from chaosd.config.file import FORMER_NAMES, flag_name
from chaosd.config.model import ConfigError, SiteConfig, load_config
from chaosd.identity import Identity, IdentityError
from chaosd.storage.journal.journal import JournalError

__all__ = ["away", "run"]


def test_status_shows_sites_links_scheduler_round_and_worker(run: Run, tmp_path: Path) -> None:
    with served(tmp_path / "api.sock", FakeControl()):
        text = run("status", "--data-dir", tmp_path).output
    for expected in (
        "alpha (this)",
        "scheduler beta",
        "alpha <-> beta",
        "100.0 Mbit/s",
        "20.5 ms",
        "epoch 12  term 3  round 140 (0.250 s each)  scheduler beta",
        "worker: pid 99",
        "up 1:01:01",
    ):
        assert expected in text
    assert "paused" not in text


def test_status_shows_why_training_is_paused_and_how_far_a_transfer_is(run: Run, tmp_path: Path) -> None:
    from chaosd.api.status import TransferStatus

    control = FakeControl()
    transfer = TransferStatus(
        round=9,
        verified_bytes=1 << 20,
        total_bytes=4 << 20,
        rate_of_source={THERE: 5e6},
        bytes_of_source={THERE: 3 << 19},
    )
    control.current = sample_status(paused="no quorum: lacks beta since 12 s", transfer=transfer)
    with served(tmp_path / "api.sock", control):
        text = run("status", "--data-dir", tmp_path).output
    assert "paused: no quorum: lacks beta since 12 s" in text
    assert "state of round 9" in text
    assert "1.0 of 4.0 MiB" in text
    assert "from beta" in text and "1.5 MiB, 40.0 Mbit/s" in text


def test_status_as_json_is_the_status_itself(run: Run, tmp_path: Path) -> None:
    control = FakeControl()
    with served(tmp_path / "api.sock", control):
        text = run("status", "--json", "--api-socket", tmp_path / "api.sock").output
    assert msgspec.json.decode(text, type=Status) == control.current


def test_watching_shows_the_status_again_and_again_until_ctrl_c(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = FakeControl()
    pauses = iter((1, 2))

    def pause(_: float) -> None:
        if next(pauses) == 2:
            raise KeyboardInterrupt
        control.current = sample_status(name="renamed")

    monkeypatch.setattr("chaosd.cli.watching.time.sleep", pause)
    with served(tmp_path / "api.sock", control):
        text = run("status", "--watch", "--data-dir", tmp_path).output
    assert "renamed (this)" in text


def test_watching_ends_with_3_when_the_daemon_stops(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "api.sock"
    monkeypatch.setattr("chaosd.cli.watching.time.sleep", lambda _: path.unlink())
    with served(path, FakeControl()):
        assert "no daemon answers" in run("status", "--watch", "--data-dir", tmp_path, code=3).stderr


def test_names_of_other_sites_cannot_command_the_terminal(run: Run, tmp_path: Path) -> None:
    control = FakeControl(records=1)
    control.current = sample_status(name="\x1b[2Jevil[bold]")
    control.history[0] = msgspec.structs.replace(control.history[0], reason="\x1b]0;owned\x07")
    with served(tmp_path / "api.sock", control):
        shown = run("status", "--data-dir", tmp_path).output + run("events", "--data-dir", tmp_path).output
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "evil[bold]" in shown


def test_json_of_what_other_sites_say_cannot_command_the_terminal_and_stays_the_same(run: Run, tmp_path: Path) -> None:
    """JSON escapes nothing beyond the first 32 characters: an 8-bit CSI, marks that turn text round, line ends."""
    evil = "Klinik Süd \x9b2J\x7f\u202e\u2028\u0085\U000e0001 \U0001f3e5 \x1b"
    control = FakeControl(records=1)
    control.current = sample_status(name=evil)
    control.history[0] = msgspec.structs.replace(control.history[0], reason=evil)
    with served(tmp_path / "api.sock", control):
        status = run("status", "--json", "--data-dir", tmp_path).output
        (event,) = run("events", "--json", "--data-dir", tmp_path).output.splitlines()
    assert json.loads(status)["name"] == json.loads(event)["reason"] == evil
    assert "Klinik Süd" in status and (status + event).replace("\n", "").isprintable()


@pytest.mark.parametrize("words", [["link", "add", "beta"], ["leave"], ["recover", "--anew"]])
@pytest.mark.parametrize("done", [False, True])
def test_what_other_sites_answer_cannot_command_the_terminal(
    run: Run, tmp_path: Path, words: list[str], done: bool
) -> None:
    control = FakeControl()
    control.outcome = Outcome(done=done, reason="refused\x1b]0;owned\x07 by \x9b2J", duration_s=0.1)
    with served(tmp_path / "api.sock", control):
        result = run(*words, "--data-dir", tmp_path, code=0 if done else 1)
    assert "refused" in result.output and not {"\x1b", "\x07", "\x9b"} & {*result.output, *result.stderr}


def test_events_show_the_last_ones_one_a_line(run: Run, tmp_path: Path) -> None:
    with served(tmp_path / "api.sock", FakeControl(records=30)):
        lines = run("events", "--last", 5, "--data-dir", tmp_path).output.splitlines()
    assert len(lines) == 5
    assert "round 26" in lines[0]
    assert "round 30" in lines[-1]
    assert all("scale-out" in line and "0.250 s" in line and "because" in line for line in lines)


def test_events_as_json_are_records_one_a_line(run: Run, tmp_path: Path) -> None:
    control = FakeControl(records=3)
    with served(tmp_path / "api.sock", control):
        lines = run("events", "--json", "--data-dir", tmp_path).output.splitlines()
    assert [msgspec.json.decode(line, type=EventRecord) for line in lines] == control.history


def test_an_empty_history_prints_nothing(run: Run, tmp_path: Path) -> None:
    with served(tmp_path / "api.sock", FakeControl()):
        assert run("events", "--data-dir", tmp_path).output == ""


def test_following_ends_when_the_daemon_stops(run: Run, tmp_path: Path) -> None:
    control = FakeControl(records=2)

    async def nothing_more() -> object:
        for item in ():
            yield item

    control.follow_events = nothing_more  # type: ignore[method-assign,assignment]
    with served(tmp_path / "api.sock", control):
        result = run("events", "--follow", "--data-dir", tmp_path)
    assert len(result.stdout.splitlines()) == 2
    assert "the daemon stopped" in result.stderr


@pytest.mark.parametrize("verb", ["add", "remove"])
def test_link_commands_ask_for_the_change_and_tell_the_outcome(run: Run, tmp_path: Path, verb: str) -> None:
    control = FakeControl()
    with served(tmp_path / "api.sock", control):
        text = run("link", verb, "beta", "--data-dir", tmp_path).output
    assert control.asked == [("link", "beta", verb == "add")]
    assert text == f"link {verb} beta: done after 0.125 s: as asked\n"


def test_a_refused_change_ends_with_1_and_the_reason(run: Run, tmp_path: Path) -> None:
    control = FakeControl()
    control.outcome = Outcome(done=False, reason="it would split the overlay", duration_s=0.0)
    with served(tmp_path / "api.sock", control):
        told = run("link", "remove", "beta", "--data-dir", tmp_path, code=1).stderr
        as_json = run("link", "remove", "beta", "--json", "--data-dir", tmp_path, code=1).stdout
    assert "not done" in told
    assert "it would split the overlay" in told
    assert json.loads(as_json)["done"] is False


def test_a_folder_without_a_daemon_is_not_answered_with_the_start_of_another_site(run: Run, tmp_path: Path) -> None:
    """The site that was made last is not the one that was asked for."""
    run("init", tmp_path / "made-last", "--bootstrap")
    told = run("status", "--data-dir", tmp_path, code=3).stderr
    assert f"chaosd start --data-dir {tmp_path}" in told and "made-last" not in told


def test_what_prometheus_needs_names_the_page_of_this_site(run: Run, tmp_path: Path) -> None:
    run("init", tmp_path / "one", "--bootstrap")
    file = tmp_path / "one" / "chaosd.toml"
    unnamed = run("metrics", "--scrape", "--config", file)
    assert '"127.0.0.1:7480"' in unnamed.stdout and f"{file} names no page" in unnamed.stderr
    file.write_text(file.read_text().replace('# page = ""', 'page = "127.0.0.1:7499"'))
    told = run("metrics", "--scrape", "--config", file)
    assert told.stdout.count("127.0.0.1:7499") == 2 and "7480" not in told.output


def test_leave_passes_the_reason_on(run: Run, tmp_path: Path) -> None:
    control = FakeControl()
    with served(tmp_path / "api.sock", control):
        run("leave", "--reason", "maintenance", "--data-dir", tmp_path)
    assert control.asked == [("leave", "maintenance")]


@pytest.mark.parametrize("words", [["status"], ["events"], ["events", "-f"], ["link", "add", "x"], ["leave"]])
def test_without_a_daemon_every_command_says_how_to_start_one_and_ends_with_3(run: Run, words: list[str]) -> None:
    told = run(*words, code=3).stderr
    assert "no daemon answers at" in told
    assert "Start one with `chaosd up`" in told


def test_the_file_in_the_working_directory_selects_the_daemon(run: Run, tmp_path: Path) -> None:
    (tmp_path / "chaosd.toml").write_text('data_dir = "d"\nunknown = 1\n')
    (tmp_path / "d").mkdir()
    with served(tmp_path / "d" / "api.sock", FakeControl()):
        assert "round 140" in run("status").output
    assert "chaosd start --config chaosd.toml" in run("status", code=3).stderr


def test_a_flag_for_the_data_directory_wins_over_the_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "chaosd.toml").write_text('data_dir = "elsewhere"\n')
    with served(tmp_path / "api.sock", FakeControl()):
        run("status", "--config", "chaosd.toml", "--data-dir", tmp_path)
        run("status", "--data-dir", tmp_path)
        run("status", "--api-socket", tmp_path / "api.sock")


def test_a_broken_file_ends_with_2_and_its_name(run: Run, tmp_path: Path) -> None:
    (tmp_path / "chaosd.toml").write_text("data_dir = 3\n")
    assert "data_dir = 3: must be a path" in run("status", code=2).stderr
    assert "no such file" in run("status", "--config", "none.toml", code=2).stderr


def test_init_makes_a_key_and_a_file_that_start_accepts(run: Run, tmp_path: Path) -> None:
    words = ("init", "hospital", "--name", 'Cle"veland', "--run", "heart", "--listen", "127.0.0.1:7411", "--bootstrap")
    text = run(*words).output
    site = Identity.load(tmp_path / "hospital" / "data").site
    assert site in text
    assert f"chaosd peer add 'Cle\"veland={site}@127.0.0.1:7411'" in text
    config = load_config(tmp_path / "hospital" / "chaosd.toml")
    assert (config.name, config.run, config.listen, config.bootstrap) == ('Cle"veland', "heart", "127.0.0.1:7411", True)
    assert config.data_dir == tmp_path / "hospital" / "data"
    assert run("id", "--config", "hospital/chaosd.toml").output.strip() == site


def test_the_file_that_init_writes_shows_every_field_with_its_true_default(run: Run, tmp_path: Path) -> None:
    run("init", "a")
    path = tmp_path / "a" / "chaosd.toml"
    before = load_config(path)
    head, _, _ = path.read_text().partition("# [[peers]]")
    settings = [line.removeprefix("# ") for line in head.splitlines() if re.match(r"(# )?[a-z_]+ = ", line)]
    examples = ("trust", "metrics_token_file", "proxy_auth_file")  # no defaults
    path.write_text("\n".join(line for line in settings if not line.startswith(examples)))
    after = load_config(path)
    assert after == before
    assert set(after.model_fields_set) == set(SiteConfig.model_fields) - {"peers", *examples}


def test_init_overwrites_neither_key_nor_file(run: Run, tmp_path: Path) -> None:
    run("init", "a")
    key = (tmp_path / "a" / "data" / "site.key").read_bytes()
    assert "exists already" in run("init", "a", code=2).stderr
    (tmp_path / "a" / "chaosd.toml").unlink()
    run("init", "a")
    assert (tmp_path / "a" / "data" / "site.key").read_bytes() == key


def test_init_refuses_what_start_would_refuse_and_writes_nothing(run: Run, tmp_path: Path) -> None:
    assert "must be host:port" in run("init", "a", "--listen", "nowhere", code=2).stderr
    assert "set advertise" in run("init", "a", "--listen", "0.0.0.0:7400", code=2).stderr
    assert not (tmp_path / "a").exists()


def test_id_without_a_key_points_to_init(run: Run, tmp_path: Path) -> None:
    assert "chaosd init" in run("id", "--data-dir", tmp_path, code=2).stderr


def test_version_names_program_and_protocol(run: Run) -> None:
    assert run("version").output.startswith("chaos-train 0.")


def test_help_lists_every_command_with_examples(run: Run) -> None:
    text = run("--help").output
    for command in (
        "up",
        "init",
        "start",
        "status",
        "events",
        "page",
        "metrics",
        "link",
        "peer",
        "pending",
        "accept",
        "trust",
        *("reload", "leave", "recover"),
        "doctor",
        "id",
        "version",
    ):
        assert f" {command} " in text
        assert "$ chaosd" in run(command, "add" if command in ("link", "peer", "trust") else "--help", "--help").output


def test_every_field_of_the_configuration_is_a_flag_of_start_and_no_other_is() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    options = {name for parameter in commands["start"].params if not parameter.hidden for name in parameter.opts}
    assert options - {"--config", "-c", "--help", "-h"} == {flag_name(field) for field in SiteConfig.model_fields}
    hidden = {name for parameter in commands["start"].params if parameter.hidden for name in parameter.opts}
    assert hidden == {flag_name(former) for former in FORMER_NAMES}


@pytest.mark.parametrize("flag", ["--bootstrap", "--found"])
def test_init_takes_the_flag_by_either_name_but_not_by_both(run: Run, tmp_path: Path, flag: str) -> None:
    run("init", "a", flag)
    assert load_config(tmp_path / "a" / "chaosd.toml").bootstrap
    both = run("init", "b", "--bootstrap", "--found", code=2)
    assert "--bootstrap and --found are both given" in both.stderr


def test_start_hands_file_and_flags_to_the_daemon_and_ends_with_its_code(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[SiteConfig] = []
    daemon = types.ModuleType("chaosd.daemon")
    daemon.run_daemon = lambda config, reload: started.append(config) or 7  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "chaosd.daemon", daemon)
    (tmp_path / "chaosd.toml").write_text('name = "from the file"\nmin_sites = 2\n')
    words = ["--min-sites", 4, "--peer", f"{THERE}@127.0.0.1:7401", "--trust", HERE, "--trust", THERE]
    run("start", *words, "--data-dir", "d", code=7)
    config = started[0]
    assert (config.name, config.min_sites, config.bootstrap) == ("from the file", 4, False)
    assert (config.peers[0].site, config.trust) == (THERE, (HERE, THERE))
    assert config.data_dir == tmp_path / "d"


@pytest.mark.parametrize(
    "error",
    [OSError(21, "is a directory"), ConfigError("no peers"), IdentityError("no key yet"), JournalError("damaged")],
)
def test_a_daemon_that_cannot_start_says_so_in_a_line_and_ends_with_2(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def run_daemon(config: SiteConfig, reload: object) -> int:
        raise error

    daemon = types.ModuleType("chaosd.daemon")
    daemon.run_daemon = run_daemon  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "chaosd.daemon", daemon)
    told = "is a directory" if isinstance(error, OSError) else str(error)
    assert run("start", code=2).stderr == f"the daemon cannot start: {told}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--min-sites", 0], "--min-sites (command line) = 0: must be"),
        (["--peer", "nobody"], "--peer (command line) = 'nobody': must be SITE@HOST:PORT"),
        (["--peer", "nobody@h:1"], "must be a site id"),
        (["--config", "none.toml"], "no such file"),
    ],
)
def test_start_refuses_wrong_flags_with_2(run: Run, words: list[object], said: str) -> None:
    assert said in run("start", *words, code=2).stderr


def test_flags_that_were_not_given_override_nothing() -> None:
    assert overrides_of(dict.fromkeys(start.__annotations__)) == {}


def test_the_version_is_a_flag_too(run: Run) -> None:
    told = run("--version").stdout
    assert told == run("version").stdout and told.startswith("chaos-train ")


def test_a_shell_completes_commands_and_their_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the script of `--show-completion` asks."""
    monkeypatch.setenv("_CHAOSD_COMPLETE", "complete_bash")
    for words, wanted in (("chaosd sta", {"start", "status"}), ("chaosd status --wa", {"--watch"})):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
        assert set(CliRunner().invoke(app, [], prog_name="chaosd").stdout.split()) == wanted
