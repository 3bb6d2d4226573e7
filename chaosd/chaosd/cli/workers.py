"""`chaosd workers`: who works on what, in the worker groups that `chaosd run` has started on this machine.

`chaosd workers drain N`, `undrain N`: take one out while they train, and let it in again. `chaosd workers replan`: the
best plan by the speeds of now. `chaosd workers selftest`: what workers can do here, tried.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chaosd.cli.options import (
    EXIT_FAILED,
    EXIT_USAGE,
    ConfigOption,
    DataDirOption,
    JsonOption,
    echo_json,
    fail,
    selected,
    tell,
)
from chaosd.cli.watching import watch
from chaosd.config.file import ConfigError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from chaosd.worker_group.board import GroupView
    from chaosd.worker_group.selftest import TrialVerdict

WATCH_INTERVAL_S = 1.0
NOBODY = "no `chaosd run` of this user is running on this machine"

workers_app = typer.Typer(invoke_without_command=True)


def register(app: typer.Typer) -> None:
    app.add_typer(workers_app, name="workers")


@workers_app.callback()
def workers(
    context: typer.Context,
    watching: Annotated[
        bool, typer.Option("--watch", "-w", help="keep showing it, until Ctrl+C or the last ends")
    ] = False,
    each: Annotated[bool, typer.Option("--all", "-a", help="a row for each worker, however many there are")] = False,
    json: JsonOption = False,
) -> None:
    """Show the workers of each `chaosd run` of this user: process, device, layers, what each does, and since when.

    Of more than 32 workers, those with the same layers and the same state are one row, and how many they are; `0-996:4`
    is every fourth number from 0 to 996. Workers that stand still, start, or are taken out have rows of their own,
    first. --json has all of them, and the last hundred that were lost.

    $ chaosd workers --watch
    $ chaosd workers --all
    $ chaosd workers --json | jq '.[].workers[] | select(.state != "trains")'
    $ chaosd workers drain 2
    $ chaosd workers replan
    $ chaosd workers selftest

    Exit codes: 0 there are some, 1 no `chaosd run` is running.
    """
    if context.invoked_subcommand is not None:
        return
    from chaosd.worker_group.board import boards

    found = list(boards())
    if not found:
        if json:
            echo_json(found)
        fail(NOBODY, EXIT_FAILED)
    if watching:
        watch(lambda: list(boards()) or None, partial(_rendered_all, each=each), every_s=WATCH_INTERVAL_S, as_json=json)
        if not json and not list(boards()):
            typer.echo("no `chaosd run` of this user is running any more")
    elif json:
        echo_json(found)
    else:
        from rich.console import Console

        Console().print(_rendered_all(found, each=each))


WorkerArgument = Annotated[int, typer.Argument(min=0, help="its number, as `chaosd workers` shows it")]
OfOption = Annotated[
    int | None,
    typer.Option("--of", help="process id of its `chaosd run` (the controller), where several are running"),
]


@workers_app.command()
def drain(worker: WorkerArgument, of: OfOption = None, json: JsonOption = False) -> None:
    """Take a worker out of the plan while the training runs: its device is wanted for something else.

    The planner works out how the others go on without it, and until then nobody stops. When the step under way is done
    its layers move to them; no step is lost, also where it alone had some layers. Its process stays, idle, and may be
    ended: none is started in its place. It gets no layers until `chaosd workers undrain`, unless the training could not
    go on without it (`worker-undrained` in its events). Where no plan can do without it, that is said and nothing
    changes.

    It needs no daemon: the order goes to `chaosd run` itself, which takes it from its own user alone.

    $ chaosd workers drain 2
    $ chaosd workers --watch

    Exit codes: 0 it is drained, 1 it is not (the sentence says why), 2 several `chaosd run` and none was named.
    """
    _order(worker, of, drain=True, as_json=json)


@workers_app.command()
def undrain(worker: WorkerArgument, of: OfOption = None, json: JsonOption = False) -> None:
    """Let a worker that was drained have layers again.

    The planner is asked; if it has a place for it, the worker takes that when a step ends, and waits like a spare
    otherwise. If its process has ended meanwhile, a new one is started, with a number of its own.

    $ chaosd workers undrain 2

    Exit codes: 0 it may have layers again, 1 not (the sentence says why), 2 several `chaosd run` and none was named.
    """
    _order(worker, of, drain=False, as_json=json)


@workers_app.command()
def replan(of: OfOption = None, json: JsonOption = False) -> None:
    """Have the best plan by the speeds of now: something else on the machine has ended, or begun.

    A site changes its plan by itself, but looks once a minute at most, and tries a worker that was left out for its
    speed after ten minutes, or longer if it was slow again. This order does not wait for that: the planner looks at
    once, while all train, and counts whoever was left out as fast until it is measured. Where another plan saves at
    least 2 % of a step, all change to it when the step under way is done; no step is lost. Otherwise it is said what a
    step takes and would take, and nothing changes.

    $ chaosd workers replan

    Exit codes: 0 another plan is in force, 1 not (the sentence says why), 2 several `chaosd run` and none was named.
    """
    _ask(of, "/v1/workers/replan", {}, "replan", as_json=json)


def _order(worker: int, of: int | None, *, drain: bool, as_json: bool) -> None:
    what = f"{'drain' if drain else 'undrain'} worker {worker}"
    _ask(of, "/v1/workers", {"worker": worker, "drain": drain}, what, as_json=as_json)


def _ask(of: int | None, route: str, body: dict[str, Any], what: str, *, as_json: bool) -> None:
    from chaosd.api.client import CHANGE_TIMEOUT_S, LocalClient, NoDaemonError, RequestRefusedError
    from chaosd.api.status import Outcome
    from chaosd.worker_group.door import DOOR_NAME

    door = _group(of) / DOOR_NAME
    try:
        outcome = LocalClient(door).ask("POST", route, Outcome, body, timeout_s=CHANGE_TIMEOUT_S)
    except NoDaemonError as error:
        where = str(error).removeprefix("no daemon answers ").removeprefix("the daemon ")
        fail(f"`chaosd run` does not answer: {where}", EXIT_FAILED)
    except RequestRefusedError as error:
        fail(f"`chaosd run` refused: {error}", EXIT_FAILED)
    tell(outcome, what, as_json=as_json)


def _group(of: int | None) -> Path:
    """Folder of the `chaosd run` that is meant."""
    from chaosd.worker_group.board import groups

    found = {view.pid: (folder, view) for folder, view in groups()}
    if not found:
        fail(
            f"{NOBODY}. Orders are for a site of several workers; one of `python train.py` has one",
            EXIT_FAILED,
        )
    if of is not None and of not in found:
        fail(f"--of {of}: no `chaosd run` of this user has this process id; here are {_listed(found)}", EXIT_USAGE)
    if of is None and len(found) > 1:
        fail(f"several are running; name one by --of: {_listed(found)}", EXIT_USAGE)
    return found[of or next(iter(found))][0]


def _listed(found: Mapping[int, tuple[Path, GroupView]]) -> str:
    return ", ".join(f"{pid} ({view.command}{_where(view)})" for pid, (_, view) in sorted(found.items()))


def _where(view: GroupView) -> str:
    """Two runs of one script are told apart by the folders in which they were started."""
    return f" in {view.folder}" if view.folder else ""


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


def _rendered_all(views: Sequence[GroupView], *, each: bool) -> RenderableType:
    from rich.console import Group

    return Group(*(_rendered(view, each=each) for view in views))


def _rendered(view: GroupView, *, each: bool) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from chaosd.cli.render import logged_text
    from chaosd.cli.worker_rows import counted, lost, old, rows_of, still, uneven

    now = time.time()
    run = f"; in its run: {view.run}" if view.run else ""
    which = f"{view.command} (controller {view.pid}{_where(view)})"
    lines = [f"{which}: {view.phase}, step {view.step}, plan {view.generation}{run}"]
    lines += [line for line in (old(view, now), view.shape) if line]
    if view.measured_step_s:
        off = view.expected_step_s / view.measured_step_s - 1
        lines.append(
            f"a step: {1e3 * view.measured_step_s:.3g} ms measured, {1e3 * view.expected_step_s:.3g} ms expected of "
            f"devices that share nothing ({off:+.1%})"
        )
    if view.figures:
        lines.append(logged_text(view.figures))
    lines.append(counted(view))
    if gone := lost(view, now):
        lines.append(gone)
    lines += [*still(view), *uneven(view, now)]
    table = Table()
    for column in ("worker", "process", "device", "layers", "state", "for", "doing"):
        table.add_column(column)
    for row in rows_of(view, now, each=each):
        table.add_row(*map(Text, (row.worker, row.process, row.device, row.layers, row.state, row.lasts, row.doing)))
    return Group(Text("\n".join(lines)), table)
