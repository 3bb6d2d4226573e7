"""Invariant 11, of keys: what the run agrees on is what a site has made and another member's operator has approved.

Told anew from the rig's keys, whose signatures are the same each time: no check of the protocols is asked.
"""

from __future__ import annotations

from chaos_protocols.agreement.commands import Command
from chaos_protocols.agreement.key_commands import ApproveKey, SettleKey
from chaos_protocols.agreement.roster import Roster
from chaos_protocols.names import SiteId
from chaos_protocols.wire.keys import KeyChain, approval_words, use_words, with_change
from tests.rigs.keys import RigKeys


def true_chain(site: str, changes: int, run_id: str) -> KeyChain:
    """That of a site which has changed its key so often."""
    chain = KeyChain(first=RigKeys(site).public_key)
    for number in range(changes):
        chain = with_change(chain, run_id, RigKeys(site, number), RigKeys(site, number + 1))
    return chain


def changes_nothing(roster: Roster, command: Command) -> bool:
    """Whether it is about a key, and lacks what proves it: then it is as if it had not been said, whoever proposed
    it."""
    match command:
        case ApproveKey():
            return not _is_approved(roster, command)
        case SettleKey(site=site, number=number, signature=signature):
            made, settled = _state(roster, site)
            proof = RigKeys(site, number).sign(use_words(roster.run_id, site, number))
            return not (settled < made == number and signature == proof)
    return False


def _is_approved(roster: Roster, command: ApproveKey) -> bool:
    site, by, approval = command.site, command.by, command.approval
    made, settled = _state(roster, site)
    record, number = roster.record(by), made + 1
    if roster.record(site) is None or record is None or record.state != "member" or by == site or settled != made:
        return False
    key_id = RigKeys(site).owner(RigKeys(site, number).public_key)
    by_made, by_settled = _state(roster, by)
    signers = [RigKeys(by, one) for one in range(by_settled, by_made + 1)]
    words = approval_words(roster.run_id, site, number, key_id)
    return (
        command.chain == true_chain(site, number, roster.run_id)
        and (approval.site, approval.number, approval.key_id) == (site, number, key_id)
        and any((one.public_key, one.sign(words)) == (approval.public_key, approval.signature) for one in signers)
    )


def _state(roster: Roster, site: SiteId) -> tuple[int, int]:
    """How many changes of its key are agreed, and how many of these are settled."""
    known = next((one for one in roster.keys if one.site == site), None)
    return (len(known.chain.changes), known.settled) if known is not None else (0, 0)
