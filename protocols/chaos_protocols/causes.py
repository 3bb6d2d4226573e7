"""Why something stands, or is refused, or ends: every cause by name, and what a part says when it has found one.

The texts stand in `cause_texts`, and nowhere else. A part that finds a cause says `Cause.NAME.told(...)`; what it gets,
a `Why`, ends in the status, at the script and in the event history. A new cause: its text there, and its name here.
docs/when-something-stands.md is made from this list, and a test holds it there.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from enum import Enum

from chaos_protocols.cause_texts import inside, links, outside


@dataclass(frozen=True, slots=True)
class Why:
    """A cause as it was found, and the sentence for people."""

    cause: Cause
    text: str


class Cause(Enum):
    """See the module. The code is for programs, and stays."""

    # -- this site waits: outside the run

    NO_WORKER = outside.NO_WORKER
    ASKING = outside.ASKING
    SCRIPT_ANSWERS = outside.SCRIPT_ANSWERS
    NO_PEER = outside.NO_PEER
    NO_LINK = outside.NO_LINK
    NO_FOUNDER = outside.NO_FOUNDER
    TWO_RUNS = outside.TWO_RUNS
    RUN_WITHOUT_SCHEDULER = outside.RUN_WITHOUT_SCHEDULER
    UNKNOWN_MEMBERS = outside.UNKNOWN_MEMBERS
    UNPROVEN = outside.UNPROVEN
    ADMISSION = outside.ADMISSION
    NOT_NOW = outside.NOT_NOW
    FOUNDER_HAS_NO_WORKER = outside.FOUNDER_HAS_NO_WORKER
    RESOLVING = outside.RESOLVING
    NOBODY_TRAINS = outside.NOBODY_TRAINS
    SCRIPTS_REST = outside.SCRIPTS_REST
    FORMER_SELF = outside.FORMER_SELF
    FORMER_LEAVE = outside.FORMER_LEAVE
    HAS_LEFT = outside.HAS_LEFT
    NEIGHBOURS_OUTSIDE = outside.NEIGHBOURS_OUTSIDE
    LINKS_TOO_SLOW = outside.LINKS_TOO_SLOW
    BANNED = outside.BANNED
    OTHER_MODEL = outside.OTHER_MODEL
    RUN_NEEDS_VERSION = outside.RUN_NEEDS_VERSION

    # -- this site waits: in the run

    NO_QUORUM = inside.NO_QUORUM
    ELECTION = inside.ELECTION
    FOUNDERS_WORKER = inside.FOUNDERS_WORKER
    MIN_SITES = inside.MIN_SITES
    FLOOR = inside.FLOOR
    STATE_COMES = inside.STATE_COMES
    STATE_PROMISED = inside.STATE_PROMISED
    TRANSFER_STANDS = inside.TRANSFER_STANDS
    STATE_LOST = inside.STATE_LOST
    STATE_AWAITED = inside.STATE_AWAITED
    ROUND_WAITS = inside.ROUND_WAITS
    NOTHING_GIVEN = inside.NOTHING_GIVEN
    JOIN_HOLD = inside.JOIN_HOLD

    # -- a link does not come about

    NOT_RUNNING = links.NOT_RUNNING
    UNREACHABLE = links.UNREACHABLE
    DISTRUSTED = links.DISTRUSTED
    KEPT_OUT = links.KEPT_OUT
    LET_IN_BEFORE = links.LET_IN_BEFORE
    OTHER_VERSION = links.OTHER_VERSION
    OTHER_NAME = links.OTHER_NAME
    OTHER_RUN = links.OTHER_RUN
    ANOTHER_SITE = links.ANOTHER_SITE
    OLDER_START = links.OLDER_START
    LINK_FAILED = links.LINK_FAILED

    # -- this site refuses another one

    UNTRUSTED = links.UNTRUSTED
    SHUT_OUT = links.SHUT_OUT
    REFUSED_VERSION = links.REFUSED_VERSION
    REFUSED_NAME = links.REFUSED_NAME
    REFUSED_RUN = links.REFUSED_RUN
    REFUSED_START = links.REFUSED_START

    # -- this site goes on, and warns

    KEY_USED = links.KEY_USED

    # -- this daemon ends

    KEY_ELSEWHERE = links.KEY_ELSEWHERE

    def told(self, **found: object) -> Why:
        """The sentence, with what was found in it. Raises KeyError where something is missing."""
        return Why(self, self.value.text.format_map(found))

    @property
    def code(self) -> str:
        return self.value.code

    @property
    def fields(self) -> tuple[str, ...]:
        """What `told` must be given."""
        return tuple(name for _, name, _, _ in string.Formatter().parse(self.value.text) if name)


BY_CODE = {cause.code: cause for cause in Cause}


def by_code(code: str) -> Cause:
    """What another site names; NOT_NOW for what this release does not know."""
    return BY_CODE.get(code, Cause.NOT_NOW)
