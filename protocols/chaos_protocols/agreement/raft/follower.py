"""The follower's part: takes the leader's entries and snapshots, and learns from them what is committed. Learners do
the same.

Driven by `machine.py`. Source: Ongaro's thesis, 3.5 (log matching), 5.1 (snapshots).
"""

from __future__ import annotations

from chaos_protocols.agreement.raft import proof
from chaos_protocols.agreement.raft.config import fault_of
from chaos_protocols.agreement.raft.core import Core
from chaos_protocols.agreement.raft.effects import Role
from chaos_protocols.agreement.raft.log import fault_of_entries
from chaos_protocols.agreement.raft.messages import AppendRequest, AppendResponse, SnapshotRequest, SnapshotResponse
from chaos_protocols.names import SiteId


def receive_append(core: Core, source: SiteId, message: AppendRequest, now_s: float) -> None:
    fault = fault_of_entries(message.entries, message.previous_index, message.previous_term)
    if fault is None and message.entries and message.entries[-1].term > message.term:
        fault = f"an entry of term {message.entries[-1].term} in an append of term {message.term}"
    fault = fault or next(filter(None, map(proof.fault_of_mandate, message.entries)), None)
    if fault is not None:
        core.breaks_rules(source, fault)
    elif message.term < core.term:
        answer_append(core, source, message, None)
    else:
        anew = core.hears_anew(message.leader, now_s)
        if not accept_leader(core, source, message.leader, message.term, now_s):
            return
        if anew:
            core.begin_to_hear(message.commit_index)
        match_index = take_entries(core, source, message)
        if core.violation is None:
            answer_append(core, source, message, match_index)


def accept_leader(core: Core, source: SiteId, leader: SiteId, term: int, now_s: float) -> bool:
    """There is one leader in a term (thesis 3.4): whoever sends entries in a term not below ours is it, where it has
    shown that it was elected."""
    if source != leader:
        core.breaks_rules(source, f"it speaks for {leader}")
        return False
    if term == core.term and (core.role is Role.LEADER or core.leader not in (None, leader)):
        known = core.site if core.role is Role.LEADER else core.leader
        core.breaks_rules(source, f"it claims to lead term {term}, which {known} leads")
        return False
    if not proof.is_believed(core, leader, term):
        proof.ask(core, leader, term, now_s)
        return False
    if core.leader_lost_s is not None:
        late = now_s < core.leader_lost_s + core.settings.heartbeat_interval_s
        if late and term == core.term:
            # Sent before the leader died, and overtaken by the news: worth taking, but no sign of life.
            return True
        core.find_leader_alive()
    if term > core.term or core.role is not Role.FOLLOWER or core.leader != leader:
        core.become_follower(term, leader, f"{leader} leads term {term}", now_s)
    else:
        core.restart_election_timer(now_s)
    core.hear_leader(now_s)
    return True


def take_entries(core: Core, source: SiteId, message: AppendRequest) -> int | None:
    """Makes the log equal to the leader's up to the last entry of the message. Returns that index, or None: `previous`
    did not fit."""
    log = core.log
    previous_index, entries = message.previous_index, message.entries
    last_index = previous_index + len(entries)
    if previous_index < log.base_index:
        # What lies in our snapshot is committed, so the leader has the same.
        entries = entries[log.base_index - previous_index :]
    elif log.term_at(previous_index) != message.previous_term:
        return None
    for position, entry in enumerate(entries):
        if log.term_at(entry.index) == entry.term:
            continue
        if entry.index <= core.commit_index:
            core.breaks_rules(source, f"its entry {entry.index} of term {entry.term} differs from a committed one")
            return None
        if entry.index <= log.last_index:
            core.truncate(entry.index)
        core.append(entries[position:])
        break
    commit_index = min(message.commit_index, last_index)
    if commit_index > core.commit_index:
        core.commit_to(commit_index)
    return last_index


def answer_append(core: Core, source: SiteId, message: AppendRequest, match_index: int | None) -> None:
    log = core.log
    conflict_index = 0
    if match_index is None:
        conflict_index = log.last_index + 1
        if message.term == core.term and message.previous_index <= log.last_index:
            floor = core.commit_index + 1
            conflict_index = floor
            if message.previous_index > floor:
                conflict_index = log.first_index_of_term_at(message.previous_index, floor)
    response = AppendResponse(
        term=core.term,
        success=match_index is not None,
        match_index=match_index or 0,
        previous_index=message.previous_index,
        conflict_index=conflict_index,
        last_index=log.last_index,
        tenure=message.tenure,
    )
    core.send(source, response)


def receive_snapshot(core: Core, source: SiteId, message: SnapshotRequest, now_s: float) -> None:
    snapshot = message.snapshot
    fault = fault_of(snapshot.configuration)
    if fault is None and not 0 < snapshot.term <= message.term:
        fault = f"a snapshot of term {snapshot.term} in term {message.term}"
    if fault is None and any(one.term > snapshot.term or one.index > snapshot.index for one in snapshot.mandates):
        fault = "a snapshot with a mandate of what comes after it"
    if fault is not None:
        core.breaks_rules(source, fault)
        return
    match_index = 0
    if message.term >= core.term:
        if not accept_leader(core, source, message.leader, message.term, now_s):
            return
        if snapshot.index > core.commit_index:
            core.restore(snapshot)
        match_index = snapshot.index
    core.send(source, SnapshotResponse(term=core.term, match_index=match_index, tenure=message.tenure))
