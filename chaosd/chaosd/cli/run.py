"""`chaosd run`: the workers of one site on one machine, and the controller that keeps them training."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from chaosd.cli.options import EXIT_FAILED, EXIT_USAGE, ConfigOption, fail, say
from chaosd.config.contexts import choose
from chaosd.config.file import WORKER_SOCKET_NAME, ConfigError, default_data_dir, read_config_file

ASIDE = {"worker-started", "peer-lost", "stop", "step", "round"}
"""Kinds that are in the file of events and not on the screen."""

SAME_TERM_S = 1.0
"""SIGTERM within that since the first signal is no second wish."""

POLICIES = ("reroute", "dynamic", "spare")

SkipOption = Annotated[
    bool,
    typer.Option(
        "--skip-not-finite",
        help="leave out a step whose gradient is not finite, instead of ending the training with it",
    ),
]
TimelineOption = Annotated[
    Path | None,
    typer.Option("--timeline", help="draw the last step and the last recovery, as measured, into this file (.svg)"),
]
DeviceOption = Annotated[str, typer.Option("--device", help="what workers compute on: auto, cpu, cuda or npu")]
ShareOption = Annotated[bool, typer.Option("--share-devices", help="several workers may have one device")]


def register(app: typer.Typer) -> None:
    app.command(context_settings={"allow_interspersed_args": False})(run)


def run(
    command: Annotated[
        list[str] | None, typer.Argument(help="a Python script and its arguments, or any command", show_default=False)
    ] = None,
    nproc: Annotated[int, typer.Option(min=1, max=1024, help="processes that train; each is a worker")] = 2,
    group_size: Annotated[
        int, typer.Option(min=1, max=1024, help="processes of one worker, which share its layers (device_group=)")
    ] = 1,
    spares: Annotated[int, typer.Option(min=0, max=64, help="further workers that wait for a lost one's place")] = 0,
    dp: Annotated[int, typer.Option(min=0, help="pipelines; default: the planner chooses")] = 0,
    pp: Annotated[int, typer.Option(min=0, help="stages of each pipeline; default: the planner chooses")] = 0,
    plan: Annotated[Path | None, typer.Option(help="the first plan, a JSON file as of `chaosd plan --json`")] = None,
    restarts: Annotated[int, typer.Option(min=0, help="workers that die and are started anew, an hour")] = 3,
    policies: Annotated[str, typer.Option(help="how a loss may be answered")] = ",".join(POLICIES),
    failure_timeout_s: Annotated[
        float, typer.Option(min=0.1, help="how long a worker may stand still beyond what its work has taken before")
    ] = 1.0,
    skip_not_finite: SkipOption = False,
    audit: Annotated[bool, typer.Option("--audit", help="compare the replicas' states after every step")] = False,
    events: Annotated[Path | None, typer.Option(help="write what happens to this file, a JSON object a line")] = None,
    timeline: TimelineOption = None,
    device: DeviceOption = "auto",
    share_devices: ShareOption = False,
    standalone: Annotated[bool, typer.Option("--standalone", help="in no run, whatever the script says")] = False,
    config: ConfigOption = None,
) -> None:
    """Train with several workers on this machine; whatever dies costs at most a step.

    The script makes its model with `Coordinator().parallelize(...)`, or keeps a loop of its own with `replicate(...)`
    in place of DistributedDataParallel (docs/site.md), and is started once for each worker. Each worker holds some
    layers (or all) and computes some of the micro-batches; the planner says which. When one dies or
    stands still, the others stop within milliseconds, take its work over, and go on with the same step.

    Beside a daemon these workers are together the site's one worker in its run: every step is averaged with the other
    institutions. By themselves they train with --standalone, or where the script says `Coordinator(standalone=True)`.

      $ chaosd run --nproc 4 --dp 2 --pp 2 train.py
      $ chaosd run --nproc 4 --config hungary/chaosd.toml train.py
      $ chaosd run --nproc 4 --standalone train.py
      $ chaosd run --nproc 8 --group-size 2 --dp 2 --pp 2 --standalone train.py
      $ chaosd run --nproc 8 --spares 1 --restarts 3 --events events.jsonl train.py --epochs 3
      $ chaosd run --nproc 8 --dp 2 --pp 4 --standalone --timeline steps.svg train.py

    Ctrl+C ends the training after the message has reached all workers, a second one at once. Exit codes: 0 trained to
    the end, or left its run, 1 could not go on, or a script failed after it, 2 wrong usage, 130 ended by Ctrl+C before
    (143: by SIGTERM, 129: its terminal was closed; under nohup it trains on).
    """
    if sys.platform != "linux":
        fail("chaosd run needs Linux (pidfd, memfd, /proc); on other systems start the script alone", EXIT_USAGE)
    if not command:
        fail("name the script that the workers run: chaosd run --nproc 4 train.py", EXIT_USAGE)
    chosen = [word.strip() for word in policies.split(",") if word.strip()]
    unknown = sorted(set(chosen) - set(POLICIES))
    if unknown or not chosen:
        fail(f"--policies {policies}: allowed: a list of {', '.join(POLICIES)}", EXIT_USAGE)
    workers = _workers(nproc, group_size, max(dp, 1) * max(pp, 1))
    if not Path(command[0]).exists() and command[0].endswith(".py"):
        fail(f"{command[0]}: no such script", EXIT_USAGE)
    if timeline is not None:
        _check_timeline(timeline)
    _check_start(nproc + spares * group_size)
    given = {"workers": workers, "pipelines": dp, "stages": pp, "first": None if plan is None else _plan(plan, workers)}
    import asyncio  # here: the other commands start without it

    site = _placed(device, nproc + spares * group_size, share_devices, group_size)
    site["skip_not_finite"] = skip_not_finite
    site |= {"environment": {"CHAOS_STANDALONE": "1"}} if standalone else {"daemon": _worker_socket(config)}
    _tell(
        *asyncio.run(_run(command, given, chosen, events, spares, restarts, failure_timeout_s, audit, site, timeline))
    )


def _tell(failed: str, after: str, ended_by: signal.Signals | None) -> None:
    """What `_run` has given, where not all went well. Raises `typer.Exit` then."""
    if failed and ended_by is not None:
        fail(f"the training was ended by {ended_by.name} before it was complete", 128 + ended_by)
    if failed:
        fail(f"the training could not go on: {failed}", EXIT_FAILED)
    if after:
        fail(f"the training is complete, but {after}", EXIT_FAILED)


def _workers(nproc: int, group_size: int, wanted: int) -> int:
    """How many that many processes are. `wanted`: by --dp and --pp, 1 for what the planner chooses."""
    if nproc % group_size:
        fail(f"--nproc {nproc} is no multiple of --group-size {group_size}; make it one", EXIT_USAGE)
    workers = nproc // group_size
    if wanted > workers:
        each = "" if group_size == 1 else f" of {group_size} processes"
        fail(f"--dp and --pp need {wanted} workers{each}; --nproc {nproc} gives {workers}", EXIT_USAGE)
    return workers


def _placed(wanted: str, processes: int, share: bool, group_size: int) -> dict[str, Any]:
    """What the controller is told of devices and device groups. One line says who has which, if there is a choice."""
    from chaosd.worker_group.devices import NoDevice, place

    try:
        placement, said = place(wanted, processes, share=share, group_size=group_size)
    except NoDevice as error:
        fail(str(error), EXIT_USAGE)
    if said:
        say(f"chaosd: {said}")
    return {"placement": placement, "group_size": group_size}


def _worker_socket(config: Path | None) -> Path:
    """Of the daemon that is meant: --config, CHAOS_SOCKET, or as the other commands find it."""
    named = os.environ.get("CHAOS_SOCKET")
    if named and config is None:
        return Path(named).expanduser()
    chosen = choose(config).path
    try:
        values = {} if chosen is None else read_config_file(chosen)
    except ConfigError as error:
        fail(str(error), EXIT_USAGE)
    for field in ("data_dir", "worker_socket"):
        if not isinstance(values.get(field, Path()), Path):
            fail(f"{chosen}: {field} = {values[field]!r}: must be a path in quotes", EXIT_USAGE)
    folder = values.get("data_dir") or default_data_dir()
    return Path(values.get("worker_socket") or folder / WORKER_SOCKET_NAME)


def _check_started_once() -> None:
    """Each of several would start workers of its own, which train apart from the others'."""
    from chaos_protocols.worker_group.launchers import LAUNCHERS, processes

    for _, name, _ in () if "CHAOS_WORKER_GROUP" in os.environ else LAUNCHERS:
        if (count := processes(os.environ, name)) > 1:
            fail(
                f"a launcher has started {count} processes of this command on this machine "
                f"({name}={os.environ[name]}), and each would train with workers of its own: one command a machine "
                "starts all of them (--nproc), so give it to the launcher as one task (torchrun --nproc-per-node 1, "
                "srun --ntasks-per-node 1), or leave the launcher out",
                EXIT_USAGE,
            )


def _check_timeline(path: Path) -> None:
    from chaosd.worker_group.timeline_file import UnusableFile, check_file

    try:
        check_file(path)
    except UnusableFile as error:
        fail(f"--timeline {error}", EXIT_USAGE)


def _check_start(processes: int) -> None:
    """Where a worker cannot connect, since this process may open nothing more, all would wait for it for ever."""
    _check_started_once()
    from chaosd.os_errors import raise_files_for_workers
    from chaosd.worker_group.board import folder_problem

    if problem := folder_problem() or raise_files_for_workers(processes):
        fail(f"the workers cannot be started: {problem}", EXIT_FAILED)


def _plan(path: Path, workers: int) -> Any:
    from chaosd.cli.plan_file import UnusablePlan, read_plan  # here: the planner takes a moment

    try:
        found = read_plan(path)
    except UnusablePlan as error:
        fail(f"--plan {error}", EXIT_USAGE)
    if (last := max(found.workers)) >= workers:
        fail(
            f"--plan {path} names worker {last}, and the last of {workers} is worker {workers - 1}: start more "
            "(--nproc), or make the plan anew",
            EXIT_USAGE,
        )
    return found


async def _run(
    command: list[str],
    given: dict[str, Any],
    policies: list[str],
    events: Path | None,
    spares: int,
    restarts: int,
    failure_timeout_s: float,
    audit: bool,
    site: dict[str, Any],
    timeline: Path | None = None,
) -> tuple[str, str, signal.Signals | None]:
    """Why it could not go on, and what is not well though it is complete, or empty; which signal asked it to end."""
    from chaos_planner.pipelines.plans.layout import Policy
    from chaosd.cli.events_file import EventsFile, UnusableEvents
    from chaosd.script_command import python_command
    from chaosd.worker_group.controller import Controller
    from chaosd.worker_group.history import Happened
    from chaosd.worker_group.planning import SitePlanner
    from chaosd.worker_group.timed_steps import TimedSteps
    from chaosd.worker_group.timeline_file import TimelineFile

    names = {"reroute": Policy.REROUTE, "dynamic": Policy.DYNAMIC, "spare": Policy.RESTART}
    planner = SitePlanner(**given, policies=frozenset(names[word] for word in policies))
    timed = TimedSteps()
    drawing = None if timeline is None else TimelineFile(timeline, timed, planner, Path(command[0]).name)
    try:
        out = EventsFile(events)
    except UnusableEvents as error:
        fail(f"--events {error}", EXIT_USAGE)
    try:

        def happened(entry: Happened) -> None:
            out.write(entry)
            if drawing is not None:
                drawing.take(entry)
            if entry.kind not in ASIDE:
                say(_line(entry.kind, entry.reason, dict(entry.fields)))

        controller = Controller(
            command=python_command(command),
            workers=given["workers"],
            planner=planner,
            spares=spares,
            restarts=restarts,
            failure_timeout_s=failure_timeout_s,
            audit=audit,
            timed=None if drawing is None else timed,
            **site,
            happened=happened,
        )
        asked = _on_signals(controller.end)
        failed = await controller.run()
        return failed, controller.failed_after, asked[0] if asked else None
    finally:
        out.close()
        if drawing is not None:
            await drawing.close()
            say(f"chaosd: timeline: {drawing.outcome}")


def _on_signals(end: Callable[[str], bool]) -> list[signal.Signals]:
    """The first one asks, a second Ctrl+C breaks off, and a third one, or a second SIGTERM, is not caught any more. Who
    has ended the training stands in the list: not who asked when it could not go on anyway (libraries send this process
    SIGINT where they get no thread). A closed terminal asks as well, and may do so twice (kernel and shell); under
    nohup it does not. So does the death of a daemon that this command was started beside, once for each thread of that:
    SIGTERM, within milliseconds."""
    import asyncio

    loop, came, by = asyncio.get_running_loop(), list[signal.Signals](), list[signal.Signals]()

    def asked(number: signal.Signals) -> None:
        if came:
            return
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, _break_off)
        loop.call_later(SAME_TERM_S, loop.remove_signal_handler, signal.SIGTERM)
        came.append(number)
        if end(f"ended by {number.name}"):
            by.append(number)

    heard = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    for each in (signal.SIGINT, signal.SIGTERM, *heard):
        loop.add_signal_handler(each, asked, each)
    return by


def _break_off(number: int, frame: object) -> NoReturn:
    """The second Ctrl+C. Whoever presses once more meets no code that cleans up and would show where it was: the system
    ends this process, and the guard the workers."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    raise KeyboardInterrupt


def _line(kind: str, reason: str, fields: dict[str, Any]) -> str:
    """One event for people."""
    who = f" {fields['worker']}" if "worker" in fields else ""
    if kind == "plan":
        return (
            f"chaosd: plan {fields['generation']} ({fields['policy']}): {fields['shape']}; {reason} "
            f"({fields['moved_bytes']} bytes move)"
        )
    return f"chaosd: {kind}{who}: {reason}"
