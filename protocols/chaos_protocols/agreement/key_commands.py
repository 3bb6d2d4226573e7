"""How the run agrees on a site's new key, in two commands: both keys count, then the new one alone (spec 20).

Each carries what proves it, and each site checks that against its roster before it applies it (`why_not_approved`,
`why_not_settled`): all find the same, and what is false changes nothing, whoever has proposed it.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from chaos_protocols.agreement.roster import Roster
from chaos_protocols.agreement.stored import ApproveKey as ApproveKey
from chaos_protocols.agreement.stored import SettleKey as SettleKey
from chaos_protocols.names import SiteId
from chaos_protocols.wire.keys import (
    KEYS_KEPT_MAX,
    Checker,
    KeyChain,
    SiteKeys,
    approval_words,
    use_words,
)

KeyCommand = ApproveKey | SettleKey


def keys_of(roster: Roster, site: SiteId) -> SiteKeys | None:
    """What the run has agreed on about the keys of a site; None: it was never changed."""
    return next((one for one in roster.keys if one.site == site), None)


def counts_by_roster(roster: Roster, checker: Checker, site: SiteId, public_key: bytes) -> bool:
    """Whether this key is one that counts, by what was agreed alone."""
    known = keys_of(roster, site)
    return public_key in known.counting if known is not None else checker.owner(public_key) == site


def why_not(roster: Roster, checker: Checker, command: KeyCommand) -> str:
    """Why it changes nothing; empty: it is proven."""
    match command:
        case ApproveKey():
            return why_not_offered(roster, checker, command.site, command.chain) or why_not_approved(
                roster, checker, command
            )
        case SettleKey():
            return why_not_settled(roster, checker, command)
        case _:
            assert_never(command)


def why_not_offered(roster: Roster, checker: Checker, site: SiteId, chain: KeyChain) -> str:
    """Why the last key of this chain cannot be a site's next one; empty: it can, once it is approved."""
    known = keys_of(roster, site)
    former = known.chain if known is not None else KeyChain(first=chain.first)
    if roster.record(site) is None:
        return "it is not in the run"
    if not roster.run_id or chain.run_id != roster.run_id:
        return "it is a change of another run"
    if known is not None and not known.is_settled:
        return "the change before is not settled"
    if known is None and len(roster.keys) >= KEYS_KEPT_MAX:
        return f"{KEYS_KEPT_MAX} sites of the run have changed their keys already"
    if chain.first != former.first or chain.changes[:-1] != former.changes or not chain.changes:
        return "it does not follow the key that counts"
    if checker.owner(chain.first) != site or not chain.is_sound(checker):
        return "it is not signed by both keys"
    return ""


def why_not_approved(roster: Roster, checker: Checker, command: ApproveKey) -> str:
    """Why that is no approval of this change by another member."""
    approval, record = command.approval, roster.record(command.by)
    about = (approval.site, approval.number, approval.key_id)
    if about != (command.site, len(command.chain.changes), checker.owner(command.chain.key)):
        return "another change was approved"
    if record is None or record.state != "member" or command.by == command.site:
        return "no other member has approved it"
    if not counts_by_roster(roster, checker, command.by, approval.public_key):
        return "the approval is signed with a key that does not count"
    words = approval_words(roster.run_id, *about)
    return "" if checker.signed(approval.public_key, approval.signature, words) else "the approval is not signed"


def why_not_settled(roster: Roster, checker: Checker, command: SettleKey) -> str:
    """Why the site has not said that it uses its new key."""
    known = keys_of(roster, command.site)
    if known is None or known.is_settled or command.number != len(known.chain.changes):
        return "there is no such change to be settled"
    words = use_words(roster.run_id, command.site, command.number)
    return "" if checker.signed(known.chain.key, command.signature, words) else "the new key has not signed it"


def with_keys(roster: Roster, command: KeyCommand) -> Roster:
    """The roster after a command that is proven."""
    replace = msgspec.structs.replace
    match command:
        case ApproveKey(site=site, chain=chain):
            changed = SiteKeys(site=site, chain=chain, settled=len(chain.changes) - 1)
            sites = roster.sites
        case SettleKey(site=site):
            known = keys_of(roster, site)
            if known is None:  # of a journal's end that was never agreed on
                return roster
            changed = replace(known, settled=len(known.chain.changes))
            sites = tuple(
                replace(record, public_key=known.chain.key) if record.site == site else record
                for record in roster.sites
            )
        case _:
            assert_never(command)
    others = (one for one in roster.keys if one.site != site)
    return replace(roster, keys=tuple(sorted((*others, changed), key=lambda one: one.site)), sites=sites)
