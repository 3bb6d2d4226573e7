"""What bounds on a site's gradient cost a round: with a norm, and with a radius, over a round without, on loopback.

Sites with a daemon and a worker each that do nothing but rounds over 64 MiB in fp32 (as in `allreduce`), 2 and 4 of
them (short: 2). The run's founder sets nothing; `norm_max`, which nobody exceeds; the same and `clip_radius`. What is
compared are rounds of one sitting: without, norm, radius, and without again, since other work on the machine changes
more than bounds do.

Per number of sites: seconds of a round (median), processor seconds of all daemons and workers a round; both over the
mean of the two sittings without bounds; and the two of those over each other (`again_over_first`), which says how much
of a difference means nothing. On a WAN the bytes decide, which are the same.

Bar: with a norm at most 1.1 times the seconds of a round without.
"""

from __future__ import annotations

import statistics

from benchmarks.allreduce import MIB, Measured, daemons_measured
from benchmarks.measure import Figures
from chaos_protocols.wire.encodings import FP32

VECTOR_BYTES = 64 * MIB
ROUNDS, ROUNDS_SHORT = 50, 20
NORM = "norm_max = 1e9\nweight_max = 1e6"
RADIUS = f'{NORM}\naggregate = "clipped"\nclip_radius = 1e9'


def run(*, short: bool, seed: int) -> Figures:
    """See the module; the seed is not used: nothing is drawn."""
    figures: Figures = {}
    for sites in (2,) if short else (2, 4):
        figures |= _case(sites, ROUNDS_SHORT if short else ROUNDS)
    return figures


def _case(sites: int, rounds: int) -> Figures:
    first, norm, radius, again = (
        daemons_measured(sites, VECTOR_BYTES, rounds, FP32, extra) for extra in ("", NORM, RADIUS, "")
    )
    plain_s = statistics.fmean((_median_s(first), _median_s(again)))
    plain_cpu_s = statistics.fmean((first.cpu_s, again.cpu_s))
    named = f"{sites}_sites"
    figures: Figures = {
        f"{named}_without_s": plain_s,
        f"{named}_without_cpu_s": plain_cpu_s,
        f"{named}_without_again_over_first": _median_s(again) / _median_s(first),
    }
    for name, one in (("norm", norm), ("radius", radius)):
        figures[f"{named}_{name}_s"] = _median_s(one)
        figures[f"{named}_{name}_over_without"] = _median_s(one) / plain_s
        figures[f"{named}_{name}_cpu_over_without"] = one.cpu_s / plain_cpu_s
    return figures


def _median_s(one: Measured) -> float:
    return statistics.median(one.seconds)
