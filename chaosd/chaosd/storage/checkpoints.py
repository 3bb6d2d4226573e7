"""The folder of a site's checkpoints: what lies there; writing one so that it is whole or not there.

A file is written under another name, synced, renamed, and the folder synced: whatever ends the daemon or the machine,
under its own name lies nothing but a whole checkpoint. What an interrupted daemon left behind is removed at the next
start. What a file holds is verified when it is loaded (`storage/checkpoint_file.py`); a look at the heads only tells
what could be offered. Called by `storage/checkpoint_keeper.py`: `found` at the start, the others on a thread. Source:
decision 0011.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from io import BufferedReader
from pathlib import Path

from chaos_protocols.names import SiteId, short
from chaos_protocols.wire.plans import CheckpointFacts
from chaos_protocols.wire.worker import StateSpec
from chaosd.storage.checkpoint_file import CheckpointError, Head, Interrupted, load_file, read_head, write_file
from chaosd.storage.journal.files import make_durable_folder, sync_data

log = logging.getLogger("chaosd")
SUFFIX = ".safetensors"
PARTIAL = ".partial"
DOUBTFUL = ".doubtful"
"""Added to the name of a file that may hold another state than the run's: nothing looks for such a name."""
FILES_LOOKED_AT_MAX = 256
SPARE_PART, SPARE_BYTES_MAX = 20, 1 << 30
"""A twentieth of the disk, a gibibyte at most, stays free."""


class CheckpointFolder:
    """The checkpoints of one run in `folder`; `kept` of them, the newest, stay of those that this site wrote. `run_id`:
    of the run that this site is in, empty while it is in none."""

    def __init__(
        self, folder: Path, *, run: str, site: SiteId, kept: int, run_id: Callable[[], str] = lambda: ""
    ) -> None:
        self.folder, self.run, self.site, self._run_id = folder, run, site, run_id
        self._kept = kept
        self._known: dict[CheckpointFacts, Path] = {}

    @property
    def known(self) -> frozenset[CheckpointFacts]:
        """Those that can be offered, as of the last look and of what was written, removed and found damaged since."""
        return frozenset(self._known)

    def found(self) -> tuple[CheckpointFacts, ...]:
        """Every checkpoint of this run that can be offered; what an interrupted write left is removed. Never raises:
        a folder that cannot be read offers nothing, and the log says why. Once one was written in this run, those of
        other runs of the same name are none of it; before, the run may go on from one (its journals were lost)."""
        try:
            for leftover in self.folder.glob(f".*{short(self.site)}*{PARTIAL}"):
                leftover.unlink(missing_ok=True)
        except OSError as error:
            log.warning("checkpoints: %s cannot be tidied: %s", self.folder, error)
        named = [(path, head) for path, head in self.heads() if head.run == self.run]
        strange = self._strange(named) if any(head.run_id == self._run_id() for _, head in named) else []
        for path, _ in strange:
            log.info("checkpoint %s is of another run of the same name, and passed over", path.name)
        self._known = {head.facts: path for path, head in named if (path, head) not in strange}
        return tuple(sorted(self._known))

    def heads(self) -> list[tuple[Path, Head]]:
        """Files with a head that can be read, newest first; the log tells of the others."""
        found: list[tuple[Path, Head]] = []
        try:
            paths = sorted(self.folder.glob(f"*{SUFFIX}"))[-FILES_LOOKED_AT_MAX:]
        except OSError as error:
            log.warning("checkpoints: %s cannot be read: %s", self.folder, error)
            return []
        for path in paths:
            try:
                with _open(path) as file:
                    found.append((path, read_head(file)))
            except (CheckpointError, OSError) as error:
                log.warning("checkpoint %s is passed over: %s", path.name, _why(error))
        return sorted(found, key=lambda one: (one[1].facts, one[0].name), reverse=True)

    def write(
        self, state: memoryview, spec: StateSpec, facts: CheckpointFacts, epoch: int, stopped: Callable[[], bool]
    ) -> int:
        """Write one, then remove those that are too old; its size in bytes. Raises CheckpointError with the reason, or
        Interrupted; neither leaves anything behind."""
        name = f"round-{facts.round:010d}-lineage-{facts.lineage}-{short(self.site)}{SUFFIX}"
        path, partial = self.folder / name, self.folder / f".{name}{PARTIAL}"
        try:
            make_durable_folder(self.folder)
            self._refuse_to_fill_the_disk(state.nbytes)
            try:
                partial.unlink(missing_ok=True)  # whatever lies there: a link would be followed
                descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                with open(descriptor, "wb", buffering=1 << 20) as file:
                    size = write_file(
                        file, state, spec, facts=facts, run=self.run, run_id=self._run_id(), site=self.site,
                        epoch=epoch, stopped=stopped,
                    )  # fmt: skip
                os.replace(partial, path)
            except BaseException:
                partial.unlink(missing_ok=True)
                raise
            _sync_folder(self.folder)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be written: {_why(error)}") from error
        self._known[facts] = path
        self._prune(path)
        return size

    def _refuse_to_fill_the_disk(self, needed_bytes: int) -> None:
        """The journal may lie on it, and stops the daemon where it finds no room. Raises CheckpointError, OSError."""
        disk = shutil.disk_usage(self.folder)
        spare_bytes = min(disk.total // SPARE_PART, SPARE_BYTES_MAX)
        if disk.free < needed_bytes + spare_bytes:
            raise CheckpointError(
                f"{self.folder} has {_size(disk.free)} free: a checkpoint of {_size(needed_bytes)} would leave less "
                f"than {_size(spare_bytes)}, and is left out. Free space, or choose another checkpoint_dir"
            )

    def load(self, facts: CheckpointFacts, state: memoryview, spec: StateSpec, stopped: Callable[[], bool]) -> None:
        """Read one into `state`, verified. Raises CheckpointError with the reason, or Interrupted."""
        path = self._known.get(facts)
        if path is None:
            raise CheckpointError(f"the checkpoint of round {facts.round} is not in {self.folder}")
        try:
            with _open(path) as file:
                head = load_file(file, state, spec, stopped=stopped)
            if head.facts != facts or head.run != self.run:
                raise CheckpointError("it is another checkpoint than its head said before")
        except (CheckpointError, OSError) as error:
            self._known.pop(facts, None)
            raise CheckpointError(f"checkpoint {path.name} cannot be used: {_why(error)}") from error

    def set_aside(self, lineage: int, after: int, until: int) -> list[str]:
        """Rename what this site wrote of these rounds, so that neither this daemon nor a later one finds it; the former
        names. As many stay, the newest, as of other files. Raises CheckpointError with the reason."""
        own = [(path, head) for path, head in self.heads() if (head.run, head.site) == (self.run, self.site)]
        strange, moved = self._strange(own), []
        try:
            for path, head in own:
                concerned = head.facts.lineage == lineage and after < head.facts.round <= until
                if not concerned or (path, head) in strange:
                    continue
                self._known.pop(head.facts, None)
                os.replace(path, path.with_name(path.name + DOUBTFUL))
                moved.append(path.name)
                log.warning(
                    "checkpoint %s may hold a state that was not that of the other sites, and is now %s: look at it, "
                    "or remove it (docs/operating.md, Checkpoints)",
                    path.name,
                    path.name + DOUBTFUL,
                )
            if moved:
                _sync_folder(self.folder)
                aside = sorted(self.folder.glob(f"round-*-{short(self.site)}{SUFFIX}{DOUBTFUL}"))
                for old in aside[: -self._kept]:
                    old.unlink(missing_ok=True)
        except OSError as error:
            raise CheckpointError(f"a doubtful checkpoint in {self.folder} cannot be renamed: {_why(error)}") from error
        return moved

    def _strange(self, heads: list[tuple[Path, Head]]) -> list[tuple[Path, Head]]:
        """Those that say that they are of another run."""
        here = self._run_id()
        return [(path, head) for path, head in heads if here and head.run_id and head.run_id != here]

    def _prune(self, fresh: Path) -> None:
        """Of this run as many stay as are wanted, and as many of all other runs together."""
        ours = (self.run, self.site)
        own = [(path, head) for path, head in self.heads() if (head.run, head.site) == ours and path != fresh]
        strange = self._strange(own)
        same = [one for one in own if one not in strange]
        for path, head in same[self._kept - 1 :] + strange[self._kept :]:
            try:
                path.unlink(missing_ok=True)
                self._known.pop(head.facts, None)
            except OSError as error:
                log.warning("checkpoint %s cannot be removed: %s", path.name, _why(error))


def _open(path: Path) -> BufferedReader:
    return open(os.open(path, os.O_RDONLY | os.O_CLOEXEC), "rb")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        sync_data(descriptor)
    finally:
        os.close(descriptor)


def _size(count: int) -> str:
    """In a unit in which it is not 0: on a small disk tenths of a MiB decide."""
    if count < 1 << 10:
        return f"{count} bytes"
    return f"{count / 2**10:,.0f} KiB" if count < 10 << 20 else f"{count / 2**20:,.0f} MiB"


def _why(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


__all__ = ["CheckpointError", "CheckpointFolder", "Interrupted"]
