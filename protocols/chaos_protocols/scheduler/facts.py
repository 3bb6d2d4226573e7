"""What the scheduler sees of its site (`Facts`), and what it may have its site do (`Host`).

A part of the scheduler is given `Facts`: it can ask, and change nothing. Only the machine and the negotiations that it
runs have the `Host`. Both are views of the site itself and no copies: an event costs a large site nothing here, and
what is asked after a commit in the same event is answered from the roster after that commit.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Protocol

from chaos_protocols.agreement.commands import Command
from chaos_protocols.agreement.key_ring import KeyRing
from chaos_protocols.agreement.raft.messages import Configuration
from chaos_protocols.agreement.roster import Roster, SiteRecord
from chaos_protocols.agreement.views import Planner
from chaos_protocols.names import SiteId
from chaos_protocols.settings import SiteSettings
from chaos_protocols.wire.bounds import Bounds
from chaos_protocols.wire.control import Message, RoundStatusReply, SiteStatus
from chaos_protocols.wire.keys import KeyNews
from chaos_protocols.wire.plans import Tag
from chaos_protocols.wire.versions import Versions


class Facts(Protocol):
    """A site as its scheduler sees it. Nothing here changes anything."""

    @property
    def site(self) -> SiteId: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def settings(self) -> SiteSettings: ...
    @property
    def planner(self) -> Planner: ...
    @property
    def now_s(self) -> float: ...
    @property
    def awake_s(self) -> float:
        """By which it waits for others before it acts without them (`Outbox.awake_s`)."""
        ...

    @property
    def roster(self) -> Roster:
        """As committed, and applied here."""
        ...

    @property
    def configuration(self) -> Configuration:
        """Voters and learners of the agreement; counts from when it is appended."""
        ...

    @property
    def keys(self) -> KeyRing:
        """Which keys count for whom."""
        ...

    @property
    def term(self) -> int: ...
    @property
    def done_round(self) -> int:
        """The last round whose result is here."""
        ...

    @property
    def contributed_round(self) -> int: ...
    @property
    def empty_tag(self) -> Tag | None:
        """A round to which everybody has given weight 0, where this site is its root."""
        ...

    @property
    def active(self) -> bool:
        """The worker here has the state and trains."""
        ...

    @property
    def leaving(self) -> bool: ...
    @property
    def overlay_version(self) -> int:
        """Grows whenever a link anywhere is said to come or go."""
        ...

    @property
    def restarts_seen(self) -> int:
        """Grows whenever a daemon is seen in a new incarnation."""
        ...

    def can_propose(self) -> bool: ...
    def roster_is_newest(self) -> bool: ...
    def reachable(self, *, sound: bool = False) -> Set[SiteId]:
        """Sites that a message gets to, relayed or not; `sound`: that have broken no rule here lately."""
        ...

    def has_answered(self, site: SiteId) -> bool:
        """It has acknowledged the log of this site, as the leader of this term; so has this site itself."""
        ...

    def link_is_up(self, one: SiteId, other: SiteId) -> bool: ...
    def has_said_up(self, site: SiteId, outsider: SiteId) -> bool:
        """A site of the roster says itself that its link with somebody outside is up."""
        ...

    def restarted_as(self, site: SiteId) -> int | None:
        """The newest incarnation of the site's daemon that was seen; None: never seen."""
        ...

    def round_status(self) -> RoundStatusReply: ...
    def own_report(self) -> SiteStatus: ...

    @property
    def bounds_wanted(self) -> Bounds | None:
        """As in its report, of which this is asked after every event."""
        ...

    def key_news(self) -> KeyNews | None:
        """What that says of keys; None: nothing."""
        ...

    def versions_of(self, record: SiteRecord, incarnation: int) -> Versions:
        """Which protocol versions this start of a site speaks whose former start `record` names."""
        ...


class Host(Facts, Protocol):
    """What the scheduler has its site do."""

    def propose(self, command: Command, configuration: Configuration | None, first_round: int | None) -> bool:
        """Give a command to the agreement; the index goes to `SchedulerMachine.appended` before it can be committed.
        `first_round`: from that round on this site gives nothing until the entry's fate is known."""
        ...

    def shows_votes(self) -> bool:
        """Whether this site, which leads, can show who elected it; signed votes that it lacks are asked for."""
        ...

    def tell(self, site: SiteId, message: Message) -> None: ...
    def record(
        self, kind: str, subject: str, cause: str, outcome: str, started_s: float | None, reason: str
    ) -> None: ...
    def transfer_leadership(self, target: SiteId | None) -> None: ...
