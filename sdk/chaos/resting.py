"""A script that does something else for a while, and the daemon that is told so."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator

from chaos.conversation import Conversation
from chaos.sync import SyncSession


class Resting(ABC):
    """A part of the Coordinator."""

    def __init__(self) -> None:
        self._conversation: Conversation | None = None

    @property
    @abstractmethod
    def left(self) -> bool:
        """True once this site is out of the run."""

    @abstractmethod
    def _registered(self) -> SyncSession:
        """Raises ValueError before anything is registered."""

    def pause(self, reason: str = "its script pauses") -> bool:
        """Do something else for a while (a cell of a notebook, a person who looks): nobody waits for this site, which
        counts with weight 0 until `resume`, or the next `step()`. The state stays as it is meanwhile. False: it pauses
        already, or is not in a run.

        Beside a daemon of an older release the others wait all the same."""
        self._registered()
        return self._conversation is not None and not self.left and self._conversation.pause(reason)

    def resume(self) -> None:
        """The end of a pause: apply what the others have done since, and wait until this site may train again. If that
        was more than the daemon may keep, the state is taken from a neighbour."""
        self._registered()
        if self._conversation is not None:
            self._conversation.resume()

    @contextlib.contextmanager
    def evaluating(self, reason: str = "its script evaluates") -> Iterator[None]:
        """`with coordinator.evaluating():` what takes long and gives no gradients; a pause around it. A failure in it
        is raised at once."""
        began = self.pause(reason)
        yield
        if began:
            self.resume()
