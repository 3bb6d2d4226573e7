"""Keys of sites that need no cryptography: a signature is a hash that only this module makes, so that nobody who is
tested has one that was not given to him."""

from __future__ import annotations

from hashlib import blake2b

SECRET = b"known to the rig alone"
KEY_BYTES = 32


def signature_by(public_key: bytes, data: bytes) -> bytes:
    """64 bytes."""
    return blake2b(public_key + b"\x00" + data, key=SECRET, digest_size=64).digest()


def signature_of(site: str, data: bytes) -> bytes:
    """By its first key."""
    return signature_by(first_key(site), data)


def first_key(site: str) -> bytes:
    """Of a site: its id, to be read as such."""
    return site.encode()[:KEY_BYTES]


class RigKeys:
    """One site's: its first key, or the one that it has changed to as often as `number` says."""

    def __init__(self, site: str, number: int = 0) -> None:
        self.site = site
        later = b"\xff" + blake2b(f"{site}/{number}".encode(), digest_size=KEY_BYTES - 1).digest()
        self._public_key = later if number else first_key(site)

    @property
    def public_key(self) -> bytes:
        return self._public_key

    def sign(self, data: bytes) -> bytes:
        return signature_by(self._public_key, data)

    def owner(self, public_key: bytes) -> str:
        """The id of a site whose first key this is."""
        try:
            return public_key.decode()
        except UnicodeDecodeError:
            return blake2b(public_key, digest_size=16).hexdigest()

    def signed(self, public_key: bytes, signature: bytes, data: bytes) -> bool:
        return signature == signature_by(public_key, data)

    def counts(self, site: str, public_key: bytes) -> bool:
        return public_key == first_key(site)

    def verify(self, site: str, public_key: bytes, signature: bytes, data: bytes) -> bool:
        return self.counts(site, public_key) and self.signed(public_key, signature, data)
