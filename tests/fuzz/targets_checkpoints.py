"""Fuzz target: a checkpoint, which may be another site's or another program's."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterable

from chaos_protocols.names import SiteId
from chaos_protocols.wire.plans import CheckpointFacts
from chaos_protocols.wire.state_spec import Item, fact, state_spec
from chaosd.storage.checkpoint_file import LENGTH_BYTES, CheckpointError, load_file, read_head
from chaosd.storage.checkpoints import CheckpointFolder
from chaosd.storage.exchange import import_file
from tests.fuzz.engine import Target
from tests.fuzz.mutate import Form
from tests.fuzz.targets_files import folder

SPEC = state_spec([Item("w", "float32", (2, 2)), fact("opt: Adam"), Item("z", "complex128", ())])
SITE = SiteId("5" * 32)


def go_on() -> bool:
    return False


@functools.cache
def _whole() -> bytes:
    """What a site has written."""
    place = folder() / "written"
    facts = CheckpointFacts(lineage=2, round=10, spec_digest=SPEC.digest)
    made = CheckpointFolder(place, run="ward", site=SITE, kept=1)
    made.write(memoryview(bytes(range(SPEC.size_bytes))), SPEC, facts, 4, go_on)
    (path,) = place.iterdir()
    return path.read_bytes()


def _header(whole: bytes) -> bytes:
    return whole[LENGTH_BYTES : LENGTH_BYTES + int.from_bytes(whole[:LENGTH_BYTES], "little")]


def _seeds() -> Iterable[bytes]:
    """Headers, to which length and numbers are added; and whole files."""
    yield b"\x00" + _header(_whole())
    yield b'\x00{"w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}'
    yield b"\x01" + _whole()
    yield b"\x01" + _whole()[:-5]


def _checkpoint(data: bytes) -> str:
    """A state that is wholly this file's, or a word why not; and what comes into a folder can be loaded from there."""
    file = data[1:]
    if data[:1] == b"\x00":
        file = len(file).to_bytes(LENGTH_BYTES, "little") + file + _whole()[-SPEC.size_bytes :]
    path, place = folder() / "a.safetensors", folder() / "imported"
    path.write_bytes(file)
    shutil.rmtree(place, ignore_errors=True)
    with path.open("rb") as opened:
        head = read_head(opened)
    target, facts = import_file(path, place, run="ward", round_number=None)
    assert facts.round == head.facts.round and target.is_file()
    state = memoryview(bytearray(SPEC.size_bytes))
    with target.open("rb") as opened:
        load_file(opened, state, SPEC, stopped=go_on)
    return "a state"


TARGETS = (
    Target(
        name="checkpoint",
        run=_checkpoint,
        refusals=(CheckpointError,),
        seeds=_seeds,
        form=Form.TEXT,
        prefix=1,
        tokens=(
            b'"__metadata__":{}',
            b'"data_offsets":[16,0]',
            b'"data_offsets":[0,1e99]',
            b'"shape":[-1]',
            b"9" * 400,
        ),
    ),
)
