"""A transport that the lab's routes may ask, and that opens nothing."""

from __future__ import annotations

from chaos_lab.links.shape import LinkShape
from chaos_lab.links.transport import LabTransport
from chaos_protocols.names import SiteId


class FakeLabTransport(LabTransport):
    """Notes what the lab's routes ask of it; opens nothing."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []
        self.stands = True

    def shape(self, site: SiteId | None, shape: LinkShape) -> None:
        self.asked.append((site, shape.rate_bytes_per_s, shape.latency_s, shape.cut_in, shape.cut_out,
                           shape.corrupt_probability, shape.corrupt_stream_min))  # fmt: skip

    def break_record(self, site: SiteId, stream: int | None) -> bool:
        self.asked.append(("break", site, stream))
        return self.stands
