"""Whom the operator of each site wants out of the run: kept beside the daemon, which is told at its start, and refused
at its door (spec 8.15)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos_protocols.names import SiteId
from chaos_protocols.wishes import BansChanged

if TYPE_CHECKING:
    from tests.simulator.node import Node
    from tests.simulator.world import World


class Bans:
    """See the module. `gone`: sites whose institutions have given up, since they are out for good."""

    def __init__(self, world: World) -> None:
        self.gone: set[str] = set()
        self._world = world
        self._wanted: dict[str, tuple[str, ...]] = {}
        """By site whom its operator wants out."""

    def wants(self, node: Node, target: Node, *, out: bool) -> None:
        """The operator of `node` says so, or takes it back; at once, or when its daemon is started."""
        before = self._wanted.get(node.site, ())
        if out == (target.site in before):
            return
        rest = tuple(site for site in before if site != target.site)
        self._wanted[node.site] = (*rest, target.site) if out else rest
        self._world.tell(f"!! the operator of {node.name} wants {target.name} {'out' if out else 'out no more'}")
        self.started(node)
        connection = node.connections.get(target.site)
        if out and connection is not None:
            self._world.hang_up(node, connection)

    def started(self, node: Node) -> None:
        """Its daemon is told what is written in its folder."""
        if node.site in self._wanted and not node.stray:
            node.handle(BansChanged(sites=tuple(SiteId(site) for site in self._wanted[node.site])))

    def by(self, target: Node) -> list[Node]:
        """Whose operators want it out."""
        return [self._world.nodes[site] for site, wanted in self._wanted.items() if target.site in wanted]

    def are_parted(self, node: Node, other: Node) -> bool:
        """One of them has no link with the other."""
        return other.site in self._wanted.get(node.site, ()) or node.site in self._wanted.get(other.site, ())

    def is_out(self, node: Node) -> bool:
        """For good, and it has given up."""
        return node.site in self.gone
