"""The layers of a model that is neither a `Sequential` nor known: found in what its forward pass does.

`torch.fx` follows a stand-in for the input through the model, into modules of the user's own as far as it can. Wherever
one tensor alone goes on, a layer may end; it ends before the next parameters are used. What each layer then runs are
the very modules and parameters of the model, so its state keeps its names.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

NO_TENSOR = frozenset({"size", "dim", "numel", "chunk", "split", "unbind", "tolist", "item", "topk", "sort"})
"""Methods and functions that give numbers or several tensors: no layer ends with what one of them gave."""

REMEDY = (
    "give the layers yourself: layers=lambda m: [m.embed, *m.blocks, m.head], modules that take one tensor and give "
    "one, in the order in which data passes them; or keep the model whole with replicate()"
)


class Uncut(ValueError):
    """A model has no layers that could be found, and why."""


def cut(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The layers of a model whose forward pass takes one tensor and gives one. Raises `Uncut`, naming the module that
    prevents it."""
    graph = _followed(model)
    calls = [call for call in graph.nodes if call.op not in ("placeholder", "get_attr", "output")]
    if not calls:
        raise Uncut(f"{type(model).__name__} computes nothing; {REMEDY}")
    pieces = _Pieces(model, graph, calls)
    edges = [0, *pieces.edges(), len(calls)]
    if len(edges) == 2:
        raise Uncut(f"{type(model).__name__} cannot be cut into layers: {pieces.obstacle()}; {REMEDY}")
    return [pieces.layer(first, last) for first, last in itertools.pairwise(edges)]


class _Whole(torch.nn.Module):
    """Called with the first argument alone, whatever else the model takes."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, entered: torch.Tensor) -> Any:
        return self.model(entered)


class _Tracer(fx.Tracer):
    """`opaque`: modules that are run as they are. `within`: the modules it is in, outermost first; `owners`: of each
    call, the innermost one."""

    def __init__(self, opaque: set[torch.nn.Module]) -> None:
        super().__init__()
        self.opaque = opaque
        self.within: list[torch.nn.Module] = []
        self.owners: list[torch.nn.Module | None] = []
        self._modes = _modes()

    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        return m in self.opaque or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: torch.nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        self.within.append(m)
        found = super().call_module(m, forward, args, kwargs)
        self.within.pop()  # not after an error: who asks then wants to know where
        return found

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        if _modes() != self._modes:
            raise RuntimeError("it switches gradients or autocast on or off")
        leaf = bool(self.within) and self.is_leaf_module(self.within[-1], "")
        inside = self.within[:-1] if leaf else self.within
        self.owners.append(inside[-1] if inside else None)
        return super().create_node(*args, **kwargs)


def _modes() -> tuple[bool, bool]:
    """What a graph does not say of the code that it came from."""
    return torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")


def _followed(model: torch.nn.Module) -> fx.Graph:
    """The calls of the forward pass. A module of the model inside which it cannot be followed is left as one call, and
    so is one that calls something else in training than after `eval()`."""
    opaque: set[torch.nn.Module] = set()
    while True:
        tracer, graph = _Tracer(opaque), None
        try:
            graph = tracer.trace(_Whole(model))
            with still(model):
                other = _Tracer(opaque).trace(_Whole(model))
            at = _first_difference(graph, other)
            last, why = (None, "") if at is None else (tracer.owners[at], "it depends on self.training")
        except Exception as error:  # the model's own code runs on a stand-in: it may raise anything
            last = tracer.within[-1] if tracer.within else model
            why = (str(error).splitlines() or [type(error).__name__])[0][:200]
        if not why and graph is not None:
            break
        if last is None or last is model or last in opaque:
            raise Uncut(f"the forward pass of {type(model).__name__} cannot be followed ({why}); {REMEDY}")
        opaque.add(last)
    (output,) = [call for call in graph.nodes if call.op == "output"]
    if not isinstance(output.args[0], fx.Node):
        kind = next(each for each in type(output.args[0]).__mro__ if each.__module__ == "builtins")  # not fx's own
        raise Uncut(f"the forward pass of {type(model).__name__} gives a {kind.__name__} and not one tensor; {REMEDY}")
    return graph


def _first_difference(graph: fx.Graph, other: fx.Graph) -> int | None:
    """At which call two graphs differ."""
    one, two = ([(n.op, str(n.target), str(n.args), str(n.kwargs)) for n in each.nodes] for each in (graph, other))
    for at, (mine, others) in enumerate(zip(one, two, strict=False)):
        if mine != others:
            return at
    return None if len(one) == len(two) else min(len(one), len(two)) - 1


@contextmanager
def still(*modules: torch.nn.Module) -> Iterator[None]:
    """Without dropout, as after `eval()`; afterwards as before."""
    parts = {part: part.training for module in modules for part in module.modules()}
    for part in parts:
        part.training = False
    try:
        yield
    finally:
        for part, training in parts.items():
            part.training = training


@dataclass(slots=True)
class _Span:
    """From the first to the last call that needs something which one worker must hold."""

    name: str
    calls: list[int] = field(default_factory=list)


class _Pieces:
    """Of one graph; position p lies before call p."""

    def __init__(self, model: torch.nn.Module, graph: fx.Graph, calls: Sequence[fx.Node]) -> None:
        self._model, self._calls = model, calls
        self._at = {call: index for index, call in enumerate(calls)}
        (self._output,) = [call for call in graph.nodes if call.op == "output"]
        self._root = _Whole(model)
        self._spans = self._held_together()
        self._trains = [
            any(isinstance(tensor, torch.nn.Parameter) for _, tensor in self._needed(call)) for call in calls
        ]

    def edges(self) -> list[int]:
        """Where layers end: at the last place before new parameters are used where one tensor alone goes on."""
        found: list[int] = []
        able, began = 0, 0
        for at in range(1, len(self._calls)):
            if self._single(at) is not None and not self._between(at):
                able = at
            if self._trains[at] and able > began and any(self._trains[began:able]):
                found.append(able)
                began = able
        return found

    def layer(self, first: int, last: int) -> torch.nn.Module:
        """The calls [first, last) as a module of the model's own modules and parameters."""
        graph = fx.Graph()
        known: dict[fx.Node, fx.Node] = {}
        entered = self._single(first) if first else next(iter(self._output.graph.nodes))
        assert entered is not None
        known[entered] = graph.placeholder("entered")
        left = self._single(last) if last < len(self._calls) else self._output.args[0]
        assert isinstance(left, fx.Node)
        for call in self._calls[first:last]:
            for constant in self._constants(call):
                if constant not in known:
                    known[constant] = graph.node_copy(constant, known.__getitem__)
            if call not in known:
                known[call] = graph.node_copy(call, known.__getitem__)
        graph.output(known[left])
        made = fx.GraphModule(self._root, graph, class_name=self._title(first, last))
        _keep_transient(made, self._root)
        return made

    def obstacle(self) -> str:
        """The first reason why no layer ends anywhere, for people."""
        for at in range(1, len(self._calls)):
            where = f"after {self._called(self._calls[at - 1])}"
            if not any(self._trains[:at]) or not any(self._trains[at:]):
                continue
            live = self._live(at)
            if len(live) > 1:
                names = " and ".join(self._called(call) for call in live[:3])
                return f"{where} more than one value goes on (of {names})"
            span = self._between(at)
            if span:
                return f"the weights {span!r} are used before and after {self._called(self._calls[at])}"
            return f"{where} no single tensor goes on"
        return "its parameters are used in one place only"

    # ---- what crosses a position

    def _live(self, at: int) -> list[fx.Node]:
        """What is made before this position and used after it; constants can be made anew."""
        entered = next(iter(self._output.graph.nodes))
        return [
            call
            for call in (entered, *self._calls[:at])
            if call.op != "get_attr" and any(self._at.get(user, len(self._calls)) >= at for user in call.users)
        ]

    def _single(self, at: int) -> fx.Node | None:
        """The one tensor that crosses this position, if it is one."""
        live = self._live(at)
        if len(live) != 1 or live[0].op == "placeholder":
            return None
        (call,) = live
        name = call.target if isinstance(call.target, str) else getattr(call.target, "__name__", "")
        taken_apart = call.users and all(user.target is operator.getitem for user in call.users)
        plain = call.op == "call_module" or name.rpartition(".")[2] not in NO_TENSOR
        return None if taken_apart or not plain or call.target is getattr else call

    def _between(self, at: int) -> str:
        """Whose weights are used on both sides."""
        for span in self._spans.values():
            if span.calls[0] < at <= span.calls[-1]:
                return span.name
        return ""

    def _held_together(self) -> dict[int, _Span]:
        """Of each parameter and persistent buffer the calls that use it."""
        spans: dict[int, _Span] = {}
        for at, call in enumerate(self._calls):
            for name, tensor in self._needed(call):
                spans.setdefault(id(tensor), _Span(name)).calls.append(at)
        return spans

    def _needed(self, call: fx.Node) -> list[tuple[str, torch.Tensor]]:
        """What a call uses of the model's state."""
        if call.op == "call_module":
            name = str(call.target)
            module = self._root.get_submodule(name)
            state = {id(tensor) for tensor in module.state_dict(keep_vars=True).values()}
            named = [*module.named_parameters(), *module.named_buffers()]
            return [(f"{name}.{n}".removeprefix("model."), t) for n, t in named if id(t) in state]
        found = []
        for constant in self._constants(call):
            path, _, last = str(constant.target).rpartition(".")
            owner = self._root.get_submodule(path)
            if last in owner._parameters or (last in owner._buffers and last not in owner._non_persistent_buffers_set):
                found.append((str(constant.target).removeprefix("model."), getattr(owner, last)))
        return found

    @staticmethod
    def _constants(call: fx.Node) -> list[fx.Node]:
        """Tensors of the model that it takes as they are."""
        return [each for each in call.all_input_nodes if each.op == "get_attr"]

    @staticmethod
    def _called(call: fx.Node) -> str:
        """For people: the module, or what is called."""
        if call.op == "call_module":
            return repr(str(call.target).removeprefix("model."))
        return repr(call.name)

    def _title(self, first: int, last: int) -> str:
        """Of a layer: the first module with parameters in it."""
        for at in range(first, last):
            needed = self._needed(self._calls[at])
            if needed:
                return needed[0][0].rpartition(".")[0].replace(".", "_") or type(self._model).__name__
        return type(self._model).__name__


def _keep_transient(made: torch.nn.Module, root: torch.nn.Module) -> None:
    """Buffers that are no part of the model's state are none of a layer's either, and each layer has its own."""
    for path, part in made.named_modules():
        if not path:
            continue
        try:
            origin = root.get_submodule(path)
        except AttributeError:
            continue
        for name in list(part._buffers):
            if origin is not part and name in origin._non_persistent_buffers_set:
                part._non_persistent_buffers_set.add(name)
                buffer = part._buffers[name]
                part._buffers[name] = None if buffer is None else buffer.clone()
