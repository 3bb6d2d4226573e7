"""How a known input is changed: bytes, msgpack values or lines of text, and words that the target's format knows.

Pure: the same input, target and `random.Random` give the same change.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from tests.fuzz.engine import Target


class Form(Enum):
    """What an input looks like, besides bytes."""

    BYTES = "bytes"
    MSGPACK = "msgpack"
    TEXT = "text"


CHANGES_MAX = 4
NUMBERS = (
    -(1 << 63),
    -(1 << 31),
    -1,
    0,
    1,
    31,
    32,
    127,
    128,
    255,
    4096,
    (1 << 31) - 1,
    1 << 32,
    (1 << 53) - 1,
    1 << 53,
)
LENGTHS = (0, 1, 3, 0x7F, 0xFF, 0x7FF, 0x801, 0xFFFF, 0x10001, 0x1000001, 0x400001, 0x7FFFFFFF, 0xFFFFFFFF)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0.0, -1.5, 1e308, float("inf"), float("nan"), "", "x", "\x00", "é" * 40, b"", b"\xff" * 32),
    *([], {}, [[]], {"a": 1}, [1, 2, 3], "a" * 33, "0" * 64, *NUMBERS[2:], 1e15, 1e-300),
)
TEXT_VALUES = (
    *('""', "0", "-1", "1e999", "nan", "inf", "true", "[]", "{}", "[[]]", "1979-05-27", '"""', "'\\'"),
    *('"\\u0000"', '"~nobody/x"', '"~"', '"/"', '"a:b:c"', '"[::1]:1"', "9223372036854775808", "0x7fffffffffffffff"),
    *('"{"', '"{0.x}"', "[", "]"),
)


def mutate(target: Target, data: bytes, rng: random.Random, other: bytes) -> bytes:
    """One to four changes; `other` is another known input, of which parts may be taken."""
    head, body = data[: target.prefix], data[target.prefix :]
    if head and rng.random() < 0.1:
        head = bytes(rng.randrange(256) for _ in head)
    for _ in range(rng.randint(1, CHANGES_MAX)):
        if target.form is Form.MSGPACK and rng.random() < 0.7:
            body = _change_msgpack(body, rng, target.tokens)
        elif target.form is Form.TEXT and rng.random() < 0.7:
            body = _change_text(body, rng, target.tokens)
        else:
            body = _change_bytes(body, rng, target.tokens, other[target.prefix :])
    return head + body


# ---- bytes


def _change_bytes(data: bytes, rng: random.Random, tokens: tuple[bytes, ...], other: bytes) -> bytes:
    ways: tuple[Callable[[bytes, random.Random, tuple[bytes, ...], bytes], bytes], ...]
    ways = (_flip, _set, _insert, _remove, _repeat, _splice, _set_length, _cut)
    return rng.choice(ways)(data, rng, tokens, other)


def _at(data: bytes, rng: random.Random) -> int:
    return rng.randint(0, len(data))


def _flip(data: bytes, rng: random.Random, tokens: tuple[bytes, ...], other: bytes) -> bytes:
    if not data:
        return bytes([rng.randrange(256)])
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]


def _set(data: bytes, rng: random.Random, tokens: tuple[bytes, ...], other: bytes) -> bytes:
    at = _at(data, rng)
    return data[:at] + bytes([rng.choice((0, 1, 0x7F, 0x80, 0xC0, 0xFF, rng.randrange(256)))]) + data[at + 1 :]


def _insert(data: bytes, rng: random.Random, tokens: tuple[bytes, ...], other: bytes) -> bytes:
    at = _at(data, rng)
    piece = rng.choice(tokens) if tokens and rng.random() < 0.7 else rng.randbytes(rng.randint(1, 12))
    return data[:at] + piece + data[at:]


def _remove(data: bytes, rng: random.Random, tokens: tuple[bytes, ...], other: bytes) -> bytes:
    at = _at(data, rng)
    return data[:at] + data[at + rng.randint(1, max(1, len(data) // 3)) :]


def _repeat(data: bytes, rng: random.Random, tokens: tuple[bytes, ...], other: bytes) -> bytes:
    at = _at(data, rng)
    piece = data[at : at + rng.randint(1, 32)]
    return data[:at] + piece * rng.choice((2, 3, 64)) + data[at:]


def _splice(data: bytes, rng: random.Random, tokens: tuple[bytes, ...], other: bytes) -> bytes:
    return data[: _at(data, rng)] + other[_at(other, rng) :]


def _set_length(data: bytes, rng: random.Random, tokens: tuple[bytes, ...], other: bytes) -> bytes:
    """Somewhere, a number that may be a length."""
    at, size = _at(data, rng), rng.choice((2, 4))
    number = rng.choice((*LENGTHS, len(data))) & ((1 << (8 * size)) - 1)
    return data[:at] + number.to_bytes(size, "big") + data[at + size :]


def _cut(data: bytes, rng: random.Random, tokens: tuple[bytes, ...], other: bytes) -> bytes:
    return data[: _at(data, rng)]


# ---- msgpack


def _change_msgpack(data: bytes, rng: random.Random, tokens: tuple[bytes, ...]) -> bytes:
    """One value inside is replaced, removed, doubled or moved; bytes that are no msgpack are changed as bytes."""
    try:
        value = msgspec.msgpack.decode(data)
        return msgspec.msgpack.encode(_changed(value, rng, tokens))
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError):
        return _change_bytes(data, rng, tokens, data)


def _changed(value: Any, rng: random.Random, tokens: tuple[bytes, ...]) -> Any:
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        roll = rng.random()
        if roll < 0.1:
            return {one: kept for one, kept in value.items() if one != key}
        if roll < 0.15:
            return {**value, rng.choice(("extra", "type", 7)): rng.choice(VALUES)}
        return {**value, key: _changed(value[key], rng, tokens)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        roll = rng.random()
        if roll < 0.1:
            return value[:at] + value[at + 1 :]
        if roll < 0.25:
            return value[:at] + [value[at]] * rng.choice((2, 3, 70)) + value[at:]
        if roll < 0.3:
            return rng.sample(value, len(value))
        return [*value[:at], _changed(value[at], rng, tokens), *value[at + 1 :]]
    return _other_value(value, rng, tokens)


def _other_value(value: Any, rng: random.Random, tokens: tuple[bytes, ...]) -> Any:
    roll = rng.random()
    if isinstance(value, bool) and roll < 0.5:
        return not value
    if isinstance(value, int | float) and roll < 0.6:
        return value + rng.choice((-1, 1, -2, 2)) if rng.random() < 0.6 else rng.choice(NUMBERS)
    if isinstance(value, bytes) and value and roll < 0.6:
        nested = _change_msgpack(value, rng, tokens) if rng.random() < 0.5 else None
        return nested if nested is not None else _change_bytes(value, rng, tokens, value)
    if isinstance(value, str) and tokens and roll < 0.6:
        return rng.choice(tokens).decode("utf-8", "replace")
    return rng.choice(VALUES)


# ---- text


def _change_text(data: bytes, rng: random.Random, tokens: tuple[bytes, ...]) -> bytes:
    """Lines are removed, doubled, moved; a value after `=` is replaced."""
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    roll = rng.random()
    if roll < 0.15:
        del lines[at]
    elif roll < 0.3:
        lines.insert(rng.randint(0, len(lines)), lines[at])
    elif roll < 0.4:
        lines.insert(at, rng.choice(tokens) if tokens else b"")
    elif b"=" in lines[at]:
        name = lines[at].partition(b"=")[0]
        value = rng.choice(tokens) if tokens and rng.random() < 0.3 else rng.choice(TEXT_VALUES).encode()
        lines[at] = name + b"= " + value * rng.choice((1, 1, 1, 1, 3))
    else:
        lines[at] = _change_bytes(lines[at], rng, tokens, data)
    return b"\n".join(lines)
