"""Keys of sites that need no cryptography: a signature is a hash that only this module makes, so that nobody who is
tested has one that was not given to him."""

from __future__ import annotations

from hashlib import blake2b

SECRET = b"known to the rig alone"


def signature_of(site: str, data: bytes) -> bytes:
    """64 bytes."""
    return blake2b(site.encode() + b"\x00" + data, key=SECRET, digest_size=64).digest()


class RigKeys:
    """One site's."""

    def __init__(self, site: str) -> None:
        self.site = site

    @property
    def public_key(self) -> bytes:
        return self.site.encode()[:32]

    def sign(self, data: bytes) -> bytes:
        return signature_of(self.site, data)

    def verify(self, site: str, public_key: bytes, signature: bytes, data: bytes) -> bool:
        return public_key == site.encode()[:32] and signature == signature_of(site, data)
