"""A daemon needs no extra: sites start, a newcomer joins and they train where scipy and msgpack are not installed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.integration.small_training import train
from tests.rigs.site import cluster_of, wait_for

ROUNDS = 5

REFUSAL = """
import os, pathlib, sys

class Refusal:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("scipy", "msgpack"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refusal())
pathlib.Path(__file__).with_name(f"refused-in-{os.getpid()}").touch()
"""


@pytest.mark.long
def test_sites_start_join_and_train_without_scipy_and_msgpack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    customised = tmp_path / "customised"
    customised.mkdir()
    (customised / "sitecustomize.py").write_text(REFUSAL)
    known = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(customised), *([known] if known else [])]))
    with cluster_of(tmp_path, {"first": "Cleveland", "second": "Hungary"}, min_sites=1) as cluster:
        first, second = cluster.sites
        first.start()
        train(first, 1)
        wait_for(lambda: first.round() >= 1, "the first site trains alone")
        second.start()
        train(second, 2)
        wait_for(second.is_member, "the second has got the state and is a member")
        joined = second.round()
        wait_for(lambda: min(first.round(), second.round()) >= joined + ROUNDS, "both train on together")
        for site in cluster.sites:
            assert site.daemon is not None and site.worker is not None
            for process in (site.daemon, site.worker):
                assert (customised / f"refused-in-{process.pid}").exists()
