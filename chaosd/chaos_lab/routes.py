"""Ways over several links, by fewest links; pure. Among equals the first in the order of the sites wins."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence


def next_hops(site: str, sites: Sequence[str], ways: Collection[tuple[str, str]]) -> dict[str, str]:
    """For each site that can be reached from `site`, the neighbour over which the way begins."""
    hops: dict[str, str] = {}
    reached, seen = deque([site]), {site}
    while reached:
        here = reached.popleft()
        for far in sites:
            if far not in seen and (here, far) in ways:
                seen.add(far)
                reached.append(far)
                hops[far] = far if here == site else hops[here]
    return hops
