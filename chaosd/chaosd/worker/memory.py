"""Whether this machine has the memory that a worker's encoding needs in its daemon, before any of it is taken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil

from chaos_protocols.wire.worker import ContributionSpec
from chaosd.bulk.reduce.coded import owed_bytes

CONTROL_GROUPS = Path("/sys/fs/cgroup")
OWN_GROUP = Path("/proc/self/cgroup")


def available_bytes(groups: Path = CONTROL_GROUPS, own: Path = OWN_GROUP) -> int:
    """What this process may still take: what the machine has left, and what each control group (version 2) that it is
    in still allows: a container's, a service's."""
    lefts = [left for group in _groups(groups, own) if (left := _left(group)) is not None]
    return min([int(psutil.virtual_memory().available), *lefts])


def _groups(root: Path, own: Path) -> list[Path]:
    """The group of this process and those around it. None where there are none (macOS, version 1)."""
    try:
        line = next((one for one in own.read_text().splitlines() if one.startswith("0::/")), None)
    except OSError:
        return []
    if line is None:
        return []
    group = root / line.removeprefix("0::/")
    return [one for one in (group, *group.parents) if one == root or one.is_relative_to(root)]


def _left(group: Path) -> int | None:
    """What may still be taken in it; None: it has no limit."""
    try:
        limit = (group / "memory.max").read_text().strip()
        if limit == "max":
            return None
        used = int((group / "memory.current").read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        cache = int(stat.get("inactive_file", 0)) + int(stat.get("active_file", 0))  # given back on demand
        return max(0, int(limit) - used + cache)
    except (OSError, ValueError):
        return None  # the root has no such files; a group may end while it is looked at


def memory_problem(
    spec: ContributionSpec, present: ContributionSpec | None, available: Callable[[], int] | None = None
) -> str:
    """Why this vector cannot be averaged here, with figures and what to do; empty: it can. `present`: what is averaged
    already, whose memory is taken."""
    wanted = owed_bytes(spec)
    if not wanted or spec == present:
        return ""
    free = (available or available_bytes)() + (owed_bytes(present) if present is not None else 0)
    if free >= wanted:
        return ""
    return (
        f"encoding={spec.encoding!r} takes {wanted:,} bytes in the daemon beside the script's own (two copies of what "
        f"is averaged, for what rounding loses), but only {max(free, 0):,} are free on this machine, or within the "
        "limit of its container; free some, raise the limit, or leave out encoding= at all sites"
    )
