"""A small setting for the policy simulator, with whole numbers as times."""

from __future__ import annotations

from chaos_planner.pipelines.facts.site import ClusterFacts, DeviceFacts, LayerFacts, ModelProfile
from chaos_planner.pipelines.simulators.baselines import (
    Setting,
)
from chaos_planner.pipelines.simulators.ruler import Ruler


def small_setting(
    *, dp: int = 4, pp: int = 2, memory_bytes: int = 10**12, micro_batches: int = 16, rebuild_s: float = 1.0
) -> Setting:
    """8 equal layers of 1 s forward and 2 s backward; no network, so that times are whole numbers."""
    layers = tuple(
        LayerFacts(
            name=f"l{i}",
            forward_s=1.0,
            backward_s=2.0,
            parameter_bytes=10**6,
            optimizer_bytes=3 * 10**6,
            gradient_bytes=10**6,
            activation_bytes=10**6,
        )
        for i in range(8)
    )
    model = ModelProfile(name="m", layers=layers, global_micro_batches=micro_batches)
    devices = tuple(DeviceFacts(worker=w, memory_bytes=memory_bytes) for w in range(dp * pp))
    cluster = ClusterFacts(devices=devices, rate_bytes_per_s=1e9, group_rebuild_s=rebuild_s)
    return Setting(ruler=Ruler(model, cluster), dp=dp, pp=pp)
