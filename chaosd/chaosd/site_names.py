"""Sites by their names, in what people read: the history, the log, `chaosd status`, and what a script prints.

The machines tell of a site by its id or the beginning of it, which is the same at all sites. Where a daemon hands such
a sentence to people it puts the name there: its operator's own name for the site (`chaosd peer add NAME=...`), else the
site's. A name that two sites have is none, and so has a beginning that two ids have: keys can be tried until one begins
like a member's. An id in a command, in a file's name, or in brackets behind a name stays an id.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping

import msgspec

from chaos_protocols.names import SiteId, short
from chaos_protocols.site import SiteMachine
from chaos_protocols.wire.user_words import RunPaused, RunWarned, StateDiffered
from chaos_protocols.wire.worker import DaemonMessage, Dismissed, LeaveOrdered
from chaosd.log_format import marked

ID = re.compile(r"`[^`]*`|\([0-9a-f]{8}\)|\b(?:[0-9a-f]{32}|[0-9a-f]{8})\b(?!\.\w)")
"""A command, a short id in brackets, an id, a short id as `short` writes it. One before an ending belongs to a file's
name, under which its operator looks for it."""

COMMAND = re.compile(r"(?=(`chaosd [^`]*))")
"""What is typed, wherever it begins: a name with a mark in it must not have the ids of a command taken for text."""

REASON_MAX = 4096
"""Characters of a message's `reason`, as `wire/user_words.py` has it."""

REMEMBERED_MAX = 512
"""Sites whose name is kept although they have left: the last ones."""


class SiteNames:
    """See the module. `given`: what this site is called, and what its operator calls others."""

    def __init__(self, machine: SiteMachine, given: Callable[[], Mapping[SiteId, str]] = dict) -> None:
        self._machine, self._given = machine, given
        self._left: dict[SiteId, str] = {}
        """Of sites that were in the roster when something was last told."""

    def given(self) -> Mapping[SiteId, str]:
        """What this site is called, and what its operator calls others."""
        return self._given()

    def in_text(self, text: str) -> str:
        """The sentence with names for ids."""
        if not ID.search(text):
            return text
        names, typed = self._names(), [found.span(1) for found in COMMAND.finditer(text)]

        def told(found: re.Match[str]) -> str:
            stays = any(start <= found.start() < stop for start, stop in typed)
            return found[0] if stays else names.get(found[0], found[0])

        return ID.sub(told, text)

    def in_message(self, message: DaemonMessage) -> DaemonMessage:
        """What a script prints, with names for ids, and without anything that a terminal would obey: names and reasons
        in it are other sites'. Any other message as it is."""
        if isinstance(message, RunPaused | RunWarned | StateDiffered):
            reason = self.in_text(message.reason)
        elif isinstance(message, Dismissed | LeaveOrdered):
            reason = message.reason
        else:
            return message
        told = marked(reason)[:REASON_MAX]
        return message if told == message.reason else msgspec.structs.replace(message, reason=told)

    def known(self) -> dict[SiteId, str]:
        """Of all sites whose name is that of no other: in the roster, given, or gone."""
        roster, journal = self._machine.roster, self._machine.replica.last_known
        # Where a daemon was started outside the run its roster is that of the run's first entry.
        before = {one.site: one.name for one in journal.departed if one.name}
        before |= {one.site: one.name for one in journal.sites if one.name}
        self._left = before | self._left
        self._left |= {one.site: one.name for one in roster.departed if one.name}
        self._left |= {one.site: one.name for one in roster.sites if one.name}
        while len(self._left) > REMEMBERED_MAX:
            self._left.pop(next(iter(self._left)))
        here = {one.site: one.name for one in roster.sites if one.name} | dict(self._given())
        often, taken = Counter(here.values()), set(here.values())
        gone = {site: name for site, name in self._left.items() if site not in here and name not in taken}
        often += Counter(gone.values())
        return {site: name for site, name in (gone | here).items() if often[name] == 1}

    def _names(self) -> dict[str, str]:
        """By id and by short id; not where a site is called so: a sentence would tell of it by another one's name."""
        machine, named = self._machine, self.known()
        met = {
            *self._left,
            *self._given(),
            *(one.site for one in machine.roster.sites),
            *machine.network.refusals.sites,
        }
        alike = Counter(map(short, met | set(machine.links.up_sites())))
        shortly = {short(site): name for site, name in named.items() if alike[short(site)] == 1}
        called = {*self._left.values(), *self._given().values(), *(one.name for one in machine.roster.sites)}
        both = shortly | {str(site): name for site, name in named.items()}
        return {word: name for word, name in both.items() if word not in called}
