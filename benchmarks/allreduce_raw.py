"""Averaging between daemons whose links are not encrypted, over the same averaging by torch's gloo, which has no TLS.

As `allreduce` in all else: sites with a daemon and a worker each on loopback, 2 and 4 of them, vectors of 256 MiB
(short: 64 MiB), fp32, only rounds with the weight of all sites. TLS is taken out from outside, in these processes alone
(`plain_daemon`). The same sites with TLS run in between, and gloo before and after: `tls_...` beside each figure says
what TLS costs.

Bar: at most 1.3 times gloo's seconds.
"""

from __future__ import annotations

import sys

from benchmarks.allreduce import MIB, ROUNDS_LARGE, ROUNDS_SHORT, AveragingCluster, daemons_measured, figures_of
from benchmarks.gloo_ring import gloo_rounds
from benchmarks.measure import Figures
from benchmarks.wan import ROOT
from chaos_protocols.wire.encodings import FP32


class PlainCluster(AveragingCluster):
    """The daemons are those of `plain_daemon`."""

    def start_daemon(self, name: str) -> None:
        site = self.sites[name]
        files = site.daemon_command()[3:]
        site.spawn_daemon([sys.executable, "-m", "benchmarks.plain_daemon", *files], folder=ROOT)


def run(*, short: bool, seed: int) -> Figures:
    """See the module; the seed is not used: nothing is drawn."""
    del seed
    vector_bytes, rounds = (64 * MIB, ROUNDS_SHORT) if short else (256 * MIB, ROUNDS_LARGE)
    figures: Figures = {}
    for sites in (2, 4):
        gloo = [gloo_rounds(sites, vector_bytes, ROUNDS_SHORT)]
        plain = daemons_measured(sites, vector_bytes, rounds, FP32, cluster_type=PlainCluster)
        encrypted = daemons_measured(sites, vector_bytes, rounds, FP32)
        gloo.append(gloo_rounds(sites, vector_bytes, ROUNDS_SHORT))
        figures |= figures_of(sites, vector_bytes, plain, gloo, "")
        with_tls = figures_of(sites, vector_bytes, encrypted, gloo, "")
        figures |= {f"tls_{key}": value for key, value in with_tls.items()}
    return figures
