"""Which version a value needs: fields with another value than their default that came after others were read."""

from __future__ import annotations

from functools import lru_cache

import msgspec
import msgspec.inspect

Since = frozenset[tuple[tuple[type[msgspec.Struct], str], int]]
"""Fields of structs, and the version that brought each."""


@lru_cache(maxsize=128)
def _may_hold(kind: type[msgspec.Struct], since: Since) -> bool:
    """Whether a struct of this kind, or one within it, has a field in `since`: all others, the members and links of a
    large run among them, are not looked at."""
    wanted, seen, todo = {one for (one, _), _ in since}, set(), [msgspec.inspect.type_info(kind)]
    while todo:
        info = todo.pop()
        match info:
            case msgspec.inspect.StructType(cls=cls, fields=fields) if cls not in seen:
                if cls in wanted:
                    return True
                seen.add(cls)
                todo += [field.type for field in fields]
            case msgspec.inspect.UnionType(types=types):
                todo += types
            case msgspec.inspect.VarTupleType(item_type=item):
                todo.append(item)
            case msgspec.inspect.TupleType(item_types=items):
                todo += items
            case msgspec.inspect.Metadata(type=inner):
                todo.append(inner)
    return False


@lru_cache(maxsize=128)
def _fields_of(kind: type[msgspec.Struct], since: Since) -> tuple[tuple[str, object, int], ...]:
    """Name and default of each field, and the version that brought it (0: all have it). Looked up once: it takes as
    long as all the rest of a proposal."""
    known = dict(since)
    return tuple((one.name, one.default, known.get((kind, one.name), 0)) for one in msgspec.structs.fields(kind))


def needed(value: object, since: Since) -> int:
    """The newest version that brought a field which says something in `value`, or in what it holds; 0: all have all."""
    if isinstance(value, tuple):
        return max((needed(one, since) for one in value if isinstance(one, msgspec.Struct | tuple)), default=0)
    if not isinstance(value, msgspec.Struct) or not _may_hold(type(value), since):
        return 0
    newest = 0
    for name, default, version in _fields_of(type(value), since):
        held = getattr(value, name)
        newest = max(newest, needed(held, since))
        if held != default:
            newest = max(newest, version)
    return newest
