"""Looks at what nobody brings: rates and round trips of links, a worker that stands still, gauges.

Reports facts to the driver, which makes events of them; asked by the driver (`link_meter`) and by whoever reads metrics
(`gauges`). Membership is decided elsewhere: nothing here takes a site or a link out of anything.
"""

from __future__ import annotations

from chaosd.monitor.probe import LinkProbe, ProbeError, ProbeResult

__all__ = ["LinkProbe", "ProbeError", "ProbeResult"]
