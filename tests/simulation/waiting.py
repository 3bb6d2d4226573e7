"""What waits in a story until it is told to go on: bulk messages of a site, what its worker is told and says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.simulator.node import Node
from tests.simulator.outbox import Frame
from tests.simulator.worker import Worker

from chaos_protocols import events

EVERYBODY = ""


class Waiting:
    """See the module."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], list[Callable[[], None]]] = {}
        self._hung: dict[str, tuple[Worker | None, list[Callable[[], None]]]] = {}

    def watch(self, node: Node) -> None:
        send, tell, apply, handle = node._send_bulk, node._to_worker, node._apply, node.handle

        def sent(site: str, frame: Frame) -> None:
            held = self._held.get((node.site, site), self._held.get((node.site, EVERYBODY)))
            if held is None:
                send(site, frame)
                return
            connection = node.connections.get(site)  # with it goes what waits
            held.append(lambda: send(site, frame) if node.connections.get(site) is connection else None)

        def told(message: Any) -> None:
            self._unless_it_hangs(node, lambda: tell(message))

        def applied(number: int, piece: tuple[int, int] | None) -> None:
            self._unless_it_hangs(node, lambda: apply(number, piece))

        def heard(event: Any) -> None:
            if isinstance(event, events.WorkerLoaded | events.WorkerApplied | events.WorkerContributed):
                self._unless_it_hangs(node, lambda: handle(event))
            else:
                handle(event)

        node._send_bulk = sent  # type: ignore[method-assign]
        node.handle = heard  # type: ignore[method-assign]
        node._to_worker = told  # type: ignore[method-assign]
        node._apply = applied  # type: ignore[method-assign]

    def _unless_it_hangs(self, node: Node, action: Callable[[], None]) -> None:
        worker, waiting = self._hung.get(node.site, (None, []))
        if worker is not None and worker is node.worker:
            waiting.append(action)
        else:
            action()

    def hold(self, site: str, other: str = EVERYBODY) -> None:
        """What it sends in bulk, to everybody or to one other, waits until `release`."""
        self._held.setdefault((site, other), [])

    def release(self, node: Node) -> None:
        for key in [one for one in self._held if one[0] == node.site]:
            for action in self._held.pop(key):
                action()

    def hang(self, node: Node) -> None:
        """This worker does nothing that it is told, and says nothing; one that is started after it does."""
        self._hung[node.site] = (node.worker, [])

    def wake(self, node: Node) -> None:
        worker, waiting = self._hung.pop(node.site)
        for action in waiting if worker is node.worker else []:
            action()
