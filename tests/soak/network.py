"""The network of the soak: each site in a network namespace of its own on one bridge, where the system allows it.

There a fault drops real packets: the kernel of one end sends again and again, nobody is told. Needs root, `ip` and
`iptables`; nothing of the machine's own network is touched, since bridge and cables lie in namespaces as well. Where
that is not allowed (`NoNamespacesError` says why) all sites share the loopback interface, and black holes are made by
the daemons themselves (lab API).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass

COMMAND_TIMEOUT_S = 30.0
PORT = 7400
SUBNET = "10.217.0"
"""Inside the namespaces only."""


class NoNamespacesError(Exception):
    """Why there can be no namespaces here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What one site does with packets that come from another: `probability` of them is dropped, of those larger than
    `larger_than_bytes`, or each TCP packet is answered by a reset."""

    near: str
    far: str
    probability: float = 1.0
    reset: bool = False
    larger_than_bytes: int = 0


class Namespaces:
    """See the module. `close` removes everything; it is safe to call twice."""

    def __init__(self, names: tuple[str, ...]) -> None:
        """Raises NoNamespacesError; nothing is left then."""
        for command in ("ip", "iptables-restore"):
            if shutil.which(command) is None:
                raise NoNamespacesError(f"there is no '{command}'")
        self.prefix = f"chaos-soak-{os.getpid()}"
        self._names = names
        self._rules: dict[str, tuple[Rule, ...]] = {}
        self._hub = f"{self.prefix}-hub"
        try:
            self._build()
        except (OSError, subprocess.SubprocessError) as error:
            self.close()
            raise NoNamespacesError(str(getattr(error, "stderr", None) or error).strip()) from error

    def of(self, name: str) -> str:
        """The namespace of a site."""
        return f"{self.prefix}-{name}"

    def host(self, name: str) -> str:
        return f"{SUBNET}.{1 + self._names.index(name)}"

    def command(self, name: str, command: list[str]) -> list[str]:
        """`command`, to run in the site's namespace; the process keeps its number."""
        return ["ip", "netns", "exec", self.of(name), *command]

    def filter(self, rules: tuple[Rule, ...]) -> None:
        """From now on these rules, and no others; each site's change at once."""
        for name in self._names:
            mine = tuple(rule for rule in rules if rule.near == name)
            if mine == self._rules.get(name, ()):
                continue
            lines = ["*filter", ":INPUT ACCEPT [0:0]", *(self._line(rule) for rule in mine), "COMMIT", ""]
            _run(self.command(name, ["iptables-restore"]), text="\n".join(lines))
            self._rules[name] = mine

    def unplug(self, name: str, *, out: bool) -> None:
        """Pull the site's cable, or plug it in again: unlike dropped packets, its kernel notices."""
        _run(["ip", "-n", self.of(name), "link", "set", "eth0", "down" if out else "up"])

    def listening(self, name: str) -> list[str]:
        """TCP sockets that listen in the site's namespace."""
        table = _run(self.command(name, ["cat", "/proc/net/tcp", "/proc/net/tcp6"]))
        fields = [line.split() for line in table.splitlines()]
        return [one[1] for one in fields if len(one) > 3 and one[3] == "0A"]

    def left(self) -> list[str]:
        """Our namespaces that are still there."""
        return [line.split()[0] for line in _run(["ip", "netns", "list"]).splitlines() if line.startswith(self.prefix)]

    def close(self) -> None:
        for name in (self._hub, *(self.of(name) for name in self._names)):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False, timeout=COMMAND_TIMEOUT_S)

    def _build(self) -> None:
        _run(["ip", "netns", "add", self._hub])
        _run(["ip", "-n", self._hub, "link", "add", "bridge", "type", "bridge"])
        _run(["ip", "-n", self._hub, "link", "set", "bridge", "up"])
        for number, name in enumerate(self._names):
            site = self.of(name)
            _run(["ip", "netns", "add", site])
            cable = ["type", "veth", "peer", "name", f"port{number}", "netns", self._hub]
            _run(["ip", "-n", site, "link", "add", "eth0", *cable])
            _run(["ip", "-n", self._hub, "link", "set", f"port{number}", "master", "bridge"])
            _run(["ip", "-n", self._hub, "link", "set", f"port{number}", "up"])
            _run(["ip", "-n", site, "address", "add", f"{self.host(name)}/24", "dev", "eth0"])
            _run(["ip", "-n", site, "link", "set", "lo", "up"])
            _run(["ip", "-n", site, "link", "set", "eth0", "up"])
        every = [Rule(near=self._names[0], far=far, probability=0.5, larger_than_bytes=1000) for far in self._names[1:]]
        self.filter((*every, Rule(near=self._names[0], far=self._names[0], reset=True)))  # are all rules known here?
        self.filter(())

    def _line(self, rule: Rule) -> str:
        begin = f"-A INPUT -s {self.host(rule.far)}"
        if rule.reset:
            return f"{begin} -p tcp -j REJECT --reject-with tcp-reset"
        if rule.larger_than_bytes:
            begin += f" -m length --length {rule.larger_than_bytes + 1}:65535"
        chance = f" -m statistic --mode random --probability {rule.probability}" if rule.probability < 1 else ""
        return f"{begin}{chance} -j DROP"


def _run(command: list[str], *, text: str = "") -> str:
    done = subprocess.run(command, input=text, capture_output=True, check=True, text=True, timeout=COMMAND_TIMEOUT_S)
    return done.stdout
