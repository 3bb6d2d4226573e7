"""The service manager's file for a site: a systemd unit, for a user or the system, or a launchd agent. Pure text.

The unit gives the daemon what it needs and no more: its data folder to write, the rest of the file system to read, no
privileges, no devices, no kernel settings, no other address families than those it speaks. What of that a user's own
systemd cannot do (it may not make file-system namespaces everywhere) is left out of the user unit, not pretended.

A daemon that ended for a cause that stays (exit codes 2 and 4, docs/operating.md) is not started again.
"""

from __future__ import annotations

import plistlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESTART_AFTER_S = 5
STOP_TIMEOUT_S = 120
"""A leave waits for the end of the round, which may be a long one; `chaosd leave` waits as long."""
FILES_MAX = 65536
FINAL_CODES = (2, 4)
TEMPORARY = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108

FOR_BOTH = """\
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictNamespaces=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
SystemCallArchitectures=native
SystemCallFilter=@system-service
UMask=0077
"""
"""Seccomp and prctl: any systemd can. AF_NETLINK: the resolver asks which addresses the machine has."""

FOR_SYSTEM = """\
CapabilityBoundingSet=
AmbientCapabilities=
PrivateDevices=yes
PrivateTmp=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHome=read-only
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
ProtectSystem=strict
RemoveIPC=no
"""
"""Namespaces of its own. IPC stays: the daemon's user may run the training script, too."""


class ServiceError(ValueError):
    """The site cannot be a service as it is; the text says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What the file is made of. `command`: absolute program and arguments, `reload`: of that which has it read its
    configuration again; `writable`: folders that the daemon writes;
    `user`: of a system unit, empty for a user's own."""

    name: str
    site: str
    command: Sequence[str]
    reload: Sequence[str]
    folder: Path
    writable: Sequence[Path]
    user: str = ""

    @property
    def label(self) -> str:
        """chaosd, and the site's name as far as it may stand in a file name."""
        plain = re.sub(r"[^A-Za-z0-9_]+", "-", self.name).strip("-").lower()
        return f"chaosd-{plain or self.site[:8]}"


def systemd_unit(service: Service) -> str:
    """The unit file. Raises ServiceError."""
    if service.user and any(place.is_relative_to(temporary) for place in service.writable for temporary in TEMPORARY):
        raise ServiceError("the data folder lies in a temporary folder, which a service has of its own: move the site")
    description = re.sub(r"[^ -~]|[\\%]", "?", service.name)
    writable = "".join(f"ReadWritePaths={_quoted(str(place))}\n" for place in sorted({*service.writable}))
    return (
        "# Written by `chaosd service install`.\n"
        "[Unit]\n"
        f"Description=Chaos training daemon, site {description} ({service.site[:8]})\n"
        "Wants=network-online.target\n"
        "After=network-online.target\n"
        "StartLimitIntervalSec=0\n"
        "\n[Service]\n"
        "Type=exec\n"
        f"ExecStart={_command_line(service.command)}\n"
        f"WorkingDirectory={str(service.folder).replace('%', '%%')}\n"
        + (f"User={service.user}\n" if service.user else "")
        + f"ExecReload={_command_line(service.reload)}\n"
        "Restart=on-failure\n"
        f"RestartSec={RESTART_AFTER_S}\n"
        f"RestartPreventExitStatus={' '.join(map(str, FINAL_CODES))}\n"
        f"TimeoutStopSec={STOP_TIMEOUT_S}\n"
        f"LimitNOFILE={FILES_MAX}\n" + FOR_BOTH + (FOR_SYSTEM + writable if service.user else "") + "\n[Install]\n"
        f"WantedBy={'multi-user.target' if service.user else 'default.target'}\n"
    )


def launchd_agent(service: Service) -> bytes:
    """The property list of a user's agent (macOS). launchd knows no exit codes: it starts again after any failure."""
    log = str(service.writable[0] / "chaosd.log")
    values: dict[str, Any] = {
        "Label": f"org.chaos-train.{service.label}",
        "ProgramArguments": list(service.command),
        "WorkingDirectory": str(service.folder),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": RESTART_AFTER_S,
        "ExitTimeOut": STOP_TIMEOUT_S,
        "Umask": 0o077,
        "SoftResourceLimits": {"NumberOfFiles": FILES_MAX},
        "StandardErrorPath": log,
        "StandardOutPath": log,
    }
    return plistlib.dumps(values)


def is_of(text: bytes, service: Service) -> bool:
    """Whether a file that lies there was written for this site, or for the one that its configuration made before."""
    config, told = service.command[-1], text.decode("utf-8", "replace")
    if f"({service.site[:8]})" in told or f" {_quoted(config, dollar=True)}\n" in told:
        return True
    try:
        return bool(plistlib.loads(text)["ProgramArguments"][-1] == config)
    except Exception:  # whatever it is, it is no list of properties that was written here
        return False


def _command_line(words: Sequence[str]) -> str:
    """Raises ServiceError."""
    return " ".join(_quoted(word, dollar=True) for word in words)


def _quoted(word: str, *, dollar: bool = False) -> str:
    """As systemd reads a word (systemd.syntax(7), systemd.service(5)): percent signs are specifiers, dollars variables
    in commands. Raises ServiceError."""
    if not word.isprintable():
        raise ServiceError(f"{word!r}: a path with unprintable characters cannot stand in a unit")
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    if dollar:
        escaped = escaped.replace("$", "$$")
    return f'"{escaped}"' if re.search(r"[^A-Za-z0-9_./:=@%+,-]", escaped) else escaped
