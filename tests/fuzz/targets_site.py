"""Fuzz targets: commands and rosters as the agreement stores them; and what a whole site makes of what it is sent."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from chaos_protocols import effects
from chaos_protocols.agreement import commands
from chaos_protocols.agreement.raft import Persist
from chaos_protocols.agreement.raft import messages as raft
from chaos_protocols.agreement.roster import Roster
from chaos_protocols.wire import control as messages
from chaos_protocols.wire.control import CodecError
from chaosd.storage.journal.state import JournalState, Persisted
from tests.fuzz.engine import Target
from tests.fuzz.mutate import Form
from tests.fuzz.targets_wire import ENVELOPES_MAX, WORDS, envelope, some_commands, some_messages
from tests.unit.protocols.one_site import A, B, Bench, C, D, leader_of, roster_of

# ---- commands and rosters


class _NoCommand(ValueError):
    """The bytes do not decode."""


def _command_seeds() -> Iterable[bytes]:
    return [b"\x00" + commands.encode_command(one) for one in some_commands()] + [
        b"\x01" + commands.encode_roster(roster_of(A, B, learners=(D,)))
    ]


def _command(data: bytes) -> str:
    """A command, or a roster: what is decoded can be applied, and what came of it encoded and read back."""
    kind, body = data[:1], data[1:]
    try:
        decoded = commands.decode_roster(body) if kind == b"\x01" else commands.decode_command(body)
    except (msgspec.DecodeError, commands.TooNew, UnicodeDecodeError, RecursionError) as error:
        raise _NoCommand(str(error)) from None
    name = type(decoded).__name__
    roster = decoded if isinstance(decoded, Roster) else commands.apply_command(roster_of(A, B, C), decoded, 8)
    assert commands.decode_roster(commands.encode_roster(roster)) == roster or "nan" in repr(roster)
    return name


# ---- a whole site


def _site_seeds() -> Iterable[bytes]:
    for standing in range(4):
        us = (B, B, A, D)[standing]
        known = list(some_messages())
        for number, message in enumerate(known):
            sources = (A, C, D) if standing else (A,)
            found = [envelope(message, source, us, number + 1) for source in sources if source != us]
            yield bytes([standing]) + msgspec.msgpack.encode(found)
        yield bytes([standing]) + msgspec.msgpack.encode(
            [envelope(message, A if us != A else C, us, 100 + number) for number, message in enumerate(known)]
        )


def _site(data: bytes) -> str:
    """Envelopes from neighbours, and time: whatever they say, the machine goes on, asks its journal for nothing that
    does not follow, and sends nothing that cannot be encoded."""
    standing = data[0] % 4 if data else 0
    bench = (_outsider, _member, leader_of_three, _learner)[standing]()
    try:
        found = msgspec.msgpack.decode(data[1:], type=list[msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError):
        return "no list"
    journal = JournalState()
    journal.apply(_opening(bench))
    taken = 0
    for raw in found[:ENVELOPES_MAX]:
        try:
            decoded = messages.decode_envelope(bytes(raw))
        except CodecError:
            continue
        taken += 1
        neighbour = decoded.source if decoded.source in (A, B, C, D) else A if bench.site != A else B
        bench.hear(neighbour, decoded.message)
        _carry_out(bench, journal)
    bench.wait(0.6, step_s=0.2)
    _carry_out(bench, journal)
    return f"{bench.machine.membership.state.value} {taken}"


def _opening(bench: Bench) -> Persisted:
    raft_machine = bench.machine.raft
    snapshot = raft_machine.snapshot
    index = snapshot.index if snapshot is not None else 0
    count = raft_machine.last_index - index
    entries = tuple(raft.LogEntry(index=index + 1 + one, term=1, command=b"") for one in range(count))
    return Persisted(hard_state=None, truncate_from=None, snapshot=snapshot, entries=entries)


def _carry_out(bench: Bench, journal: JournalState) -> None:
    for effect in bench.taken():
        match effect:
            case effects.SendEnvelope(envelope=sent):
                messages.encode_envelope(sent)
                messages.signed_bytes(sent)
            case Persist(hard_state=hard, truncate_from=truncate, snapshot=snapshot, entries=entries):
                change = Persisted(hard_state=hard, truncate_from=truncate, snapshot=snapshot, entries=tuple(entries))
                problem = journal.check(change)
                assert not problem, f"the journal would refuse {problem}"
                journal.apply(change)


def _outsider() -> Bench:
    return Bench(B, peers=(A,)).up(A)


def _member() -> Bench:
    bench = Bench(B, roster_of(A, B, C)).up(A, C)
    bench.taken()
    return bench


def leader_of_three() -> Bench:
    """Leads B and C; D, a stranger, is a neighbour."""
    bench = leader_of(B, C)
    bench.up(D)
    bench.taken()
    return bench


def _learner() -> Bench:
    bench = Bench(D, roster_of(A, B, learners=(D,)), voters=(A, B)).up(A, B)
    bench.taken()
    return bench


TARGETS = (
    Target(
        name="command",
        run=_command,
        refusals=(_NoCommand,),
        seeds=_command_seeds,
        form=Form.MSGPACK,
        prefix=1,
        tokens=WORDS,
    ),
    Target(
        name="site",
        run=_site,
        refusals=(),
        seeds=_site_seeds,
        form=Form.MSGPACK,
        prefix=1,
        tokens=WORDS,
    ),
)
