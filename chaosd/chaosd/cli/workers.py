"""`chaosd workers`: who works on what, in the worker groups that `chaosd run` has started on this machine.

`chaosd workers selftest`: what workers can do here, tried.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Annotated

import typer

from chaosd.cli.options import EXIT_FAILED, ConfigOption, DataDirOption, JsonOption, echo_json, fail, selected
from chaosd.config.file import ConfigError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from chaosd.worker_group.board import GroupView
    from chaosd.worker_group.selftest import TrialVerdict

WATCH_INTERVAL_S = 1.0


workers_app = typer.Typer(invoke_without_command=True)


def register(app: typer.Typer) -> None:
    app.add_typer(workers_app, name="workers")


@workers_app.callback()
def workers(
    context: typer.Context,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="keep showing it, until Ctrl+C or the last ends")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Show the workers of each `chaosd run` of this user: process, device, layers, what each does, and since when.

    $ chaosd workers --watch
    $ chaosd workers --json | jq '.[].workers[] | select(.state != "trains")'
    $ chaosd workers selftest

    Exit codes: 0 there are some, 1 no `chaosd run` is running.
    """
    if context.invoked_subcommand is not None:
        return
    from chaosd.worker_group.board import boards

    found = list(boards())
    if json and (not watch or not found):
        echo_json(found)
    elif json:
        _watch_json(found)
    elif watch and found:
        _watch(found)
    else:
        for view in found:
            _print(view)
    if not found:
        fail("no `chaosd run` of this user is running on this machine", EXIT_FAILED)


def _watch_json(views: list[GroupView]) -> None:
    """A line each time; like the picture until nobody is there any more."""
    import msgspec

    from chaosd.worker_group.board import boards

    while views:
        typer.echo(msgspec.json.encode(views).decode())
        time.sleep(WATCH_INTERVAL_S)
        views = list(boards())


def _watch(views: list[GroupView]) -> None:
    from rich.console import Group
    from rich.live import Live

    from chaosd.worker_group.board import boards

    with Live(Group(*map(_rendered, views)), auto_refresh=False) as live, contextlib.suppress(KeyboardInterrupt):
        while views:
            time.sleep(WATCH_INTERVAL_S)
            views = list(boards())
            if views:
                live.update(Group(*map(_rendered, views)), refresh=True)
    if not views:
        typer.echo("no `chaosd run` of this user is running any more")


@workers_app.command()
def selftest(
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    device: Annotated[str, typer.Option(help="what workers compute on: auto, cpu, cuda or npu")] = "auto",
    json: JsonOption = False,
) -> None:
    """Try on this machine what workers of a site do: train, and go on after a loss of each kind.

    Four real processes train a small model five times, undisturbed and with one of them killed or stopped; after every
    step the states of all layers must have the bits of one process. Takes about a minute. What was found is written
    into the data directory, for each kind of device by itself, and `chaosd doctor` shows it. They share accelerators
    where there are fewer than five.

    $ chaosd workers selftest

    Exit codes: 0 all held, 1 something did not.
    """
    import asyncio

    from chaosd.worker_group.devices import NoDevice, place
    from chaosd.worker_group.selftest import PROCESSES, Playing, SelfTest, SelfTestFailed, write

    async def play() -> SelfTest:
        placement, said = place(device, PROCESSES, share=True)
        if said and not json:
            typer.echo(said)
        playing = Playing(placement=placement)
        async for verdict in playing.verdicts():
            if not json:
                _tell(verdict)
        return playing.result

    try:
        folder = selected(config, data_dir, None)[0]
        result = asyncio.run(play())
    except (ConfigError, NoDevice, SelfTestFailed) as error:
        fail(str(error), EXIT_FAILED)
    path = write(result, folder)
    if json:
        echo_json(result)
    else:
        typer.echo(f"executed on: {result.device}, {result.backend}, torch {result.torch} ({result.machine})")
        for name in result.unused:
            typer.echo(f"not used: {name} (--device cuda tries it)")
        typer.echo(f"written to {path}")
    if not all(verdict.held for verdict in result.verdicts):
        raise typer.Exit(EXIT_FAILED)


def _tell(verdict: TrialVerdict) -> None:
    from chaosd.worker_group.selftest import TRIALS

    says = next(trial.says for trial in TRIALS if trial.name == verdict.trial)
    times = ""
    if verdict.ready_s:
        times = f" (seen after {1e3 * verdict.seen_s:.0f} ms, all ready after {1e3 * verdict.ready_s:.0f} ms)"
    word = typer.style("held  ", fg="green") if verdict.held else typer.style("FAILED", fg="red")
    typer.echo(f"{word} {verdict.trial:<8s} {says}{times}")
    if verdict.found:
        typer.echo(f"{'':<16s}{verdict.found}")


def _print(view: GroupView) -> None:
    from rich.console import Console

    Console().print(_rendered(view))


def _rendered(view: GroupView) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    run = f"; in its run: {view.run}" if view.run else ""
    lines = [f"{view.command} (controller {view.pid}): {view.phase}, step {view.step}, plan {view.generation}{run}"]
    if view.shape:
        lines.append(view.shape)
    if view.measured_step_s:
        off = view.expected_step_s / view.measured_step_s - 1
        lines.append(
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
    return Group(Text("\n".join(lines)), table)
