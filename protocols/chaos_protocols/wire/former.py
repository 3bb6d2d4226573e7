"""How what an older version has stored is read: names that were changed since, and what they are called now.

Commands and rosters lie in journals and snapshots for as long as a run lives. When a class or a field of theirs gets
another name, its former one is entered here, and stays: a data directory of the older version then still starts. What
goes over the wire needs no entry, since a name there is changed only with the oldest version that is spoken.

    FORMER_TAGS     {former name of a command: its name now}
    FORMER_FIELDS   {name of a struct now: {former name of a field: its name now, or None if it has gone}}

Values keep their meaning: a field whose meaning changes gets a new name, and a default.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

FORMER_TAGS: dict[str, str] = {
    "AdoptState": "SetRestorePoint",  # until 0.1.0, as all of these
    "RedoRound": "RetryRound",
    "Settled": "RoundResolved",
}
FORMER_FIELDS: dict[str, dict[str, str | None]] = {
    "RemoveLink": {"settle": "resolve"},
    "RemoveSite": {"settle": "resolve"},
    "Roster": {
        "adopted_epoch": "restore_epoch",
        "adopted_from": "restored_from",
        "settled_digest": "resolved_digest",
        "settled_epoch": "resolved_epoch",
        "settled_round": "resolved_round",
        "settling": "resolving",
    },
}

_Stored = TypeVar("_Stored")


class Former:
    """One set of former names. Bytes without any of them, which is all that this version writes, cost one look."""

    def __init__(
        self, tags: Mapping[str, str] = FORMER_TAGS, fields: Mapping[str, Mapping[str, str | None]] = FORMER_FIELDS
    ) -> None:
        self._tags, self._fields = tags, fields
        names = [*tags, *(name for renamed in fields.values() for name in renamed)]
        # As msgpack writes a short text: one byte for its length, then the text.
        parts = [re.escape(bytes([0xA0 | len(name)]) + name.encode()) for name in names if len(name) < 32]
        parts += [re.escape(name.encode()) for name in names if len(name) >= 32]
        self._seen = re.compile(b"|".join(parts)) if parts else None

    def may_be_in(self, data: bytes) -> bool:
        """Whether a former name may stand in these bytes; a value that merely looks like one does no harm."""
        return self._seen is not None and self._seen.search(data) is not None

    def read(self, data: bytes, kind: type[_Stored] | Any) -> Any:
        """Decode as `kind`, with former names understood. Raises what msgspec raises."""
        plain = msgspec.msgpack.decode(data)
        if isinstance(plain, dict) and isinstance(plain.get("type"), str):
            plain["type"] = self._tags.get(plain["type"], plain["type"])
        return msgspec.convert(self._renamed(plain, inspect.type_info(kind)), type=kind)

    def _renamed(self, value: Any, info: inspect.Type) -> Any:
        """`value` with the names of now, all the way down."""
        match info:
            case inspect.UnionType(types=types):
                tag = value.get("type") if isinstance(value, dict) else None
                for one in types:
                    if isinstance(one, inspect.StructType) and one.tag == tag and isinstance(value, dict):
                        return self._renamed(value, one)
                    if isinstance(one, inspect.VarTupleType) and isinstance(value, list):
                        return self._renamed(value, one)
            case inspect.StructType(cls=cls, fields=fields) if isinstance(value, dict):
                renames = self._fields.get(cls.__name__, {})
                types_of = {field.encode_name: field.type for field in fields}
                made: dict[Any, Any] = {}
                for key, one in value.items():
                    name = renames.get(key, key) if isinstance(key, str) else key
                    if name is not None and (name == key or name not in value):  # what is called right comes first
                        made[name] = self._renamed(one, types_of[name]) if name in types_of else one
                return made
            case inspect.VarTupleType(item_type=item) if isinstance(value, list):
                return [self._renamed(one, item) for one in value]
        return value


FORMER = Former()
