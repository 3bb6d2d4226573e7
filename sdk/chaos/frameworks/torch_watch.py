"""Notices what a script does to a torch training outside of a round, where it would make the sites differ.

Between two rounds a script only computes gradients. What it must leave alone, and how it is seen: an optimizer's
`step()` (a hook that torch calls after every step of any optimizer), the options of the registered optimizers and the
position of the registered schedulers (compared with what the last round left), the registered parameters themselves
(the version counter that torch keeps for every tensor, and whether the model still holds the same one). What a
version counter does not count, such as writing through `.data`, is left to the digests that sites compare.

A step or an option is certain to differ from site to site, at the latest at one that joins: that is an error. Changed
values may have been put back (an EMA that was swapped in for an evaluation): that is a warning.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from chaos.errors import ChangedOutside
from chaos.frameworks.torch_kinds import Kind, kind_of
from chaos.frameworks.torch_places import ModelPlaces
from chaos.frameworks.torch_registered import Registered

PROBED_TENSORS, PROBED_NUMBERS = 4, 8
"""Of so many parameters, so many numbers are kept: who swaps weights in for an evaluation changes most of them."""

SWAPS = ("eval", "train")
"""An optimizer that has these swaps other weights in for an evaluation (schedule-free)."""

UNWATCHED_OPTIONS = frozenset({"params", "param_names"})

_changing = threading.Lock()
_watching: tuple[weakref.ref[OutsideWatch], ...] = ()
"""All that look. A step in one thread goes through them while another one begins or ends: so they are replaced."""


def _watches(one: OutsideWatch | None) -> None:
    """It looks from now on; those that have closed do no more."""
    global _watching
    with _changing:
        alive = [each for each in _watching if (there := each()) is not None and not there._closed]
        _watching = (*alive, *([] if one is None else [weakref.ref(one)]))


def _stepped(optimizer: torch.optim.Optimizer, arguments: Any, named: Any) -> None:
    for each in _watching:
        alive = each()
        if alive is not None:
            alive._saw_step(optimizer)


register_optimizer_step_post_hook(_stepped)
# Once, for as long as the process runs: torch goes through its hooks without a lock, and fails where one comes or goes.


class OutsideWatch:
    """Of one registered training. `settle`: everything is as a round left it; `look`: what has changed since."""

    def __init__(
        self,
        registered: Registered,
        models: Mapping[str, torch.nn.Module],
        optimizers: Mapping[str, torch.optim.Optimizer],
        schedulers: Mapping[str, Any],
        compared: Mapping[str, torch.Tensor],
    ) -> None:
        """`registered`: of these models and optimizers. `compared`: parameters that are compared when a site joins, and
        never sent."""
        self._names, self._parameters = registered.names, registered.tensors
        self._kinds, self._trained = registered.kinds, registered.owners
        self._optimizers = dict(optimizers)
        self._schedulers = dict(schedulers)
        self._ids = registered.at.keys()
        self._places = ModelPlaces(registered, models)
        self._compared = list(compared.items())
        self._moved = ""
        """The first of these that an update has changed."""
        self._grouped = self._grouped_now()
        self._adapted = [
            (name, layer)
            for parts in registered.parts.values()
            for name, layer in parts
            if _has(layer, "merged_adapters") and isinstance(layer.merged_adapters, list)
        ]
        self._states = [optimizer.state for optimizer in self._optimizers.values()]
        self._inside = self._closed = False
        self._at_home = False
        self._told: set[str] = set()
        """Which parameters were told of as changed: a script that changes them does so again and again."""
        self.untold = ""
        """What `register` has found out and does not refuse: told at the first step that nothing else is told of."""
        self._stepped: list[torch.optim.Optimizer] = []
        of_all = zip(self._parameters, self._trained, self._kinds, strict=True)
        trained_here = [parameter for parameter, owners, (_, _, shape, _, _) in of_all if owners and 0 not in shape]
        self._probed = trained_here[:: max(1, -(-len(trained_here) // PROBED_TENSORS))]
        self._probes: list[torch.Tensor] = []
        self._versions: list[int] = []
        self._options: list[dict[str, Any]] = []
        self._positions: list[Any] = []
        _watches(self)
        self.settle()

    @contextmanager
    def update(self) -> Iterator[None]:
        """What happens inside is a round's doing; afterwards everything is as it left it."""
        self._inside = True
        before = [parameter._version for _, parameter in self._compared]
        try:
            yield
        finally:
            self._inside = False
        for (name, parameter), version in zip(self._compared, before, strict=True):
            if parameter._version != version:
                self._moved = self._moved or name
        self.settle()

    def settle(self) -> None:
        """As it is now, it is as it should be."""
        if self._closed:
            return
        self._stepped.clear()
        self._versions = [parameter._version for parameter in self._parameters]
        self._probes = [_first_numbers(parameter).clone() for parameter in self._probed]
        self._options = [_options(group) for _, group in self._groups()]
        self._positions = [getattr(scheduler, "last_epoch", None) for scheduler in self._schedulers.values()]

    def begin_at_home(self, untold: str) -> None:
        """Steps are made at home: what is between two rounds is this site's own, and this is to be told."""
        self._at_home, self.untold = True, untold

    def untouched(self) -> bool:
        """Whether the parameters are as they should be, also past torch's counters (`.data`), as far as a few numbers
        show it. Values that were put back are. With local steps the state is the common one, whatever lies in the
        parameters."""
        alike = zip(self._probed, self._probes, strict=True)
        return self._at_home or all(torch.equal(_first_numbers(parameter), then) for parameter, then in alike)

    def close(self) -> None:
        """Look no more. Safe to call twice."""
        self._closed = True
        _watches(None)

    def look(self, round: int, optimizers: Sequence[str] | None = None, *, leaving: bool = False) -> str:
        """A warning about what may differ now from the state of the end of `round`; empty: nothing was seen. It is
        given once for the same parameters. `optimizers`: those that this step is for; None: all; none of them: it is
        skipped. `leaving`: see `Framework.changed_outside`. Raises ChangedOutside for what is certain to differ,
        with what to write instead."""
        self._check_compared(round)
        self._check_steps(round)
        self._check_groups(round)
        as_left = self._as_left()
        if not as_left:
            self._check_trained(round, optimizers)
        self._check_loaded(round)  # of a checkpoint's schedule, too, which has another position then
        self._check_schedulers(round)
        self._check_options(round)
        added = self._places.look(round)
        if not as_left:
            self._check_kinds()
        self._check_adapters(round)
        if leaving:  # with local steps the state is the common one
            return "" if as_left or self._at_home else self._changed(round, again=True)
        if told := added or ("" if as_left else self._changed(round)):
            return told
        told, self.untold = self.untold, ""
        return told

    def _as_left(self) -> bool:
        """Whether every parameter is what it was, by its kind and by torch's counter of changes. One pass for all of
        that: to come by a tensor costs more than to look at it."""
        for parameter, version, kind in zip(self._parameters, self._versions, self._kinds, strict=True):
            dtype, device, shape, wanted, _ = kind
            if (
                parameter._version != version
                or parameter.requires_grad is not wanted
                or parameter.dtype is not dtype
                or parameter.shape != shape
                or parameter.device != device
            ):
                return False
        return True

    def _changed(self, round: int, *, again: bool = False) -> str:
        versions = [parameter._version for parameter in self._parameters]
        if versions == self._versions:
            return ""
        changed = [name for name, now, then in zip(self._names, versions, self._versions, strict=True) if now != then]
        self._versions = versions
        listed = _listed(changed)
        if listed in self._told and not again:
            return ""
        self._told.add(listed)
        if self._at_home:
            return (
                f"{listed} changed after round {round} outside of a step; unless the old values were put back, that "
                "goes into what this site gives to the next round, as if its steps had made it"
            )
        swapping = (n for n, o in self._optimizers.items() if all(callable(getattr(o, c, None)) for c in SWAPS))
        if name := next(swapping, ""):
            return (
                f"{listed} changed after round {round} outside of a round, by eval() and train() of {name}, it seems: "
                "they put back all but the last bits, so where sites evaluate at other rounds they differ until "
                "digests show it; say both in on_update=, in which all sites do so in the same round "
                "(if update.round % 100 == 0: ...)"
            )
        return (
            f"{listed} changed after round {round} outside of a round; unless the old values were put back, "
            "this site differs from the others until digests show it and it takes the state again: change parameters "
            "in on_update= (an EMA, a constraint), or before register()"
        )

    def _saw_step(self, optimizer: torch.optim.Optimizer) -> None:
        if self._inside or len(self._stepped) >= len(self._optimizers) + 1:
            return
        if any(id(parameter) in self._ids for group in optimizer.param_groups for parameter in group["params"]):
            self._stepped.append(optimizer)

    def _check_steps(self, round: int) -> None:
        if not self._stepped:
            return
        ours = {id(optimizer) for optimizer in self._optimizers.values()}
        foreign = next((optimizer for optimizer in self._stepped if id(optimizer) not in ours), None)
        if foreign is not None:
            raise ChangedOutside(
                f"an optimizer that was not registered ({type(foreign).__name__}) has stepped parameters of this "
                f"training after round {round}: register the one that you use, and remove its step() from the loop, "
                "since coordinator.step() runs it with the averaged gradients"
            )
        raise ChangedOutside(
            f"optimizer.step() was called in the training loop after round {round}, but coordinator.step() runs the "
            "registered optimizer itself, with the averaged gradients: remove optimizer.step() from the loop "
            "(with a GradScaler: scaler.unscale_(optimizer) before coordinator.step(), in place of "
            "scaler.step(optimizer); scaler.update() stays)"
        )

    def _check_trained(self, round: int, optimizers: Sequence[str] | None) -> None:
        """What is trained is a matter of the whole run. A phase may freeze what its step is not for."""
        of_all = zip(self._names, self._parameters, self._kinds, self._trained, strict=True)
        thawed, frozen = [], []
        for name, parameter, (_, _, _, then, _), owners in of_all:
            now = parameter.requires_grad
            if now and not then:
                thawed.append(name)
            elif then and not now and _is_for(owners, optimizers):
                frozen.append(name)
        refuse_another_set(thawed, frozen, round)

    def _check_compared(self, round: int) -> None:
        """An average of the weights over the rounds, say: a joiner would begin it anew."""
        if self._moved:
            raise ChangedOutside(
                f"on_update= has changed the parameter {self._moved!r} by round {round}, which no optimizer trains, "
                "and with frozen='compare' such parameters are compared and never sent, so a joiner would have another "
                "one: keep what on_update= changes in buffers (register_buffer), or say "
                "register(..., frozen='replicate')"
            )

    def _check_groups(self, round: int) -> None:
        if (now := self._grouped_now()) == self._grouped:
            return
        before = frozenset().union(*self._grouped)
        came = [
            self._places.name_of(parameter) or f"{name}.parameter{index}"
            for name, group in self._groups()
            for index, parameter in enumerate(group["params"])
            if id(parameter) not in before
        ]
        went = before.difference(*now)
        gone = [name for name, each in zip(self._names, self._parameters, strict=True) if id(each) in went]
        if came:
            told = f"{_listed(came)} added to a registered optimizer (add_param_group)"
        elif gone:
            told = f"{_listed(gone)} taken out of a registered optimizer"
        else:
            told = "parameters of a registered optimizer were put into other groups of it"
        raise ChangedOutside(
            f"{told} after register(), by round {round}: what is trained, and in which group, must stay as registered, "
            "and be the same on all sites; end the scripts, and start a run that trains the new set"
        )

    def _grouped_now(self) -> list[tuple[int, ...]]:
        return [tuple(map(id, group["params"])) for _, group in self._groups()]

    def _check_schedulers(self, round: int) -> None:
        for (name, scheduler), position in zip(self._schedulers.items(), self._positions, strict=True):
            if getattr(scheduler, "last_epoch", None) != position:
                raise ChangedOutside(
                    f"{name}.step() was called in the training loop after round {round}, but coordinator.step() runs "
                    "every registered scheduler once a round: remove it from the loop; for one step an epoch, leave it "
                    "unregistered, register its optimizer alone, and step it in on_update= by the number of the round"
                )

    def _check_options(self, round: int) -> None:
        for (name, group), before in zip(self._groups(), self._options, strict=True):
            now = _options(group)
            key = next((key for key in {**before, **now} if now.get(key) != before.get(key)), None)
            if key is not None:
                raise ChangedOutside(
                    f"{key!r} of {name} was changed after round {round} outside of a round ({before.get(key)} to "
                    f"{now.get(key)}), so that sites would step differently: register the scheduler that did it "
                    "(register(scheduler=...)) and remove its step() from the loop, or change options in on_update="
                )

    def _check_loaded(self, round: int) -> None:
        """The shared state looks where the optimizer kept its own when it was registered."""
        for (name, optimizer), state in zip(self._optimizers.items(), self._states, strict=True):
            if optimizer.state is not state:
                raise ChangedOutside(
                    f"{name}.load_state_dict() was called after register(), by round {round}: what it loaded is no "
                    "part of the run's state, so a joiner would be sent other moments: load a checkpoint before "
                    "register() (where the run has others already, it brings its own state)"
                )

    def _check_adapters(self, round: int) -> None:
        """A layer of PEFT whose adapter is merged computes without it, and so gives it no gradient."""
        for name, layer in self._adapted:
            if layer.merged_adapters:
                raise ChangedOutside(
                    f"the adapter of the layer {name!r} is merged into its base at the step after round {round}, so "
                    "that it is not trained, and the base is another one than that of the other sites: after an "
                    "evaluation say model.unmerge_adapter(), before the next forward pass"
                )

    def _check_kinds(self) -> None:
        for name, parameter, before in zip(self._names, self._parameters, self._kinds, strict=True):
            kind = kind_of(parameter)
            if kind[:3] != before[:3]:
                raise ChangedOutside(
                    f"the parameter {name!r} is {_shown(kind)} now, and was {_shown(before)} when it was registered: "
                    "move the model, and change its types and sizes, before register() (for fewer bits in the forward "
                    "pass alone: torch.autocast)"
                )

    def _groups(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for name, optimizer in self._optimizers.items():
            for index, group in enumerate(optimizer.param_groups):
                yield f"{name}.group{index}", group


def refuse_another_set(thawed: Sequence[str], frozen: Sequence[str], round: int) -> None:
    """Raises ChangedOutside where parameters are trained that were not, or are no more."""
    for names, what in ((thawed, "frozen when it was registered and wants"), (frozen, "trained and wants no")):
        if names:
            raise ChangedOutside(
                f"{_listed(names)} {what} gradients after round {round}: what is trained must stay as registered, "
                "and be the same on all sites (requires_grad_); end the scripts, and start a run that trains the "
                "new set"
            )


def _is_for(owners: Sequence[str], optimizers: Sequence[str] | None) -> bool:
    """Whether a step for these optimizers (None: all) trains what these owners train."""
    return bool(owners) if optimizers is None else any(owner in optimizers for owner in owners)


def _has(layer: torch.nn.Module, attribute: str) -> bool:
    """Whether it is one of its own, or of its class: a layer takes long to find that it has no such tensor either."""
    return attribute in vars(layer) or hasattr(type(layer), attribute)


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _value(value) for key, value in group.items() if key not in UNWATCHED_OPTIONS}


def _value(value: Any) -> Any:
    """Something that can be compared later: an option that is a tensor changes in place."""
    if isinstance(value, torch.Tensor):
        return value.detach().reshape(-1).tolist()
    return list(value) if isinstance(value, list) else value


def _first_numbers(parameter: torch.Tensor) -> torch.Tensor:
    there = parameter.detach()
    while there.dim() > 1:
        there = there[0]
    return there[:PROBED_NUMBERS] if there.dim() else there


def _shown(kind: Kind) -> str:
    dtype, device, shape, _, _ = kind
    return f"{str(dtype).removeprefix('torch.')}{list(shape)} on {device}"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - 1
    return f"the parameter {names[0]!r} and {more} more were" if more else f"the parameter {names[0]!r} was"
