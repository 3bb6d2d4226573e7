"""The demonstration of a site of several workers: what it shows holds, and it draws its pictures; a short form."""

from __future__ import annotations

import io
from pathlib import Path
from xml.etree import ElementTree

import pytest
from examples.site import drama
from examples.site.demo import report
from rich.console import Console
from tests.rigs.site import Site
from tests.rigs.worker_group import launch

from chaos_lab.running import RunningSite

pytestmark = pytest.mark.long


class WarmSite(RunningSite):
    """Its processes are forked from an interpreter that has imported what they need."""

    spawn_daemon = Site.spawn_daemon  # type: ignore[assignment]
    spawn_worker = Site.spawn_worker  # type: ignore[assignment]


async def test_the_demonstration_loses_workers_and_a_stage_and_both_sites_end_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drama, "STEPS_BETWEEN", 2)
    pictures = [tmp_path / "loss.svg", tmp_path / "rescue.svg"]
    told: list[str] = []
    playing = drama.Drama(told.append, pictures, launch)
    async with drama.Institutions(tmp_path / "first", WarmSite) as sites:
        await playing.play(sites)
    shown = playing.shown
    async with drama.Institutions(tmp_path / "second", WarmSite) as sites:
        shown.undisturbed = await drama.undisturbed(sites, shown.lost_at - 1)
    console = Console(file=io.StringIO(), width=200)
    assert report(shown, console), told
    assert [len(blow.workers) for blow in shown.blows] == [1, 1, 2] and shown.rescue.whole_s, told
    assert all(blow.strike.repeated <= 1 for blow in shown.blows[:2])
    assert shown.rescue.came_bytes < shown.rescue.state_bytes, "the lost layers, not the whole state"
    for picture in pictures:
        text = "".join(ElementTree.parse(picture).getroot().itertext())
        assert "undisturbed" in text and "The last recovery" in text
