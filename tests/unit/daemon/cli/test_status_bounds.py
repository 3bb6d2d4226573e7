"""What the run allows a site to give, and what came of it, as `chaosd status` shows it."""

from __future__ import annotations

import io

import msgspec
from rich.console import Console
from tests.unit.daemon.api.local_api import sample_status

from chaosd.api.status import BoundsStatus
from chaosd.cli.render import render_status

NORMS = BoundsStatus(norm_max=4.0, weight_max=0.0, clipped_rounds=1_200, void_rounds=0)


def shown(bounds: BoundsStatus | None) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(render_status(msgspec.structs.replace(sample_status(), bounds=bounds)))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_a_run_without_bounds_has_no_line_for_them() -> None:
    assert "gives at most" not in shown(None)


def test_norm_and_weight_are_told_with_what_was_clipped() -> None:
    text = shown(NORMS)
    assert "at most norm 4 and any weight: 1,200 parts of this site were clipped" in text and "last result" not in text


def test_a_radius_is_told_with_how_far_the_last_part_was_also_before_any_was_drawn_in() -> None:
    clips = msgspec.structs.replace(NORMS, clip_radius=0.5)
    assert "0 drawn in to 0.5 from the last result" in shown(clips) and "away" not in shown(clips)
    text = shown(msgspec.structs.replace(clips, drawn_in_rounds=7, away=0.75))
    assert "7 drawn in to 0.5 from the last result (the last was 0.75 away)" in text
