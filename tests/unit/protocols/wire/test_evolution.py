"""What a site does with messages, headers and stored things of newer and of older versions (docs/decisions/0015)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.unit.protocols import one_site
from tests.unit.protocols.one_site import MODEL, A, B, Bench, C, D, leader_of, link, record, records, roster_of, sent

from chaos_protocols import events
from chaos_protocols.agreement import commands
from chaos_protocols.agreement.commands import (
    TooNew,
    decode_command,
    decode_roster,
    encode_command,
    encode_roster,
    readable,
)
from chaos_protocols.agreement.raft import messages as raft
from chaos_protocols.effects import CloseLink, SendEnvelope
from chaos_protocols.errors import RemoteProtocolError
from chaos_protocols.links.router import FLOODED_BYTES_MAX
from chaos_protocols.names import SiteId
from chaos_protocols.wire import bulk, worker
from chaos_protocols.wire import control as messages
from chaos_protocols.wire.control import (
    OPTIONAL,
    UNREADABLE_BYTES_MAX,
    Envelope,
    Unreadable,
    decode_envelope,
    encode_envelope,
    signed_bytes,
)
from chaos_protocols.wire.versions import BEFORE, NEWEST, SPOKEN, Versions

LINE = roster_of(A, B, C, links=(link(A, B), link(B, C)))
"""a - b - c"""


def frame(message: dict[str, Any], *, source: str = A, destination: str = C, **header: Any) -> bytes:
    """An envelope as a newer site makes it."""
    fields: dict[str, Any] = {
        "version": NEWEST + 1, "source": source, "destination": destination, "incarnation": 1, "sequence": 1,
        "epoch": 7, "event_id": "e", "hops": 0, "public_key": b"", "signature": b"s", "optional": False,
    }  # fmt: skip
    return msgspec.msgpack.encode({**fields, **header, "message": message})


def plain_of(struct: msgspec.Struct) -> dict[str, Any]:
    """As msgpack has it."""
    plain: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(struct))
    return plain


def heartbeat(**more: Any) -> dict[str, Any]:
    beat = messages.Heartbeat(
        sequence=1, echo_sequence=0, echo_delay_s=0.0, round=3, phase="compute", epoch=7, scheduler=A, knows_you=True
    )
    return {**plain_of(beat), **more}


def passed_on(envelope: Envelope) -> Envelope:
    """What B makes of it on its way to C."""
    ours, effects = one_site.router_of(B).receive(A, envelope, roster=LINE, own_up=(A, C))
    assert ours is None
    (sent,) = effects
    assert isinstance(sent, SendEnvelope) and sent.neighbour == C
    return sent.envelope


def test_a_field_that_this_site_does_not_know_is_left_out_of_account() -> None:
    envelope = decode_envelope(frame(heartbeat(mood="fine")))
    assert isinstance(envelope.message, messages.Heartbeat) and envelope.message.round == 3


def test_a_field_that_an_older_site_does_not_send_has_its_default() -> None:
    request = messages.JoinRequest(
        name="d", address="d:1", public_key=b"", incarnation=1, neighbours=(A,), worker_round=0, versions=SPOKEN,
        model=messages.ModelFacts(spec_digest="", state_bytes=0, shard_bytes=1),
    )  # fmt: skip
    plain = plain_of(request)
    del plain["versions"]
    decoded = decode_envelope(frame(plain)).message
    assert isinstance(decoded, messages.JoinRequest) and decoded.versions == BEFORE


def test_a_nested_struct_of_a_newer_site_is_read_too() -> None:
    report = messages.SiteStatus(incarnation=1, epoch=7, done_round=1, active=True, transfer_bytes=0)
    empty_round = [7, 1, "a third part of the tag"]
    decoded = decode_envelope(frame({**plain_of(report), "empty_round": empty_round})).message
    assert isinstance(decoded, messages.SiteStatus)
    assert decoded.empty_round is not None and decoded.empty_round.round == 1


@pytest.mark.parametrize("message", [heartbeat(mood="fine"), {"type": "Weather", "rain": [1, 2]}])
def test_a_relay_hands_on_byte_for_byte_what_it_cannot_read(message: dict[str, Any]) -> None:
    """Else the signature, which covers the message as its maker wrote it, would be wrong at the other end."""
    came = decode_envelope(frame(message, optional=True))
    went = passed_on(came)
    assert went.hops == 1 and signed_bytes(went) == signed_bytes(came)
    onward = msgspec.msgpack.decode(encode_envelope(went))
    assert onward["message"] == message and onward["optional"] is True
    assert signed_bytes(decode_envelope(encode_envelope(went))) == signed_bytes(came)


@pytest.mark.parametrize("field", ["optional", "message", "sequence", "source"])
def test_the_signature_covers_what_the_relay_could_not_read(field: str) -> None:
    others = {"optional": True, "message": {"type": "Weather", "rain": 2}, "sequence": 9, "source": D}
    one = frame({"type": "Weather", "rain": 1})
    other = msgspec.msgpack.encode({**msgspec.msgpack.decode(one), field: others[field]})
    assert signed_bytes(decode_envelope(one)) != signed_bytes(decode_envelope(other))


def test_what_cannot_be_read_is_handed_on_up_to_a_size() -> None:
    one = one_site.router_of(B)
    for size, handed_on in ((UNREADABLE_BYTES_MAX - 100, 1), (UNREADABLE_BYTES_MAX + 1, 0)):
        envelope = decode_envelope(frame({"type": "Weather", "rain": bytes(size)}))
        assert len(one.receive(A, envelope, roster=LINE, own_up=(A, C))[1]) == handed_on
    assert one.undeliverable == 1


def test_an_unknown_optional_message_is_skipped_and_told_once_for_each_kind() -> None:
    one = one_site.router_of(C)
    told = []
    for number in range(1000):
        data = frame({"type": f"Weather{number % 100}"}, optional=True, sequence=number)
        ours, effects = one.receive(A, decode_envelope(data), roster=LINE, own_up=(A,))
        assert ours is None and not any(isinstance(effect, CloseLink) for effect in effects)
        told += effects
    assert len(told) == 64 and one.unread == 1000


def test_an_unknown_message_that_is_not_optional_closes_the_link_to_the_neighbour_that_made_it() -> None:
    bench = Bench(B, LINE).up(A, C)
    bench.taken()
    out = bench.hear(A, Unreadable(kind="Weather"))  # type: ignore[arg-type]
    assert [effect.site for effect in out if isinstance(effect, CloseLink)] == [A]
    (told,) = records(out, "refused")
    assert "Weather is unknown" in told.cause and "install the newer chaos-train" in told.reason and told.outcome
    again = bench.hear(A, Unreadable(kind="Weather"))  # type: ignore[arg-type]
    assert any(isinstance(effect, CloseLink) for effect in again) and not records(again, "refused")


def test_whoever_only_hands_an_unknown_message_on_keeps_its_link() -> None:
    bench = Bench(B, LINE).up(A, C)
    out = bench.hear(D, Unreadable(kind="Weather"), by=A)  # type: ignore[arg-type]
    told = [one.outcome for one in records(out, "refused")]
    assert not any(isinstance(effect, CloseLink) for effect in out) and told == [""]


def test_an_unknown_message_for_everybody_is_not_flooded() -> None:
    data = frame({"type": "Weather"}, destination=messages.EVERYBODY, optional=True)
    assert one_site.router_of(B).receive(A, decode_envelope(data), roster=LINE, own_up=(A, C)) == (None, [])


def test_a_flooded_report_is_kept_and_handed_on_with_what_a_newer_site_added_up_to_a_size() -> None:
    report = messages.LinkStateAdvertisement(
        neighbour=C, incarnation=1, up=True, rtt_s=0.0, rate_bytes_per_s=0.0, reason=""
    )
    one = one_site.router_of(B)
    for size, sequence, taken in ((100, 1, True), (FLOODED_BYTES_MAX, 2, False)):
        plain = {**plain_of(report), "mood": "x" * size}
        envelope = decode_envelope(frame(plain, destination=messages.EVERYBODY, sequence=sequence))
        ours, effects = one.receive(A, envelope, roster=LINE, own_up=(A, C))
        assert (ours is not None) == taken == bool(effects)
    (kept,) = one.overlay.envelopes()
    assert signed_bytes(kept) == signed_bytes(decode_envelope(encode_envelope(kept))) and b"mood" in encode_envelope(
        kept
    )


def test_every_optional_message_says_so_in_its_envelope() -> None:
    one = one_site.router_of(A)
    known = messages.Goodbye(reason="")
    (sent,) = one.send(B, known, roster=LINE, own_up=(B,), event_id="")
    assert isinstance(sent, SendEnvelope)
    assert sent.envelope.optional == (messages.Goodbye in OPTIONAL)


# ---- bulk headers and the worker's socket


def test_an_unknown_bulk_header_is_forgotten_where_it_may_be_and_refused_where_not() -> None:
    known = bulk.encode_bulk_header(bulk.BlockGone(transfer="t"))
    assert bulk.bulk_kind(known) == "block.gone" and not bulk.may_be_skipped(known)
    newer: dict[str, Any] = {"kind": "block.hint", "at": 1}
    assert bulk.may_be_skipped(msgspec.msgpack.encode({**newer, "optional": True}))
    for kind in bulk.KINDS:
        assert not bulk.may_be_skipped(msgspec.msgpack.encode({"kind": kind, "optional": True})), "it is known"
    for not_marked in (newer, {**newer, "optional": False}, {**newer, "optional": 1}, {"optional": True}, [True]):
        assert not bulk.may_be_skipped(msgspec.msgpack.encode(not_marked))
    with pytest.raises(RemoteProtocolError):
        bulk.decode_bulk_header(msgspec.msgpack.encode({"kind": "block.hint", "at": 1}))
    more = msgspec.msgpack.encode({"kind": "block.gone", "transfer": "t", "why": "restarted"})
    assert bulk.decode_bulk_header(more) == bulk.BlockGone(transfer="t")


@pytest.mark.parametrize(
    ("decode", "known"), [(worker.decode_from_worker, "ResultApplied"), (worker.decode_from_daemon, "TrainFrom")]
)
def test_an_unknown_word_between_worker_and_daemon_is_skipped_where_it_may_be(decode: Any, known: str) -> None:
    assert decode(msgspec.msgpack.encode({"type": "Progress", "optional": True, "percent": 3})) is None
    with pytest.raises(msgspec.ValidationError):
        decode(msgspec.msgpack.encode({"type": "Progress", "percent": 3}))
    with pytest.raises(msgspec.ValidationError):  # the mark excuses nothing that is known
        decode(msgspec.msgpack.encode({"type": known, "optional": True, "round": "x"}))


def test_a_worker_of_before_the_negotiation_speaks_one_version() -> None:
    state, contribution = (
        worker.StateSpec(tensors=(), size_bytes=0, shard_bytes=1, digest=""),
        worker.ContributionSpec(segments=(), size_bytes=0),
    )
    hello = worker.WorkerHello(version=1, pid=1, round=0, state=state, contribution=contribution, arena_bytes=0)
    plain = plain_of(hello)
    del plain["oldest"], plain["software"]
    read = worker.decode_from_worker(msgspec.msgpack.encode(plain))
    assert isinstance(read, worker.WorkerHello) and read.versions == BEFORE


# ---- the log


def test_the_run_speaks_what_its_oldest_site_speaks() -> None:
    newer = Versions(oldest=2, newest=NEWEST + 3)
    sites = (record(A, versions=newer), record(B, versions=SPOKEN), record(C, versions=newer))
    roster = roster_of(A, B, C)
    assert msgspec.structs.replace(roster, sites=sites).version() == NEWEST
    assert roster.version() == BEFORE.newest, "what an older version has written says nothing"
    assert msgspec.structs.replace(roster, sites=()).version() == BEFORE.newest


def newer_field(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the reason of RetryRound had come with the next version."""
    monkeypatch.setitem(commands.FIELDS_SINCE, (commands.RetryRound, "reason"), NEWEST)


def test_what_a_command_needs_is_that_of_its_newest_part_that_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = roster_of(A, B).views
    redo = commands.RetryRound(views=plan, reason="x")
    assert commands.version_needed(redo) == 0
    monkeypatch.setitem(commands.FIELDS_SINCE, (messages.ModelFacts, "shard_bytes"), 8)
    monkeypatch.setitem(commands.FIELDS_SINCE, (commands.PromoteSite, "waits"), 7)
    model = messages.ModelFacts(spec_digest="", state_bytes=0, shard_bytes=1)
    adopt = commands.SetRestorePoint(record=record(A), links=(), round=1, model=model, views=plan)
    assert commands.version_needed(adopt) == 8, "a part of a part counts"
    assert commands.version_needed(commands.PromoteSite(site=A, views=plan)) == 0, "a field with its default does not"
    assert commands.version_needed(commands.PromoteSite(site=A, views=plan, waits=True)) == 7
    monkeypatch.setitem(commands.COMMANDS_SINCE, commands.RetryRound, 9)
    assert commands.version_needed(redo) == 9


def test_a_command_is_not_proposed_before_every_site_speaks_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = leader_of(B, C)
    machine = bench.machine
    monkeypatch.setitem(commands.COMMANDS_SINCE, commands.AddLink, NEWEST)
    bench.up(B, C)
    adding = commands.AddLink(link=link(A, B), views=machine.roster.views)
    last = machine.raft.last_index
    bench.taken()
    for _ in range(3):
        assert not machine.propose(adding, None, None)
    assert machine.raft.last_index == last, "nothing is in the log"
    out = bench.handle(events.TimerFired())
    (told,) = records(out, "refused")
    assert told.subject == "AddLink" and "site a speaks protocol 1" in told.reason
    told_again: list[Any] = []
    versions = machine.network.versions
    assert versions.holds_back(adding, machine.roster, told_again.extend) and not told_again, "told already"
    everybody = tuple(msgspec.structs.replace(one, versions=SPOKEN) for one in machine.roster.sites)
    roster = msgspec.structs.replace(machine.roster, sites=everybody)
    assert not versions.holds_back(adding, roster, told_again.extend)


def test_what_has_been_used_stays_in_the_roster_and_keeps_older_sites_out(monkeypatch: pytest.MonkeyPatch) -> None:
    newer_field(monkeypatch)
    roster = roster_of(A, B)
    redo = decode_command(encode_command(commands.RetryRound(views=roster.views, reason="x")))
    assert redo.needs == NEWEST
    after = commands.apply_command(roster, redo, 9)
    assert after.needs == NEWEST and decode_roster(encode_roster(after)) == after
    plain = commands.apply_command(after, commands.AddLink(link=link(A, B), views=()), 10)
    assert plain.needs == NEWEST, "and is not forgotten"
    older = Versions(oldest=1, newest=NEWEST - 1)
    assert "install the chaos-train" in after.version_problem(older) and not roster.version_problem(older)
    assert not after.version_problem(SPOKEN)


def test_a_joiner_that_shares_no_version_with_some_site_is_refused() -> None:
    sites = (record(A, versions=Versions(oldest=2, newest=3)), record(B, versions=Versions(oldest=3, newest=5)))
    roster = msgspec.structs.replace(roster_of(A, B), sites=sites)
    assert roster.version_problem(Versions(oldest=4, newest=6)).startswith("the site speaks protocol 4 to 6, site a 2")
    assert not roster.version_problem(Versions(oldest=3, newest=6))
    assert roster.version_problem(Versions(oldest=6, newest=3))


def test_what_only_a_newer_version_can_apply_is_neither_stored_nor_started_from() -> None:
    command = msgspec.msgpack.encode(
        {**plain_of(commands.RetryRound(views=(), reason="x")), "needs": NEWEST + 1, "how": "gently"}
    )
    with pytest.raises(TooNew, match=f"needs protocol {NEWEST + 1}, and this chaos-train speaks up to {NEWEST}"):
        decode_command(command)
    entry = raft.LogEntry(index=8, term=1, command=command)
    append = raft.AppendRequest(
        term=1, leader=A, previous_index=7, previous_term=1, entries=(entry,), commit_index=8, tenure=1
    )
    assert not readable(append)
    state = encode_roster(msgspec.structs.replace(roster_of(A, B), needs=NEWEST + 1))
    with pytest.raises(TooNew, match="the run's roster"):
        decode_roster(state)
    configuration = raft.Configuration(voters=(A,), learners=())
    snapshot = raft.Snapshot(index=8, term=1, configuration=configuration, state=state)
    assert not readable(raft.SnapshotRequest(term=1, leader=A, snapshot=snapshot, tenure=1))


def test_a_restarted_site_is_renewed_with_what_its_new_daemon_speaks() -> None:
    newer = Versions(oldest=2, newest=NEWEST + 4)
    renewed = commands.RenewSite(site=B, incarnation=2, address="b:1", views=(), versions=newer)
    after = commands.apply_command(roster_of(A, B), renewed, 9)
    known = after.record(B)
    assert known is not None and known.versions == newer and known.incarnation == 2


# ---- the scheduler


def join_request(versions: Versions) -> messages.JoinRequest:
    return messages.JoinRequest(
        name="d", address="d:1", public_key=b"", incarnation=1, neighbours=(A,), worker_round=0, model=MODEL,
        versions=versions,
    )  # fmt: skip


def test_the_scheduler_refuses_a_joiner_that_cannot_read_the_roster_and_says_what_to_do() -> None:
    bench = leader_of(B, C, roster=msgspec.structs.replace(roster_of(A, B, C), needs=NEWEST))
    bench.up(D)
    bench.taken()
    (answer,) = [one for _, one in sent(bench.hear(D, join_request(BEFORE)), messages.JoinAnswer)]
    assert not answer.accepted and answer.final
    assert f"the run uses protocol {NEWEST}, the site speaks 1" in answer.reason and "install" in answer.reason
    (answer,) = [one for _, one in sent(bench.hear(D, join_request(SPOKEN)), messages.JoinAnswer)]
    assert not answer.final


def test_a_member_that_was_restarted_with_a_newer_release_is_recorded_with_it() -> None:
    """Here by its own handshake; of a site further away, by the report of its neighbour, once it was heard itself."""
    bench = leader_of(B, C)
    newer, newest = Versions(oldest=2, newest=NEWEST + 1), Versions(oldest=2, newest=NEWEST + 2)
    bench.handle(events.LinkUp(site=B, incarnation=2, address="b:1", versions=newer))
    assert versions_in(bench, B) == (2, newer)
    report = messages.LinkStateAdvertisement(
        neighbour=C, incarnation=5, up=True, rtt_s=0.0, rate_bytes_per_s=0.0, reason="", versions=newest
    )
    bench.hear(B, report, incarnation=2)
    assert versions_in(bench, C)[0] == 1, "only C can say that it was started again (spec 4.11)"
    own = msgspec.structs.replace(report, neighbour=B, incarnation=2, versions=newer)
    said = msgspec.structs.replace(bench.envelope(C, own, 5), version=NEWEST + 2)
    bench.handle(events.EnvelopeReceived(neighbour=B, envelope=said))
    assert versions_in(bench, C) == (5, newest)
    stale = msgspec.structs.replace(report, incarnation=4, versions=BEFORE)
    bench.hear(B, stale, incarnation=2)
    assert versions_in(bench, C) == (5, newest), "what a former start of it spoke is no news"


def versions_in(bench: Bench, site: SiteId) -> tuple[int, Versions]:
    record = bench.machine.roster.record(site)
    assert record is not None
    return record.incarnation, record.versions


def test_every_site_reports_what_its_neighbours_speak() -> None:
    bench = Bench(B, LINE)
    newer = Versions(oldest=2, newest=NEWEST + 1)
    out = bench.handle(events.LinkUp(site=A, incarnation=1, address="a:1", versions=newer))
    reports = [one for _, one in sent(out, messages.LinkStateAdvertisement)]
    assert [one.versions for one in reports if one.neighbour == A and one.up] == [newer]


def test_the_release_of_a_site_is_known_to_all_that_hear_a_neighbour_of_it() -> None:
    bench = Bench(B, LINE)
    out = bench.handle(events.LinkUp(site=A, incarnation=1, address="a:1", software="0.3.0"))
    told = [one for _, one in sent(out, messages.LinkStateAdvertisement) if one.neighbour == A and one.up]
    assert [one.software for one in told] == ["0.3.0"]
    versions = bench.machine.network.versions
    report = messages.LinkStateAdvertisement(
        neighbour=C, incarnation=2, up=True, rtt_s=0.0, rate_bytes_per_s=0.0, reason="", versions=SPOKEN
    )
    bench.hear(A, msgspec.structs.replace(report, software="0.4.0"))
    own = msgspec.structs.replace(report, neighbour=B, incarnation=1)
    bench.hear(C, own, by=A, incarnation=2)
    assert (versions.software_of(A), versions.software_of(C)) == ("0.3.0", "0.4.0")
    bench.hear(A, report)  # of a reporter that does not know the field
    assert versions.software_of(C) == "0.4.0", "who does not say takes nothing back"
    bench.hear(A, msgspec.structs.replace(report, incarnation=3))
    bench.hear(C, own, by=A, incarnation=3)
    assert versions.software_of(C) == "", "what its former start was is no answer"
