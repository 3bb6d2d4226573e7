"""The leader's part: brings every member's log to its own, commits what a majority holds, gives up when it has lost
the majority.

Driven by `machine.py`. Sources: Ongaro's thesis, 3.5, 3.6 (replication, commit), 3.10 (transfer), 4.2.2 (a leader that
is removed), 5 (snapshots), 6.2 (a leader without a majority steps down).
"""

from __future__ import annotations

from chaos_protocols.agreement.raft import proof
from chaos_protocols.agreement.raft.config import IN_FLIGHT_APPENDS_MAX, majority
from chaos_protocols.agreement.raft.core import Core
from chaos_protocols.agreement.raft.effects import Role
from chaos_protocols.agreement.raft.messages import (
    AppendRequest,
    AppendResponse,
    Configuration,
    LogEntry,
    SnapshotRequest,
    SnapshotResponse,
    TimeoutNow,
)
from chaos_protocols.agreement.raft.progress import Mode, Progress
from chaos_protocols.names import SiteId


def lead(core: Core, reason: str, now_s: float) -> None:
    """Elected: an empty entry of the new term, so that what went before can be committed with it (thesis 3.6.2,
    6.4)."""
    core.become_leader(reason)
    follow_configuration(core, core.log.last_index + 1, now_s)
    core.beats_next(now_s)
    if core.proof_needed:
        for site in core.progress:
            proof.show(core, site, None)
    append(core, b"", None, now_s)


def append(core: Core, command: bytes, configuration: Configuration | None, now_s: float) -> int:
    """Puts one entry at the end of the leader's own log and on its way to the others. Returns its index."""
    index = core.log.last_index + 1
    mandate = proof.mandate_for(core, index, configuration)
    entry = LogEntry(index=index, term=core.term, command=command, configuration=configuration, mandate=mandate)
    core.append((entry,))
    if configuration is not None:
        follow_configuration(core, index, now_s)
    if not commit(core):
        for site, progress in core.progress.items():
            send_entries(core, site, progress, now_s)
    else:
        announce_commit(core, now_s)
    return index


def follow_configuration(core: Core, index: int, now_s: float) -> None:
    """A removed member is served until its removal is committed (`announce_commit`)."""
    configuration = core.log.configuration
    for site in sorted({*configuration.voters, *configuration.learners} - {core.site, *core.progress}):
        core.follow(site, index, now_s)


def send_entries(core: Core, site: SiteId, progress: Progress, now_s: float) -> bool:
    """As much as the mode allows; False if that is nothing."""
    log, settings = core.log, core.settings
    sent = False
    while progress.next_index <= log.last_index and progress.mode is not Mode.SNAPSHOT:
        if progress.mode is Mode.PROBE and not progress.probe_ready:
            break
        if len(progress.in_flight) >= IN_FLIGHT_APPENDS_MAX:
            break
        if progress.next_index <= log.base_index:
            send_snapshot(core, site, progress, now_s)
            return True
        entries = log.batch(progress.next_index, settings.entries_per_append_max, settings.append_bytes_max)
        send_append(core, site, progress, progress.next_index - 1, entries)
        sent = True
        if progress.mode is Mode.PROBE:
            progress.probe_sent()
            break
        progress.entries_sent(entries[-1].index)
    return sent


def send_append(
    core: Core, site: SiteId, progress: Progress, previous_index: int, entries: tuple[LogEntry, ...]
) -> None:
    previous_term = core.log.term_at(previous_index)
    assert previous_term is not None
    request = AppendRequest(
        term=core.term,
        leader=core.site,
        previous_index=previous_index,
        previous_term=previous_term,
        entries=entries,
        commit_index=core.commit_index,
        tenure=progress.tenure,
    )
    core.send(site, request)


def send_snapshot(core: Core, site: SiteId, progress: Progress, now_s: float) -> None:
    snapshot = core.log.snapshot
    assert snapshot is not None
    progress.snapshot_sent(snapshot.index, now_s)
    core.send(site, SnapshotRequest(term=core.term, leader=core.site, snapshot=snapshot, tenure=progress.tenure))


def beat(core: Core, site: SiteId, progress: Progress, now_s: float) -> None:
    """One small message whatever the mode, so that a dead follower costs no more: its answer shows what is missing. A
    snapshot is sent again only to a site that answered, after it, that it has none."""
    if progress.mode is Mode.SNAPSHOT:
        if progress.snapshot_missing and now_s - progress.snapshot_sent_s >= core.settings.election_timeout_s:
            send_snapshot(core, site, progress, now_s)
            return
        previous_index = core.log.base_index
    else:
        previous_index = progress.next_index - 1
        if previous_index < core.log.base_index:
            send_snapshot(core, site, progress, now_s)
            return
    send_append(core, site, progress, previous_index, ())


def tick_leader(core: Core, now_s: float) -> None:
    if core.transfer_target is not None and now_s >= core.transfer_until_s:
        core.end_transfer()
    if now_s < core.heartbeat_at_s:
        return
    if not quorum_contact(core, now_s) and not core.in_every_majority:
        # One of two voters cannot have been deposed unknowingly, and must stay to be able to remove the other (spec
        # 5.10); any other leader without a majority is useless, and may be out of date.
        lacking = ", ".join(missing_voters(core, now_s))
        timeout_s = core.settings.election_timeout_s
        core.become_follower(core.term, None, f"no majority: nothing heard from {lacking} for {timeout_s} s", now_s)
        return
    core.beats_next(now_s)
    if core.proof_needed and not proof.shows_votes(core):  # a voter has changed its key
        proof.gather(core, now_s)
    for site, progress in core.progress.items():
        beat(core, site, progress, now_s)


def missing_voters(core: Core, now_s: float) -> tuple[SiteId, ...]:
    """Leader only: voters not heard within an election timeout."""
    oldest_s = now_s - core.settings.election_timeout_s
    return tuple(site for site in core.voters if site != core.site and core.progress[site].contact_s <= oldest_s)


def majority_heard_s(core: Core, now_s: float) -> float:
    """Leader only: when so many voters were last heard that with itself they are a majority."""
    contacts = [now_s if site == core.site else core.progress[site].contact_s for site in core.voters]
    return sorted(contacts, reverse=True)[majority(len(contacts)) - 1]


def quorum_contact(core: Core, now_s: float) -> bool:
    """Leader only: a majority, itself included if it is a voter, was heard within an election timeout."""
    return len(core.voters) - len(missing_voters(core, now_s)) >= majority(len(core.voters))


def answered(core: Core, source: SiteId, term: int, tenure: int, match_index: int, now_s: float) -> Progress | None:
    """The follower's progress if its answer counts: of this term, of this membership, and possible."""
    progress = core.progress.get(source)
    if core.role is not Role.LEADER or progress is None or term < core.term:
        return None
    if term > core.term:
        if source in core.log.configuration.voters or source in core.log.configuration.learners:
            core.become_follower(term, None, f"{source} is in term {term}", now_s)
        return None
    if tenure != progress.tenure:
        return None
    if match_index > core.log.last_index:
        core.breaks_rules(source, f"it acknowledges entry {match_index}, the leader's last is {core.log.last_index}")
        return None
    progress.hear(now_s)
    return progress


def receive_append_response(core: Core, source: SiteId, message: AppendResponse, now_s: float) -> None:
    progress = answered(core, source, message.term, message.tenure, message.match_index, now_s)
    if progress is None:
        return
    if message.success:
        receive_match(core, source, progress, message.match_index, now_s)
    else:
        progress.rejected(message.previous_index, message.conflict_index, message.last_index)
        send_entries(core, source, progress, now_s)


def receive_snapshot_response(core: Core, source: SiteId, message: SnapshotResponse, now_s: float) -> None:
    progress = answered(core, source, message.term, message.tenure, message.match_index, now_s)
    if progress is not None:
        receive_match(core, source, progress, message.match_index, now_s)


def receive_match(core: Core, source: SiteId, progress: Progress, match_index: int, now_s: float) -> None:
    if progress.matched(match_index) and commit(core):
        announce_commit(core, now_s)
    else:
        send_entries(core, source, progress, now_s)
    if source == core.transfer_target:
        hand_over_when_caught_up(core)


def commit(core: Core) -> bool:
    """Commits what a majority of voters holds, if it is of this term; earlier terms' entries only along with it
    (thesis 3.6.2)."""
    last_index = core.log.last_index
    if core.commit_index == last_index:
        return False
    matches = [last_index if site == core.site else core.progress[site].match_index for site in core.voters]
    matches.sort(reverse=True)
    index = matches[majority(len(matches)) - 1]
    if index <= core.commit_index or core.log.term_at(index) != core.term:
        return False
    core.commit_to(index)
    return True


def announce_commit(core: Core, now_s: float) -> None:
    """At once, not with the next heartbeat; but not to those who are silent. Then a committed removal is carried
    out."""
    silent_since_s = now_s - core.settings.election_timeout_s
    for site, progress in core.progress.items():
        sent = send_entries(core, site, progress, now_s)
        if not sent and progress.mode is Mode.REPLICATE and progress.contact_s > silent_since_s:
            beat(core, site, progress, now_s)
    configuration = core.log.configuration
    if core.log.configuration_index > core.commit_index:
        return
    members = {*configuration.voters, *configuration.learners}
    if len(members) <= len(core.progress):
        for site in [site for site in core.progress if site not in members]:
            core.unfollow(site)
    if core.site not in core.voters:
        successor = best_successor(core)
        assert successor is not None, "a configuration has at least one voter, and this site is none"
        core.send(successor, TimeoutNow(term=core.term))
        core.become_follower(core.term, None, "this site is no voter any more", now_s)


def best_successor(core: Core) -> SiteId | None:
    """The voter with the longest log; among equals the one heard last."""
    others = [site for site in core.voters if site != core.site]
    return max(others, key=lambda site: (core.progress[site].match_index, core.progress[site].contact_s), default=None)


def hand_over_when_caught_up(core: Core) -> None:
    target = core.transfer_target
    if target is not None and not core.transfer_told and core.progress[target].match_index == core.log.last_index:
        core.tell_successor(target)
