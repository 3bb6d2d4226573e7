"""A site's key is changed by its operator, and that of another site approved, while the daemon runs (spec 20).

Whoever may open `api.sock` says what he wants; the machine tells the scheduler with each report, and both keys count as
soon as the run has agreed. The next start of this daemon takes the new key (`key_files.py`). What was approved here for
others is not kept over a restart; what this site has in `site.key.new` is.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Literal, Protocol

import msgspec
from aiohttp import web

from chaos_protocols.agreement.key_commands import keys_of
from chaos_protocols.events import Event
from chaos_protocols.fingerprint import site_of_words, words_of
from chaos_protocols.named_sites import NotOneSite, site_named
from chaos_protocols.names import SiteId, short
from chaos_protocols.site import SiteMachine
from chaos_protocols.wire.keys import CHANGES_MAX, KeyChain, with_change
from chaos_protocols.wire.versions import KEYS_SINCE
from chaos_protocols.wishes import KeyApproved, KeyOffered
from chaosd.api.answers import json_answer, read_body
from chaosd.api.status import ApprovedKey, KeyStatus, Outcome
from chaosd.config.changes import SITE_ID
from chaosd.identity import Identity, IdentityError, site_of
from chaosd.key_files import NEXT_KEY_FILE, drop_next, make_next, next_key, note_agreed
from chaosd.os_errors import explain

log = logging.getLogger("chaosd.key")


class KeyBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`approve`: of `site`, its id, the beginning or the name, that its next key is `key`, the id or its words."""

    what: Literal["rotate", "approve", "cancel"]
    site: Annotated[str, msgspec.Meta(max_length=256)] = ""
    key: Annotated[str, msgspec.Meta(max_length=1024)] = ""


class KeyedSite(Protocol):
    """What is needed of a driver."""

    @property
    def machine(self) -> SiteMachine: ...
    def feed(self, event: Event) -> None: ...


class KeyChanges:
    """See the module. `folder`: where the key is."""

    def __init__(self, folder: Path, identity: Identity, driver: KeyedSite) -> None:
        self._folder, self._identity, self._driver = folder, identity, driver

    @property
    def _machine(self) -> SiteMachine:
        return self._driver.machine

    def started(self) -> None:
        """The machine runs: what this site has offered before it was started again is offered again."""
        try:
            self._offer(next_key(self._folder))
        except IdentityError as error:
            log.error("the next key of this site cannot be used: %s", error)

    def agreed(self, chain: KeyChain) -> None:
        """The run has agreed on this one; noted for the next start."""
        try:
            if not note_agreed(self._folder, chain):
                log.error("the run has agreed on a next key of this site that is not in %s", NEXT_KEY_FILE)
        except (IdentityError, OSError) as error:
            log.error(
                "that the run has agreed on the next key cannot be noted: %s. Start this daemon again.", _why(error)
            )

    def _offer(self, found: Identity | None) -> bool:
        """Tell the run of it, unless it has agreed on it already. False: there is none."""
        machine, agreed = self._machine, self._machine.participation.keys.agreed
        if found is None or not machine.roster.run_id or (agreed is not None and not agreed.is_settled):
            return False
        chain = with_change(self._identity.chain, machine.roster.run_id, self._identity, found)
        self._driver.feed(KeyOffered(chain=chain))
        return True

    # -- what is asked for. Raises IdentityError, OSError.

    def tell(self) -> KeyStatus:
        """Which key is in use, which is to follow, what was approved here."""
        machine, found = self._machine, next_key(self._folder)
        mine = machine.participation.keys
        waits = found is not None and mine.agreed is not None and mine.agreed.chain.key == found.public_key
        next_id = site_of(found.public_key) if found is not None else None
        return KeyStatus(
            site=self._identity.site,
            key=site_of(self._identity.public_key),
            number=len(self._identity.chain.changes),
            settled=mine.agreed is None or mine.agreed.is_settled,
            next_key=next_id or "",
            next_words=words_of(next_id) if next_id is not None else "",
            next_agreed=waits,
            approved=[
                ApprovedKey(site=one.site, called=machine.roster.called(one.site), key=one.key_id)
                for one in mine.approvals
            ],
        )

    def rotate(self) -> Outcome:
        """Make the next key, and have the run agree on it."""
        if problem := self._why_no_other():
            return _outcome(False, problem)
        found = make_next(self._folder)
        self._offer(found)
        key = site_of(found.public_key)
        return _outcome(
            True,
            f"the next key of this site is {key}, in words: {words_of(key)}. Read them to the operator of another "
            f"member; he types `chaosd key approve {self._named()} KEY` with the id or the words. Both keys count from "
            "then on; this site uses the new one when its daemon is started again. `chaosd key` shows how far it is",
        )

    def cancel(self) -> Outcome:
        """The next key is dropped, as long as the run has not agreed on it."""
        found, agreed = next_key(self._folder), self._machine.participation.keys.agreed
        if found is None:
            return _outcome(True, "there is no next key")
        if agreed is not None and agreed.chain.key == found.public_key:
            return _outcome(False, "the run has agreed on that key already, for good; start this daemon again")
        self._driver.feed(KeyOffered(chain=None))
        drop_next(self._folder)
        return _outcome(True, f"{NEXT_KEY_FILE} is gone; the key of this site stays as it is")

    def approve(self, text: str, key_text: str) -> Outcome:
        """Another site's next key is the one that its operator has read out."""
        machine = self._machine
        if machine.site not in machine.roster.member_ids():
            return _outcome(False, "this site is no member of the run (yet): only members' operators approve")
        others = [(one.site, one.name) for one in machine.roster.sites if one.site != machine.site]
        try:
            site = site_named(text, others, "the other sites of the run")
        except NotOneSite as error:
            return _outcome(False, str(error))
        key, called = _key_of(key_text), machine.roster.called(site)
        if key is None:
            return _outcome(False, "a key is named by its 32 characters, 0-9 and a-f, or by its 16 words, all of them")
        known = keys_of(machine.roster, site)
        if known is not None and known.is_settled is False:
            return _outcome(
                False, f"{called} does not use the key yet that was agreed on before: its daemon is to be started"
            )
        self._driver.feed(KeyApproved(site=site, key_id=key))
        return _outcome(
            True,
            f"{called} may change its key to {key}, says this site as long as its daemon runs; both keys count as "
            f"soon as the run has agreed, which the event `key` tells",
        )

    def _why_no_other(self) -> str:
        machine = self._machine
        roster, agreed = machine.roster, machine.participation.keys.agreed
        if machine.site not in roster.member_ids():
            return "this site is no member of the run (yet): its key belongs to nothing that it could be changed in"
        if len(roster.member_ids()) < 2:
            return "this site is the only member: the operator of another one has to approve the change"
        if agreed is not None and not agreed.is_settled:
            return "the run has agreed on a key already that this site does not use yet: start this daemon again"
        if len(self._identity.chain.changes) >= CHANGES_MAX:
            return f"its key was changed {CHANGES_MAX} times: make a new site (`chaosd init` in an empty folder)"
        if not roster.run_id:
            return "this run has no id, as a former release has founded it; its sites cannot change their keys"
        old = [one.name for one in roster.sites if one.versions.newest < KEYS_SINCE]
        if old:
            return f"not all sites know of changed keys: install this release, or a newer one, at {', '.join(old)}"
        return ""

    def _named(self) -> str:
        machine = self._machine
        record = machine.roster.record(machine.site)
        alone = record is not None and sum(one.name == record.name for one in machine.roster.sites) == 1
        return record.name if record is not None and alone and " " not in record.name else short(machine.site)

    # -- the local API

    def local_routes(self) -> list[web.RouteDef]:
        """For the unix socket."""
        return [web.get("/v1/key", self._told), web.post("/v1/key", self._wanted)]

    async def _told(self, request: web.Request) -> web.StreamResponse:
        return json_answer(self.tell())

    async def _wanted(self, request: web.Request) -> web.StreamResponse:
        asked = await read_body(request, KeyBody)
        try:
            match asked.what:
                case "rotate":
                    outcome = self.rotate()
                case "cancel":
                    outcome = self.cancel()
                case "approve":
                    outcome = self.approve(asked.site, asked.key)
        except (IdentityError, OSError) as error:
            outcome = _outcome(False, f"the next key cannot be written or read: {_why(error)}")
        return json_answer(outcome)


def _why(error: IdentityError | OSError) -> str:
    return explain(error) if isinstance(error, OSError) else str(error)


def _key_of(text: str) -> SiteId | None:
    plain = text.strip().lower()
    return SiteId(plain) if SITE_ID.fullmatch(plain) else site_of_words(text)


def _outcome(done: bool, reason: str) -> Outcome:
    return Outcome(done=done, reason=reason, duration_s=0.0)
