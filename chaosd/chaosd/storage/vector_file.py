"""What is averaged in a round, remembered on disk: so a restarted daemon relays rounds before its worker is back.

Losing the file costs nothing but that: it is written anew with the next worker's hello.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec

from chaos_protocols.wire.state_spec import contribution_problem
from chaos_protocols.wire.worker import ContributionSpec

log = logging.getLogger("chaosd")
FILE_BYTES_MAX = 4096


def read_vector(path: Path) -> ContributionSpec | None:
    """None where there is no (usable) file."""
    try:
        with path.open("rb") as file:
            spec = msgspec.msgpack.decode(file.read(FILE_BYTES_MAX), type=ContributionSpec)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        log.warning("%s cannot be used (%s); it is written again when a worker says hello", path, error)
        return None
    if problem := contribution_problem(spec):
        log.warning("%s cannot be used (%s); it is written again when a worker says hello", path, problem)
        return None
    return spec


def write_vector(path: Path, spec: ContributionSpec) -> None:
    """Atomic: a reader sees the old file or the new one."""
    fresh = path.with_suffix(".new")
    try:
        fresh.unlink(missing_ok=True)
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(msgspec.msgpack.encode(spec))
        os.replace(fresh, path)
    except OSError as error:
        log.warning("%s cannot be written: %s", path, error)
