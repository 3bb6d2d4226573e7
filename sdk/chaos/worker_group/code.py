"""What code a worker computes with: its loss, its layers, and what of the script's own these call.

A loss that is chosen by the worker's number, or a module that was edited while the workers started, would train
something that is no worker's model, and no figure would show it. Code is compared, and no values: numbers in a closure,
defaults, devices may well differ from worker to worker. Of what is installed the name alone counts. Other code may
compute the same (one worker's loss writes a line, too), so whoever compares tells a person, and refuses nothing.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Iterable
from typing import Any

import torch
from blake3 import blake3

from chaos.worker_group.script import is_of_the_script

VISITED_MAX = 20_000
"""Functions and classes; of code that refers to more nothing is known."""


class _TooMuch(Exception):
    """See `VISITED_MAX`."""


def code_digest(computed: Iterable[Any]) -> str:
    """Of these callables and modules; empty: not known. Comments, layout and the lines of a file make no difference."""
    reader = _Reader()
    try:
        for each in computed:
            reader.visit(each)
    except (_TooMuch, RecursionError):
        return ""
    return reader.hasher.hexdigest()


class _Reader:
    def __init__(self) -> None:
        self.hasher = blake3()
        self._visited: dict[int, Any] = {}
        """By identity, with what has it: it is not to be given to another object meanwhile."""

    def visit(self, thing: Any) -> None:
        """A callable, or what may stand where one does."""
        if isinstance(thing, functools.partial):
            for each in (thing.func, *thing.args, *thing.keywords.values()):
                self.visit(each)
        elif isinstance(thing, torch.nn.Module):
            for module in thing.modules():
                self.visit(type(module))
                self.visit(module.__dict__.get("forward"))
        elif isinstance(thing, types.MethodType | staticmethod | classmethod):
            self.visit(thing.__func__)
        elif isinstance(thing, property):
            self.visit(thing.fget)
        elif isinstance(thing, types.FunctionType):
            self._function(inspect.unwrap(thing))
        elif isinstance(thing, type):
            self._class(thing)
        elif isinstance(thing, types.BuiltinFunctionType):
            self._say(thing.__qualname__)
        elif callable(thing) and not isinstance(thing, types.ModuleType):
            self.visit(type(thing))

    def _is_looked_into(self, thing: Any) -> bool:
        """It comes for the first time, and is the script's own; of what is installed the name alone counts."""
        if id(thing) in self._visited:
            return False
        if len(self._visited) >= VISITED_MAX:
            raise _TooMuch
        self._visited[id(thing)] = thing
        if not _is_own(thing):
            self._say(f"{thing.__module__}.{thing.__qualname__}")
            return False
        return True

    def _function(self, function: Any) -> None:
        if not self._is_looked_into(function):
            return
        self._code(function.__code__)
        for cell in function.__closure__ or ():
            try:
                self.visit(cell.cell_contents)
            except ValueError:
                continue  # nothing is in it yet
        for name in _names(function.__code__):
            value = function.__globals__.get(name)
            if isinstance(value, types.ModuleType) and is_of_the_script(value):
                for inner in _names(function.__code__):
                    self.visit(vars(value).get(inner))
            else:
                self.visit(value)

    def _class(self, kind: type) -> None:
        if not self._is_looked_into(kind):
            return
        for base in kind.__bases__:
            self.visit(base)
        for name, value in sorted(vars(kind).items()):
            if isinstance(value, types.FunctionType | staticmethod | classmethod | property):
                self._say(name)
                self.visit(value)

    def _code(self, code: types.CodeType) -> None:
        self.hasher.update(code.co_code)
        self._say(" ".join((*code.co_names, *code.co_freevars)))
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._code(constant)
            else:
                self._say(_literal(constant))

    def _say(self, text: str) -> None:
        self.hasher.update(f"\n{text}\n".encode("utf-8", "surrogatepass"))


def _literal(constant: Any) -> str:
    """The same in every process: sets have an order of their own in each."""
    if isinstance(constant, frozenset):
        return f"{{{', '.join(sorted(map(_literal, constant)))}}}"
    if isinstance(constant, tuple):
        return f"({', '.join(map(_literal, constant))})"
    return repr(constant)


def _names(code: types.CodeType) -> list[str]:
    """That this code, or a function in it, looks up."""
    inner = [name for each in code.co_consts if isinstance(each, types.CodeType) for name in _names(each)]
    return [*code.co_names, *inner]


def _is_own(thing: Any) -> bool:
    module = sys.modules.get(thing.__module__ or "")
    return module is not None and is_of_the_script(module)
