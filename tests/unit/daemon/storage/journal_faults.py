"""A disk in memory that misbehaves: writes short, fills up, refuses syncs, and loses power at a chosen step.

What survives a loss of power: everything synced; of each file, any part of what was written since (a prefix, in which
whole sectors may read as zeros); of names created, replaced and removed since the folder's last sync, the first few.
"""

from __future__ import annotations

import errno
import random

SECTOR_BYTES = 64
"""Far below a disk's 512, so that small records tear too."""


class PowerLost(Exception):
    """The machine stopped here. Nothing after it reaches the disk."""


class Content:
    """One file: what has been written, and what of it would survive."""

    def __init__(self, data: bytes = b"") -> None:
        self.current = bytearray(data)
        self.durable = bytes(data)

    def survive(self, rng: random.Random) -> bytes:
        if not self.current.startswith(self.durable):  # truncated since the last sync
            return rng.choice([self.durable, bytes(self.current)])
        fresh = bytearray(self.current[len(self.durable) :])
        fresh = fresh[: rng.randint(0, len(fresh))]
        for start in range(0, len(fresh), SECTOR_BYTES):
            if rng.random() < 0.2:
                stop = min(start + SECTOR_BYTES, len(fresh))
                fresh[start:stop] = bytes(stop - start)
        return self.durable + bytes(fresh)


class FaultyFile:
    def __init__(self, folder: FaultyFolder, content: Content) -> None:
        self._folder = folder
        self._content = content

    def write(self, data: bytes) -> int:
        count = len(data)
        if self._folder.short_writes is not None and count > 1:
            count = self._folder.short_writes.randint(1, count)
        if self._folder.bytes_left is not None:
            count = min(count, self._folder.bytes_left)
            if data and not count:
                raise OSError(errno.ENOSPC, "No space left on device")
            self._folder.bytes_left -= count
        if self._folder.step():
            # The machine stops in the middle of this write.
            self._content.current += data[: count // 2]
            raise PowerLost
        self._content.current += data[:count]
        return count

    def sync(self) -> None:
        self._folder.step_or_stop()
        if self._folder.sync_errors:
            self._folder.sync_errors -= 1
            raise OSError(errno.EIO, "Input/output error")
        self._content.durable = bytes(self._content.current)

    def truncate(self, size_bytes: int) -> None:
        self._folder.step_or_stop()
        if self._folder.truncate_errors:
            raise OSError(errno.EIO, "Input/output error")
        freed = len(self._content.current) - size_bytes
        del self._content.current[size_bytes:]
        if self._folder.bytes_left is not None:
            self._folder.bytes_left += freed

    def close(self) -> None:
        return


class FaultyFolder:
    """A `Folder` in memory. `stop_at_step`: the operation at which the power goes; None for never."""

    def __init__(self, files: dict[str, bytes] | None = None, *, stop_at_step: int | None = None) -> None:
        self.names = {name: Content(data) for name, data in (files or {}).items()}
        self.stop_at_step = stop_at_step
        self.steps = 0
        self.bytes_left: int | None = None
        self.short_writes: random.Random | None = None
        self.sync_errors = 0
        self.truncate_errors = False
        self.locked = False
        self._durable_names = [dict(self.names)]

    def step(self) -> bool:
        """Counts an operation; whether the power goes at this one. It stays gone."""
        self.steps += 1
        return self.stop_at_step is not None and self.steps >= self.stop_at_step

    def step_or_stop(self) -> None:
        if self.step():
            raise PowerLost

    def after_power_loss(self, rng: random.Random) -> dict[str, bytes]:
        """The files as the next start finds them."""
        names = rng.choice(self._durable_names)
        return {name: content.survive(rng) for name, content in names.items()}

    def describe(self, name: str) -> str:
        return f"/data/{name}"

    def lock(self, name: str) -> None:
        if self.locked:
            raise BlockingIOError("17")
        self.locked = True

    def unlock(self) -> None:
        self.locked = False

    def read(self, name: str) -> bytes | None:
        return bytes(self.names[name].current) if name in self.names else None

    def create(self, name: str) -> FaultyFile:
        self.step_or_stop()
        self.names[name] = Content()
        self._named()
        return FaultyFile(self, self.names[name])

    def append(self, name: str) -> FaultyFile:
        return FaultyFile(self, self.names[name])

    def replace(self, name: str, by: str) -> None:
        self.step_or_stop()
        self.names[name] = self.names.pop(by)
        self._named()

    def remove(self, name: str) -> None:
        self.step_or_stop()
        if name in self.names:
            freed = len(self.names.pop(name).current)
            if self.bytes_left is not None:
                self.bytes_left += freed
            self._named()

    def sync(self) -> None:
        self.step_or_stop()
        if self.sync_errors:
            self.sync_errors -= 1
            raise OSError(errno.EIO, "Input/output error")
        self._durable_names = [dict(self.names)]

    def _named(self) -> None:
        self._durable_names.append(dict(self.names))
