"""What an oracle raises, apart from the oracles: those can be compiled, and mypyc takes no class of an exception."""

from __future__ import annotations


class Violation(AssertionError):
    """An invariant does not hold. `invariant`: its number in spec 18; `text`: what was seen."""

    def __init__(self, invariant: int, text: str, where: str, story: list[str]) -> None:
        self.invariant, self.text, self.where = invariant, text, where
        super().__init__("\n".join([f"invariant {invariant}: {text}", where, *story]))


class NotPromised(Exception):
    """What has happened is outside of what is promised, so nothing after it can be judged; what went before held."""
