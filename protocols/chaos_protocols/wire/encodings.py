"""In which form the numbers of a round travel between sites, and how many bytes they take (spec 9.29 to 9.35).

An encoding is a setting of the run: part of what a worker says of its vector, of the state spec (a site with another
one is refused, told both) and of the roster. Only float32 numbers are encoded; float64 ones (notes, buffers, counters)
travel as they are. Here are names and sizes; the arithmetic is `chaosd.bulk.reduce.encodings`.
"""

from __future__ import annotations

from dataclasses import dataclass

FP32 = "fp32"
"""The default: exact. Nothing of a run that uses it depends on the rest of this module."""

ENCODINGS_SINCE = 6
"""Daemons of this version on know of encodings."""

SCALE_BYTES = 4
"""A block's scale: one float32."""

FACT = "encoding: "
"""How the fact of the state spec begins that names it; a state without one is averaged in fp32."""


@dataclass(frozen=True, slots=True)
class Form:
    """`bits` of one number; `block`: numbers that share a scale (0: none do)."""

    bits: int
    block: int = 0

    def size_bytes(self, count: int) -> int:
        """Of `count` numbers: the scales of all blocks, then the numbers."""
        scales = -(-count // self.block) if self.block else 0
        return SCALE_BYTES * scales + -(-count * self.bits // 8)


FORMS = {
    FP32: Form(32),
    "bf16": Form(16),
    "fp16": Form(16),
    "int8": Form(8, block=256),
    "int4": Form(4, block=64),
}
"""By name."""


COARSE = frozenset({"int4"})
"""Those of so few bits that a mode which averages single gradients has to ask for them twice."""


def encoding_problem(name: str) -> str:
    """Why there is no such encoding; empty: there is."""
    return "" if name in FORMS else f"there is no encoding {name!r}; there are {', '.join(FORMS)}"
