"""The benchmark of the encodings: its rounds are those of a run, whatever the shape of the tree."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="the benchmark trains with torch")

from benchmarks import encodings

from chaos_protocols.wire.state_spec import contribution_spec


@pytest.mark.parametrize("chain", [True, False])
def test_a_round_is_near_the_weighted_mean(chain: bool) -> None:
    rng = np.random.default_rng(1)
    sites = [encodings.coded_vector("int8", contribution_spec(0, 50_000)) for _ in range(4)]
    parts = [rng.standard_normal(50_000).astype(np.float32) for _ in sites]
    weights = [1.0, 2.0, 3.0, 4.0]
    found = encodings.average(sites, 1, parts, weights, chain=chain)
    wanted = np.average(np.stack(parts), axis=0, weights=weights)
    error = np.linalg.norm(found - wanted) / np.linalg.norm(wanted)
    assert 1e-3 < error < 0.05
    assert all(site.error is not None for site in sites)
