"""What a site says that has recovered a run without a majority of its voters, and how a site came to such a run
(spec 21, decision 0028).

A recovered run is another run: it has an id of its own, so no word of the former one counts in it. The statement is
shown in handshakes to sites of the former run, where it is for their operators: nothing but words follows from it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec
from blake3 import blake3

from chaos_protocols.names import RUN_ID_CHARACTERS, SITES_MAX, SiteId
from chaos_protocols.wire.keys import Name, PublicKey, RunName, Signature, Signer

NUMBER_BYTES = 16
"""Drawn for each recovery, so that two of one run at one site are two runs."""

FORMER_MAX = 8
"""Ids that the run had before, the newest first: a site that has slept through several recoveries still finds its own.
"""

WITHOUT_MAX = 16
"""Sites that an operator gives up in one recovery; of the voters there are 7 at most."""

RECOVERED_LABEL = b"chaos run recovered 1\x00"
NAME_LABEL = b"chaos recovered run id 1\x00"

Generation = Annotated[int, msgspec.Meta(ge=2, lt=1 << 31)]
Number = Annotated[bytes, msgspec.Meta(min_length=NUMBER_BYTES, max_length=NUMBER_BYTES)]


class RunRecovered(msgspec.Struct, frozen=True, kw_only=True):
    """`by` has recovered the run `former[0]`, without these sites: it is the run `run_id` from then on. `generation`: 2
    for the first recovery of a run. `signature`: of `by`'s key `public_key`, over `recovered_words`."""

    former: Annotated[tuple[RunName, ...], msgspec.Meta(max_length=FORMER_MAX)]
    run_id: RunName
    generation: Generation
    by: Name
    without: Annotated[tuple[Name, ...], msgspec.Meta(max_length=WITHOUT_MAX)]
    number: Number
    public_key: PublicKey
    signature: Signature = b""


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """How a site came to the run that it is in, as its journal says: by a recovery of its own, or by one that its
    operator has had it follow. `sites`: those of the former run, which may connect to hear of it. Never sent but for
    the statement."""

    statement: RunRecovered
    sites: Annotated[tuple[Name, ...], msgspec.Meta(max_length=SITES_MAX)] = ()


def recovered_run_id(former: str, generation: int, by: SiteId, number: bytes) -> str:
    """The id of the run that is made of `former`."""
    said = msgspec.msgpack.encode((former, generation, by, number))
    return blake3(NAME_LABEL + said).hexdigest(length=RUN_ID_CHARACTERS // 2)


def recovered_words(one: RunRecovered) -> bytes:
    """What is signed."""
    said = (one.former, one.run_id, one.generation, one.by, one.without, one.number)
    return RECOVERED_LABEL + msgspec.msgpack.encode(said)


def make_statement(
    origin: Origin | None, run_id: str, site: SiteId, without: tuple[SiteId, ...], number: bytes, signer: Signer
) -> RunRecovered:
    """Of the recovery of the run `run_id` by this site. `origin`: how this site came to that run."""
    before = origin.statement if origin is not None else None
    generation = before.generation + 1 if before is not None else 2
    former = (run_id, *(before.former if before is not None else ()))[:FORMER_MAX]
    bare = RunRecovered(
        former=former,
        run_id=recovered_run_id(run_id, generation, site, number),
        generation=generation,
        by=site,
        without=without,
        number=number,
        public_key=signer.public_key,
    )
    return msgspec.structs.replace(bare, signature=signer.sign(recovered_words(bare)))


def is_true(one: RunRecovered, verify: Callable[[SiteId, bytes, bytes, bytes], bool]) -> bool:
    """Whether `by` has said so, and the run has the id that follows from it. `verify`: whether that key counts for the
    site, and has signed these bytes."""
    if not one.former or one.run_id != recovered_run_id(one.former[0], one.generation, one.by, one.number):
        return False
    return verify(one.by, one.public_key, one.signature, recovered_words(one))
