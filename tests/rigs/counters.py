"""What a daemon counts, out of its `/metrics`."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample


def samples(metrics: str, name: str, **labels: str) -> list[Sample]:
    """Those of this name that have these labels, others beside them or none; of a counter the name ends in `_total`."""
    return [
        sample
        for family in text_string_to_metric_families(metrics)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]


def counted(metrics: str, name: str, **labels: str) -> float:
    """Their sum; 0 where nothing was counted yet."""
    return sum(float(sample.value) for sample in samples(metrics, name, **labels))
