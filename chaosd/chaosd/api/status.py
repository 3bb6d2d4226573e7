"""What a daemon tells about itself: the schema behind `chaosd status --json`, the API and tables of many sites.

Filled in by the daemon (`api/daemon_status.py`), served by `api/server.py`, read by the CLI and whoever asks. Rates are
bytes per second, times seconds; `None` means not known (yet), never zero.
"""

from __future__ import annotations

import msgspec

from chaos_protocols.wire.bounds import Bounds
from chaos_protocols.wire.probe import SeenSite


class SiteSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One site of the roster as this daemon sees it. `state`: learner, member, leaving. `software`: its release, as far
    as anybody said; empty: not known. `age_s`: how long ago the site said `round` and `phase`, to this one or to others
    that handed it on; None where it was never heard."""

    site: str
    name: str
    address: str
    state: str
    voter: bool
    round: int | None
    phase: str | None
    software: str = ""
    age_s: float | None = None


class LinkStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One link of the overlay, or a connection of this site that is not agreed (yet). `rate_bytes_per_s` as recorded in
    the roster; `rtt_s` and `up` only for this site's own links, as are the bulk `streams` that stand and the
    `congestion` control in force on them. `why`: the last dial of this site brought no link, and why."""

    one: str
    other: str
    rate_bytes_per_s: float | None
    rtt_s: float | None
    up: bool | None
    streams: int = 0
    congestion: str = ""
    why: str = ""


class LoggedFigure(msgspec.Struct, frozen=True, kw_only=True):
    """What the script has told its operator last under this name (`Coordinator.log`). `value` None: not finite."""

    name: str
    round: int
    value: float | None


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The script beside the daemon. `figures`: by name."""

    connected: bool
    pid: int | None
    round: int | None
    phase: str | None
    figures: tuple[LoggedFigure, ...] = ()


class TransferStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A running state transfer to this site: verified bytes of the whole, bytes per second from each source lately, and
    bytes that each has sent so far; what was here already is verified, and nobody sends it."""

    round: int
    verified_bytes: int
    total_bytes: int
    rate_of_source: dict[str, float]
    bytes_of_source: dict[str, int] = {}


class ProbingStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What measuring links cost this site since its daemon started; `saved`: links whose rate was known from what they
    carried anyway."""

    probes: int
    bytes: int
    seconds: float
    saved: int


class WaitStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A site that a round waits for, or that is not waited for though its worker has the state (`reason`: why), and for
    how many seconds, as the scheduler told."""

    site: str
    name: str
    seconds: float
    reason: str = ""


class StorageStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What this site keeps on its disk: key, journal, events and checkpoints. `checkpoint_round`: of the newest, None:
    none; `interval_s`: between two as things are, None: none are written; `checkpoint_failure`: why the newest
    one could not be written, empty: it could."""

    folder: str
    bytes: int
    checkpoints: int
    checkpoint_round: int | None
    interval_s: float | None
    checkpoint_failure: str = ""


class RefusedSite(msgspec.Struct, frozen=True, kw_only=True):
    """A site that was not let in: why, how often, and how long ago it tried last. `cause`: its code
    (docs/when-something-stands.md)."""

    site: str
    cause: str
    reason: str
    count: int
    ago_s: float


class AveragingStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How the next round is averaged. `rate_bytes_per_s` and `predicted_s`: of the plan, at the rates that the roster
    has; `took_s`: the median of the last rounds, from this site's part given until the result was here (None: no such
    round, or no such size, is known). `relative_error`: what the encoding lost at this site in the last round that
    counts, over what it encoded (of norms); None: nothing is encoded here. `mean_error`, `worst_error`: of the members
    that say theirs (`errors_known`), each in its last round; `worst_site`: whose is the worst."""

    trees: int
    rate_bytes_per_s: float
    predicted_s: float | None
    took_s: float | None
    reason: str
    encoding: str = "fp32"
    relative_error: float | None = None
    errors_known: int = 0
    mean_error: float | None = None
    worst_error: float | None = None
    worst_site: str = ""


class BoundsStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What the run allows a site to give to a round (0: anything); since this daemon began, rounds whose part from here
    was clipped, or drawn in (the last was so far `away` before), and rounds whose result was too long, which nobody
    applied."""

    norm_max: float
    weight_max: float
    clipped_rounds: int
    void_rounds: int
    clip_radius: float = 0.0
    drawn_in_rounds: int = 0
    away: float = 0.0


class RunBounds(msgspec.Struct, frozen=True, kw_only=True):
    """What the run allows a site to give: `holds` in the next round, `agreed` from `from_round` on where that is
    another, `wanted` by this site's operator. `members`: of whom more than half must want the same."""

    holds: Bounds
    agreed: Bounds | None
    from_round: int
    wanted: Bounds | None
    members: int


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """`state`: starting, joining, learner, member, leaving, removed. `paused` says why nothing moves (empty when rounds
    go on), `paused_cause` is the code of it, `paused_for` who is waited for, `paused_s` since when
    (docs/when-something-stands.md). `epoch` is the log index of the last roster entry. `run_id`: empty where this site
    has never been in the run, or a former release founded it."""

    version: str
    run: str
    site: str
    name: str
    address: str
    pid: int
    incarnation: int
    state: str
    paused: str
    epoch: int
    term: int
    scheduler: str | None
    round: int
    round_s: float | None
    result_digest: str
    sites: tuple[SiteSummary, ...]
    links: tuple[LinkStatus, ...]
    worker: WorkerStatus
    transfer: TransferStatus | None
    uptime_s: float
    probing: ProbingStatus | None = None
    storage: StorageStatus | None = None
    tree: tuple[tuple[str, str], ...] = ()
    """(child, parent) along which the next round is summed up, all trees of its plan together."""
    waits_for: tuple[WaitStatus, ...] = ()
    resting: tuple[WaitStatus, ...] = ()
    skips: str = ""
    """Why this site's script gave nothing to the newest round: what it computed is not finite. Empty: it gave."""
    run_id: str = ""
    paused_cause: str = ""
    paused_for: str = ""
    paused_s: float = 0.0
    paused_remedy: str = ""
    """What whoever is waited for can do, as docs/when-something-stands.md has it."""
    refused: tuple[RefusedSite, ...] = ()
    averaging: AveragingStatus | None = None
    bounds: BoundsStatus | None = None
    """None: the run has none."""
    recovered: tuple[str, ...] = ()
    """What other sites say that have recovered this run without a majority of its voters, each with the way out."""
    blocked: tuple[str, ...] = ()
    """Sites that this one's operator lets have no link with it."""
    send_limit_bytes_per_s: float = 0.0
    """What this site sends at most in bulk, over all its links together; 0: no limit is set."""
    outside: str = ""
    """That this site is out of a run in which it was, and since which round; then `sites` and `epoch` are what its
    journal has. Empty: it is in the run, or never was."""
    called: dict[str, str] = {}
    """By id, what this site is called, and others, as its operator calls them or they themselves; also of those that
    are not in the roster."""


class EventRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the event history. `kind`: scale-out, scale-in, connect-link, disconnect-link, election, link-down,
    resolve, pause, resume, worker, refused, start, stop, transfer, source, restore, checkpoint,
    restore-point, round, plan, recovered.
    `outcome`: done, failed, refused, or empty for a plain fact."""

    id: int
    at_unix_s: float
    kind: str
    subject: str
    cause: str
    outcome: str
    duration_s: float | None
    epoch: int
    round: int
    reason: str
    event_id: str
    times: int = 1
    """How many this entry stands for: what repeats itself is told a few times, then once a minute."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request (`link add`, `link remove`, `leave`). `reason` says what happened or why not, and the
    remedy."""

    done: bool
    reason: str
    duration_s: float


class LostMajority(msgspec.Struct, frozen=True, kw_only=True):
    """Of a run without a majority of its voters, as this site sees it. `voters`: how many there are; `missing`: those
    that are not in reach; `silent_s`: for how long no scheduler was heard, with `since_start` since this daemon
    started; `round`: whose end this site's state is of; `generation`: of the run that would be made here; `problem`:
    why none can be made here now, empty: one can, by `command`. `heard`: what other sites say that have recovered the
    run. `outside`: this site is not in the run, and so decides nothing for it. Sites as an operator types them."""

    site: str
    voters: int
    missing: tuple[str, ...]
    in_reach: tuple[str, ...]
    silent_s: float
    round: int
    generation: int
    problem: str
    command: str
    heard: tuple[str, ...]
    since_start: bool = False
    outside: bool = False


class ApprovedKey(msgspec.Struct, frozen=True, kw_only=True):
    """A next key of another site, by its id, that this site's operator has approved."""

    site: str
    called: str
    key: str


class KeyStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of this site: `key`, the id of the one in use, which is the site's own id until it was changed;
    `number`: how often it was; `settled`: no other one counts; `next_key`: the id of the one in `site.key.new`, with
    its words, empty: there is none; `next_agreed`: the run has agreed on it, and the next start takes it. `approved`:
    next keys of others, not agreed yet."""

    site: str
    key: str
    number: int
    settled: bool
    next_key: str
    next_words: str
    next_agreed: bool
    approved: list[ApprovedKey]


class PendingSite(msgspec.Struct, frozen=True, kw_only=True):
    """A site that proved its id to this one and was refused, since nobody here trusts it. `words`: its id, to be
    compared with what that institution reads out."""

    site: str
    first_unix_s: float
    last_unix_s: float
    times: int
    words: str = ""


class TrustedSite(msgspec.Struct, frozen=True, kw_only=True):
    """A site that may connect. `by`: command, configuration, peer, site of the run (also: before its
    recovery); the first that holds."""

    site: str
    called: str
    by: str
    words: str


class BlockedSite(msgspec.Struct, frozen=True, kw_only=True):
    """A site that this one has no link with, on its operator's word."""

    site: str
    called: str


class ListedPeer(msgspec.Struct, frozen=True, kw_only=True):
    """A neighbour that this site dials. `by`: command or configuration; `up`: there is a link now."""

    site: str
    address: str
    called: str
    by: str
    up: bool


class SeenHere(msgspec.Struct, frozen=True, kw_only=True):
    """How a neighbour sees this site. `linked`: there is a link to ask over; `why`: what keeps it from answering;
    `seen`: its answer."""

    site: str
    linked: bool
    why: str = ""
    seen: SeenSite | None = None


class PageAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where the page is open. `url` holds a ticket that lets one browser in, once, for two minutes."""

    address: str
    url: str
