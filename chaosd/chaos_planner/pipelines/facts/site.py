"""What is known about a site: its model's layers, its devices, the rates between them, and how often something fails.

Written by the profiler or read from a user's JSON file; read by the estimator, the planner, the
restorer and the simulators, which trust these types and check nothing again. Times are those of one micro-batch on a
device of speed 1.0; a device of speed s takes 1/s of them. All values check themselves: a wrong one raises
`ValueError` naming field, value and what is allowed.

Source: Chameleon IV-A and IV-C (`T_f`, `T_b`, `m_p`, `m_o`, `m_g`, `m_a` per layer); uneven layers, device speeds and
pair rates are this project's.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property

from chaos_planner.pipelines.facts.checks import (
    refuse,
    require_int,
    require_list,
    require_number,
    require_object,
    require_text,
)

LAYERS_MAX = 4096
"""Twenty times the deepest published transformer; bounds the planner's tables, which are quadratic in the layers."""

WORKERS_MAX = 65_536
"""Thirty times the largest site the planner is measured with."""

WORKER_ID_MAX = 2**31 - 1
MICRO_BATCHES_MAX = 65_536
"""Of one step; the largest published batches are some thousand samples. Times are linear in the passes."""

SIZE_BYTES_MAX = 2**53
"""Sizes stay exact when they meet a float."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFacts:
    """One layer, one micro-batch, on a device of speed 1.0.

    `backward_s` is the whole backward pass; `backward_input_s` the part of it that the previous stage waits for when
    the backward pass is decoupled (ReCycle), by default half. `activation_bytes` is what a forward pass keeps until
    its backward pass, `output_bytes` what is sent to the next stage (and comes back as gradient).
    `optimizer_step_s` is the optimizer's time for this layer, once a step.
    """

    name: str
    forward_s: float
    backward_s: float
    backward_input_s: float = -1.0
    parameter_bytes: int = 0
    optimizer_bytes: int = 0
    gradient_bytes: int = 0
    activation_bytes: int = 0
    output_bytes: int = 0
    optimizer_step_s: float = 0.0

    def __post_init__(self) -> None:
        where = f"layer {require_text('layer.name', self.name)!r}"
        require_number(f"{where}.forward_s", self.forward_s)
        require_number(f"{where}.backward_s", self.backward_s)
        require_number(f"{where}.optimizer_step_s", self.optimizer_step_s)
        if self.backward_input_s == -1.0:
            object.__setattr__(self, "backward_input_s", self.backward_s / 2)
        require_number(f"{where}.backward_input_s", self.backward_input_s)
        if self.backward_input_s > self.backward_s:
            raise refuse(f"{where}.backward_input_s", self.backward_input_s, f"at most backward_s, {self.backward_s}")
        for name in ("parameter_bytes", "optimizer_bytes", "gradient_bytes", "activation_bytes", "output_bytes"):
            require_int(f"{where}.{name}", getattr(self, name), minimum=0, maximum=SIZE_BYTES_MAX)

    @property
    def static_bytes(self) -> int:
        """What holding this layer costs at all times: m_p + m_o + m_g of formula 14."""
        return self.parameter_bytes + self.optimizer_bytes + self.gradient_bytes

    def to_json(self) -> dict[str, object]:
        """A JSON object that `from_json` takes back."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: object) -> LayerFacts:
        """From a JSON object (mapping or text); `ValueError` naming the field that is wrong."""
        required = frozenset({"name", "forward_s", "backward_s"})
        known = require_object("layer", data, required=required, optional=_names(cls) - required)
        return cls(**known)  # type: ignore[arg-type]  # __post_init__ checks every type


@dataclass(frozen=True, kw_only=True)
class ModelProfile:
    """A model as a chain of layers, and how much work a step is.

    `micro_batch_size` is samples per micro-batch, `global_micro_batches` the micro-batches of one step over all
    pipelines together: the batch that the user chose, kept through every failure.
    """

    name: str
    layers: tuple[LayerFacts, ...]
    micro_batch_size: int = 1
    global_micro_batches: int = 1

    def __post_init__(self) -> None:
        require_text("model.name", self.name)
        if not isinstance(self.layers, tuple) or not 1 <= len(self.layers) <= LAYERS_MAX:
            raise refuse("model.layers", self.layers, f"a tuple of 1 to {LAYERS_MAX} layers")
        for layer in self.layers:
            if not isinstance(layer, LayerFacts):
                raise refuse("model.layers", layer, "layer facts")
        require_int("model.micro_batch_size", self.micro_batch_size, minimum=1, maximum=2**31)
        require_int("model.global_micro_batches", self.global_micro_batches, minimum=1, maximum=MICRO_BATCHES_MAX)
        if self.forward_s + self.backward_s <= 0.0:
            raise ValueError(
                "model.layers have no forward_s or backward_s above 0; allowed: at least one layer that takes time"
            )

    @cached_property
    def forward_s(self) -> float:
        """One micro-batch through all layers forward, seconds at speed 1.0."""
        return math.fsum(layer.forward_s for layer in self.layers)

    @cached_property
    def backward_s(self) -> float:
        """One micro-batch through all layers backward, seconds at speed 1.0."""
        return math.fsum(layer.backward_s for layer in self.layers)

    @property
    def global_batch_samples(self) -> int:
        """Samples of one step: B of objective 8."""
        return self.micro_batch_size * self.global_micro_batches

    def to_json(self) -> dict[str, object]:
        """A JSON object that `from_json` takes back."""
        return {
            "name": self.name,
            "layers": [layer.to_json() for layer in self.layers],
            "micro_batch_size": self.micro_batch_size,
            "global_micro_batches": self.global_micro_batches,
        }

    @classmethod
    def from_json(cls, data: object) -> ModelProfile:
        """From a JSON object (mapping or text); `ValueError` naming the field that is wrong."""
        required = frozenset({"name", "layers", "global_micro_batches"})
        known = dict(require_object("model", data, required=required, optional=_names(cls) - required))
        entries = require_list("model.layers", known.pop("layers"), length_max=LAYERS_MAX)
        return cls(layers=tuple(LayerFacts.from_json(entry) for entry in entries), **known)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """One worker's accelerator: its memory for training, and its speed relative to the profiled device."""

    worker: int
    memory_bytes: int
    speed: float = 1.0

    def __post_init__(self) -> None:
        require_int("device.worker", self.worker, minimum=0, maximum=WORKER_ID_MAX)
        require_int(f"device {self.worker}.memory_bytes", self.memory_bytes, minimum=0, maximum=SIZE_BYTES_MAX)
        require_number(f"device {self.worker}.speed", self.speed, above=True)

    def to_json(self) -> dict[str, object]:
        """A JSON object that `from_json` takes back."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: object) -> DeviceFacts:
        """From a JSON object (mapping or text); `ValueError` naming the field that is wrong."""
        required = frozenset({"worker", "memory_bytes"})
        known = require_object("device", data, required=required, optional=_names(cls) - required)
        return cls(**known)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRate:
    """The rate from one worker to another where it is not the cluster's default (between two hosts, say)."""

    source: int
    target: int
    rate_bytes_per_s: float

    def __post_init__(self) -> None:
        require_int("pair_rate.source", self.source, minimum=0, maximum=WORKER_ID_MAX)
        require_int("pair_rate.target", self.target, minimum=0, maximum=WORKER_ID_MAX)
        if self.source == self.target:
            raise refuse("pair_rate.target", self.target, f"a worker other than the source, {self.source}")
        where = f"pair_rate {self.source}->{self.target}.rate_bytes_per_s"
        require_number(where, self.rate_bytes_per_s, above=True)

    def to_json(self) -> dict[str, object]:
        """A JSON object that `from_json` takes back."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: object) -> PairRate:
        """From a JSON object (mapping or text); `ValueError` naming the field that is wrong."""
        known = require_object("pair_rate", data, required=_names(cls), optional=frozenset())
        return cls(**known)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class ClusterFacts:
    """The workers of a site (live and lost), the network between them, and what failures cost here.

    `restart_s`: from a worker's death to its successor on the same device having joined again, state excluded.
    `group_rebuild_s`: building the communication groups anew. `mtbf_s`: mean time between failures of the whole site;
    infinity (JSON: null) where none was ever seen.
    """

    devices: tuple[DeviceFacts, ...]
    rate_bytes_per_s: float
    pair_rates: tuple[PairRate, ...] = ()
    latency_s: float = 0.0
    restart_s: float = 0.0
    group_rebuild_s: float = 0.0
    mtbf_s: float = field(default=math.inf)

    def __post_init__(self) -> None:
        if not isinstance(self.devices, tuple) or not 1 <= len(self.devices) <= WORKERS_MAX:
            raise refuse("cluster.devices", self.devices, f"a tuple of 1 to {WORKERS_MAX} devices")
        require_number("cluster.rate_bytes_per_s", self.rate_bytes_per_s, above=True)
        for name in ("latency_s", "restart_s", "group_rebuild_s"):
            require_number(f"cluster.{name}", getattr(self, name))
        require_number("cluster.mtbf_s", self.mtbf_s, above=True, inf=True)
        if len(self._by_worker) != len(self.devices):
            counted = Counter(device.worker for device in self.devices)
            raise refuse("cluster.devices", counted.most_common(1)[0][0], "each worker once")
        for pair in self.pair_rates:
            for worker in (pair.source, pair.target):
                if worker not in self._by_worker:
                    raise refuse("cluster.pair_rates", worker, "workers named in cluster.devices")
        if len(self._rates) != len(self.pair_rates):
            raise refuse("cluster.pair_rates", len(self.pair_rates), "each ordered pair of workers once")

    @cached_property
    def _by_worker(self) -> dict[int, DeviceFacts]:
        return {device.worker: device for device in self.devices}

    @cached_property
    def _rates(self) -> dict[tuple[int, int], float]:
        return {(pair.source, pair.target): pair.rate_bytes_per_s for pair in self.pair_rates}

    @cached_property
    def workers(self) -> frozenset[int]:
        """Every worker named, lost ones too."""
        return frozenset(self._by_worker)

    def device(self, worker: int) -> DeviceFacts:
        """The worker's device; `ValueError` for a worker that no fact names."""
        found = self._by_worker.get(worker)
        if found is None:
            raise refuse("worker", worker, "a worker named in cluster.devices")
        return found

    def rate(self, source: int, target: int) -> float:
        """Bytes per second from one worker to another."""
        return self._rates.get((source, target), self.rate_bytes_per_s) if self._rates else self.rate_bytes_per_s

    def to_json(self) -> dict[str, object]:
        """A JSON object that `from_json` takes back."""
        return {
            "devices": [device.to_json() for device in self.devices],
            "rate_bytes_per_s": self.rate_bytes_per_s,
            "pair_rates": [pair.to_json() for pair in self.pair_rates],
            "latency_s": self.latency_s,
            "restart_s": self.restart_s,
            "group_rebuild_s": self.group_rebuild_s,
            "mtbf_s": None if math.isinf(self.mtbf_s) else self.mtbf_s,
        }

    @classmethod
    def from_json(cls, data: object) -> ClusterFacts:
        """From a JSON object (mapping or text); `ValueError` naming the field that is wrong."""
        required = frozenset({"devices", "rate_bytes_per_s"})
        known = dict(require_object("cluster", data, required=required, optional=_names(cls) - required))
        devices = require_list("cluster.devices", known.pop("devices"), length_max=WORKERS_MAX)
        pairs = require_list("cluster.pair_rates", known.pop("pair_rates", []), length_max=16 * WORKERS_MAX)
        if known.get("mtbf_s", 0) is None:
            known["mtbf_s"] = math.inf
        return cls(
            devices=tuple(DeviceFacts.from_json(entry) for entry in devices),
            pair_rates=tuple(PairRate.from_json(entry) for entry in pairs),
            **known,  # type: ignore[arg-type]
        )


def _names(kind: type[object]) -> frozenset[str]:
    return frozenset(entry.name for entry in fields(kind))  # type: ignore[arg-type]
