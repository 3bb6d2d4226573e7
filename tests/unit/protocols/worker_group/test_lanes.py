"""What the processes of a device group say together: one worker's words, made of those of its lanes."""

from __future__ import annotations

import msgspec
import pytest

from chaos_protocols.streams import Share
from chaos_protocols.worker_group import messages as msg
from chaos_protocols.worker_group.lanes import (
    Concord,
    Here,
    Together,
    from_follower,
    from_leader,
    joined,
    lane_frame,
    lane_of,
    lane_prefix,
    order_for,
)


def hello(model: str, *names: str) -> msg.GroupHello:
    layers = tuple(
        msg.LayerReport(
            name=name,
            forward_s=1.0,
            backward_s=1.0,
            optimizer_step_s=1.0,
            parameter_bytes=8,
            optimizer_bytes=16,
            gradient_bytes=8,
            activation_bytes=8,
            output_bytes=8,
        )
        for name in names
    )
    return msg.GroupHello(
        version=msg.VERSION,
        token="t",
        worker=1,
        torch="2",
        model=model,
        layers=layers,
        micro_batches=2,
        micro_batch_size=2,
        memory_bytes=1,
    )


def test_a_device_group_has_one_digest_of_all_its_lanes() -> None:
    one, other = joined([hello("aa", "x"), hello("bb", "x")]), joined([hello("aa", "x"), hello("cc", "x")])
    assert isinstance(one, msg.GroupHello) and isinstance(other, msg.GroupHello)
    assert one.model != other.model and one.layers == other.layers
    with pytest.raises(ValueError, match="have different layers"):
        joined([hello("aa", "x"), hello("aa", "y")])
    for changed in (
        msgspec.structs.replace(hello("aa", "x"), samples=3),
        msgspec.structs.replace(hello("aa", "x"), script="b"),
    ):
        with pytest.raises(ValueError, match="other scripts, or data sets of other lengths"):
            joined([hello("aa", "x"), changed])


def test_squares_are_added_and_losses_averaged_over_lanes() -> None:
    said = [
        msg.Reduced(generation=1, step=2, squares=((0, 1.0), (3, 2.0)), losses=((0, 1.0), (1, 5.0))),
        msg.Reduced(generation=1, step=2, squares=((0, 4.0), (3, 8.0)), losses=((0, 2.0), (1, 6.0))),
    ]
    assert joined(said) == msg.Reduced(generation=1, step=2, squares=((0, 5.0), (3, 10.0)), losses=((0, 1.5), (1, 5.5)))


def test_what_is_said_once_is_the_leaders_and_digests_are_of_all_lanes() -> None:
    ready = msg.PlanReady(generation=4)
    assert joined([ready, msg.PlanReady(generation=4)]) == ready

    def stepped(*digests: str) -> Together:
        lanes = [msg.Stepped(generation=1, step=3, digests=((2, each),), seconds={"forward": 1.0}) for each in digests]
        return joined(lanes)

    one = stepped("aa", "bb")
    assert isinstance(one, msg.Stepped) and one.seconds == {"forward": 1.0}
    assert [layer for layer, _ in one.digests] == [2]
    assert one != stepped("aa", "cc") and one != stepped("bb", "aa") and one == stepped("aa", "bb")


def test_a_lane_moves_the_same_share_of_what_it_has() -> None:
    moves = (msg.StateMove(0, 0, 40, 1, 2), msg.StateMove(0, 40, 100, 3, 2), msg.StateMove(1, 0, 8, 1, 2))
    order = msg.PlanOrder(generation=1, step=0, share=Share(), moves=moves)
    own = order_for(order, leaders=[100, 8], own=[90, 0])
    assert own.moves == (msg.StateMove(0, 0, 36, 1, 2), msg.StateMove(0, 36, 90, 3, 2)), "nothing lost, nothing empty"
    assert order_for(order, leaders=[100, 0], own=[100, 0]).moves == moves[:2]


def test_keys_of_lanes_do_not_meet() -> None:
    assert lane_prefix(0) == "" and lane_of("0-1/rank") == 0 and lane_of("lane3") == 0
    assert lane_of(lane_prefix(12) + "0-1/rank") == 12


def test_words_between_lanes_are_read_as_they_were_said() -> None:
    here = Here(able=True, said=msg.PlanReady(generation=1))
    assert from_follower(lane_frame(here)[4:]) == here
    for said in (Concord(onward=False), msg.Stop(generation=7)):
        assert from_leader(lane_frame(said)[4:]) == said
