"""The files of a site's key while it is changed: `site.key`, and beside it the next one, `site.key.new` (spec 20.1).

    site.key.new is made         the new key alone; durable before anybody hears of it
    the run has agreed on it     it is written anew, with the chain that leads to it
    the next start of a daemon   it is renamed to `site.key` if it holds that chain
    it is taken back             it is renamed to site.key.cancelled, in case that the run agrees on it all the same

At any moment of a crash both keys are valid for the run, or the next one is not agreed on yet and `site.key` is in use.
Driven by the daemon; a command of the shell only reads.
"""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from chaos_protocols.wire.keys import KeyChain
from chaosd.identity import KEY_FILE, KEY_FILE_MODE, Identity, IdentityError, key_text
from chaosd.storage.durable import write_durably
from chaosd.storage.journal.files import sync_folder

NEXT_KEY_FILE = "site.key.new"
CANCELLED_KEY_FILE = "site.key.cancelled"
"""The last next key that was taken back. Whoever schedules has heard of it, and of the approval, if there was one: the
run may agree on it all the same, and then the site must have it."""


def make_next(directory: Path) -> Identity:
    """The next key, durable; the one that is there already, if there is one. Raises IdentityError, OSError."""
    found = next_key(directory)
    if found is None:
        write_durably(directory / NEXT_KEY_FILE, key_text(Ed25519PrivateKey.generate()), KEY_FILE_MODE)
        found = Identity.load(directory, NEXT_KEY_FILE)
    return found


def next_key(directory: Path) -> Identity | None:
    """The key in `site.key.new`; None: there is none. Raises IdentityError."""
    return Identity.load(directory, NEXT_KEY_FILE) if (directory / NEXT_KEY_FILE).exists() else None


def drop_next(directory: Path) -> None:
    """There is no next key any more; it is set aside. Raises OSError."""
    if (directory / NEXT_KEY_FILE).exists():
        os.replace(directory / NEXT_KEY_FILE, directory / CANCELLED_KEY_FILE)
        sync_folder(directory)


def note_agreed(directory: Path, chain: KeyChain) -> bool:
    """The run has agreed on the newest key of this chain: the next start takes it, also where it was taken back. False:
    it is not here. Raises IdentityError, OSError."""
    found = next_key(directory)
    if (found is None or found.public_key != chain.key) and (directory / CANCELLED_KEY_FILE).exists():
        found = Identity.load(directory, CANCELLED_KEY_FILE)
    if found is None or found.public_key != chain.key:
        return False
    if found.chain != chain:
        write_durably(directory / NEXT_KEY_FILE, found.text_with(chain), KEY_FILE_MODE)
    return True


def take_agreed(directory: Path) -> bool:
    """At the start of a daemon: the next key takes the place of the present one, if the run has agreed on it. Whether
    it did. Raises IdentityError, OSError."""
    found = next_key(directory)
    if found is None or not found.chain.changes:
        return False
    present = Identity.load(directory)
    if found.chain.first != present.chain.first or found.chain.changes[:-1] != present.chain.changes:
        raise IdentityError(
            f"{directory / NEXT_KEY_FILE} does not follow {directory / KEY_FILE}: one of them is of another time, or "
            "of another site. Bring back the `site.key` that the site has used last, or move `site.key.new` away."
        )
    os.replace(directory / NEXT_KEY_FILE, directory / KEY_FILE)
    (directory / CANCELLED_KEY_FILE).unlink(missing_ok=True)
    sync_folder(directory)
    return True
