"""What an execution plan consists of, and what can be looked up in it; nothing here is checked.

`execution.ExecutionPlan` is a layout that has passed `checks`, which read it as the layout that it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property


class Policy(Enum):
    """How a site goes on after a loss (`chaosd` glossary): same devices, rerouted work, or other pipelines."""

    RESTART = "restart"
    REROUTE = "reroute"
    DYNAMIC = "dynamic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A worker and the layers it holds: first_layer up to, not including, last_layer."""

    worker: int
    first_layer: int
    last_layer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Stages in order of their layers, and how many micro-batches of a step enter here."""

    stages: tuple[Stage, ...]
    micro_batches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """This micro-batch of this pipeline passes these layers of this stage on another worker than the stage's own."""

    pipeline: int
    stage: int
    micro_batch: int
    worker: int
    first_layer: int
    last_layer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientGroup:
    """One all-reduce of these layers' gradients among their live holders, in the round `colour`."""

    layers: tuple[int, ...]
    workers: tuple[int, ...]
    colour: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One worker's part of a micro-batch's way through the layers."""

    worker: int
    first_layer: int
    last_layer: int
    stage: int


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Who holds which layers, and which way micro-batches and gradients go."""

    policy: Policy
    """What led to this layout."""
    pipelines: tuple[Pipeline, ...]
    """At least one; every layer of the model once in each."""
    routes: tuple[Route, ...] = ()
    """Work that passes on another worker than its stage's own."""
    gradient_groups: tuple[GradientGroup, ...] = ()
    """One all-reduce each; none for a layer with one live holder."""
    lost: tuple[int, ...] = ()
    """Workers still named in stages whose every micro-batch is routed elsewhere, ascending."""

    @property
    def num_layers(self) -> int:
        """Layers of the model that this plan is for."""
        return self.pipelines[0].stages[-1].last_layer

    @property
    def micro_batches(self) -> int:
        """Micro-batches of one step over all pipelines."""
        return sum(pipeline.micro_batches for pipeline in self.pipelines)

    @cached_property
    def lost_set(self) -> frozenset[int]:
        """`lost`, for look-ups."""
        return frozenset(self.lost)

    @cached_property
    def stage_of_worker(self) -> Mapping[int, tuple[int, int]]:
        """Worker to (pipeline, stage), lost workers too."""
        return {
            stage.worker: (p, s) for p, pipeline in enumerate(self.pipelines) for s, stage in enumerate(pipeline.stages)
        }

    @property
    def workers(self) -> frozenset[int]:
        """The workers that execute this plan: named in a stage and not lost."""
        return frozenset(self.stage_of_worker.keys() - self.lost_set)

    @cached_property
    def holders(self) -> tuple[tuple[int, ...], ...]:
        """Per layer the live workers that hold it, ascending."""
        return holders_of(self.pipelines, self.lost_set)

    def stage(self, worker: int) -> Stage:
        """The stage of a worker; `KeyError` for a worker outside the plan."""
        pipeline, stage = self.stage_of_worker[worker]
        return self.pipelines[pipeline].stages[stage]

    @cached_property
    def routes_at(self) -> Mapping[tuple[int, int, int], tuple[Route, ...]]:
        """(pipeline, stage, micro-batch) to its routes in layer order."""
        found: dict[tuple[int, int, int], list[Route]] = {}
        for route in self.routes:
            found.setdefault((route.pipeline, route.stage, route.micro_batch), []).append(route)
        return {key: tuple(sorted(routes, key=lambda r: r.first_layer)) for key, routes in found.items()}

    def hops(self, pipeline: int, micro_batch: int) -> tuple[Hop, ...]:
        """The way of a micro-batch through the layers, forward order."""
        way: list[Hop] = []
        for s, stage in enumerate(self.pipelines[pipeline].stages):
            routes = self.routes_at.get((pipeline, s, micro_batch)) if self.routes else None
            for part in routes or (stage,):
                way.append(Hop(worker=part.worker, first_layer=part.first_layer, last_layer=part.last_layer, stage=s))
        return tuple(way)


def holders_of(pipelines: Sequence[Pipeline], lost: frozenset[int]) -> tuple[tuple[int, ...], ...]:
    """Per layer the workers that hold it and are not lost, ascending."""
    found: list[list[int]] = [[] for _ in range(pipelines[0].stages[-1].last_layer)]
    for pipeline in pipelines:
        for stage in pipeline.stages:
            if stage.worker not in lost:
                for layer in range(stage.first_layer, stage.last_layer):
                    found[layer].append(stage.worker)
    return tuple(tuple(sorted(workers)) for workers in found)
