"""How what a script has registered becomes a training: alone, as workers of one site, or in a conversation with a
daemon."""

from __future__ import annotations

import multiprocessing
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chaos.at_exit import is_failure
from chaos.connection import Wakeup, open_socket
from chaos.conversation import Conversation
from chaos.encoding import check_encoding, check_name, encoded
from chaos.forked import OneProcess
from chaos.frameworks import Framework
from chaos.parallel import ParallelSite
from chaos.replica import Replica
from chaos.saying import say
from chaos.signals import ExitSignals
from chaos.sync import EveryStep, SyncMode, SyncSession
from chaos.threads import OneThread

if TYPE_CHECKING:
    from chaos.data import ElasticSampler
    from chaos.worker_group.model import ParallelModel


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonLine:
    """`path`: the daemon's socket. `connect_s`, `reconnect_s`: as of `Coordinator`. `verbose`: tell what changes."""

    path: Path
    connect_s: float
    reconnect_s: float
    verbose: bool


class Entering(ParallelSite, ABC):
    """A part of the Coordinator."""

    def __init__(self, line: DaemonLine, *, standalone: bool, encoding: str, allow_lossy: bool) -> None:
        """Raises ValueError for an encoding that there is not, NoDaemon."""
        check_name(encoding)
        _check_not_read_again()
        ParallelSite.__init__(self, standalone=standalone, encoding=encoding)
        if not self._standalone and not self._in_group:
            tell = say if line.verbose else None
            open_socket(line.path, line.connect_s, tell).close()  # fail now, before the user has built a model
        self._line = line
        self._allow_lossy = allow_lossy
        self._framework: Framework | None = None
        self._session: SyncSession | None = None
        self._conversation: Conversation | None = None
        self._one_thread = OneThread()
        self._process = OneProcess()  # that talks with the daemon
        self._wakeup = Wakeup()
        self._signals = ExitSignals(self._wakeup, verbose=line.verbose, ends=self._is_lost_alone)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """What it has (a socket, shared memory, handlers) belongs to one process, and is there once."""
        raise TypeError(
            "a Coordinator cannot be pickled or copied: it belongs to the process that made it. Keep it out of what is "
            "saved, copied, or sent to other processes (a data set, a function of a spawned worker); hand over models "
            "and numbers"
        )

    @abstractmethod
    def _deal_by(self, sampler: ElasticSampler) -> None:
        """Its samples are those of this training's steps."""

    def _begin(
        self, framework: Framework, clip_norm: float | None, sync: SyncMode | None, sampler: ElasticSampler | None
    ) -> None:
        """Start the mode, and join the run where there is one. Raises what `Coordinator.register` raises."""
        if clip_norm is not None:
            raise ValueError(
                "clip_norm= belongs to a model of parallelize(); a script that has all gradients clips their averages: "
                "on_average=lambda update: torch.nn.utils.clip_grad_norm_(model.parameters(), ...)"
            )
        mode = self._mode_of(sync)
        if self._replicated is None:
            session = mode.start(framework) if sampler is None else mode.start(framework, sampler)
            encoded(session.contribution, self._encoding)  # refused without a daemon, too
            alone = self._standalone
            if sampler is not None:
                self._deal_by(sampler)
        elif sampler is not None:
            raise ValueError("sampler= deals samples to scripts of one process; workers take coordinator.loader(...)")
        else:
            session, alone = self._register_replicated(framework, sync, self._encoding)
        self._framework, self._session = framework, session
        if not alone:
            conversation = self._converse(session)
            if self._replicated is not None:
                self._replicated.talk_through(conversation, session)

    def _train_parallel(
        self,
        model: ParallelModel,
        optimizer: Any,
        scheduler: Any,
        clip: float | None,
        sync: SyncMode | None,
        facts: Sequence[str],
    ) -> None:
        self._mode_of(sync)
        session = self._register_parallel(model, optimizer, scheduler, clip, sync, facts)
        if session is not None:
            model.talk_through(self._converse(session), session)

    def _mode_of(self, sync: SyncMode | None) -> SyncMode:
        """Raises ValueError for one that the encoding is too coarse for."""
        mode = sync or EveryStep()
        if isinstance(mode, type):
            raise ValueError(f"sync={mode.__name__} is a class; give one that is made: sync={mode.__name__}(...)")
        if not (callable(getattr(mode, "start", None)) and callable(getattr(mode, "facts", None))):
            raise ValueError(
                f"sync={mode!r:.80} is no way to train together: give chaos.EveryStep(), chaos.LocalSGD(every=...) or "
                "chaos.DiLoCo(every=...)"
            )
        check_encoding(self._encoding, mode, allow_lossy=self._allow_lossy)
        return mode

    def _converse(self, session: SyncSession) -> Conversation:
        """Join the run, and wait until this site may contribute."""
        self._session = session
        self._process.begin()
        line = self._line
        replica = Replica(session, self._encoding, say if line.verbose else None)
        self._conversation = Conversation(
            line.path, replica, self._signals, self._wakeup, reconnect_s=line.reconnect_s, verbose=line.verbose
        )
        self._conversation.join(line.connect_s)
        return self._conversation

    def _has_failed(self, error: BaseException | None) -> bool:
        """Whether the script has, if it ends with this."""
        return is_failure(error, asked=self._signals.exit_requested)


def _check_not_read_again() -> None:
    """Raises ValueError where a process of the script's own has not begun its work yet: it reads the script to find
    what that is, and would join the run in its parent's place, or be refused as a second one."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise ValueError(
            "this script is read again by a process that it has started (spawn, forkserver: a data loader's, say): "
            "make the coordinator, and train, below `if __name__ == '__main__':`"
        )
