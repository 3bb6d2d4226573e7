"""Values of any msgspec type, drawn by hypothesis from the type's own bounds: what the wire tests are made of."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import inspect


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """A strategy for every value that the declared type allows (texts and lists kept short)."""
    return _of(inspect.type_info(kind))


def _of(info: inspect.Type) -> st.SearchStrategy[Any]:
    match info:
        case inspect.UnionType(types=types):
            return st.one_of([_of(one) for one in types])
        case inspect.NoneType():
            return st.none()
        case inspect.BoolType():
            return st.booleans()
        case inspect.IntType(ge=ge, gt=gt, le=le, lt=lt):
            low = ge if ge is not None else (gt + 1 if gt is not None else -(1 << 53))
            high = le if le is not None else (lt - 1 if lt is not None else 1 << 53)
            return st.integers(low, high)
        case inspect.FloatType(ge=ge, gt=gt, le=le, lt=lt):
            low_f = ge if ge is not None else gt
            high_f = le if le is not None else lt
            drawn = st.floats(low_f, high_f, allow_nan=False, allow_infinity=False)
            return drawn.filter(lambda value: (gt is None or value > gt) and (lt is None or value < lt))
        case inspect.StrType(pattern=pattern, min_length=shortest, max_length=limit):
            if pattern is not None:
                return st.from_regex(pattern).filter(lambda text: limit is None or len(text) <= limit)
            return st.text(min_size=shortest or 0, max_size=max(shortest or 0, min(limit or 20, 20)))
        case inspect.BytesType(min_length=low_length, max_length=limit):
            floor = low_length or 0
            return st.binary(min_size=floor, max_size=max(floor, min(limit or 32, 32)))
        case inspect.VarTupleType(item_type=item):
            return st.lists(_of(item), max_size=3).map(tuple)
        case inspect.TupleType(item_types=items):
            return st.tuples(*[_of(one) for one in items])
        case inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(_of(key), _of(value), max_size=3)
        case inspect.StructType(cls=cls, fields=fields) | inspect.DataclassType(cls=cls, fields=fields):
            return st.builds(cls, **{field.name: _of(field.type) for field in fields})
    raise AssertionError(f"no strategy for {info}")


def struct_types(union: Any) -> list[type[msgspec.Struct]]:
    """The struct classes of a union."""
    info = inspect.type_info(union)
    assert isinstance(info, inspect.UnionType)
    return [one.cls for one in info.types if isinstance(one, inspect.StructType)]
