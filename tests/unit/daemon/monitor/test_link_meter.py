"""A link is probed only where nothing fresh is known of it; what probing costs is counted."""

from __future__ import annotations

from typing import Any

import pytest

from chaos_protocols.names import SiteId
from chaosd.metrics import Metrics
from chaosd.monitor import link_meter as measuring
from chaosd.monitor.link_meter import LinkMeter
from chaosd.monitor.probe import ProbeError, ProbeResult

A, B = SiteId("a" * 32), SiteId("b" * 32)
MIB = 1 << 20


class Probe:
    """Stands for the burst over the link."""

    def __init__(self) -> None:
        self.measured: list[SiteId] = []

    async def measure(self, site: SiteId, **_: Any) -> ProbeResult:
        self.measured.append(site)
        if site == B:
            raise ProbeError("it did not answer")
        return ProbeResult(rate_bytes_per_s=5e6, rtt_s=0.01, method="built-in", bytes=MIB, seconds=0.2)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(measuring.time, "monotonic", lambda: now[0])
    return now


def meter(probe: Probe, method: str = "builtin", metrics: Metrics | None = None) -> LinkMeter:
    nowhere: Any = None
    stand_in: Any = probe
    counted = metrics or Metrics()
    return LinkMeter(stand_in, nowhere, method, counted, listen_host="127.0.0.1", address_of=lambda _: "")


async def test_a_link_that_carried_nothing_is_probed_and_the_cost_is_counted(clock: list[float]) -> None:
    probe, metrics = Probe(), Metrics()
    one = meter(probe, metrics=metrics)
    assert await one.measure(A) == (5e6, "built-in: 1048576 bytes in 200 ms")
    assert await one.measure(B) == (0.0, "it did not answer")
    assert (metrics.value("probes_total"), metrics.value("probe_bytes_total")) == (2, MIB)
    assert metrics.value("probes_saved_total") == 0


async def test_a_link_that_was_busy_lately_is_not_probed_until_that_is_stale(clock: list[float]) -> None:
    probe, metrics = Probe(), Metrics()
    one = meter(probe, metrics=metrics)
    for _ in range(4):
        one.passive.began(A, 1, MIB, now_s=clock[0])
        clock[0] += 0.1
        one.passive.ended(A, 1, now_s=clock[0])
    clock[0] += 60
    rate, how = await one.measure(A)
    assert rate == pytest.approx(MIB / 0.1)
    assert how == "from 4,194,304 bytes that it carried anyway, 60 s ago"
    assert probe.measured == []
    assert (metrics.value("probes_total"), metrics.value("probes_saved_total")) == (0, 1)
    clock[0] += 61
    assert (await one.measure(A))[0] == 5e6
    assert probe.measured == [A]


async def test_where_probing_is_off_nothing_is_measured(clock: list[float]) -> None:
    assert await meter(Probe(), "off").measure(A) == (0.0, "probing is off")
