"""The tables of docs/protocols/spec.md say what the code says: fields of messages, commands, limits, times."""

from __future__ import annotations

import re
from functools import cache

import pytest
from tests.tidy import names
from tests.tidy.test_citations import SPEC

from chaos_protocols.agreement.commands import Command
from chaos_protocols.agreement.raft.messages import RaftMessage
from chaos_protocols.settings import SiteSettings
from chaos_protocols.wire import bulk
from chaos_protocols.wire.control import Message

UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
SHOWN = re.compile(r"`([^`]+)`")

SINGLE_TABLES = {
    "3.1": "Heartbeat",
    "4.2": "Envelope",
    "4.6": "LinkStateAdvertisement",
    "7.3": "SiteStatus",
    "9.22": "RoundWaits",
    "10.2": "RoundStatusReply",
}
"""Tables with a row for each field, by the rule that they follow."""

VALUES = {"control", "bulk", "learner", "member", "left", "failed", "banned"}
"""What a field may be, shown like a field."""

NOT_SENT = {"raw"}
"""A field for the site itself: the envelope as it came, byte for byte."""

UNTABLED = {
    "Goodbye",
    "Heartbeat",
    "KeysTold",
    "LinkStateAdvertisement",
    "OlderStartRefused",
    "RaftEnvelope",
    "RoundStatusReply",
    "RoundStatusQuery",
    "RoundWaits",
    "SiteStatus",
}
"""Messages with a rule, or a table, of their own."""


@cache
def tables() -> dict[str, list[list[str]]]:
    """Rows of each table, its head left out, by the rule that stands before it."""
    found: dict[str, list[list[str]]] = {}
    rule = ""
    for line in SPEC.read_text(encoding="utf-8").splitlines():
        begun = re.match(r"- \*\*(\d+\.\d+)\*\*", line)
        if begun:
            rule = begun[1]
        elif line.startswith("|"):
            found.setdefault(rule, []).append([cell.strip() for cell in line.strip("|").split("|")])
    return {rule: rows[2:] for rule, rows in found.items()}


def shown_names(cell: str) -> list[str]:
    return [name for name in SHOWN.findall(cell) if name.isidentifier()]


def fields_of(name: str) -> set[tuple[str, ...]]:
    return {tuple(one for one in fields if one not in NOT_SENT) for fields in names.fields()[name] if fields}


@pytest.mark.parametrize(("rule", "name"), SINGLE_TABLES.items())
def test_a_table_of_fields_has_the_fields_of_the_message(rule: str, name: str) -> None:
    listed = tuple(field for row in tables()[rule] for field in shown_names(row[0]))
    assert listed in fields_of(name)


@pytest.mark.parametrize("rule", ["2.4", "5.1", "6.1", "6.2", "8.1"])
def test_a_table_of_structures_has_the_fields_of_each(rule: str) -> None:
    wrong = []
    for row in tables()[rule]:
        (name,) = shown_names(row[0])
        listed = set(shown_names(row[-2] if rule == "6.2" else row[-1]))
        known = [set(one) for one in fields_of(name)] or [set()]
        if not any(listed - VALUES == one - VALUES for one in known):
            wrong.append(f"{name}: {sorted(listed)}, the code has {known}")
    assert wrong == []


def test_every_message_command_and_bulk_header_has_its_row() -> None:
    rows = {shown for rule in ("5.1", "6.2", "8.1") for row in tables()[rule] for shown in shown_names(row[0])}
    declared = {one.__name__ for one in (*Message.__args__, *Command.__args__, *RaftMessage.__args__)}
    assert declared - UNTABLED <= rows
    kinds = {shown for rule in ("9.9", "11.4") for row in tables()[rule] for shown in SHOWN.findall(row[0])}
    assert kinds == {one.__struct_config__.tag for one in bulk.BulkHeader.__args__}


def test_the_rows_of_bulk_headers_name_their_fields() -> None:
    wrong = []
    for row in (*tables()["9.9"], *tables()["11.4"]):
        for kind in SHOWN.findall(row[0]):
            (header,) = (one for one in bulk.BulkHeader.__args__ if one.__struct_config__.tag == kind)
            listed = tuple(dict.fromkeys(one for one in shown_names(row[2]) if one in header.__struct_fields__))
            if listed != header.__struct_fields__:
                wrong.append(f"{kind}: {listed}, has {header.__struct_fields__}")
    assert wrong == []


def value_of(cell: str) -> float:
    number, _, unit = cell.partition(" ")
    return float(number.replace(",", "")) * UNITS[unit] if unit else float(number.replace(",", ""))


@pytest.mark.parametrize("row", tables()["16.1"], ids=lambda row: row[0].strip("`"))
def test_a_limit_has_the_value_of_the_code(row: list[str]) -> None:
    (name,) = SHOWN.findall(row[0])
    assert value_of(row[1]) in names.constants()[name]


def test_every_derived_time_stands_there_with_its_share() -> None:
    rows = [(SHOWN.findall(row[0])[0], row[1].split(",")[0]) for row in tables()["15.1"]]
    shares = {name: float(share) for name, share in rows}
    derived = [name for name, value in vars(SiteSettings).items() if isinstance(value, property)]
    settings = SiteSettings(failure_timeout_s=10.0)
    assert shares == {name: pytest.approx(getattr(settings, name) / 10.0) for name in derived}
