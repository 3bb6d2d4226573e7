"""`chaosd service install`: the daemon under the service manager of this machine, started at boot and after a crash."""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from chaosd.cli.options import EXIT_FAILED, EXIT_USAGE, ConfigOption, config_path, fail, selected
from chaosd.service import Service, ServiceError, is_of, launchd_agent, systemd_unit
from chaosd.storage.durable import write_durably

if TYPE_CHECKING:
    from chaosd.config.model import SiteConfig

SYSTEM_FOLDER = Path("/etc/systemd/system")
KINDS = ("systemd", "launchd")
FILE_MODE = 0o644

service_app = typer.Typer(no_args_is_help=True, help="Run this site's daemon under systemd or launchd.")

NO_MANAGER = (
    "\nNo service manager answers here: in a container there is none, and a user has one of its own only in a real "
    "login. The file stays; `--system`, as root, takes the machine's, and `chaosd start` needs none."
)


def register(app: typer.Typer) -> None:
    app.add_typer(service_app, name="service")


@service_app.command()
def install(
    config: ConfigOption = None,
    system: Annotated[
        bool, typer.Option("--system", help="a unit of the system, more closely confined (root)")
    ] = False,
    user: Annotated[
        str | None, typer.Option(help="with --system: who the daemon is; default: who owns the data")
    ] = None,
    kind: Annotated[str, typer.Option(help="systemd, or launchd (macOS)")] = "launchd"
    if sys.platform == "darwin"
    else "systemd",
    show: Annotated[bool, typer.Option("--print", help="print the file, write nothing")] = False,
    now: Annotated[bool, typer.Option("--now", help="have the service manager start it, now and at each boot")] = False,
) -> None:
    """Write the service manager's file for this site, and say how it is started.

    The daemon runs as the user who runs the training script, may write its data folder alone, and is not started again
    after an error that a restart does not mend. Its log is in the journal: `journalctl --user -u chaosd-NAME`.

      $ chaosd service install --print                           # look at it first
      $ chaosd service install --now                             # for this user
      $ chaosd service install --system --user trainer --now     # for the machine, as root
    """
    if kind not in KINDS or (kind == "launchd" and system):
        fail(f"--kind {kind}: must be one of {', '.join(KINDS)}; --system is for systemd", EXIT_USAGE)
    try:
        service = _service(config, system=system, user=user)
        text = launchd_agent(service) if kind == "launchd" else systemd_unit(service).encode()
    except ServiceError as error:
        fail(str(error), EXIT_USAGE)
    if show:
        typer.echo(text.decode(), nl=False)
        return
    path, commands = _place(service, kind, system=system)
    try:
        _demand_ours(path, service)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, text, FILE_MODE)
    except OSError as error:
        hint = "; `--system` needs root (sudo), `--print` shows the file" if system else ""
        fail(f"{path} cannot be written: {error.strerror}{hint}", EXIT_FAILED)
    typer.echo(f"wrote {path}")
    if not now:
        typer.echo(
            "start it, now and at each boot, with:\n" + "".join(f"  {' '.join(one)}\n" for one in commands), nl=False
        )
        return
    other = _daemon_there(service)
    for one in commands:
        _run(one)
    if other is not None and not _is_service(other, service, kind, system=system):
        _tell_of(other, service, kind, system=system)
    typer.echo(f"{service.label} runs; `chaosd status` shows it")


def _service(config: Path | None, *, system: bool, user: str | None) -> Service:
    """Of the site that is meant. Ends the command, or raises ServiceError, where it cannot be one."""
    from chaosd.config.model import ConfigError, load_config
    from chaosd.identity import Identity, IdentityError

    path = config_path(config)
    if path is None:
        fail("which site? Make one with `chaosd up` or `chaosd init`, or name it with --config", EXIT_USAGE)
    path = path.absolute()
    try:
        loaded = load_config(path)
        site = Identity.load(loaded.data_dir).site
    except (ConfigError, IdentityError) as error:
        fail(str(error), EXIT_USAGE)
    uid = loaded.data_dir.stat().st_uid
    owner = user_called(uid)
    if system and user not in (None, owner):
        raise ServiceError(
            f"{loaded.data_dir} belongs to {owner}, not to {user}: `chown -R {user} {loaded.data_dir}` first, since a "
            "key that others own is refused"
        )
    if not system and uid != os.getuid():  # not LOGNAME, which `su` leaves as it was
        raise ServiceError(f"{loaded.data_dir} belongs to {owner}: run this as {owner}, or with --system as root")
    chaosd = [sys.executable, "-P", "-m", "chaosd"]  # -P: a file in its folder must not stand for a library's module
    return Service(
        name=loaded.name,
        site=site,
        command=[*chaosd, "start", "--config", str(path)],
        # And not SIGHUP, which ends a process that is just being started, and tells nobody what is wrong in the file.
        reload=[*chaosd, "reload", "--config", str(path)],
        folder=path.parent,
        writable=[loaded.data_dir, *_folders_elsewhere(loaded, confined=system)],
        user=owner if system else "",
    )


def _demand_ours(path: Path, service: Service) -> None:
    """Ends the command where the file of that name is another site's: two may be called alike, as all are that were
    made on one machine without a name, and that one would be started no more. Raises OSError."""
    try:
        there = path.read_bytes()
    except FileNotFoundError:
        return
    if not is_of(there, service):
        fail(
            f"{path} is there already, and not of this site: give this site a name of its own (`name` in "
            f"{service.command[-1]}), or remove that file first, if nothing needs it",
            EXIT_FAILED,
        )


def _folders_elsewhere(loaded: SiteConfig, *, confined: bool) -> list[Path]:
    """What the daemon writes outside of its data folder. Raises ServiceError where a confined one could not: systemd
    opens folders that are there, and the one above would be more than the daemon needs, up to the whole disk."""
    named = {"checkpoint_dir": loaded.checkpoint_dir}
    named |= {"worker_socket": loaded.worker_socket.parent, "api_socket": loaded.api_socket.parent}
    elsewhere = {field: folder for field, folder in named.items() if not folder.is_relative_to(loaded.data_dir)}
    for field, folder in elsewhere.items():
        if confined and not folder.is_dir():
            owner = user_called(loaded.data_dir.stat().st_uid)
            raise ServiceError(
                f"{field}: the folder {folder} is not there, and a service cannot make it: "
                f"`install -d -m 700 -o {owner} {folder}` first"
            )
    return list(elsewhere.values())


def _place(service: Service, kind: str, *, system: bool) -> tuple[Path, list[list[str]]]:
    """(where the file goes, what then starts it)."""
    if kind == "launchd":
        path = Path.home() / "Library" / "LaunchAgents" / f"org.chaos-train.{service.label}.plist"
        return path, [["launchctl", "bootstrap", f"gui/{os.getuid()}", str(path)]]
    scope = [] if system else ["--user"]
    folder = SYSTEM_FOLDER if system else _user_folder()
    commands = [["systemctl", *scope, "daemon-reload"], ["systemctl", *scope, "enable", "--now", service.label]]
    if not system:
        commands.append(["loginctl", "enable-linger", user_called(os.getuid())])  # or it ends when its user logs out
    return folder / f"{service.label}.service", commands


def _user_folder() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "systemd" / "user"


def user_called(uid: int) -> str:
    """The name of a user; the number where the machine has no name for it, as containers and directories that are away
    have none. systemd takes both."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _daemon_there(service: Service) -> int | None:
    """The process of this site's daemon, however it was started; None: there is none that answers."""
    from chaosd.api.client import LocalClient, NoDaemonError, RequestRefusedError

    _, socket = selected(Path(service.command[-1]), None, None)
    try:
        return LocalClient(socket).status().pid
    except (NoDaemonError, RequestRefusedError):
        return None


def _is_service(pid: int, service: Service, kind: str, *, system: bool) -> bool:
    """Whether that daemon is the service's own, which ran before; launchd refuses one that it has already."""
    if kind == "launchd":
        return False
    scope = [] if system else ["--user"]
    asked = ["systemctl", *scope, "show", "--property=MainPID", "--value", service.label]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() == str(pid)


def _tell_of(pid: int, service: Service, kind: str, *, system: bool) -> NoReturn:
    """Ends the command: two daemons of one site there cannot be, and systemd tries no second time (FINAL_CODES)."""
    config, scope = shlex.quote(service.command[-1]), "" if system else "--user "
    then = "launchd starts its own a moment later" if kind == "launchd" else f"`systemctl {scope}start {service.label}`"
    fail(
        f"{service.label} does not run: a daemon of this site does already (process {pid}), which was started "
        f"otherwise. End that one, with Ctrl+C in its terminal or `chaosd leave --config {config}`; then {then}",
        EXIT_FAILED,
    )


def _run(command: list[str]) -> None:
    if shutil.which(command[0]) is None:
        fail(
            f"{command[0]} is not there: this machine has another service manager; `--print` shows the file",
            EXIT_FAILED,
        )
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        why = (done.stderr or done.stdout).strip()
        hint = NO_MANAGER if any(words in why for words in ("connect to bus", "booted with systemd")) else ""
        fail(f"`{' '.join(command)}` failed: {why}{hint}", EXIT_FAILED)
