"""`chaosd workers`: who works on what, in the worker groups that `chaosd run` has started on this machine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import typer

from chaosd.cli.options import EXIT_FAILED, JsonOption, echo_json, fail

if TYPE_CHECKING:
    from chaosd.worker_group.board import GroupView


def register(app: typer.Typer) -> None:
    app.command()(workers)


def workers(json: JsonOption = False) -> None:
    """Show the workers of each `chaosd run` of this user: process, device, layers, what each does, and since when.

    $ chaosd workers
    $ chaosd workers --json | jq '.[].workers[] | select(.state != "trains")'

    Exit codes: 0 there are some, 1 no `chaosd run` is running.
    """
    from chaosd.worker_group.board import boards

    found = list(boards())
    if json:
        echo_json(found)
    elif found:
        for view in found:
            _show(view)
    if not found:
        fail("no `chaosd run` of this user is running on this machine", EXIT_FAILED)


def _show(view: GroupView) -> None:
    from rich.console import Console
    from rich.table import Table

    run = f"; in its run: {view.run}" if view.run else ""
    typer.echo(f"{view.command} (controller {view.pid}): {view.phase}, step {view.step}, plan {view.generation}{run}")
    if view.shape:
        typer.echo(view.shape)
    if view.measured_step_s:
        off = view.expected_step_s / view.measured_step_s - 1
        typer.echo(
            f"a step: {1e3 * view.measured_step_s:.3g} ms measured, {1e3 * view.expected_step_s:.3g} ms expected of "
            f"devices that share nothing ({off:+.1%})"
        )
    table = Table()
    for column in ("worker", "process", "device", "layers", "state", "for", "doing"):
        table.add_column(column)
    now = time.time()
    for each in view.workers:
        cells = (str(each.worker), str(each.pid), each.device, each.stage or "-", each.state)
        table.add_row(*cells, f"{max(0.0, now - each.since):.0f} s", each.doing)
    Console().print(table)
