"""The identity of a site: an Ed25519 key that the site makes by itself, and the name that follows from it.

Decides what a site is called: the site id is a fingerprint of the public key, so nobody hands out names and nobody
can take another site's name. Driven by the command line (`chaosd init`), the driver (signed control messages) and the
transport (TLS certificate, proof in the handshake). It never talks to the network.

The certificate is made anew from the key at every load. TLS wants one; nobody trusts it: trust is by site id alone,
which is why its dates and serial number are constants and why no clock has to be right (spec 2.2).
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import os
import secrets
import ssl
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import blake3
import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.x509.oid import NameOID

from chaos_protocols.names import RUN_ID_CHARACTERS, SITE_ID_CHARACTERS, SiteId
from chaos_protocols.wire.handshake import PUBLIC_KEY_BYTES
from chaos_protocols.wire.keys import KeyChain
from chaosd.os_errors import explain
from chaosd.storage.durable import write_new

KEY_FILE = "site.key"
KEY_FILE_MODE = 0o600
KEY_FILE_BYTES_MAX = 4096
"""An Ed25519 key takes 119 bytes as PEM, the longest chain 2,000; a longer file is not one."""
CHAIN_BEGINS, CHAIN_ENDS = b"-----BEGIN CHAOS KEY CHAIN-----\n", b"-----END CHAOS KEY CHAIN-----\n"
"""Between them, after the key: how it has come to be the site's (`chaos_protocols.wire.keys`)."""
CHAIN_OID = x509.ObjectIdentifier("2.25.337351338956082405072163470710561056331")
"""Of the same in the certificate: a number that nobody else has drawn (X.667)."""

_CERTIFICATE_FROM = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
_CERTIFICATE_UNTIL = datetime.datetime(2120, 1, 1, tzinfo=datetime.UTC)


class IdentityError(ValueError):
    """The key of this site cannot be made or read; the text says why and what to do."""


class Checks:
    """The cryptography that needs no key of one's own (`chaos_protocols.wire.keys.Checker`)."""

    def owner(self, public_key: bytes) -> str:
        """The id of a site whose first key this is; empty on malformed input."""
        return site_of(public_key) if len(public_key) == PUBLIC_KEY_BYTES else ""

    def signed(self, public_key: bytes, signature: bytes, data: bytes) -> bool:
        """Whether this key has signed these bytes; False on malformed input."""
        return verify(public_key, signature, data)


CHECKS = Checks()


class Identity(Checks):
    """The key pair of this site. Make one with `Identity.create`, read it back with `Identity.load`."""

    def __init__(self, key: Ed25519PrivateKey, key_path: Path, chain: KeyChain | None = None) -> None:
        """`chain`: how this key has come to be the site's, as its file says; None: it is the first."""
        self._key = key
        self._key_path = key_path
        self.public_key = key.public_key().public_bytes_raw()
        """Raw Ed25519 public key, 32 bytes."""
        self.chain = chain if chain is not None else KeyChain(first=self.public_key)
        """From the site's first key to this one."""
        self.site = site_of(self.chain.first)
        self.certificate_der = _certificate(key, self.site, self.chain)

    @classmethod
    def create(cls, directory: Path | str) -> Identity:
        """Make a new key in `directory` (created if it is missing). Never overwrites one: raises IdentityError."""
        path = Path(directory) / KEY_FILE
        key = Ed25519PrivateKey.generate()
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_new(path, key_text(key), KEY_FILE_MODE)
        except FileExistsError:
            raise IdentityError(
                f"this site already has a key: {path}. To become a new site, move that file away first "
                "(the other sites will no longer know this one)."
            ) from None
        except OSError as error:
            raise IdentityError(f"cannot write the key of this site: {explain(error, path)}.") from error
        return cls(key, path)

    @classmethod
    def load(cls, directory: Path | str, name: str = KEY_FILE) -> Identity:
        """Read the key that `create` made. Raises IdentityError: missing, readable by others, or not an Ed25519 key."""
        path = Path(directory) / name
        try:
            with open(path, "rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                text = file.read(KEY_FILE_BYTES_MAX + 1)
        except FileNotFoundError:
            raise IdentityError(
                f"this site has no key ({path} is missing). Put its copy back; "
                "`chaosd init FOLDER` makes a new one, and so another site."
            ) from None
        except OSError as error:
            raise IdentityError(f"cannot read the key of this site: {explain(error, path)}.") from error
        if mode & 0o077:
            raise IdentityError(
                f"the key of this site, {path}, can be read by other users (mode {mode:o}). "
                f"If nobody copied it, run `chmod 600 {path}`; otherwise make a new one."
            )
        pem, begins, told = text.partition(CHAIN_BEGINS)
        try:
            key = serialization.load_pem_private_key(pem, password=None)
            chain = read_chain(told) if begins else None
        except (ValueError, TypeError, UnsupportedAlgorithm, msgspec.MsgspecError) as error:
            raise IdentityError(f"{path} is not a readable private key. Restore it from a copy.") from error
        if len(text) > KEY_FILE_BYTES_MAX or not isinstance(key, Ed25519PrivateKey):
            raise IdentityError(f"{path} holds another kind of key; Chaos needs Ed25519. Make one with `chaosd init`.")
        identity = cls(key, path, chain)
        if identity.chain.key != identity.public_key or not identity.chain.is_sound(identity):
            raise IdentityError(f"what {path} says of how its key was changed is wrong. Restore it from a copy.")
        return identity

    def sign(self, data: bytes) -> bytes:
        """Ed25519 signature (64 bytes) of `data`. The caller puts a label first, so that no signature serves twice."""
        return self._key.sign(data)

    def text_with(self, chain: KeyChain) -> bytes:
        """What a file with this key holds once that is the chain that leads to it."""
        return key_text(self._key) + _chain_text(chain)

    def load_into(self, context: ssl.SSLContext) -> None:
        """Give a TLS context this site's certificate and key. The standard library takes them from files only; one in
        memory has room where the folder of temporary files has none."""
        certificate = ssl.DER_cert_to_PEM_cert(self.certificate_der).encode()
        with _in_a_file(certificate, self._key_path.parent) as path:
            try:
                context.load_cert_chain(certfile=path, keyfile=str(self._key_path))
            except (OSError, ssl.SSLError) as error:
                raise IdentityError(f"the key file {self._key_path} cannot be used any more: {error}.") from error


@contextlib.contextmanager
def _in_a_file(content: bytes, folder: Path) -> Iterator[str]:
    """The path of a file that holds it: in memory where the system has such files, else in `folder`."""
    if hasattr(os, "memfd_create"):
        with open(os.memfd_create("chaos-certificate"), "wb", buffering=0) as file:
            file.write(content)
            yield f"/proc/self/fd/{file.fileno()}"
        return
    with tempfile.NamedTemporaryFile(prefix="chaos-certificate-", suffix=".pem", dir=folder) as file:
        file.write(content)
        file.flush()
        yield file.name


def new_run_id(run: str, founder: Identity) -> str:
    """Which no other run has, though it be of the same name and the same founder: drawn, not computed."""
    named = run.encode()
    parts = (b"chaos run 1\x00", len(named).to_bytes(4, "big"), named, founder.public_key, secrets.token_bytes(16))
    return blake3.blake3(b"".join(parts)).hexdigest()[:RUN_ID_CHARACTERS]


def verify(public_key_raw: bytes, signature: bytes, data: bytes) -> bool:
    """True when `signature` of `data` was made with the key whose public half this is; False on malformed input."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key_raw).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


def site_of(public_key_raw: bytes) -> SiteId:
    """The site id of a raw Ed25519 public key: the first 32 hexadecimal characters of its BLAKE3."""
    if len(public_key_raw) != PUBLIC_KEY_BYTES:
        raise ValueError(f"an Ed25519 public key has {PUBLIC_KEY_BYTES} bytes, not {len(public_key_raw)}")
    return SiteId(blake3.blake3(public_key_raw).hexdigest()[:SITE_ID_CHARACTERS])


def site_of_certificate(certificate_der: bytes) -> SiteId | None:
    """The site that a TLS certificate speaks for, or None when it is none of ours (hostile input)."""
    chain = chain_of_certificate(certificate_der)
    return site_of_chain(chain) if chain is not None else None


def site_of_chain(chain: KeyChain) -> SiteId | None:
    """The site whose key has come to be the last of this chain; None: its changes are not signed (hostile input)."""
    return site_of(chain.first) if chain.is_sound(CHECKS) else None


def chain_of_certificate(certificate_der: bytes) -> KeyChain | None:
    """How the key of a TLS certificate has come to be that of the site that it names, as the certificate says; None:
    it has no Ed25519 key, or tells of another one (hostile input). Whether it is true is not looked at."""
    try:
        certificate = x509.load_der_x509_certificate(certificate_der)
        key = certificate.public_key()
        if not isinstance(key, Ed25519PublicKey):
            return None
        told = [one.value for one in certificate.extensions if one.oid == CHAIN_OID]
        chain = decode_chain(told[0].value) if told else KeyChain(first=key.public_bytes_raw())
    except Exception:  # a parser fed by a stranger: whatever it raises means "not a certificate of ours"
        return None
    return chain if chain.key == key.public_bytes_raw() else None


def key_text(key: Ed25519PrivateKey) -> bytes:
    """A private key as its file holds it."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _chain_text(chain: KeyChain) -> bytes:
    return CHAIN_BEGINS + base64.encodebytes(msgspec.msgpack.encode(chain)) + CHAIN_ENDS


def read_chain(text: bytes) -> KeyChain:
    """What stands after `CHAIN_BEGINS`. Raises ValueError, msgspec.MsgspecError."""
    body, ends, _ = text.partition(CHAIN_ENDS)
    if not ends:
        raise ValueError("the chain of the key is cut off")
    return decode_chain(base64.decodebytes(body))


def decode_chain(data: bytes) -> KeyChain:
    """Raises msgspec.MsgspecError."""
    return msgspec.msgpack.decode(data, type=KeyChain)


def _certificate(key: Ed25519PrivateKey, site: SiteId, chain: KeyChain) -> bytes:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"chaos site {site}")])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(int(site[:16], 16) | 1)
        .not_valid_before(_CERTIFICATE_FROM)
        .not_valid_after(_CERTIFICATE_UNTIL)
    )
    if chain.changes:
        builder = builder.add_extension(x509.UnrecognizedExtension(CHAIN_OID, msgspec.msgpack.encode(chain)), False)
    return builder.sign(key, None).public_bytes(serialization.Encoding.DER)
