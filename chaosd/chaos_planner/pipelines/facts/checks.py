"""Checks of facts and plans that come from a user's file: each refusal names the field, its value and what is allowed.

Driven by `site`, `failures` and `plans`. Raises `ValueError` only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

JSON_SIZE_BYTES_MAX = 64 * 1024 * 1024
"""A facts file of 65,536 workers with a pair rate each is under 10 MB; anything beyond 64 MiB is not a facts file."""


class InvalidPlan(ValueError):
    """An execution plan that no set of workers could run; the text names the part at fault and what would be valid."""


def refuse(field: str, value: object, allowed: str) -> ValueError:
    """The one form of a refusal; the caller raises it."""
    shown = repr(value)
    if len(shown) > 80:
        shown = shown[:77] + "..."
    return ValueError(f"{field} is {shown}; allowed: {allowed}")


def require_number(field: str, value: object, *, minimum: float = 0.0, above: bool = False, inf: bool = False) -> float:
    """A finite number of at least `minimum` (strictly above it with `above`; `inf` also lets infinity pass)."""
    bound = f"above {minimum:g}" if above else f"at least {minimum:g}"
    allowed = f"a {'' if inf else 'finite '}number {bound}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise refuse(field, value, allowed)
    try:
        number = float(value)
    except OverflowError:  # an integer of hundreds of digits
        raise refuse(field, "an integer beyond any float", allowed) from None
    if math.isnan(number) or (math.isinf(number) and not (inf and number > 0)):
        raise refuse(field, value, allowed)
    if number < minimum or (above and number <= minimum):
        raise refuse(field, value, allowed)
    return number


def require_int(field: str, value: object, *, minimum: int, maximum: int) -> int:
    """An integer in [minimum, maximum]; a float or a bool is refused."""
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise refuse(field, value, f"an integer from {minimum} to {maximum}")
    return value


def require_text(field: str, value: object, *, length_max: int = 256) -> str:
    """A non-empty string of at most `length_max` characters."""
    if not isinstance(value, str) or not 0 < len(value) <= length_max:
        raise refuse(field, value, f"a text of 1 to {length_max} characters")
    return value


def require_object(
    field: str, value: object, *, required: frozenset[str], optional: frozenset[str]
) -> Mapping[str, object]:
    """A JSON object (mapping, or its text) with all `required` keys and none beyond `required | optional`."""
    if isinstance(value, str | bytes):
        if len(value) > JSON_SIZE_BYTES_MAX:
            raise ValueError(f"{field} has {len(value)} bytes; allowed: at most {JSON_SIZE_BYTES_MAX}")
        try:
            value = json.loads(value)
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"{field} is not JSON: {error}; allowed: one JSON object") from None
    if not isinstance(value, Mapping):
        raise refuse(field, value, "a JSON object")
    missing = sorted(required - value.keys())
    if missing:
        raise ValueError(f"{field}.{missing[0]} is missing; allowed: an object with {', '.join(sorted(required))}")
    unknown = sorted(str(key) for key in value.keys() - required - optional)
    if unknown:
        raise ValueError(
            f"{field}.{unknown[0]} is not a known field; allowed: {', '.join(sorted(required | optional))}"
        )
    return value


def require_list(field: str, value: object, *, length_max: int) -> Sequence[object]:
    """A JSON list of at most `length_max` entries."""
    if not isinstance(value, list | tuple) or len(value) > length_max:
        raise refuse(field, value, f"a list of at most {length_max} entries")
    return value
