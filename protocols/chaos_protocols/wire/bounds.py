"""What a run allows a site to give to a round (spec 19.1): agreed when the run is founded, the same at all sites."""

from __future__ import annotations

from typing import Annotated

import msgspec

from chaos_protocols.names import WEIGHT_MAX, WEIGHT_MIN

BOUNDS_SINCE = 6
"""Protocol version: a site that does not know bounds would apply a result that all others leave out."""

NORM_MIN = 1e-6
NORM_MAX = 1e15
"""Of `norm_max`: squares of what is compared with it are numbers that float32 has."""

NORM_SLACK = 1.1
"""What neighbours send, and a result, may be longer than agreed by this factor: sums are rounded."""

ENCODED_SLACK = 2.0
"""The same where numbers travel encoded: each site on the way adds what it has lost before."""

Norm = Annotated[float, msgspec.Meta(ge=0, le=NORM_MAX)]
Weight = Annotated[float, msgspec.Meta(ge=0, le=WEIGHT_MAX)]


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """0: that bound is off. `norm_max`: L2 norm of what a site gives, over the numbers that
    `ContributionSpec.bounded` names; `weight_max`: its weight; `clip_radius`: how far it may be from the last result,
    over the same numbers (centred clipping: Karimireddy, He, Jaggi 2021)."""

    norm_max: Norm = 0.0
    weight_max: Weight = 0.0
    clip_radius: Norm = 0.0

    def weighed(self, weight: float) -> float:
        """The weight with which a part counts."""
        return min(weight, self.weight_max) if self.weight_max else weight

    def is_beyond(self, version: int) -> bool:
        """Whether a script of this version does not say what matters here: which numbers of its vector are
        gradients."""
        return version < BOUNDS_SINCE and bool(self.norm_max or self.clip_radius)

    def __str__(self) -> str:
        told = [f"{name} = {value:g}" for name in self.__struct_fields__ if (value := getattr(self, name))]
        return ", ".join(told) or "no bounds"

    @property
    def any(self) -> bool:
        """Whether one of them is on."""
        return self != UNBOUNDED


UNBOUNDED = Bounds()


def bounds_problem(bounds: Bounds) -> str:
    """Why nobody can train under these; empty: all can."""
    for name, norm in (("norm_max", bounds.norm_max), ("clip_radius", bounds.clip_radius)):
        if norm and not NORM_MIN <= norm <= NORM_MAX:
            return f"{name} is {norm:g}; allowed: 0 (off), or {NORM_MIN:g} to {NORM_MAX:g}"
    if bounds.weight_max and not WEIGHT_MIN <= bounds.weight_max <= WEIGHT_MAX:
        return f"weight_max is {bounds.weight_max:g}; allowed: 0 (off), or {WEIGHT_MIN:g} to {WEIGHT_MAX:g}"
    return ""
