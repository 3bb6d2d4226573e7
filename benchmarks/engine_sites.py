"""Sites with a transport and a replication engine, each in a process of its own, for benchmarks of state transfers.

The daemon joins the two in the same way (`chaosd/driver.py`); there is no training here, and no scheduler: the plan is
made by hand. The parent speaks to each process over a pipe, one command and one answer at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import mmap
import multiprocessing
import resource
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvloop
from blake3 import blake3

from chaos_protocols.causes import Why
from chaos_protocols.names import SiteId
from chaos_protocols.wire.bulk import STREAM_AVERAGING
from chaos_protocols.wire.keys import KeyChain
from chaos_protocols.wire.plans import ReplicationPlan, SourceRange
from chaos_protocols.wire.recovered import RunRecovered
from chaosd.bulk.replication.engine import ReplicationEngine
from chaosd.identity import Identity
from chaosd.transport import Transport, TransportSettings
from chaosd.transport.handshake import Speaker
from chaosd.transport.settings import KeptOut

DIAL_TIMEOUT_S = 10.0
TRANSFER_TIMEOUT_S = 600.0
ROUND = 1
MEMORY_SAMPLE_S = 0.01
PATTERN_BYTES = 1 << 20
CLONE_NEWNET = 0x40000000
"""<linux/sched.h>; `os.setns` comes with Python 3.12."""
FRAME_BYTES = 512 << 10
"""Of a round that is acted: as the chunks of averaging."""


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """One transfer, as the joiner saw it."""

    seconds: float
    digest: str
    memory_bytes: int
    """Most that the process held during the transfer beyond what it held before it (the arena was touched before)."""


class RemoteSite:
    """The parent's end of one site's process."""

    def __init__(
        self,
        folder: Path,
        name: str,
        state_bytes: int,
        *,
        listen: str = "127.0.0.1",
        seed: int = 0,
        namespace: str = "",
        settings: dict[str, Any] | None = None,
    ) -> None:
        """`namespace`: the network namespace that the process enters first. `settings`: of the transport."""
        self.id = Identity.create(folder / name).site
        context = multiprocessing.get_context("spawn")
        self._pipe, far = context.Pipe()
        setting = _Setting(str(folder / name), state_bytes, listen, seed, namespace, settings or {})
        self._process = context.Process(target=_main, args=(far, setting))
        self._process.start()
        far.close()
        self.address: str = self._answer()

    def ask(self, command: str, *arguments: Any) -> Any:
        """Carry out a command there. Raises RuntimeError with what went wrong."""
        self.tell(command, *arguments)
        return self._answer()

    def tell(self, command: str, *arguments: Any) -> None:
        """Begin a command; `wait` has its answer."""
        self._pipe.send((command, arguments))

    def wait(self) -> Any:
        """The answer to `tell`."""
        return self._answer()

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(OSError):
            self._pipe.send(("stop", ()))
        self._process.join(DIAL_TIMEOUT_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()

    def _answer(self) -> Any:
        if not self._pipe.poll(TRANSFER_TIMEOUT_S):
            raise RuntimeError(f"the process of site {self.id} does not answer")
        fine, answer = self._pipe.recv()
        if not fine:
            raise RuntimeError(answer)
        return answer


@dataclass(frozen=True)
class _Setting:
    folder: str
    state_bytes: int
    listen: str
    seed: int
    namespace: str
    transport: dict[str, Any]


@contextlib.contextmanager
def linked_sites(folder: Path, sources: int, state_bytes: int) -> Iterator[tuple[RemoteSite, list[RemoteSite]]]:
    """A joiner and its sources, which have the same state; the links are up."""
    sites: list[RemoteSite] = []
    try:
        for name in ("joiner", *(f"source{number}" for number in range(sources))):
            sites.append(RemoteSite(folder, name, state_bytes, seed=0 if name == "joiner" else 1))
        joiner, *others = sites
        for source in others:
            joiner.ask("dial", source.id, source.address)
        yield joiner, others
    finally:
        for site in sites:
            site.close()


def even_plan(transfer: str, joiner: RemoteSite, sources: Sequence[RemoteSite], state_bytes: int) -> ReplicationPlan:
    """Equal parts."""
    borders = [state_bytes * number // len(sources) for number in range(len(sources) + 1)]
    return ReplicationPlan(
        transfer=transfer,
        joiner=joiner.id,
        round=ROUND,
        state_bytes=state_bytes,
        shard_bytes=4096,
        ranges=tuple(
            SourceRange(source=site.id, start=borders[number], stop=borders[number + 1])
            for number, site in enumerate(sources)
        ),
        reason="equal parts",
    )


def fetch(transfer: str, joiner: RemoteSite, sources: Sequence[RemoteSite], state_bytes: int) -> Fetched:
    """One whole transfer."""
    plan = even_plan(transfer, joiner, sources, state_bytes)
    for source in sources:
        source.ask("serve", plan)
    fetched: Fetched = joiner.ask("fetch", plan)
    for source in sources:
        source.ask("release", transfer)
    return fetched


# -- inside the process


ROUND_PART, ROUND_LAST, ROUND_ANSWER = b"part", b"last", b"answer"


@dataclass
class _Site:
    """Transport and engine of one site, joined as the driver joins them."""

    transport: Transport = field(init=False)
    engine: ReplicationEngine = field(init=False)
    arena: memoryview
    done: asyncio.Future[None] | None = None
    answered: asyncio.Future[None] | None = None
    answering: asyncio.Future[None] | None = None

    def accepts(self, site: SiteId, chain: KeyChain) -> bool:
        return True

    def let_in(self, site: SiteId) -> None:
        """Nobody is a guest."""

    def keeps_out(self, site: SiteId, purpose: str, chain: KeyChain, host: str) -> KeptOut | None:
        return None

    def run_id(self) -> str:
        return ""

    def run_rules(self) -> int:
        return 0

    def recovered(self) -> RunRecovered | None:
        return None

    def heard_recovered(self, site: SiteId, address: str, statement: RunRecovered) -> None:
        """There is one run."""

    def both_in_run(self, site: SiteId) -> bool:
        return True

    def may_name_hosts(self, site: SiteId) -> bool:
        return True

    def newest_start(self, site: SiteId) -> int:
        return 0

    def refused(self, site: SiteId, why: Why) -> None: ...

    def link_up(self, site: SiteId, incarnation: int, address: str, speaker: Speaker) -> None:
        self.engine.link_up(site)

    def link_lost(self, site: SiteId, incarnation: int, reason: str, end_of_file: bool) -> None:
        self.engine.link_lost(site)

    def control_received(self, site: SiteId, frame: bytes) -> None: ...

    def bulk_buffer(self, site: SiteId, stream: int, header: bytes, size_bytes: int) -> memoryview | None:
        if stream == STREAM_AVERAGING:
            return None
        return self.engine.bulk_buffer(site, stream, header, size_bytes)

    def bulk_received(self, site: SiteId, stream: int, header: bytes, payload: memoryview | None) -> None:
        if stream != STREAM_AVERAGING:
            self.engine.bulk_received(site, stream, header, payload)
        elif header == ROUND_LAST:
            answer = self.transport.send_bulk(site, STREAM_AVERAGING, ROUND_ANSWER)
            self.answering = asyncio.ensure_future(answer)
        elif header == ROUND_ANSWER and self.answered is not None:
            self.answered.set_result(None)

    def bulk_lost(self, site: SiteId, stream: int, reason: str) -> None:
        self.transport.close_link(site, reason)

    def transfer_finished(self, transfer: str) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_result(None)

    def transfer_failed(self, transfer: str, reason: str) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_exception(RuntimeError(reason))

    def transfer_progress(self, transfer: str, verified_bytes: int) -> None: ...

    def source_dropped(self, transfer: str, site: SiteId, reason: str, wrong: bool) -> None:
        print(f"source {site} dropped: {reason}", file=sys.stderr)

    def peer_broke_rules(self, site: SiteId, reason: str) -> None:
        self.transfer_failed("", f"{site} broke the rules: {reason}")

    async def carry_out(self, command: str, arguments: tuple[Any, ...]) -> Any:
        match command, arguments:
            case "dial", (site, address):
                await self.transport.dial(site, address, timeout_s=DIAL_TIMEOUT_S)
            case "serve", (plan,):
                self.engine.serve(plan.transfer, plan.joiner, plan.round, self.arena)
            case "release", (transfer,):
                self.engine.release(transfer)
            case "fetch", (plan,):
                return await self._fetch(plan)
            case "cpu", ():
                return time.process_time()
            case "rounds", (site, size_bytes, seconds, pause_s):
                return await self._act_rounds(site, size_bytes, seconds, pause_s)
            case "streams", ():
                return {link.site: (link.streams, link.congestion) for link in self.transport.links()}
            case _:
                raise ValueError(f"no command {command}")
        return None

    async def _act_rounds(self, site: SiteId, size_bytes: int, seconds: float, pause_s: float) -> list[float]:
        """Send as much as a round does on the stream of averaging, again and again; how long each took until the other
        end had it all."""
        loop = asyncio.get_running_loop()
        payload = memoryview(bytes(FRAME_BYTES))
        taken: list[float] = []
        until_s = loop.time() + seconds
        while loop.time() < until_s:
            begun_s = time.perf_counter()
            self.answered = loop.create_future()
            for start in range(0, size_bytes, FRAME_BYTES):
                part = payload[: min(FRAME_BYTES, size_bytes - start)]
                header = ROUND_LAST if start + FRAME_BYTES >= size_bytes else ROUND_PART
                await self.transport.send_bulk(site, STREAM_AVERAGING, header, part)
            await self.answered
            taken.append(time.perf_counter() - begun_s)
            await asyncio.sleep(pause_s)
        return taken

    async def _fetch(self, plan: ReplicationPlan) -> Fetched:
        self.done = asyncio.get_running_loop().create_future()
        memory = _MemoryWatch()
        begun_s = time.perf_counter()
        self.engine.fetch(plan, self.arena)
        try:
            await asyncio.wait_for(self.done, TRANSFER_TIMEOUT_S)
        finally:
            seconds = time.perf_counter() - begun_s
            memory_bytes = memory.stop()
        return Fetched(seconds=seconds, digest=blake3(self.arena).hexdigest(), memory_bytes=memory_bytes)


class _MemoryWatch:
    """The most memory that this process held while it was watched, over what it held at the beginning."""

    def __init__(self) -> None:
        self._before = self._most = resident_bytes()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ending.wait(MEMORY_SAMPLE_S):
            self._most = max(self._most, resident_bytes())

    def stop(self) -> int:
        self._ending.set()
        self._thread.join()
        return max(self._most, resident_bytes()) - self._before


def resident_bytes() -> int:
    """Memory of this process now (Linux), or the most it ever had."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return pages * mmap.PAGESIZE


def touched_arena(state_bytes: int, seed: int) -> memoryview:
    """Memory of its own as a worker's arena is, every page touched; equal for equal seeds."""
    arena = memoryview(mmap.mmap(-1, max(state_bytes, 1)))[:state_bytes]
    pattern = bytes((seed * 31 + number * 7 + (number >> 8)) % 256 for number in range(PATTERN_BYTES))
    for number, start in enumerate(range(0, state_bytes, PATTERN_BYTES)):
        stop = min(start + PATTERN_BYTES, state_bytes)
        arena[start:stop] = pattern[: stop - start]
        if seed and stop - start >= 8:
            arena[start : start + 8] = number.to_bytes(8, "big")  # no two blocks are alike
    return arena


def _main(pipe: Connection, setting: _Setting) -> None:
    if setting.namespace:
        with open(f"/run/netns/{setting.namespace}", "rb") as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"cannot enter the namespace {setting.namespace}")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(pipe, setting))


async def _serve(pipe: Connection, setting: _Setting) -> None:
    loop = asyncio.get_running_loop()
    site = _Site(touched_arena(setting.state_bytes, setting.seed))
    identity = Identity.load(Path(setting.folder))
    site.transport = Transport(
        identity=identity,
        run="benchmark",
        incarnation=1,
        events=site,
        settings=TransportSettings(listen_host=setting.listen, **setting.transport),
    )
    site.engine = ReplicationEngine(identity.site, site.transport, site)
    await site.transport.start()
    pipe.send((True, site.transport.address))
    try:
        while True:
            command, arguments = await loop.run_in_executor(None, pipe.recv)
            if command == "stop":
                return
            try:
                pipe.send((True, await site.carry_out(command, arguments)))
            except Exception as error:
                pipe.send((False, f"{type(error).__name__}: {error}"))
    except EOFError:
        pass
    finally:
        await site.engine.close()
        await site.transport.close()
