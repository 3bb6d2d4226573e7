"""The state spec: which arrays make up the training state, in which order, at which byte; and how two of them differ.

Decides whether two sites train the same model. A worker builds its spec when it registers; the daemon checks it (bytes
from a worker are believed only after `spec_problem`) and sites compare digests before any state moves (spec 11.13).

Every array lies on a multiple of `ITEM_ALIGNMENT_BYTES`, so that both ends can address it in its own type; the gaps are
zero. Things that are no numbers but must agree (the optimizer's class, an option that is on or off) are `facts`:
entries without bytes whose name says it all. They cost nothing in the region and make the first difference readable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import msgspec
from blake3 import blake3

from chaos_protocols.wire.encodings import FACT, FP32, encoding_problem
from chaos_protocols.wire.worker import ContributionSpec, Segment, StateSpec, TensorSpec

ITEM_ALIGNMENT_BYTES = 8
"""The widest plain number; a page boundary would waste 4 kB for every scalar of an optimizer."""

SHARD_BYTES_MIN = 4096
"""A shard is the smallest vector worth addressing; below a page the bookkeeping outweighs it."""

NAME_CHARACTERS_MAX = 512

DIGESTED_AT_ONCE = 4096
"""Lines of the digest: a call for each of a million arrays takes a second."""

DTYPE_BYTES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "uint16": 2,
    "int16": 2,
    "float16": 2,
    "bfloat16": 2,
    "uint32": 4,
    "int32": 4,
    "float32": 4,
    "uint64": 8,
    "int64": 8,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}
"""Bytes of one number of each type that a state may hold."""

MODE = "sync: "
"""How the fact begins that names the mode in which sites train together; a state without one trains every step."""

FACT_DTYPE = "uint8"
FACT_SHAPE = (0,)


class Item(msgspec.Struct, frozen=True, gc=False):
    """One array of the state before it has a place: `dtype` is a key of `DTYPE_BYTES`."""

    name: str
    dtype: str
    shape: tuple[int, ...]


Kind = tuple[str, tuple[int, ...]]
"""Dtype and shape of an array. There are few kinds of very many arrays: what follows from it is found out once."""


def fact(text: str) -> Item:
    """Something that must be equal on all sites and is no number; it takes no bytes. Long texts are cut down to their
    hash."""
    if len(text) > NAME_CHARACTERS_MAX:
        text = f"{text[:400]}...{blake3(text.encode()).hexdigest()}"
    return Item(text, FACT_DTYPE, FACT_SHAPE)


def state_spec(items: Iterable[Item]) -> StateSpec:
    """Give every item its place, in the order given. Raises ValueError on a name used twice, too long, or an unknown
    dtype."""
    tensors: list[TensorSpec] = []
    names: set[str] = set()
    sizes: dict[Kind, int] = {}
    offset = 0
    for item in items:
        name, dtype, shape = item.name, item.dtype, item.shape
        if name in names:
            raise ValueError(f"the state holds two arrays named {name!r}; give each its own name")
        if not name or len(name) > NAME_CHARACTERS_MAX:
            raise ValueError(f"array name {name[:64]!r}... must have 1 to {NAME_CHARACTERS_MAX} characters")
        size = sizes.get((dtype, shape))
        if size is None:
            if dtype not in DTYPE_BYTES:
                raise ValueError(f"array {name!r} has dtype {dtype}; allowed are {', '.join(sorted(DTYPE_BYTES))}")
            size = sizes[dtype, shape] = _size_bytes(dtype, shape)
        names.add(name)
        tensors.append(TensorSpec(name=name, dtype=dtype, shape=shape, offset=offset, size_bytes=size))
        offset = _aligned(offset + size)
    smallest = min((size for (_, shape), size in sizes.items() if shape and size), default=0)
    return StateSpec(
        tensors=tuple(tensors),
        size_bytes=offset,
        shard_bytes=max(SHARD_BYTES_MIN, smallest),
        digest=spec_digest(tensors),
    )


def contribution_spec(
    float64_count: int, float32_count: int, bounded: Iterable[tuple[int, int]] = (), *, parts: int = 1
) -> ContributionSpec:
    """The vector of a round: float64 numbers first, so that both parts are aligned without padding. `bounded`, `parts`:
    see `ContributionSpec`."""
    counts = (("float64", float64_count), ("float32", float32_count))
    segments = tuple(Segment(dtype=dtype, count=count) for dtype, count in counts if count)
    size_bytes = 8 * float64_count + 4 * float32_count
    return ContributionSpec(segments=segments, size_bytes=size_bytes, bounded=tuple(bounded), parts=parts)


def spec_digest(tensors: Iterable[TensorSpec]) -> str:
    """BLAKE3 over names, dtypes and shapes in order (hexadecimal, 64 characters). Offsets follow from these."""
    digest = blake3()
    lines = _digested_lines(tensors)
    while batch := "".join(islice(lines, DIGESTED_AT_ONCE)):
        digest.update(batch.encode())
    return digest.hexdigest()


def _digested_lines(tensors: Iterable[TensorSpec]) -> Iterator[str]:
    endings: dict[Kind, str] = {}
    for tensor in tensors:
        name, kind = tensor.name, (tensor.dtype, tensor.shape)
        ending = endings.get(kind)
        if ending is None:
            ending = endings[kind] = f":{tensor.dtype}:{tensor.shape}\n"
        yield f"{len(name)}:{name}{ending}"


def first_difference(here: StateSpec, there: StateSpec) -> str:
    """Name the first array that differs, in words for a user; empty if the two specs are the same. Sites that train in
    different modes hear that first: all else follows from it."""
    if (mode := _mode(here)) != (other_mode := _mode(there)):
        return f"the sites train in different modes, {mode!r} here and {other_mode!r} there; give sync= alike at all"
    if (form := _told(here, FACT, FP32)) != (other_form := _told(there, FACT, FP32)):
        return (
            f"the sites average in different encodings, {form!r} here and {other_form!r} there; give encoding= alike "
            "at all"
        )
    for mine, other in zip(here.tensors, there.tensors, strict=False):
        if mine.name != other.name:
            names_here = {tensor.name for tensor in here.tensors}
            if other.name not in names_here:
                return f"{_describe(other)} is part of the state there and not here"
            if mine.name not in {tensor.name for tensor in there.tensors}:
                return f"{_describe(mine)} is part of the state here and not there"
            return f"the order differs: {mine.name!r} here stands where {other.name!r} stands there"
        if (mine.dtype, mine.shape) != (other.dtype, other.shape):
            return f"{mine.name!r} is {_type(mine)} here and {_type(other)} there"
    if len(here.tensors) > len(there.tensors):
        return f"{_describe(here.tensors[len(there.tensors)])} is part of the state here and not there"
    if len(here.tensors) < len(there.tensors):
        return f"{_describe(there.tensors[len(here.tensors)])} is part of the state there and not here"
    return ""


def spec_problem(state: StateSpec, contribution: ContributionSpec) -> str:
    """What is wrong with specs that came from outside; empty if they can be worked with. Never raises."""
    sizes: dict[Kind, int] = {}
    offset = 0
    for tensor in state.tensors:
        kind = (tensor.dtype, tensor.shape)
        size = sizes.get(kind)
        if size is None:
            if tensor.dtype not in DTYPE_BYTES:
                return f"array {tensor.name!r} has the unknown dtype {tensor.dtype!r}"
            if any(length < 0 for length in tensor.shape):
                return f"array {tensor.name!r} has a negative length in its shape"
            size = sizes[kind] = _size_bytes(*kind)
        if tensor.size_bytes != size:
            return f"array {tensor.name!r} claims {tensor.size_bytes} bytes, which its shape and dtype do not give"
        if tensor.offset != offset:
            return f"array {tensor.name!r} lies at byte {tensor.offset}, expected {offset}"
        offset = _aligned(offset + size)
    if state.size_bytes != offset:
        return f"the state claims {state.size_bytes} bytes, its arrays need {offset}"
    if state.digest != spec_digest(state.tensors):
        return "the digest of the state spec does not fit its arrays"
    if problem := contribution_problem(contribution):
        return problem
    if contribution.encoding != (told := _told(state, FACT, FP32)):
        return f"the contribution is to travel in {contribution.encoding}, the state says {told}"
    return ""


def contribution_problem(contribution: ContributionSpec) -> str:
    """The same of what is averaged, by itself."""
    types = [segment.dtype for segment in contribution.segments]
    if types != sorted(types, reverse=True):
        return "float64 segments of a contribution must come first"
    size = sum(DTYPE_BYTES[segment.dtype] * segment.count for segment in contribution.segments)
    if contribution.size_bytes != size:
        return f"the contribution claims {contribution.size_bytes} bytes, its segments need {size}"
    return encoding_problem(contribution.encoding) or _bounded_problem(contribution)


def _bounded_problem(contribution: ContributionSpec) -> str:
    """Each range lies behind the one before, within the vector, and has whole numbers of the type that lies there."""
    wide = sum(8 * segment.count for segment in contribution.segments if segment.dtype == "float64")
    before = 0
    for start, stop in contribution.bounded:
        items = all(edge % (8 if edge < wide else 4) == 0 for edge in (start, stop))
        if not (before <= start < stop <= contribution.size_bytes and items):
            return f"the contribution has no numbers at bytes {start} to {stop} that a bound could concern"
        before = stop
    return ""


def state_digest(region: bytes | bytearray | memoryview) -> str:
    """BLAKE3 over the bytes of a state region (gaps included, they are zero): what two replicas compare."""
    return blake3(region).hexdigest()


def _size_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    size = DTYPE_BYTES[dtype]
    for length in shape:
        size *= length
    return size


def _aligned(offset: int) -> int:
    return -(-offset // ITEM_ALIGNMENT_BYTES) * ITEM_ALIGNMENT_BYTES


def _type(tensor: TensorSpec) -> str:
    return f"{tensor.dtype}{list(tensor.shape)}"


def _mode(spec: StateSpec) -> str:
    return _told(spec, MODE, "every step")


def _told(spec: StateSpec, begin: str, default: str) -> str:
    """What the fact that begins so says."""
    facts = (tensor.name for tensor in spec.tensors if _is_fact(tensor) and tensor.name.startswith(begin))
    return next(facts, begin + default).removeprefix(begin)


def _is_fact(tensor: TensorSpec) -> bool:
    return tensor.dtype == FACT_DTYPE and tensor.shape == FACT_SHAPE


def _describe(tensor: TensorSpec) -> str:
    if _is_fact(tensor):
        return f"{tensor.name!r}"
    return f"{tensor.name!r} ({_type(tensor)})"
