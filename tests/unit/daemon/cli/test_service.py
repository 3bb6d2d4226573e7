"""`chaosd service install`: files that the service managers take, and that confine the daemon to its own paths."""

from __future__ import annotations

import os
import plistlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import Result
from typer.testing import CliRunner

from chaosd.cli.app import app
from chaosd.service import Service, ServiceError, launchd_agent, systemd_unit

EXPOSURE_MAX = 25
"""Of `systemd-analyze security`, 0 (closed) to 100: below 30 it says OK."""


def run(*words: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = tmp_path / "a b"
    run("init", folder, "--name", "Cleveland Clinic")
    return folder / "chaosd.toml"


def service(**changes: object) -> Service:
    facts: dict[str, object] = {
        "name": "Cleveland",
        "site": "c" * 32,
        "command": [sys.executable, "-m", "chaosd", "start", "--config", "/srv/chaos/chaosd.toml"],
        "reload": [sys.executable, "-m", "chaosd", "reload", "--config", "/srv/chaos/chaosd.toml"],
        "folder": Path("/srv/chaos"),
        "writable": [Path("/srv/chaos/data")],
    }
    return Service(**{**facts, **changes})  # type: ignore[arg-type]


def analyzed(*words: str, unit: str, folder: Path) -> subprocess.CompletedProcess[str]:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed here")
    path = folder / "chaosd-test.service"
    path.write_text(unit)
    return subprocess.run(["systemd-analyze", *words, str(path)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("user", ["", "daemon"])
def test_systemd_itself_finds_nothing_wrong_with_the_unit(tmp_path: Path, user: str) -> None:
    done = analyzed("verify", "--man=no", unit=systemd_unit(service(user=user)), folder=tmp_path)
    ours = [line for line in done.stderr.splitlines() if "chaosd-test" in line]
    assert (done.returncode, ours) == (0, [])


def test_the_unit_of_the_system_leaves_little_exposed(tmp_path: Path) -> None:
    unit = systemd_unit(service(user="daemon"))
    done = analyzed(
        "security", "--no-pager", "--offline=true", f"--threshold={EXPOSURE_MAX}", unit=unit, folder=tmp_path
    )
    assert done.returncode == 0, done.stdout[-300:]


def test_a_cause_that_stays_is_not_tried_again_and_only_the_data_is_writable() -> None:
    unit = systemd_unit(service(user="trainer"))
    assert "RestartPreventExitStatus=2 4\n" in unit and "User=trainer\n" in unit
    assert re.findall("ReadWritePaths=(.*)", unit) == ["/srv/chaos/data"] and "ProtectSystem=strict\n" in unit
    own = systemd_unit(service())
    assert "User=" not in own and "ProtectSystem" not in own and "NoNewPrivileges=yes" in own
    with pytest.raises(ServiceError, match="temporary folder"):
        systemd_unit(service(user="trainer", writable=[Path("/tmp/data")]))


def test_words_stand_in_the_unit_as_systemd_reads_them() -> None:
    odd = 'a b%c$d"e\\f'
    unit = systemd_unit(service(name="x\n[Service]\nExecStart=/bin/sh", command=["/bin/chaosd", odd]))
    assert 'ExecStart=/bin/chaosd "a b%%c$$d\\"e\\\\f"\n' in unit
    assert unit.count("ExecStart=") == 2 and unit.count("\nExecStart=") == 1, "a name adds no line"
    with pytest.raises(ServiceError, match="unprintable"):
        systemd_unit(service(command=["/bin/x\n"]))


def test_the_command_writes_the_users_unit_and_says_how_to_start_it(site: Path, tmp_path: Path) -> None:
    text = run("service", "install", "--config", site).output
    path = tmp_path / "config" / "systemd" / "user" / "chaosd-cleveland-clinic.service"
    assert str(path) in text and "systemctl --user enable --now chaosd-cleveland-clinic" in text
    assert path.read_text() == run("service", "install", "--config", site, "--print").output
    assert f'"{site}"' in path.read_text()


@pytest.mark.parametrize("kind", ["systemd", "launchd"])
def test_a_site_that_is_called_like_another_one_does_not_take_its_file(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Sites that are made without a name have that of the machine: both would be one service, the last one."""
    monkeypatch.setenv("HOME", str(tmp_path))
    run("init", tmp_path / "other", "--name", "Cleveland  (clinic)", "--listen", "127.0.0.1:7401")
    other = tmp_path / "other" / "chaosd.toml"
    path = Path(run("service", "install", "--config", site, "--kind", kind).stdout.split()[1])
    written = path.read_bytes()
    refused = run("service", "install", "--config", other, "--kind", kind, code=1)
    assert path.read_bytes() == written, "the first site's daemon would be started no more"
    assert "not of this site" in refused.stderr and str(other) in refused.stderr
    run("service", "install", "--config", site, "--kind", kind)
    (site.parent / "data" / "site.key").unlink()
    run("init", site.parent)
    run("service", "install", "--config", site, "--kind", kind)  # another key in its place: it is the same service


def test_who_a_service_runs_as_is_asked_of_the_system_and_may_have_no_name(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "nobody")  # as `su` leaves it
    assert "User=" not in run("service", "install", "--config", site, "--kind", "systemd", "--print").output
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])  # a container, or a directory that does not answer
    text = run("service", "install", "--config", site, "--kind", "systemd", "--print", "--system", code=2).stderr
    assert "temporary folder" in text, "it comes as far as to look where the data lies"
    told = run("service", "install", "--config", site, "--kind", "systemd").output
    assert f"loginctl enable-linger {os.getuid()}" in told


def test_a_unit_that_was_masked_is_not_written_into_nothing(site: Path, tmp_path: Path) -> None:
    path = tmp_path / "config" / "systemd" / "user" / "chaosd-cleveland-clinic.service"
    path.parent.mkdir(parents=True)
    path.symlink_to("/dev/null")  # as `systemctl mask` does
    assert "not of this site" in run("service", "install", "--config", site, code=1).stderr
    assert path.is_symlink()


def test_a_reload_is_asked_for_by_the_command_which_ends_no_daemon_that_starts_and_tells_a_mistake(
    site: Path,
) -> None:
    """systemd counts a daemon that SIGHUP has ended as stopped, and does not start it again."""
    unit = run("service", "install", "--config", site, "--print").output
    assert f'ExecReload={sys.executable} -P -m chaosd reload --config "{site}"\n' in unit and "HUP" not in unit
    assert "no daemon answers" in run("reload", "--config", site, code=3).stderr


def test_the_agent_of_macos_starts_the_same_daemon(site: Path) -> None:
    text = run("service", "install", "--config", site, "--kind", "launchd", "--print").output
    values = plistlib.loads(text.encode())
    assert values["ProgramArguments"] == [sys.executable, "-P", "-m", "chaosd", "start", "--config", str(site)]
    assert values == plistlib.loads(
        launchd_agent(
            service(
                name="Cleveland Clinic",
                command=values["ProgramArguments"],
                folder=site.parent,
                writable=[site.parent / "data"],
            )
        )
    )


def test_a_confined_daemon_may_write_its_folders_and_none_above_them(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaosd.service.TEMPORARY", ())  # where the test's folders lie
    far = tmp_path / "checkpoints"
    site.write_text(site.read_text() + f'checkpoint_dir = "{far}"\n')
    told = run("service", "install", "--config", site, "--system", "--print", code=2).stderr
    assert f"checkpoint_dir: the folder {far} is not there" in told and "install -d" in told
    far.mkdir()
    unit = run("service", "install", "--config", site, "--system", "--print").output
    assert re.findall('ReadWritePaths="?([^"\n]*)', unit) == [str(site.parent / "data"), str(far)]


def test_what_cannot_be_a_service_is_said(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "must be one of" in run("service", "install", "--config", site, "--kind", "upstart", code=2).stderr
    assert "chown" in run("service", "install", "--config", site, "--system", "--user", "daemon", code=2).stderr
    monkeypatch.setenv("PATH", str(tmp_path))
    told = run("service", "install", "--config", site, "--now", code=1).stderr
    assert "systemctl is not there" in told


def test_where_no_service_manager_answers_the_way_out_is_said(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    systemctl = tmp_path / "bin" / "systemctl"
    systemctl.parent.mkdir()
    systemctl.write_text("#!/bin/sh\necho 'Failed to connect to bus: No medium found' >&2\nexit 1\n")
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{systemctl.parent}:/usr/bin:/bin")
    told = run("service", "install", "--now", "--config", site, code=1).stderr
    assert "Failed to connect to bus" in told and "No service manager answers here" in told


@pytest.mark.parametrize(("main", "code"), [("0", 1), ("4711", 1), (None, 0)])
def test_a_service_beside_a_daemon_that_was_started_otherwise_does_not_run_and_that_is_said(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, main: str | None, code: int
) -> None:
    """As after `chaosd up`: the service's own daemon ends with 2, for which systemd never tries again."""
    there = SimpleNamespace(pid=os.getpid())
    monkeypatch.setattr("chaosd.api.client.LocalClient.status", lambda client: there)
    for name, says in (("systemctl", str(os.getpid()) if main is None else main), ("loginctl", "")):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\necho {says}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    done = run("service", "install", "--now", "--config", site, "--kind", "systemd", code=code)
    label, told = "chaosd-cleveland-clinic", f"process {os.getpid()}"
    assert (f"{label} runs" in done.stdout, told in done.stderr) == (code == 0, code != 0)
    assert (f"`systemctl --user start {label}`" in done.stderr) is (code != 0)
