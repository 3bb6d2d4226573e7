"""A small coverage-guided fuzzer: it changes inputs that are known, and keeps those that reach something new.

Driven by `python -m tests.fuzz` (searches, and adds to the corpus) and by `test_corpus.py` (plays the corpus and a few
thousand changes of it, from a fixed seed). What counts as new: a pair of lines run one after the other in code of ours,
or an answer of a shape not seen before (which tells the way through a decoder that is no Python). Model: AFL's edges.
"""

from __future__ import annotations

import hashlib
import random
import re
import sys
import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tests.fuzz.mutate import Form, mutate

CORPUS = Path(__file__).parent / "corpus"
ENTRY_BYTES_MAX = 4096
"""A kept input is small: it shows one thing."""
INPUT_BYTES_MAX = 64 << 10
SHAPE_CHARACTERS_MAX = 160
TRIM_TRIES_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """`run` takes any bytes; it may raise `refusals` and nothing else. What it returns is a word for what happened.

    `prefix`: so many bytes at the front choose a way in, and are no part of what `form` describes. `worded`: what a
    refusal says tells how far the input came; false where it repeats the input's own text."""

    name: str
    run: Callable[[bytes], str]
    refusals: tuple[type[BaseException], ...]
    seeds: Callable[[], Iterable[bytes]]
    form: Form = Form.BYTES
    prefix: int = 0
    tokens: tuple[bytes, ...] = ()
    worded: bool = True


class Crash(AssertionError):
    """An input made the target raise what it must not raise."""

    def __init__(self, target: Target, data: bytes, error: BaseException) -> None:
        super().__init__(f"{target.name}: {type(error).__name__}: {error}\ninput: {data[:200]!r}")
        self.data = data
        self.error = error


def play(target: Target, data: bytes) -> str:
    """What the target makes of the input, in words; Crash if it raises anything but its refusals."""
    try:
        return "takes: " + target.run(data)
    except target.refusals as error:
        return f"refuses: {type(error).__name__}: {error if target.worded else ''}"
    except Exception as error:
        raise Crash(target, data, error) from error


def shape(answer: str) -> str:
    """The answer without the numbers, names and places in it: two inputs that fail alike have the same shape."""
    plain = answer.replace("can't", "cannot").partition(" - at ")[0]
    return re.sub(r"'.*'|\".*\"|0x\w+|[0-9a-f]{8,}|\d+", "#", plain, flags=re.DOTALL)[:SHAPE_CHARACTERS_MAX]


class Watch:
    """Which pairs of lines of our own code run one after the other."""

    def __init__(self, folders: tuple[Path, ...]) -> None:
        self._folders = tuple(str(folder) for folder in folders)
        self._ours: dict[str, bool] = {}
        self._edges: set[Hashable] = set()

    def during(self, action: Callable[[], Any]) -> set[Hashable]:
        """Run the action; the edges that it took."""
        self._edges = set()
        before = sys.gettrace()
        sys.settrace(self._called)
        try:
            action()
        finally:
            sys.settrace(before)
        return self._edges

    def _called(self, frame: FrameType, event: str, argument: object) -> Any:
        code = frame.f_code
        name = code.co_filename
        ours = self._ours.get(name)
        if ours is None:
            ours = self._ours[name] = name.startswith(self._folders)
        return self._lines_of(code) if ours else None

    def _lines_of(self, code: CodeType) -> Any:
        edges, before = self._edges, 0

        def ran(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal before
            if event == "line":
                edges.add((code.co_filename, before, frame.f_lineno))
                before = frame.f_lineno
            return ran

        return ran


@dataclass(slots=True, kw_only=True)
class Search:
    """One search of one target. `kept`: inputs that reached something new, oldest first."""

    target: Target
    watch: Watch
    rng: random.Random
    kept: list[bytes] = field(default_factory=list)
    known: set[Hashable] = field(default_factory=set)
    tries: int = 0
    crashes: dict[str, Crash] = field(default_factory=dict)

    def begin(self, inputs: Iterable[bytes]) -> None:
        """Seeds and the corpus so far, as they are: all count as known."""
        for data in inputs:
            self.known |= self.reached(data)
            self.kept.append(data)

    def go_on(self, seconds: float) -> None:
        """Change and try until the time is used up."""
        ends_s = time.monotonic() + seconds
        while time.monotonic() < ends_s:
            self.step()

    def step(self) -> None:
        """One change of one kept input; the young and the small are chosen more often."""
        rng, kept = self.rng, self.kept
        base = kept[max(rng.randrange(len(kept)), rng.randrange(len(kept)))]
        data = mutate(self.target, base, rng, rng.choice(kept))[:INPUT_BYTES_MAX]
        self._try(data, self.reached(data))

    def reached(self, data: bytes) -> set[Hashable]:
        """What playing this input runs and answers; a crash is noted, and reaches nothing."""
        self.tries += 1
        answer = ""

        def action() -> None:
            nonlocal answer
            answer = play(self.target, data)

        try:
            reached = self.watch.during(action)
        except Crash as crash:
            self.crashes.setdefault(shape(f"{type(crash.error).__name__}: {crash.error}"), crash)
            return set()
        return reached | {shape(answer)}

    def _try(self, data: bytes, reached: set[Hashable]) -> None:
        new = reached - self.known
        if not new:
            return
        data = self._trimmed(data, new)
        self.known |= reached
        if len(data) <= ENTRY_BYTES_MAX:
            self.kept.append(data)

    def _trimmed(self, data: bytes, new: set[Hashable]) -> bytes:
        """The input without the parts that the new thing does not need."""
        size, at, ends = len(data) // 2, self.target.prefix, self.tries + TRIM_TRIES_MAX
        while size and self.tries < ends:
            shorter = data[:at] + data[at + size :]
            if shorter != data and new <= self.reached(shorter):
                data = shorter
            else:
                at += size
            if at >= len(data):
                size, at = size // 2, self.target.prefix
        return data


def fewest(search: Search, inputs: Iterable[bytes]) -> list[bytes]:
    """As few and as small inputs as reach, together with the seeds, what all of them reach."""
    search.begin(search.target.seeds())
    wanted = []
    for data in sorted(inputs, key=len):
        reached = search.reached(data)
        if reached - search.known:
            search.known |= reached
            wanted.append(data)
    return wanted


def entries(target: Target) -> list[tuple[Path, bytes]]:
    """The kept inputs of a target, by name of file."""
    return [(path, path.read_bytes()) for path in sorted((CORPUS / target.name).glob("*.bin"))]


def keep(target: Target, data: bytes, *, why: str = "new") -> Path:
    """Add an input to the corpus; its name says why, and follows from its content."""
    folder = CORPUS / target.name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{why}-{hashlib.sha256(data).hexdigest()[:12]}.bin"
    path.write_bytes(data)
    return path
