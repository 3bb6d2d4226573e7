"""In which order the files of these tests begin: four of them run side by side, and none is to end long after all
others."""

from __future__ import annotations

import pytest

LONGEST_FIRST = (
    "test_worker_devices.py",
    "test_worker_group.py",
    "test_institutions.py",
    "test_lab.py",
    "test_quick_start.py",
    "test_two_versions.py",
    "test_bad_paths.py",
    "test_demo_page.py",
    "test_examples.py",
    "test_workers_selftest.py",
    "test_lab_network.py",
    "test_learning_examples.py",
    "test_pages.py",
    "test_mixed_scripts.py",
    "test_sharded_institutions.py",
    "test_local_stages.py",
    "test_integrations.py",
    "test_cluster.py",
    "test_device_groups.py",
    "test_first_minutes.py",
    "test_encodings.py",
    "test_transport_memory.py",
    "test_training_modes.py",
    "test_transport_both_dial.py",
    "test_causes.py",
)
"""The others take less than half a minute each, where all are busy."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The order within a file stays."""
    places = {name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))
