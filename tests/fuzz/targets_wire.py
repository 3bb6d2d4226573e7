"""Fuzz targets: what peers and the worker send, once it is cut into frames; and what a site's machine does with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from chaos_protocols.agreement import commands
from chaos_protocols.agreement.raft import messages as raft
from chaos_protocols.agreement.roster import Departure
from chaos_protocols.errors import RemoteProtocolError
from chaos_protocols.names import SiteId
from chaos_protocols.rounds.reduce import ReduceMachine
from chaos_protocols.state.transfer import CheckBlock, Comparison, TransferMachine, TransferSettings, TransferSource
from chaos_protocols.wire import bulk, worker
from chaos_protocols.wire import control as messages
from chaos_protocols.wire.arena import arena_layout
from chaos_protocols.wire.control import CodecError
from chaos_protocols.wire.plans import ReplicationPlan, SourceRange, Tag
from chaos_protocols.wire.state_spec import Item, contribution_spec, first_difference, spec_problem, state_spec
from tests.fuzz.engine import Target
from tests.fuzz.mutate import Form
from tests.unit.protocols.one_site import EPOCH, MODEL, A, B, C, D, link, record, roster_of

ENVELOPES_MAX = 40
"""Messages of one input that a machine is fed with; more show nothing that these do not."""

WORDS = (
    *(
        b"Heartbeat",
        b"LinkStateAdvertisement",
        b"RaftEnvelope",
        b"ConnectOrder",
        b"SiteStatus",
        b"AppendRequest",
        b"RoundResolved",
        b"*",
    ),
    *(A.encode(), B.encode(), C.encode(), D.encode(), b"compute", b"member", b"learner", b"failed", b"banned"),
)
CONFIGURATION = raft.Configuration(voters=(A, B, C), learners=())


# ---- control messages


def some_messages() -> Iterator[messages.Message]:
    """One of each kind, as an honest site would send it."""
    roster = roster_of(A, B, C)
    request = messages.JoinRequest(
        name="d", address="d.example:1", public_key=b"", incarnation=1, neighbours=(A, B), model=MODEL, worker_round=0
    )
    yield messages.Heartbeat(
        sequence=1, echo_sequence=1, echo_delay_s=0.1, round=3, phase="compute", epoch=7, scheduler=A, knows_you=True
    )
    yield messages.Goodbye(reason="bye")
    yield messages.LinkStateAdvertisement(
        neighbour=B, incarnation=1, up=False, rtt_s=0.1, rate_bytes_per_s=1e6, reason="cut"
    )
    yield request
    yield messages.JoinAnswer(incarnation=1, accepted=False, final=True, reason="no")
    yield messages.StateRequest(incarnation=1, worker_round=2, model=MODEL, reason="restarted")
    yield messages.CaughtUp(round=3, transfer="join-a-2-1")
    yield messages.LeaveRequest(incarnation=1, reason="done")
    yield messages.LeaveAnswer(incarnation=1, last_round=4, finished=True)
    yield messages.LinkRequest(request="r1", other=C, add=True, reason="wanted")
    yield messages.LinkRequest(request="r2", other=C, add=False, reason="unwanted")
    yield messages.LinkAnswer(request="r1", done=True, reason="")
    yield messages.ConnectOrder(negotiation="join-a-2-1", other=D, address="d.example:1", probe=True)
    yield messages.LinkReady(negotiation="join-a-2-1", other=D, ready=True, rtt_s=0.1, rate_bytes_per_s=1.0, reason="")
    yield messages.SiteStatus(
        incarnation=1, epoch=7, done_round=3, active=True, transfer_bytes=0, empty_round=Tag(epoch=7, round=1)
    )
    yield messages.RoundStatusQuery(epoch=7)
    yield messages.RoundStatusReply(epoch=7, done_round=3, digest="ab", has_state=True)
    for inner in some_agreement(commands.encode_roster(roster)):
        yield messages.RaftEnvelope(message=inner)


def some_agreement(state: bytes) -> Iterator[raft.RaftMessage]:
    """One of each kind of the agreement, with every command in its entries."""
    yield raft.PreVoteRequest(term=2, last_index=7, last_term=1)
    yield raft.PreVoteResponse(term=2, granted=True)
    yield raft.VoteRequest(term=2, last_index=7, last_term=1, transfer=False)
    yield raft.VoteResponse(term=2, granted=True)
    vote = raft.Vote(voter=B, public_key=b"k" * 32, signature=b"s" * 64)
    yield raft.VoteResponse(term=2, granted=True, public_key=vote.public_key, signature=vote.signature)
    mandate = raft.Mandate(
        term=2, leader=A, votes=(vote,), index=9, voters=(A, B, C), public_key=b"k" * 32, signature=b"s" * 64
    )
    yield raft.ProofRequest(term=2, since=7)
    yield raft.LeaderProof(term=3, leader=A, votes=(vote, vote), mandates=(mandate,))
    entries = tuple(
        raft.LogEntry(index=EPOCH + 1 + number, term=2, command=commands.encode_command(command))
        for number, command in enumerate(some_commands())
    )
    for size in (0, 1, len(entries)):
        yield raft.AppendRequest(
            term=2, leader=A, previous_index=7, previous_term=1, entries=entries[:size], commit_index=99, tenure=1
        )
    yield raft.AppendResponse(
        term=2, success=True, match_index=7, previous_index=7, conflict_index=0, last_index=7, tenure=1
    )
    snapshot = raft.Snapshot(index=20, term=2, configuration=CONFIGURATION, state=state, mandates=(mandate,))
    yield raft.SnapshotRequest(term=2, leader=A, snapshot=snapshot, tenure=1)
    yield raft.SnapshotResponse(term=2, match_index=7, tenure=1)
    yield raft.TimeoutNow(term=2)


def some_commands() -> Iterator[commands.Command]:
    """One of each kind."""
    roster = roster_of(A, B, C)
    views = roster.views
    plan = _plan()
    departure = Departure(site=C, incarnation=1, last_round=3, cause="failed", reason="gone")
    yield commands.SetRestorePoint(record=record(A), links=(), round=0, model=MODEL, views=views)
    yield commands.AddSite(record=record(D, state="learner"), links=(link(A, D),), views=views, replication=plan)
    yield commands.Replicate(views=views, replication=plan)
    yield commands.PromoteSite(site=D, views=views)
    yield commands.RenewSite(site=B, incarnation=2, address="b.example:1", views=views)
    yield commands.SetVoters()
    yield commands.RemoveSite(departure=departure, resolve=True, views=views)
    yield commands.AddLink(link=link(A, B), views=views)
    yield commands.RemoveLink(one=A, other=B, resolve=False, views=views, reason="wanted")
    yield commands.RetryRound(views=views, reason="every contribution had weight 0")
    yield commands.SetRules(version=7, views=views)
    yield commands.RoundResolved(round=3, digest="ab", holders=(A,), views=views)


def _plan() -> ReplicationPlan:
    ranges = (SourceRange(source=A, start=0, stop=1 << 19), SourceRange(source=B, start=1 << 19, stop=1 << 20))
    return ReplicationPlan(
        transfer="t", joiner=D, round=0, state_bytes=1 << 20, shard_bytes=4096, reason="even", ranges=ranges
    )


def envelope(message: messages.Message, source: SiteId, destination: SiteId, sequence: int) -> messages.Envelope:
    flooded = isinstance(message, messages.LinkStateAdvertisement)
    return messages.Envelope(
        version=1, source=source, destination=messages.EVERYBODY if flooded else destination, incarnation=1,
        sequence=sequence, epoch=7, event_id="e", hops=0, public_key=b"", signature=b"", message=message,
    )  # fmt: skip


def _envelope_seeds() -> Iterable[bytes]:
    known = [messages.encode_envelope(envelope(one, A, B, 1)) for one in some_messages()]
    newer = msgspec.msgpack.decode(known[0])
    newer["message"]["mood"] = "fine"  # a field, and a kind, that this site does not know
    unknown = {**newer, "optional": True, "message": {"type": "Weather", "rain": [1, 2]}}
    return [*known, *(msgspec.msgpack.encode(one) for one in (newer, unknown, {**unknown, "optional": False}))]


def _envelope(data: bytes) -> str:
    """What is decoded can be sent on, and means the same then; what its maker signed is not changed on the way."""
    decoded = messages.decode_envelope(data)
    signed = messages.signed_bytes(decoded)
    further = msgspec.structs.replace(decoded, hops=messages.HOPS_MAX)
    again = messages.decode_envelope(messages.encode_envelope(further))
    assert messages.signed_bytes(again) == signed
    assert msgspec.structs.replace(again, hops=decoded.hops) == decoded or "nan" in repr(decoded)
    return f"{type(decoded.message).__name__}{', more than is known' if decoded.raw else ''}"


# ---- bulk headers


def _bulk_seeds() -> Iterable[bytes]:
    tag = Tag(epoch=1, round=1)
    headers: list[bulk.BulkHeader] = [
        bulk.ChunkGrant(tag=tag, tree=0, next=0, limit=4),
        bulk.ChunkWant(tag=tag, tree=0, next=0),
        bulk.ChunkUp(tag=tag, tree=0, chunk=0, weights=(1.0,)),
        bulk.ChunkUp(tag=tag, tree=0, chunk=0, empty=True),
        bulk.ChunkUp(tag=tag, tree=0, chunk=1),
        bulk.ChunkDown(tag=tag, tree=0, chunk=0, weights=(1.0, 2.0, 3.0)),
        bulk.ChunkGone(tag=tag),
        bulk.ResultWant(round=1, digest="ab"),
        bulk.ResultHeld(round=1, digest="ab"),
        bulk.ResultPull(round=1, digest="ab", next=0),
        bulk.ResultData(round=1, digest="ab", chunk=0),
        bulk.ResultGone(round=1, digest="ab"),
        bulk.BlockWant(transfer="t", start=0, stop=8192, block_bytes=1 << 16),
        bulk.BlockData(transfer="t", start=0, hash=bytes(32)),
        bulk.BlockWait(transfer="t"),
        bulk.BlockReady(transfer="t"),
        bulk.BlockWant(transfer="t", start=0, stop=1 << 19, block_bytes=1 << 16, have=bytes(64)),
        bulk.BlockSame(transfer="t", start=0),
        bulk.WitnessWant(transfer="t", start=0, stop=4096),
        bulk.WitnessHash(transfer="t", start=0, stop=4096, hash=bytes(32)),
        bulk.BlockDrop(transfer="t"),
        bulk.BlockGone(transfer="t"),
    ]
    return [msgspec.msgpack.encode([one]) for one in headers] + [msgspec.msgpack.encode(headers)]


def _bulk(data: bytes) -> str:
    """Headers, one after the other, into the machines that they are for: an inner site of a tree, a joiner, a source.
    What they say is believed or refused, and nothing else happens."""
    try:
        found = msgspec.msgpack.decode(data, type=list[msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise RemoteProtocolError(str(error)) from None
    engines = _Engines()
    for raw in found[:ENVELOPES_MAX]:
        bulk.bulk_kind(bytes(raw))
        engines.take(bulk.decode_bulk_header(bytes(raw)))
    return str(len(found))


class _Engines:
    def __init__(self) -> None:
        roster = roster_of(A, B, C, links=(link(A, B), link(B, C)))
        tag, plan = Tag(epoch=1, round=1), roster.views[0].plan
        self.reduce = ReduceMachine(B)
        self.reduce.open(tag, plan, chunk_counts=[4] * len(plan.trees), member=True)
        self.reduce.contribute(tag, 2.0, has_bytes=True)
        self.source = TransferSource()
        self.source.serve("t", A, 1 << 20)
        self.joiner = TransferMachine(_replaced_joiner(), settings=TransferSettings())
        self.joiner.start(frozenset((A, B)), now_s=0.0)
        self.now_s = 0.0

    def take(self, header: bulk.BulkHeader) -> None:
        for site in (A, C):
            self.now_s += 0.01
            match header:
                case bulk.ChunkUp() | bulk.ChunkDown():
                    self.reduce.place(site, header)
                    self.reduce.received(site, header)
                case bulk.ChunkGrant() | bulk.ChunkWant() | bulk.ChunkGone():
                    self.reduce.received(site, header)
                case bulk.BlockData():
                    self._block(site, header)
                case bulk.BlockWant() | bulk.BlockDrop() | bulk.WitnessWant():
                    self.source.received(site, header)
                    for _ in range(4):
                        item = self.source.next_item(site)
                        if isinstance(item, Comparison):
                            self.source.hashed(site, item, bytes(32))
                case bulk.BlockSame() | bulk.BlockWait() | bulk.BlockReady() | bulk.BlockGone() | bulk.WitnessHash():
                    self.joiner.told(site, header, now_s=self.now_s)
                case _:
                    pass  # results: by digest, and checked against it

    def _block(self, site: SiteId, header: bulk.BlockData) -> None:
        if not self.joiner.takes(site, header, 4096):
            return
        for effect in self.joiner.received(site, header, 4096, now_s=self.now_s):
            if isinstance(effect, CheckBlock):
                self.joiner.verified(site, effect.start, effect.stop, now_s=self.now_s)


def _replaced_joiner() -> ReplicationPlan:
    return msgspec.structs.replace(_plan(), joiner=C)


# ---- worker


def _specs() -> tuple[worker.StateSpec, worker.ContributionSpec, int]:
    state = state_spec([Item("weight", "float32", (8, 2)), Item("class=SGD", "uint8", (0,)), Item("n", "int64", ())])
    contribution = contribution_spec(2, 8)
    return state, contribution, arena_layout(contribution.size_bytes, state.size_bytes).size_bytes


def _worker_seeds() -> Iterable[bytes]:
    state, contribution, arena_bytes = _specs()
    hello = worker.WorkerHello(
        version=1, pid=1, round=0, state=state, contribution=contribution, arena_bytes=arena_bytes
    )
    sent: list[worker.WorkerMessage] = [
        hello,
        worker.RoundContributed(round=1, weight=2.0),
        worker.UpdateStarted(round=1),
        worker.ResultApplied(round=1),
        worker.SnapshotTaken(round=1),
        worker.SnapshotMissed(round=1, now=2),
        worker.StateLoaded(round=1),
        worker.WorkerLeaveRequest(reason="done"),
    ]
    back: list[worker.DaemonMessage] = [
        worker.WorkerWelcome(site=A, run="hearts"),
        worker.WorkerRefused(reason="no"),
        worker.TrainFrom(round=1),
        worker.ApplyResult(round=1, sites=3, weight=2.0),
        worker.Dismissed(last_round=3, graceful=True, reason="bye"),
    ]
    newer = msgspec.msgpack.encode({"type": "Progress", "optional": True, "percent": 3})
    return [
        *(b"\x00" + worker.encode(one)[4:] for one in sent),
        *(b"\x01" + worker.encode(one)[4:] for one in back),
        b"\x00" + newer,
        b"\x01" + newer,
    ]


def _worker(data: bytes) -> str:
    """One message between worker and daemon; a hello is judged as the daemon does, and compared as a refusal does."""
    if data[:1] == b"\x01":
        told = worker.decode_from_daemon(data[1:])
        if told is None:
            return "skipped"
        assert worker.decode_from_daemon(worker.encode(told)[4:]) == told or "nan" in repr(told)
        return type(told).__name__
    message = worker.decode_from_worker(data[1:])
    if message is None:
        return "skipped"
    assert worker.decode_from_worker(worker.encode(message)[4:]) == message or "nan" in repr(message)
    if isinstance(message, worker.WorkerHello):
        problem = spec_problem(message.state, message.contribution)
        difference = first_difference(message.state, _specs()[0])
        return f"hello: {problem}; {difference}"
    return type(message).__name__


TARGETS = (
    Target(
        name="envelope",
        run=_envelope,
        refusals=(CodecError,),
        seeds=_envelope_seeds,
        form=Form.MSGPACK,
        tokens=WORDS,
    ),
    Target(
        name="bulk",
        run=_bulk,
        refusals=(RemoteProtocolError,),
        seeds=_bulk_seeds,
        form=Form.MSGPACK,
        tokens=(b"chunk.up", b"chunk.down", b"chunk.grant", b"block.want", b"block.data", b"t"),
    ),
    Target(
        name="worker",
        run=_worker,
        refusals=(msgspec.DecodeError, UnicodeDecodeError, RecursionError),
        seeds=_worker_seeds,
        form=Form.MSGPACK,
        prefix=1,
        tokens=(b"WorkerHello", b"float32", b"float64", b"uint8", b"weight"),
    ),
)
