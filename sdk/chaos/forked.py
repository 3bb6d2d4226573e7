"""A child that was forked from a script has its coordinator, sockets and shared memory, too: they stay its parent's."""

from __future__ import annotations

import os


class OneProcess:
    """Of something that belongs to the process in which it began."""

    def __init__(self) -> None:
        self._pid: int | None = None

    def begin(self) -> None:
        self._pid = os.getpid()

    @property
    def is_child(self) -> bool:
        """It has begun, and this is a child of that process."""
        return self._pid is not None and self._pid != os.getpid()

    def check(self) -> None:
        """Raises ValueError in a child: a word of its own in its parent's conversation would leave both waiting for
        ever."""
        if self.is_child:
            raise ValueError(
                f"this coordinator trains in process {self._pid}, and this is process {os.getpid()}, forked from it: "
                "call it in the process that registered the model, and hand over results (a queue, a pipe)"
            )
