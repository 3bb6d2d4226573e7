"""For users: try a training script with several sites in one process, without a daemon and without a network.

    from chaos.testing import LocalRun

    def test_two_sites_learn_the_same() -> None:
        with LocalRun(sites=2) as run:
            first, second = run.together(train, train)      # train(socket): Coordinator(socket=socket), and so on
        assert first == second

`LocalRun` listens on a unix socket and says to each script that connects what its daemon would say: it waits for
`sites` of them, averages every round over all, weighted by samples, in the order in which they came, and lets a script
leave. One that comes later is a joiner: it gets the state from a member by way of the shared memory, and trains from
the next round on. What is real: the whole SDK in the script (conversation, shared memory, frameworks, modes), and the
arithmetic. What is not there: other machines, failures of links, time. For one site alone,
`Coordinator(standalone=True)` needs nothing at all.

A script that fails drops out, and the others go on; `together` raises its error.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, assert_never

import numpy as np

from chaos.finite import first_not_finite
from chaos.frameworks.base import Bytes
from chaos_protocols.names import WORKER_FRAME_BYTES_MAX
from chaos_protocols.wire.arena import arena_layout
from chaos_protocols.wire.state_spec import first_difference
from chaos_protocols.wire.versions import NEWEST
from chaos_protocols.wire.worker import (
    ApplyResult,
    ContributionSpec,
    DaemonMessage,
    Dismissed,
    FiguresLogged,
    LoadState,
    PartReady,
    ResultApplied,
    RoundContributed,
    RoundSkipped,
    SnapshotMissed,
    SnapshotTaken,
    StateLoaded,
    TakeSnapshot,
    TrainFrom,
    UpdateStarted,
    WorkerHello,
    WorkerLeaveRequest,
    WorkerMessage,
    WorkerPaused,
    WorkerRefused,
    WorkerResumed,
    WorkerWelcome,
    decode_from_worker,
    encode,
)

HEADER_BYTES = 4
LOOK_S = 0.05
"""How soon the end of the run is noticed."""

Answer = TypeVar("Answer")


@dataclass(slots=True, eq=False)
class _Site:
    """One script: its connection, its shared memory, and where it stands. `weight`: of what it gave to the next
    round."""

    name: str
    connection: socket.socket
    hello: WorkerHello
    contribution: Bytes
    result: Bytes
    state: Bytes
    member: bool = False
    loading: bool = False
    trains: bool = False
    weight: float | None = None
    incoming: bytearray = field(default_factory=bytearray)

    def send(self, *messages: DaemonMessage) -> None:
        try:
            self.connection.sendall(b"".join(encode(message) for message in messages))
        except OSError:
            pass  # its end is seen where it is read


class LocalRun:
    """A run of scripts on this machine. `socket` is what they connect to (`CHAOS_SOCKET` for a script of its own
    process). sites: how many must be there before training begins. Use it in a `with` block."""

    def __init__(self, sites: int = 2) -> None:
        if sites < 1:
            raise ValueError(f"sites = {sites}: must be at least 1")
        self._sites_wanted = sites
        self._folder = tempfile.TemporaryDirectory(prefix="chaos")
        self.socket = Path(self._folder.name) / "worker.sock"
        self.round = 0
        """The last round that was averaged."""
        self._sites: list[_Site] = []
        self._came = 0
        self._begun = False
        """So many sites were here as training begins with."""
        self._too_few = False
        """Scripts have failed, and those that are left are fewer than training begins with."""
        self._ending = threading.Event()
        self._error: BaseException | None = None
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(str(self.socket))
        except OSError as error:
            self._listener.close()
            self._folder.cleanup()
            raise OSError(
                f"a local run cannot listen at {self.socket} ({error.strerror or error}); set TMPDIR to a short path "
                "that this user can write to, such as /tmp"
            ) from error
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, name="chaos local run", daemon=True)

    def together(self, *scripts: Callable[[Path], Answer]) -> list[Answer]:
        """Run each `script(socket)` in a thread of its own; what they return, in their order. Raises what was raised
        first, when all have ended. Where a script fails before training has begun, and too few are left for it to
        begin, the others are refused."""
        failed: list[BaseException] = []
        with ThreadPoolExecutor(len(scripts), thread_name_prefix="script") as pool:
            running = [pool.submit(script, self.socket) for script in scripts]
            for one in as_completed(running):
                if (error := one.exception()) is not None:
                    failed.append(error)
                    self._too_few = len(running) - len(failed) < self._sites_wanted
        if failed:
            raise failed[0]
        return [one.result() for one in running]

    def __enter__(self) -> LocalRun:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self._thread.join()
        for site in list(self._sites):
            self._drop(site)
        self._listener.close()
        self._folder.cleanup()
        if self._error is not None and kind is None:
            raise self._error

    # ---- the thread that plays the daemons

    def _serve(self) -> None:
        try:
            while not self._ending.is_set():
                by_socket = {site.connection: site for site in self._sites}
                for ready in select.select([self._listener, *by_socket], [], [], LOOK_S)[0]:
                    if ready is self._listener:
                        self._accept()
                    elif by_socket[ready] in self._sites:
                        self._read(by_socket[ready])
                self._give_up_if_too_few()
                self._average_if_complete()
        except BaseException as error:  # a defect here must not leave the scripts waiting
            self._error = error
            for site in list(self._sites):
                self._drop(site)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        data, fds, _, _ = socket.recv_fds(connection, HEADER_BYTES, 1)
        if not data:
            connection.close()  # the SDK looks whether anybody is there, before the model is built
            return
        size = int.from_bytes(data, "big")
        body = b""
        while len(body) < size and (piece := connection.recv(size - len(body))):
            body += piece
        hello = decode_from_worker(body)
        assert isinstance(hello, WorkerHello) and fds
        contribution, result, state = _regions(fds[0], hello)
        self._came += 1
        site = _Site(f"script {self._came}", connection, hello, contribution, result, state)
        refusal = self._refusal(hello)
        if refusal:
            site.send(WorkerRefused(reason=refusal))
            connection.close()
            return
        self._sites.append(site)
        site.send(WorkerWelcome(site=site.name, run="local", version=NEWEST))
        self._begin_or_let_in()

    def _refusal(self, hello: WorkerHello) -> str:
        if self._sites and hello.state.digest != self._sites[0].hello.state.digest:
            why = first_difference(hello.state, self._sites[0].hello.state)
            return f"it trains another model than the scripts that are here: {why}"
        return ""

    def _begin_or_let_in(self) -> None:
        """Somebody has come, or one has gone that was asked for the state."""
        if not any(not site.member and not site.loading for site in self._sites):
            return  # nobody waits
        members = [site for site in self._sites if site.member]
        if members:
            members[0].send(TakeSnapshot(round=self.round))  # asked again if it has gone on meanwhile
        elif any(site.loading for site in self._sites):
            return  # asked when it has loaded
        elif len(self._sites) >= self._sites_wanted:
            first = self._sites[0]
            first.member = self._begun = True
            if len(self._sites) == 1:
                self._train(first)
            else:
                first.send(TakeSnapshot(round=self.round))  # all begin with the state of the first one
        elif self._begun:
            for site in list(self._sites):
                site.send(Dismissed(last_round=self.round, graceful=True, reason="all others have left: it is over"))
                self._drop(site)

    def _give_up_if_too_few(self) -> None:
        if self._begun or not self._too_few:
            return
        for site in list(self._sites):
            site.send(WorkerRefused(reason=f"a script of this run failed before {self._sites_wanted} sites were here"))
            self._drop(site)

    # ---- what a script says

    def _read(self, site: _Site) -> None:
        try:
            data = site.connection.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._drop(site)
            return
        site.incoming += data
        while len(site.incoming) >= HEADER_BYTES and site in self._sites:
            size = int.from_bytes(site.incoming[:HEADER_BYTES], "big")
            assert size <= WORKER_FRAME_BYTES_MAX
            if len(site.incoming) < HEADER_BYTES + size:
                return
            body = bytes(site.incoming[HEADER_BYTES : HEADER_BYTES + size])
            del site.incoming[: HEADER_BYTES + size]
            message = decode_from_worker(body)
            if message is not None:  # None: one that a daemon may leave out of account
                self._told(site, message)

    def _told(self, site: _Site, message: WorkerMessage) -> None:
        match message:
            case RoundContributed(weight=weight):
                site.weight = weight
            case RoundSkipped():
                site.weight = 0.0
            case SnapshotTaken(round=round):
                self._hand_over(site, round)
            case SnapshotMissed():
                site.send(TakeSnapshot(round=self.round))
            case StateLoaded():
                site.loading, site.member = False, True
                self._train(site)
                self._begin_or_let_in()
            case WorkerLeaveRequest():
                site.send(Dismissed(last_round=self.round, graceful=True, reason="left the run"))
                self._drop(site)
            case WorkerResumed():
                self._train(site)
            case UpdateStarted() | ResultApplied() | FiguresLogged() | PartReady():  # here parts are whole
                pass
            case WorkerPaused():  # here the others wait for a script that pauses
                pass
            case WorkerHello():
                raise AssertionError("a hello comes first, and once")
            case _:
                assert_never(message)

    def _hand_over(self, source: _Site, round: int) -> None:
        """A snapshot is there: every site that waits for the state gets it. No round ends before they have loaded it,
        so it is that of the run."""
        waiting = [site for site in self._sites if not site.member and not site.loading]
        if round != self.round:
            source.send(TakeSnapshot(round=self.round))
            return
        for site in waiting:
            site.state[...] = source.state
            site.loading = True
            site.send(LoadState(round=round))
        if not source.trains:
            self._train(source)

    def _train(self, site: _Site) -> None:
        site.trains = True
        site.send(TrainFrom(round=self.round + 1))

    def _drop(self, site: _Site) -> None:
        self._sites.remove(site)
        site.connection.close()
        if self._begun and not self._ending.is_set():
            self._begin_or_let_in()

    # ---- a round

    def _average_if_complete(self) -> None:
        """When every member has given its part, and nobody is getting the state of the round before."""
        members = [site for site in self._sites if site.member]
        if not members or any(site.weight is None for site in members) or any(site.loading for site in self._sites):
            return
        if any(not site.member for site in self._sites):
            return  # its snapshot is on the way
        spec, total = members[0].hello.contribution, sum(site.weight or 0.0 for site in members)
        if not total:  # nobody has anything to give: all compute anew
            for site in members:
                site.weight = None
                self._train(site)
            return
        result = _average([site for site in members if site.weight], spec)
        self.round += 1
        void = first_not_finite(result, spec) is not None
        for site in members:
            site.result[...] = result
            site.weight = None
            site.send(ApplyResult(round=self.round, sites=len(members), weight=total, void=void))


def _average(members: list[_Site], spec: ContributionSpec) -> Bytes:
    """sum(w g) / sum(w), each segment in its own type, as the daemons do it."""
    out: Bytes = np.zeros(spec.size_bytes, dtype=np.uint8)
    start = 0
    for segment in spec.segments:
        dtype: np.dtype[Any] = np.dtype(segment.dtype)
        stop = start + segment.count * dtype.itemsize
        total = np.zeros(segment.count, dtype=dtype)
        for site in members:  # a sum that is too large is told, and applied nowhere
            total += dtype.type(site.weight or 0.0) * site.contribution[start:stop].view(dtype)
        out[start:stop].view(dtype)[...] = total / dtype.type(sum(site.weight or 0.0 for site in members))
        start = stop
    return out


def _regions(fd: int, hello: WorkerHello) -> tuple[Bytes, Bytes, Bytes]:
    """Contribution, result and state in the script's shared memory; it goes with the last of them."""
    vector, state = hello.contribution.size_bytes, hello.state.size_bytes
    layout = arena_layout(vector, state)
    try:
        whole: Bytes = np.frombuffer(mmap.mmap(fd, layout.size_bytes), dtype=np.uint8)
    finally:
        os.close(fd)
    return (
        whole[layout.contribution_offset : layout.contribution_offset + vector],
        whole[layout.result_offset : layout.result_offset + vector],
        whole[layout.state_offset : layout.state_offset + state],
    )
