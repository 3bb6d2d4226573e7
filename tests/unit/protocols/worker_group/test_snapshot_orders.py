"""Of which rounds the daemon wants a copy of the common state."""

from __future__ import annotations

from chaos_protocols.wire.worker import TakeSnapshot
from chaos_protocols.worker_group.snapshot_orders import SnapshotOrders


def test_a_copy_that_is_wanted_alone_is_wanted_instead_of_those_before() -> None:
    orders = SnapshotOrders()
    assert orders.asked(TakeSnapshot(round=5), now=3) is None
    assert orders.asked(TakeSnapshot(round=6), now=3) is None and orders.is_due(5) and orders.is_due(6)
    assert orders.asked(TakeSnapshot(round=7, alone=True), now=3) is None
    assert orders.is_due(7) and not orders.is_due(5) and not orders.is_due(6)
