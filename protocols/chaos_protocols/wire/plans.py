"""Plans as they are agreed and carried over the wire: along which trees a round is averaged, who sends what to a
joiner.

Made by the planners of `chaos_planner.overlay` from measured facts, committed with a roster entry (sync plan) or sent
by the scheduler (replication plan), executed by the bulk machines of `reduce` and `transfer`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from chaos_protocols.names import SITE_ID_CHARACTERS, SITES_MAX, STATE_BYTES_MAX, SiteId

Site = Annotated[SiteId, msgspec.Meta(max_length=SITE_ID_CHARACTERS)]
HOLDS_SINCE = 4
"""The version that brought `ReplicationPlan.hold_s`."""
TREES_MAX = 8
"""Eight trees carry nearly all of the best possible rate, as the planner's limit of this name says."""
TREES_SINCE = 5
"""The version that brought several trees in one round."""


class Tag(msgspec.Struct, frozen=True, kw_only=True, array_like=True, order=True):
    """What every bulk message of a round carries: a message whose tag is not current changes nothing (spec 9.2)."""

    epoch: Annotated[int, msgspec.Meta(ge=0)]
    round: Annotated[int, msgspec.Meta(ge=0)]


class Tree(msgspec.Struct, frozen=True, kw_only=True):
    """A spanning tree and the fraction of the vector that it carries. `parent` holds (child, parent) in ascending
    order of child; learners are leaves that only listen."""

    weight: Annotated[float, msgspec.Meta(gt=0, le=1)]
    root: Site
    parent: Annotated[tuple[tuple[Site, Site], ...], msgspec.Meta(max_length=SITES_MAX)]


class SyncPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Weighted trees (weights sum to 1) along which a round is reduced to the root and broadcast from it; and why
    these. `several`: there is more than one, so that a site must know how chunks are spread over them (spec 9.25).
    `fine`: the vector is cut into more chunks (spec 9.7)."""

    trees: Annotated[tuple[Tree, ...], msgspec.Meta(max_length=TREES_MAX)]
    reason: Annotated[str, msgspec.Meta(max_length=1024)]
    several: bool = False
    fine: bool = False


class CheckpointFacts(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One checkpoint on a site's disk. `lineage`: the epoch in which the run had last taken over a worker's state when
    it was written. Ordered by age: a run that went back to an older state has given up what came after it."""

    lineage: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
    round: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
    spec_digest: Annotated[str, msgspec.Meta(max_length=64)]


class Reached(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far the run has come, as one site's journal knows: `round` of the history `lineage` was done there, and the
    site's worker trained (`active`) or did not; or its worker was given the state of that round. `held`: of which
    history the state is that its worker has, 0: not said. `unsaved`: the site was there in the first rounds of that
    history, or came later and was new in the run, and its first checkpoint of it is still to be written. `rules`: the
    version whose rules were agreed there (spec 6.12), which a log alone does not tell, since its last entries may never
    have been agreed. `told_round` and `told_lineage`: of which state the worker was told to take over one last, and has
    not said that it has; 0: there is none. `applied`: up to which entry of the log commands had been applied there by
    then; 0: not said. Never sent."""

    lineage: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)] = 0
    round: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)] = 0
    active: bool = False
    held: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)] = 0
    rules: Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)] = 0
    unsaved: bool = False
    told_round: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)] = 0
    told_lineage: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)] = 0
    applied: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)] = 0


class SourceRange(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes [start, stop) of the state, to be sent by `source`."""

    source: Site
    start: Annotated[int, msgspec.Meta(ge=0, le=STATE_BYTES_MAX)]
    stop: Annotated[int, msgspec.Meta(ge=0, le=STATE_BYTES_MAX)]


class ReplicationPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Which neighbour sends which bytes of the state of the end of `round` to `joiner` (Chaos section III). Not
    `adaptive`: nothing is planned anew while its sources live, as the baselines of section VI-A do."""

    transfer: Annotated[str, msgspec.Meta(max_length=64)]
    joiner: Site
    round: Annotated[int, msgspec.Meta(ge=0)]
    state_bytes: Annotated[int, msgspec.Meta(ge=0, le=STATE_BYTES_MAX)]
    shard_bytes: Annotated[int, msgspec.Meta(ge=1, le=STATE_BYTES_MAX)]
    ranges: Annotated[tuple[SourceRange, ...], msgspec.Meta(max_length=SITES_MAX)]
    reason: Annotated[str, msgspec.Meta(max_length=1024)]
    adaptive: bool = True
    hold_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0
    """Rounds after `round` wait for the joiner, at most so long: its links cannot carry them beside the state (spec
    8.13). 0: they do not."""
