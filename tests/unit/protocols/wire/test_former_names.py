"""Commands and rosters that a former version has stored, under the names that things had then."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.unit.protocols.one_site import A, B, roster_of

from chaos_protocols.agreement import commands
from chaos_protocols.agreement.commands import encode_command, encode_roster
from chaos_protocols.wire.former import Former


def plain_of(struct: msgspec.Struct) -> dict[str, Any]:
    """As msgpack has it."""
    plain: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(struct))
    return plain


FORMER = Former(
    tags={"Closed": "RoundResolved"},
    fields={
        "RoundResolved": {"number": "round", "gone": None},
        "Roster": {"closed_round": "resolved_round", "closed_epoch": "resolved_epoch"},
        "SiteRecord": {"start": "incarnation"},
    },
)


def test_a_command_with_its_former_name_and_fields_is_read() -> None:
    now = commands.RoundResolved(round=3, digest="ab", holders=(A,), views=roster_of(A, B).views)
    plain = plain_of(now)
    plain["type"], plain["number"], plain["gone"] = "Closed", plain.pop("round"), 5
    data = msgspec.msgpack.encode(plain)
    assert FORMER.may_be_in(data) and FORMER.read(data, commands.Command) == now


def test_a_roster_with_former_names_at_any_depth_is_read_and_no_default_hides_them() -> None:
    now = msgspec.structs.replace(roster_of(A, B), resolved_round=4, resolved_epoch=6)
    plain = plain_of(now)
    plain["closed_round"], plain["closed_epoch"] = plain.pop("resolved_round"), plain.pop("resolved_epoch")
    for site in plain["sites"]:
        site["start"] = site.pop("incarnation")
    data = msgspec.msgpack.encode(plain)
    assert FORMER.may_be_in(data) and FORMER.read(data, commands.Roster) == now
    assert not FORMER.may_be_in(encode_roster(now)), "what this version writes is read the short way"


def test_what_is_called_right_comes_before_a_former_name_and_values_are_left_alone() -> None:
    departed = commands.Departure(site=A, incarnation=1, last_round=3, cause="left", reason="number")
    command = commands.RemoveSite(departure=departed, resolve=False, views=())
    data = encode_command(command)
    assert FORMER.may_be_in(data) and FORMER.read(data, commands.Command) == command
    both = {**plain_of(commands.RoundResolved(round=3, digest="", holders=(), views=())), "number": 9}
    assert FORMER.read(msgspec.msgpack.encode(both), commands.Command).round == 3


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Of `Whole`."""

    round: int


class Whole(msgspec.Struct, frozen=True, kw_only=True):
    """Something with a list that may be missing."""

    parts: tuple[Part, ...] | None = None


def test_former_names_are_found_in_a_list_that_may_also_be_missing() -> None:
    former = Former(tags={}, fields={"Part": {"number": "round"}})
    data = msgspec.msgpack.encode({"parts": [{"number": 4}, {"round": 5}]})
    assert former.read(data, Whole) == Whole(parts=(Part(round=4), Part(round=5)))
    assert former.read(msgspec.msgpack.encode({"parts": None}), Whole) == Whole()
