"""The bulk engines of a simulated site behind one door, as `chaosd.bulk.streams` has them: averaging on a stream of its
own, states on two others.

What may go wrong here: a byte of a chunk or block changes after it was hashed (`spoil`, `spoil_results`). On its way a
byte cannot change unseen, since TLS would end the link; nor is a single frame lost, doubled or out of order within its
stream: a link ends, perhaps in the middle of a frame, and what was on its way is said again over the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chaos_protocols import effects
from chaos_protocols.errors import RemoteProtocolError
from chaos_protocols.names import SiteId
from chaos_protocols.wire.bulk import BLOCK_BYTES_MIN, BlockWant
from tests.simulator.averaging import Averaging
from tests.simulator.outbox import AVERAGING, STATES, Frame
from tests.simulator.transfers import Transfers

if TYPE_CHECKING:
    from tests.simulator.node import Node


class BulkEngines:
    """See the module."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.averaging = Averaging(node)
        self.transfers = Transfers(node)

    def execute(self, effect: Any) -> None:
        """One effect of the site's machine that concerns the engines."""
        node, averaging, transfers = self._node, self.averaging, self.transfers
        match effect:
            case effects.OpenRound():
                averaging.open(effect)
            case effects.Contribute(has_bytes=has_bytes, ready_bytes=ready):
                if ready is not None:
                    node.contribution = node.odd.pieces.token
                averaging.contribute(effect, node.contribution if has_bytes else None)
            case effects.StopRound(tag=tag):
                averaging.stop(tag)
            case effects.FetchResult(round=number, digest=digest):
                assert node.machine is not None
                averaging.exchange.may_hold = node.machine.may_hold_results
                averaging.fetch_result(number, digest, node.machine.links.up_sites())
            case effects.DropResults(before_round=before_round):
                averaging.drop_results(before_round)
            case effects.VoidResults(after_round=after_round):
                averaging.drop_results(0, after_round)
            case effects.ServeState(plan=plan):
                if node.region is not None:
                    transfers.serve(plan, node.region)
            case effects.ReleaseState(transfer=transfer):
                transfers.release(transfer)
            case effects.FetchState(plan=plan, have=have):
                if node.region is not None:
                    transfers.fetch(plan, node.region, have=have)
            case effects.CancelTransfer(transfer=transfer):
                transfers.cancel(transfer)
            case effects.DropSource(transfer=transfer, source=source):
                transfers.source_gone(transfer, source)
            case _:
                raise AssertionError(f"unknown effect {effect}")

    def link_up(self, site: SiteId) -> None:
        self.averaging.link_up(site)
        self.transfers.link_up(site)

    def link_lost(self, site: SiteId) -> None:
        self.averaging.link_lost(site)
        self.transfers.link_lost(site)

    def begins(self, site: str, frame: Frame) -> None:
        """The first bytes of a frame with a payload."""
        frame.begun = True
        try:
            (self.averaging if frame.stream == AVERAGING else self.transfers).begins(site, frame)
        except RemoteProtocolError as error:
            self._node.peer_broke_rules(site, str(error), faulty=frame.faulty)

    def received(self, site: SiteId, frame: Frame) -> None:
        """A frame is complete."""
        if frame.payload is not None and not frame.begun:
            self.begins(site, frame)
        try:
            (self.averaging if frame.stream == AVERAGING else self.transfers).received(site, frame)
        except RemoteProtocolError as error:
            self._node.peer_broke_rules(site, str(error), faulty=frame.faulty)

    def taken(self, site: str, stream: str) -> None:
        """The far end has read a frame of ours."""
        if stream == AVERAGING:
            self.averaging.outbox.taken(site)
        else:
            self.transfers.taken(site, stream)

    # -- faults

    def stall(self, stalled: bool) -> None:
        self.transfers.stall(stalled)

    def abort(self) -> None:
        self.transfers.abort()

    def spoil(self, count: int) -> None:
        """The next blocks of a state that this site sends have a wrong byte."""
        self.transfers.spoils = count

    def spoil_results(self, count: int) -> None:
        """So have the next chunks of results. (A sum on its way to the root has no hash: nobody could see it.)"""
        self.averaging.spoils = self.averaging.spoils_held = count

    def pry(self, site: str, transfer: str) -> None:
        """Ask a source for a state that is meant for somebody else, as a confused or a curious site might."""
        header = BlockWant(transfer=transfer, start=0, stop=1, block_bytes=BLOCK_BYTES_MIN)
        self.transfers.outboxes[STATES[0]].put(site, Frame(STATES[0], header, faulty=True))

    # -- what is looked at

    def is_over(self, site: str, frame: Frame) -> bool:
        """Whether what this frame is about is over, so that it must change nothing if it comes once more. Not in the
        middle of another one on the same stream, where no frame can come."""
        engine = self.averaging if frame.stream == AVERAGING else self.transfers
        return engine.is_over(frame.header) and not engine.is_in_the_middle(site, frame.stream)

    def fingerprint(self) -> tuple[Any, ...]:
        return (*self.averaging.fingerprint(), *self.transfers.fingerprint())
