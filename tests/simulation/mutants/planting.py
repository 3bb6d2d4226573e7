"""How a bug is planted: a line of the protocols' source is replaced while the simulator runs, and put back afterwards.

A patch names a function (`module:qualified.name`), the text in it, and what stands there instead. It applies only if
the text is there exactly once, so a patch of lines that have changed is noticed. Every module that has the function
under a name of its own gets the changed one too.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

PATCHED_PACKAGES = ("chaos_protocols", "chaosd", "tests.simulator", "tests.unit", "tests.integration", "tests.rigs")


@dataclass(frozen=True, slots=True)
class Patch:
    """Replace `old` by `new` in the source of `target`."""

    target: str
    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """`breaks`: the invariants that may be seen broken first. `seeds`: it is caught before this one; `first`: from here
    on, where what it takes is rare. `sites`: in runs of so many; 0: of 3 to 6, by the seed. `guest`: a hostile guest is
    there to use it. `story`: no seeds, the scenario of this number, where random trouble meets what it takes in one run
    of thousands."""

    name: str
    patches: tuple[Patch, ...]
    breaks: tuple[int, ...]
    seeds: int = 60
    first: int = 0
    sites: int = 0
    guest: bool = False
    story: str = ""


class DoesNotApply(Exception):
    """The text of a patch is not in its function (any more), or not once."""


def owner_of(target: str) -> tuple[Any, Any, str]:
    """Module, the object that holds the function, and its name there. Raises DoesNotApply where one is gone."""
    module_name, qualified = target.split(":")
    *path, name = qualified.split(".")
    try:
        module = importlib.import_module(module_name)
        owner: Any = module
        for part in path:
            owner = getattr(owner, part)
    except (ModuleNotFoundError, AttributeError) as error:
        raise DoesNotApply(f"{target} is gone: {error}") from None
    return module, owner, name


def changed(patches: tuple[Patch, ...]) -> dict[str, tuple[Any, Any, str, Any]]:
    """For each target: module, owner, name, and the function with all patches of it in."""
    sources: dict[str, str] = {}
    for patch in patches:
        _, owner, name = owner_of(patch.target)
        known = vars(owner).get(name)
        if known is None:
            raise DoesNotApply(f"{patch.target} is gone")
        function: Any = known.fget if isinstance(known, property) else known
        source = sources.get(patch.target) or textwrap.dedent(inspect.getsource(function))
        if source.count(patch.old) != 1:
            raise DoesNotApply(f"{patch.target} has {patch.old!r} {source.count(patch.old)} times, not once")
        sources[patch.target] = source.replace(patch.old, patch.new)
    made = {}
    for target, source in sources.items():
        module, owner, name = owner_of(target)
        found: dict[str, Any] = {}
        exec(compile(source, f"<{target}, with a bug>", "exec"), module.__dict__, found)
        made[target] = (module, owner, name, found[name])
    return made


@contextmanager
def planted(bug: Bug) -> Iterator[None]:
    """The protocols with this bug in them."""
    undo: list[tuple[Any, str, Any]] = []
    for _, owner, name, new in changed(bug.patches).values():
        old = vars(owner)[name]
        holders = [owner]
        if inspect.ismodule(owner):
            holders += [
                module
                for known, module in list(sys.modules.items())
                if known.startswith(PATCHED_PACKAGES) and module is not owner and vars(module).get(name) is old
            ]
        for holder in holders:
            undo.append((holder, name, old))
            setattr(holder, name, new)
    try:
        yield
    finally:
        for holder, name, old in reversed(undo):
            setattr(holder, name, old)
