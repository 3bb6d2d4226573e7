"""The names of the planner that others build on: they stay where they are, with these arguments."""

from __future__ import annotations

import dataclasses
import inspect
import math
import subprocess
import sys

import pytest

import chaos_planner
from chaos_planner.overlay import policies, shards, trees

WITHOUT_SOLVER = """
import sys
sys.modules["scipy"] = None
from chaos_planner.overlay import shards, trees
from chaos_planner.pipelines.facts.models import built_in, uniform_cluster
from chaos_planner.pipelines.search.equal_devices import EqualDevices
from chaos_planner.pipelines.transfers.restorer import holdings, restore
from chaos_planner.pipelines.search.planner import plan
from chaos_planner.solvers import SolverMissing

link = trees.LinkFacts(rate_bytes_per_s=1e6, latency_s=0.01)
links = {("a", "b"): link, ("b", "c"): link, ("a", "c"): link}
assert shards.assign([0.0, 0.1], [1.0, 2.0], 9).counts == (6, 3)
for policy in (trees.pack, trees.tree, trees.ring, trees.star):
    assert policy(["a", "b", "c"], links).trees
model, cluster = built_in("llama2-7b"), uniform_cluster(8)
before = EqualDevices(model, cluster).symmetric_plan(2, 4)
calls = (
    lambda: plan(model, cluster, before, frozenset({3})),
    lambda: restore(model, cluster, holdings(model, before, failed=[3]), before),
)
for call in calls:
    try:
        call()
    except SolverMissing as error:
        assert "chaos-train[planner]" in str(error), error
    else:
        raise AssertionError("this needs the solver")
print("done")
"""


def arguments(function: object) -> list[str]:
    assert callable(function)
    return list(inspect.signature(function).parameters)


def test_the_public_modules_and_names_are_these() -> None:
    assert chaos_planner.__all__ == ["SolverMissing"]
    assert shards.__all__ == [
        "NoSource",
        "ShardAssignment",
        "assign",
        "assign_heap",
        "make_assignment",
        "ranges",
        "seconds_per_shard",
        "shards_of",
        "usable_neighbours",
    ]
    assert trees.__all__ == [
        "POLICIES",
        "TREES_MAX",
        "Disconnected",
        "LinkFacts",
        "NoTree",
        "TreePlan",
        "TreePolicy",
        "WeightedTree",
        "pack",
        "plan_rate_bytes_per_s",
        "ring",
        "star",
        "tree",
    ]
    assert policies.__all__ == [
        "POLICIES",
        "CountsFunction",
        "DistantSource",
        "Policy",
        "ReplicationFacts",
        "custom",
        "plan_replication",
    ]
    for module in (shards, trees, policies):
        assert all(hasattr(module, name) for name in module.__all__)


def test_assign_takes_seconds_and_a_number_of_shards_and_answers_counts() -> None:
    assert arguments(shards.assign)[:3] == ["r_s", "p_s", "num_shards"]
    found = shards.assign([0.0, 1.0], [1.0, 1.0], 5)
    assert (found.counts, found.makespan_s) == ((3, 2), 3.0)
    assert {field.name for field in dataclasses.fields(found)} == {"counts", "finish_s", "makespan_s", "reason"}
    with pytest.raises(shards.NoSource):
        shards.assign([0.0], [math.inf], 1)


def test_all_tree_policies_have_one_signature_and_one_kind_of_answer() -> None:
    wanted = ["sites", "links", "uplinks", "num_trees_max", "learners"]
    link = trees.LinkFacts(rate_bytes_per_s=6.0, latency_s=0.01)
    links = {("a", "b"): link, ("b", "c"): link, ("a", "c"): link}
    assert sorted(trees.POLICIES) == ["ring", "star", "tree", "trees"]
    for policy in (*trees.POLICIES.values(), trees.pack, trees.tree, trees.ring, trees.star):
        assert arguments(policy) == wanted
        found = policy(["a", "b", "c"], links)
        assert isinstance(found, trees.TreePlan)
        assert 0 < found.rate_bytes_per_s <= found.bound_bytes_per_s
        assert found.reason
        assert all(len(each.edges) == 2 and each.weight > 0 and each.root in "abc" for each in found.trees)
    assert inspect.signature(trees.pack).parameters["num_trees_max"].default == 8


def test_without_scipy_only_transfers_are_refused_and_the_extra_is_named() -> None:
    command = [sys.executable, "-c", WITHOUT_SOLVER]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (result.stdout.strip(), result.stderr) == ("done", "")
