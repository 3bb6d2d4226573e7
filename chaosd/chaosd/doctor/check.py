"""One finding of `chaosd doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

SILENT_REMEDY = "`ps` shows its process: T is stopped (`kill -CONT`), D waits for a disk; its log says what it did last"
"""Of a daemon that is there, and does not get to answer."""


class Level(Enum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One finding: what was looked at, how it is, what was found, what to do about it (empty when ok)."""

    name: str
    level: Level
    found: str
    remedy: str = ""


def ok(name: str, found: str) -> Check:
    return Check(name=name, level=Level.OK, found=found)


def warn(name: str, found: str, remedy: str) -> Check:
    return Check(name=name, level=Level.WARN, found=found, remedy=remedy)


def fail(name: str, found: str, remedy: str) -> Check:
    return Check(name=name, level=Level.FAIL, found=found, remedy=remedy)
