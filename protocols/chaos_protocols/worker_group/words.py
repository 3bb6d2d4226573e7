"""Where a worker's words stand in the shared memory that the controller reads (`suspicion`)."""

from __future__ import annotations

import struct

from chaos_protocols.worker_group.suspicion import Reading, Work

SLOT_BYTES = 64
"""One slot a worker, at its number: a cache line, so that no two workers write into one."""

SLOTS = 8192
"""Workers that a worker group can have in its life, restarted ones too."""

_DOING = struct.Struct("<QIi")
_BEAT = struct.Struct("<Q")
_BEAT_AT = 16
_KINDS = {kind.value: kind for kind in Work}


def write_doing(memory: memoryview, count: int, work: Work, peer: int) -> None:
    """By the worker's main thread, into its slot, before it does something."""
    _DOING.pack_into(memory, 0, count, work, peer)


def write_beat(memory: memoryview, beat: int) -> None:
    """By the worker's second thread."""
    _BEAT.pack_into(memory, _BEAT_AT, beat)


def read_slot(memory: memoryview, worker: int) -> Reading:
    """By the controller. Words that make no sense (a script that writes over them) count as no progress."""
    at = worker * SLOT_BYTES
    count, work, peer = _DOING.unpack_from(memory, at)
    (beat,) = _BEAT.unpack_from(memory, at + _BEAT_AT)
    return Reading(count=count, work=_KINDS.get(work, Work.OUTSIDE), peer=peer, beat=beat)
