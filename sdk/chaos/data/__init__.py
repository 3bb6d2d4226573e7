"""Data that sites share: who trains on which sample, while sites come and go (docs/shared-data.md).

`ledger.py` is what all sites know alike, as a part of the state; `order.py` deals the samples; `sampler.py` gives each
site its own. Driven by the script's loader, and by the sync mode at the end of each round.
"""

from __future__ import annotations

from chaos.data.sampler import ElasticSampler

__all__ = ["ElasticSampler"]
