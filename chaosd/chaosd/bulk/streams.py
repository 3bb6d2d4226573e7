"""Which engine a bulk frame belongs to: stream 0 carries averaging, the others state transfers, probes, model
descriptions and how a neighbour sees this site.

Averaging has a stream of its own so that a transfer at full speed never stands in its way. Every payload that arrives
also tells how fast its link is (`chaos_protocols.links.rates`). What goes in and out is counted by purpose.
"""

from __future__ import annotations

import time

from chaos_protocols.names import SiteId
from chaos_protocols.wire.bulk import STREAM_AVERAGING, bulk_kind, may_be_skipped
from chaosd.bulk.reduce.engine import ReduceEngine
from chaosd.bulk.replication.engine import ReplicationEngine
from chaosd.bulk.send_queue import BulkSender
from chaosd.metrics import Metrics
from chaosd.model_check import ModelCheck
from chaosd.monitor.link_meter import LinkMeter
from chaosd.monitor.probe import LinkProbe
from chaosd.peer_view import PeerViews

AVERAGING, STATE, OTHER = "averaging", "state", "other"
"""What bulk bytes are for: the label `kind` of `chaosd_bulk_bytes`."""


class CountedSender:
    """The transport as one engine sees it: what it sends is counted as that engine's."""

    def __init__(self, sender: BulkSender, metrics: Metrics, kind: str) -> None:
        self._sender = sender
        self._sent = metrics.bulk_bytes.labels("sent", kind)
        self.bulk_progress = sender.bulk_progress
        self.state_streams = sender.state_streams
        self.forget_payload = sender.forget_payload
        self.payload_bytes = sender.payload_bytes

    async def send_bulk(self, site: SiteId, stream: int, header: bytes, payload: memoryview | bytes = b"") -> None:
        size_bytes = payload.nbytes if isinstance(payload, memoryview) else len(payload)
        await self._sender.send_bulk(site, stream, header, payload)
        self._sent.inc(size_bytes)

    def send_bulk_now(self, site: SiteId, stream: int, header: bytes, payload: memoryview | bytes = b"") -> bool:
        sent = self._sender.send_bulk_now(site, stream, header, payload)
        if sent and payload:
            self._sent.inc(payload.nbytes if isinstance(payload, memoryview) else len(payload))
        return sent


class BulkStreams:
    """The engines of a site behind one door."""

    def __init__(
        self,
        reduce: ReduceEngine,
        replication: ReplicationEngine,
        probe: LinkProbe,
        models: ModelCheck,
        views: PeerViews,
        meter: LinkMeter,
        metrics: Metrics,
    ) -> None:
        self.reduce, self.replication, self.probe = reduce, replication, probe
        self.models, self.views, self.meter = models, views, meter
        self._received = {kind: metrics.bulk_bytes.labels("received", kind) for kind in (AVERAGING, STATE, OTHER)}

    def buffer(self, site: SiteId, stream: int, header: bytes, size_bytes: int) -> memoryview | None:
        """Where a payload goes; None: read and forget. Raises RemoteProtocolError."""
        self.meter.passive.began(site, stream, size_bytes, now_s=time.monotonic())
        if may_be_skipped(header):
            return None
        if stream == STREAM_AVERAGING:
            self._received[AVERAGING].inc(size_bytes)
            return self.reduce.bulk_buffer(site, stream, header, size_bytes)
        kind = bulk_kind(header)
        if self.models.is_ours(kind):
            self._received[OTHER].inc(size_bytes)
            return self.models.bulk_buffer(site, size_bytes)
        if self.views.is_ours(kind):
            self._received[OTHER].inc(size_bytes)
            return self.views.bulk_buffer(site, size_bytes)
        if LinkProbe.is_probe(kind) or self.meter.is_ours(kind):
            self._received[OTHER].inc(size_bytes)
            return None
        self._received[STATE].inc(size_bytes)
        return self.replication.bulk_buffer(site, stream, header, size_bytes)

    def received(self, site: SiteId, stream: int, header: bytes, payload: memoryview | None) -> None:
        """A frame is complete. Raises RemoteProtocolError."""
        self.meter.passive.ended(site, stream, now_s=time.monotonic())
        if may_be_skipped(header):
            return
        if stream == STREAM_AVERAGING:
            self.reduce.bulk_received(site, stream, header, payload)
            return
        kind = bulk_kind(header)
        if self.models.is_ours(kind):
            self.models.bulk_received(site, kind, payload)
        elif self.views.is_ours(kind):
            self.views.bulk_received(site, kind, payload)
        elif self.meter.is_ours(kind):
            self.meter.bulk_received(site, header)
        elif LinkProbe.is_probe(kind):
            self.probe.bulk_received(site, stream, header)
        else:
            self.replication.bulk_received(site, stream, header, payload)

    def link_up(self, site: SiteId) -> None:
        self.reduce.link_up(site)
        self.replication.link_up(site)

    def link_lost(self, site: SiteId, reason: str) -> None:
        self.reduce.link_lost(site)
        self.replication.link_lost(site)
        self.probe.link_lost(site, reason)
        self.meter.passive.link_lost(site)

    async def close(self) -> None:
        await self.reduce.close()
        await self.replication.close()
        await self.probe.close()
        await self.views.close()
        await self.meter.close()
