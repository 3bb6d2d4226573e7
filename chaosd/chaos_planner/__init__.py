"""Planning, pure: measured facts in, plan and reason out; equal inputs give equal plans.

`overlay`: between sites. `overlay.shards` says which neighbour sends a joiner how much of the state, `overlay.trees`
along which trees a round is averaged; the daemon asks both. `pipelines`: inside a site with several devices, what to do
when some fail; `chaosd plan` and `chaosd simulate` ask it. Nothing here imports the daemon, its protocols or the SDK,
reads a clock or does I/O; only `pipelines.facts.profiler`, which times a real model, does.
"""

from chaos_planner.solvers import SolverMissing

__all__ = ["SolverMissing"]
