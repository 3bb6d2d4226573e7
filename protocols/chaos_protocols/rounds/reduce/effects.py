"""What the reduce machines ask of whoever runs them (the reduce engine in the daemon, the simulator).

Effects are executed in the order of the list. A payload is named, never carried: the machine knows no bytes.
"""

from __future__ import annotations

import msgspec

from chaos_protocols.names import SiteId
from chaos_protocols.wire.bulk import ReduceHeader
from chaos_protocols.wire.plans import Tag


class PartialRef(msgspec.Struct, frozen=True, kw_only=True):
    """The sum over this site's subtree that `Combine` made, kept until `ReleasePartials`."""

    tag: Tag
    tree: int
    chunk: int


class ChildRef(msgspec.Struct, frozen=True, kw_only=True):
    """Scratch for a chunk of a child, until `Combine` has used it."""

    tag: Tag
    tree: int
    chunk: int
    child: SiteId


class ResultRef(msgspec.Struct, frozen=True, kw_only=True):
    """The place of a chunk in the result of a round that is open or was finished under `tag`."""

    tag: Tag
    tree: int
    chunk: int


class HeldRef(msgspec.Struct, frozen=True, kw_only=True):
    """Chunk `index` (of the whole vector) of a whole result."""

    round: int
    index: int


class FetchedRef(msgspec.Struct, frozen=True, kw_only=True):
    """The place of chunk `index` (of the whole vector) in a result that is being fetched, and is cut so."""

    round: int
    index: int
    fine: bool = False


Payload = PartialRef | ResultRef | HeldRef
Place = ChildRef | ResultRef | FetchedRef


class SendBulk(msgspec.Struct, frozen=True, kw_only=True):
    """Send in the order given for each site. Where there is no link, drop it: a link that comes up is told anew."""

    site: SiteId
    header: ReduceHeader
    payload: Payload | None = None


class Combine(msgspec.Struct, frozen=True, kw_only=True):
    """partial = weight * own + child + child ..., in exactly this order; the children's scratch is free afterwards.

    `weight` None: this site gives nothing. `children` ascend and are not empty where `weight` is None.
    `children_weights`: of their subtrees; `subtree_weight`: of this site's, None at the root. What travels in an
    encoding is the mean of a subtree: both ends compute the same weight of it from what chunk 0 tells.
    """

    tag: Tag
    tree: int
    chunk: int
    weight: float | None
    children: tuple[SiteId, ...]
    children_weights: tuple[float, ...] = ()
    subtree_weight: float | None = None


class Finalise(msgspec.Struct, frozen=True, kw_only=True):
    """At the root: result = partial / total; the partial is free afterwards."""

    tag: Tag
    tree: int
    chunk: int
    total: float


class GoOn(msgspec.Struct, frozen=True, kw_only=True):
    """More can be summed at once, and nobody will say so: call `go_on` when whatever else waits has had its turn."""

    tag: Tag
    tree: int


class ReleasePartials(msgspec.Struct, frozen=True, kw_only=True):
    """The parent has this site's chunks below `below` of this tree."""

    tag: Tag
    tree: int
    below: int


class RoundReduced(msgspec.Struct, frozen=True, kw_only=True):
    """All chunks of all trees are here. `weights`: by ascending site."""

    tag: Tag
    weights: tuple[tuple[SiteId, float], ...]
    checks: tuple[tuple[SiteId, bytes], ...] = ()
    """Of the states of the sites that told; nobody, or all that did."""


class RoundEmpty(msgspec.Struct, frozen=True, kw_only=True):
    """Every member gave weight 0: there is nothing to average. Told once, by the roots only."""

    tag: Tag


class ResultLost(msgspec.Struct, frozen=True, kw_only=True):
    """The parent no longer holds the result of this round: this site lags too far behind to follow."""

    tag: Tag


class ResultComplete(msgspec.Struct, frozen=True, kw_only=True):
    """All chunks of a fetched result are here: compute its digest, then call `checked`."""

    round: int
    digest: str
    source: SiteId


class ResultVerified(msgspec.Struct, frozen=True, kw_only=True):
    """The fetched result has the digest that was agreed: it is one to `hold`."""

    round: int
    digest: str


class ResultRefuted(msgspec.Struct, frozen=True, kw_only=True):
    """What `source` sent has another digest than was agreed: it broke the rules, and another holder is asked."""

    round: int
    source: SiteId


class ResultUnavailable(msgspec.Struct, frozen=True, kw_only=True):
    """Nobody who was asked has it. The fetch stays open: a link that comes up is asked too."""

    round: int
    digest: str


ReduceEffect = SendBulk | Combine | Finalise | GoOn | ReleasePartials | RoundReduced | RoundEmpty | ResultLost
ResultEffect = SendBulk | ResultComplete | ResultVerified | ResultRefuted | ResultUnavailable
