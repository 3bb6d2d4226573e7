"""What every command of the agreement has, and the two about keys (`key_commands.py` checks them). The others
stand in `commands.py`."""

from __future__ import annotations

import msgspec

from chaos_protocols.wire.keys import KeyApproval, KeyChain, Name, Number, Signature
from chaos_protocols.wire.versions import Version


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """What every command has."""

    needs: Version = 0
    """The version that a site must speak to apply it; 0: all do. Filled in by `encode_command`."""


class ApproveKey(Stored, frozen=True, kw_only=True, tag=True):
    """From now on the new key of `site`, the last of `chain`, counts beside the former one (since version 10)."""

    site: Name
    chain: KeyChain
    by: Name
    """The member whose operator has approved it."""
    approval: KeyApproval


class SettleKey(Stored, frozen=True, kw_only=True, tag=True):
    """The site uses its new key, as that has signed: the former one counts no more (since version 10)."""

    site: Name
    number: Number
    signature: Signature
