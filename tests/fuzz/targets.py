"""All fuzz targets by name."""

from __future__ import annotations

from tests.fuzz import targets_api, targets_checkpoints, targets_files, targets_site, targets_transport, targets_wire
from tests.fuzz.engine import Target

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        *targets_wire.TARGETS,
        *targets_site.TARGETS,
        *targets_transport.TARGETS,
        *targets_files.TARGETS,
        *targets_checkpoints.TARGETS,
        *targets_api.TARGETS,
    )
}
