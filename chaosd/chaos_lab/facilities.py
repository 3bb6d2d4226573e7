"""What this machine can do for a lab on network namespaces, found by trying, and the tools by which it is done.

Linux and root; ip, tc (iproute2) and nsenter (util-linux); iptables, or nft where the kernel has netem. Latency is made
by netem if the kernel has it, otherwise by the delay line over NFQUEUE.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass

from chaos_lab.delay_line import Queue
from chaos_lab.errors import LabError, NetworkUnavailableError

TOOL_TIMEOUT_S = 30.0
"""None of the tools waits for anything but the kernel's own lock."""
RUN_NETNS = "/run/netns"
PACKAGES = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux", "iptables-restore": "iptables"}


class ToolError(LabError):
    """A tool refused; the text is its own, with the command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facilities:
    """`netem`: the kernel makes latency and loss; otherwise the delay line does, and iptables. `iptables`: cuts are
    made by iptables; otherwise by nft."""

    netem: bool
    iptables: bool

    @property
    def described(self) -> str:
        return "latency by netem" if self.netem else "latency by the delay line over NFQUEUE"


def tool(*command: str, text: str = "") -> str:
    """Run a tool with `text` as its standard input; returns what it printed. Raises ToolError."""
    try:
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            timeout=TOOL_TIMEOUT_S,
            check=False,
            start_new_session=True,  # Ctrl+C is for the lab, not for what it clears up with
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolError(f"`{' '.join(command)}` failed: {error}") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise ToolError(f"`{' '.join(command)}` failed with status {done.returncode}: {said}\n{text}".rstrip())
    return done.stdout


def inside(namespace: str, *command: str) -> list[str]:
    """The command that runs `command` in a network namespace, as the same process."""
    return ["nsenter", f"--net={RUN_NETNS}/{namespace}", *command]


def probe(scratch: str) -> Facilities:
    """Try in a namespace named `scratch`, which is gone afterwards. Raises NetworkUnavailableError."""
    _demand_tools()
    try:
        tool("ip", "netns", "add", scratch)
    except ToolError as error:
        raise NetworkUnavailableError(f"no network namespace can be made: {error}") from error
    try:
        tool("ip", "-n", scratch, "link", "set", "lo", "up")
        try:
            tool("tc", "-n", scratch, "qdisc", "add", "dev", "lo", "root", "tbf",
                 "rate", "100mbit", "burst", "32kb", "latency", "50ms")  # fmt: skip
        except ToolError as error:
            raise NetworkUnavailableError(f"the kernel has no tbf, by which rates are limited: {error}") from error
        netem = _works("tc", "-n", scratch, "qdisc", "replace", "dev", "lo", "root", "netem", "delay", "1ms")
        iptables = shutil.which("iptables-restore") is not None and _works(
            *inside(scratch, "iptables-restore", "--noflush"), text="*mangle\n-F PREROUTING\nCOMMIT\n"
        )
        if not netem:
            _demand_queue(scratch, iptables)
        elif not iptables and shutil.which("nft") is None:
            raise NetworkUnavailableError("links are cut by iptables or nft, and neither works: install iptables")
        return Facilities(netem=netem, iptables=iptables)
    finally:
        tool("ip", "netns", "del", scratch)


def _demand_tools() -> None:
    if sys.platform != "linux":
        raise NetworkUnavailableError("network namespaces exist on Linux only")
    if os.geteuid() != 0:
        raise NetworkUnavailableError("network namespaces need root: run the lab as root (sudo)")
    missing = [name for name in ("ip", "tc", "nsenter") if shutil.which(name) is None]
    if missing:
        packages = " ".join(sorted({PACKAGES[name] for name in missing}))
        raise NetworkUnavailableError(f"{', '.join(missing)} not found: install {packages}")


def _demand_queue(scratch: str, iptables: bool) -> None:
    why = "the kernel has no netem, so that latency is made by the delay line over NFQUEUE"
    if not iptables:
        raise NetworkUnavailableError(f"{why}; that needs iptables: install it (Debian: apt-get install iptables)")
    try:
        rule = "*mangle\n-A PREROUTING -i lo -j NFQUEUE --queue-num 1\nCOMMIT\n"
        tool(*inside(scratch, "iptables-restore", "--noflush"), text=rule)
        Queue(f"{RUN_NETNS}/{scratch}", 1, 0.0).socket.close()
    except (ToolError, OSError) as error:
        raise NetworkUnavailableError(f"{why}; but that does not work either: {error}") from error


def _works(*command: str, text: str = "") -> bool:
    try:
        tool(*command, text=text)
    except ToolError:
        return False
    return True
