"""What an encoding loses, over all sites of the run: each says in its heartbeats what it has lost itself.

Looked up for status, page and metrics; decides nothing. A site is believed: what it says of its own loss harms nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from chaos_protocols.names import SiteId


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorsOverSites:
    """What the encoding lost in a round over what was encoded (norms), of so many sites. `worst_site`: of equals the
    lowest id."""

    sites: int
    mean: float
    worst: float
    worst_site: SiteId


def errors_over_sites(told: Mapping[SiteId, float]) -> ErrorsOverSites | None:
    """Of what is `told` by site; None: nobody has told any, as in fp32."""
    if not told:
        return None
    worst_site = min(told, key=lambda site: (-told[site], site))
    return ErrorsOverSites(sites=len(told), mean=fmean(told.values()), worst=told[worst_site], worst_site=worst_site)
