"""How fast a link is: the probe that a negotiation asks for, by the method that the configuration names.

The built-in burst over the link's own bulk stream needs nothing installed and passes wherever the link passes. It
overlaps with training and is short: a join must not wait for a measurement that costs more than it saves.
"""

from __future__ import annotations

import logging

from chaos_protocols.names import SiteId, short
from chaosd.monitor.probe import LinkProbe, ProbeError

log = logging.getLogger("chaosd")
PROBE_BYTES = 1 << 20
PROBE_SECONDS_MAX = 0.25
PROBE_TIMEOUT_S = 3.0


class LinkMeter:
    """`method`: builtin, iperf3 or off (the configuration's words)."""

    def __init__(self, probe: LinkProbe, method: str) -> None:
        self._probe, self._method = probe, method

    async def measure(self, site: SiteId) -> tuple[float, str]:
        """Bytes per second towards `site` (0: not measured), and how it was measured or why not."""
        if self._method == "off":
            return 0.0, "probing is off"
        try:
            result = await self._probe.measure(
                site, bytes_max=PROBE_BYTES, seconds_max=PROBE_SECONDS_MAX, timeout_s=PROBE_TIMEOUT_S
            )
        except ProbeError as error:
            log.info("probe of %s: %s", short(site), error)
            return 0.0, str(error)
        return result.rate_bytes_per_s, f"{result.method}: {result.bytes} bytes in {result.seconds * 1000:.0f} ms"
