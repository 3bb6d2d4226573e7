"""How fast a link is, when a negotiation asks: from what it carried lately, else by the method of the configuration.

What arrives on bulk streams is timed anyway (`passive`); a link that was measured so within the last two minutes is not
probed. What probes cost is counted.

The built-in burst over the link's own bulk stream needs nothing installed and passes wherever the link passes. iperf3
measures beside the link, over a connection of its own: the neighbour's daemon is asked over bulk stream 1 to let us in
once, and says on which port. Both ends run it in a short-lived child process (see `monitor/iperf.py`). Where either
side has none, the built-in burst serves, and the answer says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

import msgspec

from chaos_protocols.errors import RemoteProtocolError
from chaos_protocols.links.rates import PassiveRates
from chaos_protocols.names import SiteId, short
from chaos_protocols.wire.probe import IPERF_KINDS, IPERF_READY, IPERF_WANT, REASON_CHARACTERS_MAX, IperfHeader, encode
from chaosd.addresses import listening_socket, split_address
from chaosd.metrics import Metrics
from chaosd.monitor import iperf
from chaosd.monitor.probe import LinkProbe, ProbeError, ProbeResult
from chaosd.os_errors import brief
from chaosd.transport import LinkClosed, Transport

log = logging.getLogger("chaosd")
PROBE_BYTES = 1 << 20
PROBE_SECONDS_MAX = 0.25
PROBE_TIMEOUT_S = 3.0
IPERF_SECONDS = 1.0
"""iperf3 counts in whole seconds."""
IPERF_ANSWER_S = 1.0
IPERF_START_S = 0.15
"""A child needs about that long until it listens."""
IPERF_PAUSE_S = 60.0
"""A neighbour may start a process here so often."""
STREAM = 1
LIMIT_SHARE_MIN = 0.2
"""Beside a round a burst has a quarter of what this site sends at most. So a link that shows so much of it is told to
carry it all: if that is wrong the rounds show it, and else nothing would."""


_decoder: msgspec.msgpack.Decoder[IperfHeader] = msgspec.msgpack.Decoder(IperfHeader)


class LinkMeter:
    """`method`: builtin, iperf3 or off (the configuration's words). `address_of` gives a neighbour's host:port;
    `listen_host` is where this site lets others in; `is_of_run` says whether a neighbour may start a program here."""

    def __init__(
        self,
        probe: LinkProbe,
        transport: Transport,
        method: str,
        metrics: Metrics,
        *,
        listen_host: str,
        address_of: Callable[[SiteId], str],
        is_of_run: Callable[[SiteId], bool],
    ) -> None:
        self._probe, self._transport, self._method = probe, transport, method
        self._listen_host, self._address_of = listen_host, address_of
        self._metrics, self._is_of_run = metrics, is_of_run
        self.passive = PassiveRates()
        self._answers: dict[SiteId, asyncio.Future[IperfHeader]] = {}
        self._serving: dict[SiteId, asyncio.Task[None]] = {}
        self._served_s: dict[SiteId, float] = {}

    async def measure(self, site: SiteId) -> tuple[float, str]:
        """Bytes per second towards `site` (0: not measured), and how it was measured or why not."""
        if self._method == "off":
            return 0.0, "probing is off"
        known = self.passive.rate(site, now_s=time.monotonic())
        if known is not None:
            self._metrics.probes_saved.inc()
            how = f"from {known.sampled_bytes:,} bytes that it carried anyway, {known.age_s:.0f} s ago"
            return known.rate_bytes_per_s, how
        begun_s = time.monotonic()
        rate, how, size_bytes = await self._probed(site)
        self._metrics.probes.inc()
        self._metrics.probe_bytes.inc(size_bytes)
        self._metrics.probe_seconds.inc(time.monotonic() - begun_s)
        return rate, how

    async def _probed(self, site: SiteId) -> tuple[float, str, int]:
        """Rate, how it was measured or why not, and the bytes that it took."""
        told = ""
        try:
            if self._method == "iperf3":
                try:
                    result = await self._by_iperf(site)
                    return *_told(result), result.bytes
                except ProbeError as error:
                    told = f" (iperf3 could not be used: {error})"
            result = await self._probe.measure(
                site, bytes_max=PROBE_BYTES, seconds_max=PROBE_SECONDS_MAX, timeout_s=PROBE_TIMEOUT_S
            )
        except ProbeError as error:
            log.info("probe of %s: %s", short(site), error)
            return 0.0, f"{error}{told}", 0
        rate, how = _told(result)
        limit = self._transport.send_limit.rate_bytes_per_s
        if LIMIT_SHARE_MIN * limit <= rate < limit:
            rate, how = limit, f"{how}, of the {limit * 8e-6:g} Mbit/s that this site sends at most"
        return rate, how + told, result.bytes

    async def _by_iperf(self, site: SiteId) -> ProbeResult:
        form = iperf.available()
        if form is iperf.IperfForm.UNAVAILABLE:
            raise ProbeError("it is not installed here")
        answer: asyncio.Future[IperfHeader] = asyncio.get_running_loop().create_future()
        self._answers[site] = answer
        try:
            await self._send(site, IperfHeader(kind=IPERF_WANT))
            ready = await asyncio.wait_for(answer, IPERF_ANSWER_S)
        except TimeoutError:
            raise ProbeError("the neighbour did not answer") from None
        except LinkClosed as error:
            raise ProbeError(f"the link was lost: {error}") from None
        finally:
            self._answers.pop(site, None)
        if ready.port == 0:
            raise ProbeError(f"the neighbour: {ready.reason}")
        await asyncio.sleep(IPERF_START_S)
        try:
            host, _ = split_address(self._address_of(site))
        except (KeyError, ValueError):
            raise ProbeError("it is not known where the neighbour listens") from None
        return await iperf.measure(host, ready.port, seconds=IPERF_SECONDS, form=form)

    @staticmethod
    def is_ours(kind: str) -> bool:
        return kind in IPERF_KINDS

    def bulk_received(self, site: SiteId, header: bytes) -> None:
        """A neighbour wants to measure, or lets us. Raises RemoteProtocolError."""
        try:
            message = _decoder.decode(header)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise RemoteProtocolError(f"not a header of a measurement: {error}") from None
        answer = self._answers.get(site)
        if message.kind == IPERF_READY and answer is not None and not answer.done():
            answer.set_result(message)
        elif message.kind == IPERF_WANT and site not in self._serving:  # one at a time for each neighbour
            refusal = self._why_not(site)
            serving = self._let_in(site) if not refusal else self._tell(site, refusal)
            task = asyncio.get_running_loop().create_task(serving, name=f"iperf3 for {short(site)}")
            self._serving[site] = task
            task.add_done_callback(lambda _: self._serving.pop(site, None))

    def _why_not(self, site: SiteId) -> str:
        """A request starts a process here: only where this site measures so itself, for a site of the run, and once in
        a while."""
        if self._method != "iperf3":
            return "this site does not measure with iperf3"
        if not self._is_of_run(site):
            return "only sites of the run may measure with iperf3"
        now_s = time.monotonic()
        recent = {one: at_s for one, at_s in self._served_s.items() if now_s < at_s + IPERF_PAUSE_S}
        self._served_s = recent
        if site in recent:
            return f"it was measured less than {IPERF_PAUSE_S:g} s ago"
        recent[site] = now_s
        return ""

    async def _tell(self, site: SiteId, reason: str) -> None:
        with contextlib.suppress(LinkClosed):
            await self._send(site, IperfHeader(kind=IPERF_READY, reason=reason))

    async def _let_in(self, site: SiteId) -> None:
        form = iperf.available()
        try:
            if form is iperf.IperfForm.UNAVAILABLE:
                await self._send(site, IperfHeader(kind=IPERF_READY, reason="iperf3 is not installed there"))
                return
            try:
                with listening_socket(self._listen_host, 0) as probe:
                    port = int(probe.getsockname()[1])
            except OSError as error:
                log.info("iperf3 for %s: no port to listen at: %s", short(site), error)
                await self._tell(site, f"no port to listen at there: {brief(error)}"[:REASON_CHARACTERS_MAX])
                return
            serving = asyncio.ensure_future(iperf.serve_once(self._listen_host, port, seconds=IPERF_SECONDS, form=form))
            try:
                await self._send(site, IperfHeader(kind=IPERF_READY, port=port))
                await serving
            finally:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)
        except (ProbeError, LinkClosed, OSError) as error:
            log.info("iperf3 for %s: %s", short(site), error)

    async def _send(self, site: SiteId, header: IperfHeader) -> None:
        await self._transport.send_bulk(site, STREAM, encode(header))

    async def close(self) -> None:
        """End the children that still serve."""
        tasks = list(self._serving.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _told(result: ProbeResult) -> tuple[float, str]:
    return result.rate_bytes_per_s, f"{result.method}: {result.bytes} bytes in {result.seconds * 1000:.0f} ms"
