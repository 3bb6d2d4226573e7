"""What the agreement says on the wire: votes, log entries, snapshots. Bounded by type; a decoder refuses what does not
fit.

Sent inside `messages.RaftEnvelope`, in any order, any number of times, or never: the machine assumes nothing of the
network. Source: Ongaro's thesis, figure 3.1 (votes, appends), 5.1 (snapshots), 9.6 (pre-vote), 3.10 (TimeoutNow).
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from chaos_protocols.names import CONTROL_FRAME_BYTES_MAX, SITES_MAX, VOTERS_MAX
from chaos_protocols.wire.plans import Site

COMMAND_BYTES_MAX = 1 << 20
SNAPSHOT_BYTES_MAX = CONTROL_FRAME_BYTES_MAX - (512 << 10)
"""The rest of a control frame holds a configuration of SITES_MAX sites (about 140 KiB), the envelope and its
signature."""
ENTRIES_PER_APPEND_MAX = 1024

VOTES_SHOWN_MAX = 2 * VOTERS_MAX
"""Of those that voted for a leader, and those that have confirmed it since."""
MANDATES_MAX = 64
"""Leaders that changed who votes, of which a site that was away can be shown the votes."""

Index = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
Term = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
PublicKey = Annotated[bytes, msgspec.Meta(max_length=32)]
Signature = Annotated[bytes, msgspec.Meta(max_length=64)]


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """Who takes part in the agreement. Voters elect and commit; learners only receive the log (thesis 4.2.1)."""

    voters: Annotated[tuple[Site, ...], msgspec.Meta(max_length=VOTERS_MAX)]
    learners: Annotated[tuple[Site, ...], msgspec.Meta(max_length=SITES_MAX)]


class Vote(msgspec.Struct, frozen=True, kw_only=True):
    """The vote of `voter` for the leader of a term, signed (`proof.vote_words`) with the key of its id."""

    voter: Site
    public_key: PublicKey
    signature: Signature


class Mandate(msgspec.Struct, frozen=True, kw_only=True):
    """Who has led a term, with the votes for it, and who votes since: `voters`, after the entry at `index`, the last of
    that term that changed them, signed by the leader (`proof.change_words`)."""

    term: Term
    leader: Site
    votes: Annotated[tuple[Vote, ...], msgspec.Meta(max_length=VOTES_SHOWN_MAX)]
    index: Index
    voters: Annotated[tuple[Site, ...], msgspec.Meta(max_length=VOTERS_MAX)]
    public_key: PublicKey
    signature: Signature


HEAD_BYTES = 16
"""Of the number that stands for a whole log: nobody finds two logs with the same one."""

Head = Annotated[bytes, msgspec.Meta(max_length=HEAD_BYTES)]


class LogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """`command` is opaque here, and empty for a no-op. `configuration`: the full new one if this entry changes it; a
    site uses it as soon as the entry is in its log, committed or not (thesis 4.1). `mandate`: of whoever changed the
    voters with it, since version 7."""

    index: Index
    term: Term
    command: Annotated[bytes, msgspec.Meta(max_length=COMMAND_BYTES_MAX)]
    configuration: Configuration | None = None
    mandate: Mandate | None = None


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The state machine after `index`, and the configuration in force there; stands for the whole log up to `index`.
    `mandates`: of those who made that configuration, one a term, the newest last. `chain`: the number of the log up to
    there (since version 8); empty: it has none."""

    index: Index
    term: Term
    configuration: Configuration
    state: Annotated[bytes, msgspec.Meta(max_length=SNAPSHOT_BYTES_MAX)]
    mandates: Annotated[tuple[Mandate, ...], msgspec.Meta(max_length=MANDATES_MAX)] = ()
    chain: Head = b""


class PreVoteRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Would you vote for me in `term` (one above mine)? Changes nothing at the receiver."""

    term: Term
    last_index: Index
    last_term: Term


class PreVoteResponse(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """`term`: the one asked for if granted, else the answerer's own."""

    term: Term
    granted: bool


class VoteRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """`transfer`: the leader itself asked for this election, so recent contact with it is no reason to refuse (thesis
    4.2.3)."""

    term: Term
    last_index: Index
    last_term: Term
    transfer: bool


class VoteResponse(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """`public_key`, `signature`: as in `Vote`, where it is granted; empty from a site before version 7."""

    term: Term
    granted: bool
    public_key: PublicKey = b""
    signature: Signature = b""


class AppendRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """New entries after (`previous_index`, `previous_term`), or none: a heartbeat. `tenure` is opaque to the receiver,
    who returns it: it tells the leader whether the answer belongs to this membership of the site or to one before it
    was removed."""

    term: Term
    leader: Site
    previous_index: Index
    previous_term: Term
    entries: Annotated[tuple[LogEntry, ...], msgspec.Meta(max_length=ENTRIES_PER_APPEND_MAX)]
    commit_index: Index
    tenure: Index


class AppendResponse(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """`success`: the receiver's log equals the leader's up to `match_index`. Otherwise `match_index` is 0,
    `previous_index` is the one that did not fit and `conflict_index` the first one worth trying (thesis 3.5: one step
    back for each conflicting term)."""

    term: Term
    success: bool
    match_index: Index
    previous_index: Index
    conflict_index: Index
    last_index: Index
    tenure: Index


class SnapshotRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    term: Term
    leader: Site
    snapshot: Snapshot
    tenure: Index


class SnapshotResponse(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The receiver's log equals the leader's up to `match_index`."""

    term: Term
    match_index: Index
    tenure: Index


class TimeoutNow(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The leader asks its successor to start an election at once (thesis 3.10)."""

    term: Term


class ProofRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Whoever sends entries in `term` is to show the votes that it was elected with. `since`: the asker knows who votes
    up to this index. Since version 7."""

    term: Term
    since: Index


class LeaderProof(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The votes for `leader` in `term`; `mandates`: how the voters that the asker knows became those who gave them, the
    oldest first. Since version 7."""

    term: Term
    leader: Site
    votes: Annotated[tuple[Vote, ...], msgspec.Meta(max_length=VOTES_SHOWN_MAX)]
    mandates: Annotated[tuple[Mandate, ...], msgspec.Meta(max_length=MANDATES_MAX)]


RaftMessage = (
    PreVoteRequest
    | PreVoteResponse
    | VoteRequest
    | VoteResponse
    | AppendRequest
    | AppendResponse
    | SnapshotRequest
    | SnapshotResponse
    | TimeoutNow
    | ProofRequest
    | LeaderProof
)
