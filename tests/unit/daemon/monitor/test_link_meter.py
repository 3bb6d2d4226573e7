"""A link is probed only where nothing fresh is known of it; what probing costs is counted."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from chaos_protocols.names import SiteId
from chaos_protocols.wire.probe import IPERF_READY, IPERF_WANT, IperfHeader, encode
from chaosd.metrics import Metrics
from chaosd.monitor import link_meter as measuring
from chaosd.monitor.link_meter import LinkMeter
from chaosd.monitor.probe import ProbeError, ProbeResult
from chaosd.transport.send_limit import SendLimit

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


class Links:
    """What would go over the links."""

    def __init__(self) -> None:
        self.sent: list[tuple[SiteId, IperfHeader]] = []
        self.send_limit = SendLimit()

    async def send_bulk(self, site: SiteId, stream: int, header: bytes, payload: bytes = b"") -> None:
        self.sent.append((site, msgspec.msgpack.decode(header, type=IperfHeader)))


def meter(
    probe: Probe,
    method: str = "builtin",
    metrics: Metrics | None = None,
    links: Links | None = None,
    listen_host: str = "127.0.0.1",
) -> LinkMeter:
    """Site A is of the run, nobody else."""
    stand_in: Any = probe
    transport: Any = links or Links()
    return LinkMeter(
        stand_in,
        transport,
        method,
        metrics or Metrics(),
        listen_host=listen_host,
        address_of=lambda _: "",
        is_of_run=lambda site: site == A,
    )


@pytest.mark.parametrize(("method", "site", "told"), [("builtin", A, "does not measure"), ("iperf3", B, "only sites")])
async def test_nobody_starts_a_program_here_but_a_site_of_the_run_where_it_is_configured(
    clock: list[float], monkeypatch: pytest.MonkeyPatch, method: str, site: SiteId, told: str
) -> None:
    started: list[int] = []
    monkeypatch.setattr(measuring.iperf, "serve_once", lambda *_, **__: started.append(1))
    links = Links()
    one = meter(Probe(), method, links=links)
    one.bulk_received(site, encode(IperfHeader(kind=IPERF_WANT)))
    await asyncio.sleep(0)
    await one.close()
    ((answered, header),) = links.sent
    assert (answered, header.port) == (site, 0) and told in header.reason and not started


async def test_a_site_of_the_run_starts_a_program_here_once_a_minute(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[int] = []

    async def serve_once(host: str, port: int, **_: object) -> None:
        served.append(port)

    monkeypatch.setattr(measuring.iperf, "serve_once", serve_once)
    monkeypatch.setattr(measuring.iperf, "available", lambda: measuring.iperf.IperfForm.PROGRAM)
    links = Links()
    one = meter(Probe(), "iperf3", links=links)
    for _ in range(3):
        one.bulk_received(A, encode(IperfHeader(kind=IPERF_WANT)))
        await asyncio.gather(*one._serving.values())
    assert len(served) == 1 and [header.port > 0 for _, header in links.sent] == [True, False, False]
    clock[0] += measuring.IPERF_PAUSE_S
    one.bulk_received(A, encode(IperfHeader(kind=IPERF_WANT)))
    await asyncio.gather(*one._serving.values())
    assert len(served) == 2


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "::"])
async def test_iperf3_is_let_in_wherever_this_site_listens(
    clock: list[float], monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    """Of IPv6 nothing was told, and the neighbour waited a second before the burst."""
    served: list[tuple[str, int]] = []

    async def serve_once(host: str, port: int, **_: object) -> None:
        served.append((host, port))

    monkeypatch.setattr(measuring.iperf, "serve_once", serve_once)
    monkeypatch.setattr(measuring.iperf, "available", lambda: measuring.iperf.IperfForm.PROGRAM)
    links = Links()
    one = meter(Probe(), "iperf3", links=links, listen_host=host)
    one.bulk_received(A, encode(IperfHeader(kind=IPERF_WANT)))
    await asyncio.gather(*one._serving.values())
    ((_, header),) = links.sent
    assert header.port and served == [(host, header.port)]


async def test_a_neighbour_is_told_why_no_iperf3_can_listen_here(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring.iperf, "available", lambda: measuring.iperf.IperfForm.PROGRAM)
    links = Links()
    one = meter(Probe(), "iperf3", links=links, listen_host="192.0.2.1")  # of no machine (RFC 5737)
    one.bulk_received(A, encode(IperfHeader(kind=IPERF_WANT)))
    await asyncio.gather(*one._serving.values())
    ((_, header),) = links.sent
    assert header.port == 0 and "no port" in header.reason


async def test_one_neighbour_is_answered_one_thing_at_a_time(clock: list[float]) -> None:
    """Each answer is a task of its own."""
    links = Links()
    one = meter(Probe(), links=links)
    for _ in range(3):
        one.bulk_received(A, encode(IperfHeader(kind=IPERF_WANT)))
    one.bulk_received(B, encode(IperfHeader(kind=IPERF_WANT)))
    for _ in range(3):
        await asyncio.sleep(0)
    assert sorted(site for site, _ in links.sent) == [A, B]
    await one.close()


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


@pytest.mark.parametrize(("limit", "told"), [(0.0, 5e6), (2e6, 5e6), (8e6, 8e6), (25e6, 25e6), (26e6, 5e6)])
async def test_a_burst_that_had_a_share_of_what_this_site_sends_at_most_tells_of_all_of_it(
    clock: list[float], limit: float, told: float
) -> None:
    """Rounds have the rest; what the link carries in truth, if that is less, they show."""
    links = Links()
    links.send_limit.rate_bytes_per_s = limit
    rate, how = await meter(Probe(), links=links).measure(A)
    assert rate == told and ("sends at most" in how) == (told != 5e6)


async def test_where_nobody_knows_where_a_neighbour_listens_the_burst_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever had asked for the rate heard nothing, and no later measurement of that link was begun."""
    monkeypatch.setattr(measuring.iperf, "available", lambda: measuring.iperf.IperfForm.PROGRAM)
    monkeypatch.setattr(measuring, "IPERF_START_S", 0.0)
    links = Links()
    one = meter(Probe(), "iperf3", links=links)
    measuring_it = asyncio.create_task(one.measure(A))
    await asyncio.sleep(0)
    assert links.sent
    one.bulk_received(A, encode(IperfHeader(kind=IPERF_READY, port=7400)))
    rate, how = await measuring_it
    assert rate == 5e6 and "iperf3 could not be used" in how
