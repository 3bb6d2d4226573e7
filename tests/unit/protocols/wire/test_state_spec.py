"""What makes two models the same, how a difference is told, and which claims of a worker are not believed."""

from __future__ import annotations

import pytest
from blake3 import blake3
from msgspec.structs import replace

from chaos_protocols.names import WORKER_FRAME_BYTES_MAX
from chaos_protocols.wire.arena import REGION_ALIGNMENT_BYTES, arena_layout
from chaos_protocols.wire.state_spec import (
    FACT_DTYPE,
    FACT_SHAPE,
    NAME_CHARACTERS_MAX,
    SHARD_BYTES_MIN,
    Item,
    contribution_spec,
    fact,
    first_difference,
    spec_digest,
    spec_problem,
    state_digest,
    state_spec,
)
from chaos_protocols.wire.worker import ContributionSpec, Segment, StateSpec, WorkerRefused, encode

WEIGHT, BIAS, COUNT = Item("weight", "float32", (3, 5)), Item("bias", "float16", (3,)), Item("steps", "int64", ())
FACT = Item("optimizer = SGD", FACT_DTYPE, FACT_SHAPE)
GIVEN = contribution_spec(0, 4)


def test_every_array_begins_at_a_multiple_of_eight_and_the_next_one_behind_it() -> None:
    spec = state_spec([WEIGHT, BIAS, FACT, COUNT])
    assert [(one.offset, one.size_bytes) for one in spec.tensors] == [(0, 60), (64, 6), (72, 0), (72, 8)]
    assert spec.size_bytes == 80


def test_a_shard_is_the_smallest_vector_but_at_least_a_page() -> None:
    assert state_spec([WEIGHT, BIAS]).shard_bytes == SHARD_BYTES_MIN
    wide = [Item("a", "float64", (4096,)), Item("b", "float32", (2048,)), COUNT, FACT]
    assert state_spec(wide).shard_bytes == 8192, "scalars and facts are no vectors"


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ([WEIGHT, WEIGHT], "two arrays named 'weight'"),
        ([Item("", "float32", (1,))], "1 to 512 characters"),
        ([Item("n" * (NAME_CHARACTERS_MAX + 1), "float32", (1,))], "1 to 512 characters"),
        ([Item("x", "object", (1,))], "dtype object; allowed are"),
    ],
)
def test_a_state_that_cannot_be_described_is_refused_in_words(items: list[Item], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        state_spec(items)


def test_the_digest_follows_names_types_shapes_and_their_order_alone() -> None:
    base = state_spec([WEIGHT, BIAS])
    assert state_spec([WEIGHT, BIAS]).digest == base.digest
    others = [[BIAS, WEIGHT], [WEIGHT], [replace(WEIGHT, shape=(5, 3)), BIAS], [replace(WEIGHT, dtype="int32"), BIAS]]
    assert len({base.digest, *(state_spec(items).digest for items in others)}) == 5


def test_the_digest_is_that_of_a_line_for_each_array() -> None:
    twins = [Item(name, "float32", (3, 5)) for name in ("weight", "a", "b")]
    lines = "6:weight:float32:(3, 5)\n1:a:float32:(3, 5)\n1:b:float32:(3, 5)\n5:steps:int64:()\n"
    assert state_spec([*twins, COUNT]).digest == blake3(lines.encode()).hexdigest()


@pytest.mark.parametrize(
    ("here", "there", "words"),
    [
        ([WEIGHT], [WEIGHT], ""),
        ([WEIGHT, BIAS], [WEIGHT], "'bias' (float16[3]) is part of the state here and not there"),
        ([WEIGHT], [WEIGHT, FACT], "'optimizer = SGD' is part of the state there and not here"),
        ([WEIGHT, BIAS], [WEIGHT, COUNT], "'steps' (int64[]) is part of the state there and not here"),
        ([WEIGHT, COUNT, BIAS], [WEIGHT, BIAS], "'steps' (int64[]) is part of the state here and not there"),
        ([WEIGHT, BIAS], [BIAS, WEIGHT], "the order differs: 'weight' here stands where 'bias' stands there"),
        ([WEIGHT], [replace(WEIGHT, shape=(9,))], "'weight' is float32[3, 5] here and float32[9] there"),
    ],
)
def test_the_first_difference_is_named(here: list[Item], there: list[Item], words: str) -> None:
    assert first_difference(state_spec(here), state_spec(there)) == words


def changed(**changes: object) -> StateSpec:
    return replace(state_spec([WEIGHT, BIAS]), **changes)


def one_array(**changes: object) -> StateSpec:
    spec = state_spec([WEIGHT])
    tensors = (replace(spec.tensors[0], **changes),)
    return replace(spec, tensors=tensors, digest=spec_digest(tensors))


def second_of_a_kind(**changes: object) -> StateSpec:
    spec = state_spec([WEIGHT, replace(WEIGHT, name="twin")])
    tensors = (spec.tensors[0], replace(spec.tensors[1], **changes))
    return replace(spec, tensors=tensors, digest=spec_digest(tensors))


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (one_array(dtype="object"), "unknown dtype"),
        (one_array(shape=(-3, -5)), "negative length"),
        (one_array(size_bytes=64), "which its shape and dtype do not give"),
        (one_array(offset=8), "lies at byte 8, expected 0"),
        (second_of_a_kind(dtype="object"), "'twin' has the unknown dtype"),
        (second_of_a_kind(shape=(-3, -5)), "'twin' has a negative length"),
        (second_of_a_kind(size_bytes=64), "'twin' claims 64 bytes"),
        (second_of_a_kind(offset=60), "'twin' lies at byte 60, expected 64"),
        (changed(size_bytes=8), "its arrays need 72"),
        (changed(digest="00"), "digest"),
        (state_spec([WEIGHT, BIAS]), ""),
    ],
)
def test_a_workers_claims_about_its_state_are_computed_again(state: StateSpec, words: str) -> None:
    problem = spec_problem(state, GIVEN)
    assert words in problem and bool(words) == bool(problem)


def test_a_workers_claims_about_its_contribution_are_computed_again() -> None:
    state = state_spec([WEIGHT])
    assert contribution_spec(2, 3) == ContributionSpec(
        segments=(Segment(dtype="float64", count=2), Segment(dtype="float32", count=3)), size_bytes=28
    )
    turned = ContributionSpec(segments=contribution_spec(2, 3).segments[::-1], size_bytes=28)
    assert "must come first" in spec_problem(state, turned)
    assert "need 28" in spec_problem(state, replace(contribution_spec(2, 3), size_bytes=32))


def test_two_replicas_have_one_digest_only_if_every_byte_is_the_same() -> None:
    assert state_digest(bytes(80)) == state_digest(bytearray(80)) != state_digest(bytes(79) + b"\1")


def test_the_regions_of_an_arena_lie_on_pages_one_behind_the_other() -> None:
    layout = arena_layout(REGION_ALIGNMENT_BYTES + 1, 10)
    page = REGION_ALIGNMENT_BYTES
    assert (layout.contribution_offset, layout.result_offset, layout.state_offset) == (0, 2 * page, 4 * page)
    assert layout.size_bytes == 5 * page


def test_a_frame_to_the_worker_that_is_too_long_is_never_made(monkeypatch: pytest.MonkeyPatch) -> None:
    assert WORKER_FRAME_BYTES_MAX == 64 << 20
    monkeypatch.setattr("chaos_protocols.wire.worker.WORKER_FRAME_BYTES_MAX", 100)
    with pytest.raises(ValueError, match="exceeds the limit"):
        encode(WorkerRefused(reason="x" * 200))


def test_a_fact_that_is_too_long_for_a_name_is_cut_down_to_its_hash() -> None:
    short, long, other = fact("a=1"), fact("x" * 900), fact("x" * 899 + "y")
    assert short.name == "a=1" and len(long.name) <= NAME_CHARACTERS_MAX and long.name != other.name
