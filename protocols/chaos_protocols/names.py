"""Names and limits that every part shares: how a site is called, how big things may get.

Everybody imports this module; it imports nothing. A limit says where it comes from.
"""

from __future__ import annotations

from typing import NewType

SiteId = NewType("SiteId", str)
"""Fingerprint of the site's Ed25519 public key: 32 lower-case hexadecimal characters (first 16 bytes of its BLAKE3)."""

SITE_ID_CHARACTERS = 32
SITES_MAX = 4096
VOTERS_MAX = 7
"""Spec 5.13: enough to survive three crashes; more voters only slow the commit."""

CONTROL_FRAME_BYTES_MAX = 4 << 20
"""A roster snapshot of SITES_MAX sites stays below this; anything longer is an attack or a defect."""

BULK_HEADER_BYTES_MAX = 64 << 10
BULK_PAYLOAD_BYTES_MAX = 16 << 20
WORKER_FRAME_BYTES_MAX = 64 << 20
"""A state spec of 200,000 tensors takes about 15 MB as msgpack."""

TENSORS_MAX = 1_000_000
WEIGHT_MIN = 1e-15
WEIGHT_MAX = 1e15
"""Samples behind a contribution that is no standby: smaller, a sum of them could be 0 in float32, and nothing can be
divided by it; larger, a sum over the sites of a run would lose what the others gave."""

STATE_BYTES_MAX = 1 << 44

ROUNDS_DONE_MAX = 1 << 52
"""No run has done more rounds. Half of what the number of one can say: those that follow can be said, too."""

PARTS_MAX = 1024
"""Spec 9.36: of what is averaged in turn; each part has a bookkeeping of its own."""


RUN_ID_CHARACTERS = 32
"""A run's id is drawn when it is founded (spec 2.13): 16 bytes in hexadecimal; empty where none is known."""

RUN_ID_PATTERN = rf"^([0-9a-f]{{{RUN_ID_CHARACTERS}}})?\Z"
"""As all patterns of the wire it ends with \\Z: before a `$` a line end would be let through."""


def other_run(here: str, there: str) -> bool:
    """Whether these are two runs. Who does not say which run it is in, or is in none, is in no other one."""
    return bool(here) and bool(there) and here != there


def short(site: str) -> str:
    """First characters of a site id, for people."""
    return site[:8]


def link_key(one: SiteId, other: SiteId) -> tuple[SiteId, SiteId]:
    """A link has no direction: its two ends in ascending order."""
    return (one, other) if one <= other else (other, one)
