"""Data that sites share: who trains on which sample, while sites come and go (docs/shared-data.md)."""

from __future__ import annotations

from chaos.data.sampler import ElasticSampler

__all__ = ["ElasticSampler"]
