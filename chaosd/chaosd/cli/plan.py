"""`chaosd plan`: what this site would do if these workers failed now, and why; nothing is changed.

The same planner decides in the daemon. The facts come from files (profiler, monitor) or from the built-in model and
equal devices; the answer is a table of candidates, the chosen plan as a timeline of one step, the transfers, and the
reason.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chaosd.cli.options import JsonOption
from chaosd.cli.simulate import (
    PlotOption,
    load_pyplot,
    print_json,
    read_model,
    save,
    usage_errors,
    whole_numbers,
)

if TYPE_CHECKING:
    pass

ROWS_MAX = 48
"""Workers drawn in the terminal; the plot has them all."""

COLUMNS_MIN, COLUMNS_MAX = 40, 160
TRANSFERS_MAX = 12
"""Lines of the transfer table; the JSON has them all."""

STYLES = {"forward": "on blue", "backward": "on green", "reduce": "on magenta", "step": "on yellow", "guest": "on cyan"}
MARKS = {"forward": "F", "backward": "B", "reduce": "R", "step": "S", "guest": "G"}
COLOURS = {
    "forward": "tab:blue",
    "backward": "tab:green",
    "reduce": "tab:purple",
    "step": "gold",
    "guest": "tab:cyan",
}


def register(app: typer.Typer) -> None:
    app.command("plan")(plan_command)


def plan_command(
    model: Annotated[str, typer.Option(help="built-in model", rich_help_panel="Facts")] = "llama2-7b",
    profile: Annotated[
        Path | None, typer.Option(help="model facts from the profiler (JSON)", rich_help_panel="Facts")
    ] = None,
    cluster: Annotated[
        Path | None, typer.Option(help="devices, rates and times of the site (JSON)", rich_help_panel="Facts")
    ] = None,
    current: Annotated[
        Path | None, typer.Option("--current", help="execution plan in use (JSON)", rich_help_panel="Facts")
    ] = None,
    devices: Annotated[int, typer.Option(help="equal devices, without --cluster", min=1)] = 32,
    dp: Annotated[int, typer.Option(help="pipelines in use, without --current", min=1)] = 8,
    pp: Annotated[int, typer.Option(help="stages of each, without --current", min=1)] = 4,
    micro_batches: Annotated[int | None, typer.Option(help="micro-batches of a step over all pipelines", min=1)] = None,
    failed: Annotated[str, typer.Option("--fail", help="workers that fail now, with commas")] = "",
    memory_gb: Annotated[float | None, typer.Option(help="memory of a device, without --cluster")] = None,
    mtbf_h: Annotated[float | None, typer.Option(help="hours between failures of the site")] = None,
    plot: PlotOption = None,
    json: JsonOption = False,
) -> None:
    """What to do when these workers fail now: reroute their work, form other pipelines, or restart them.

    Shows every candidate with its step time, transition and score, the chosen plan as a timeline of one step (one row
    a worker: F forward, B backward, G a rerouted micro-batch, R all-reduce, S optimizer), the state that moves, and
    the reason. Workers are numbered from 0 along the pipelines. Nothing is changed.

      $ chaosd plan --model llama2-7b --devices 32 --dp 8 --pp 4 --fail 3,17
      $ chaosd plan --devices 8 --dp 2 --pp 4 --micro-batches 32 --fail 5 --plot step.png
      $ chaosd plan --profile model.json --cluster site.json --current plan.json --fail 3 --json

    Exit codes: 0 planned, 2 wrong input, or no plan is possible (the line says what would make it possible).
    """
    from chaosd.recovery.compile import streams_of
    from chaosd.recovery.costs import Costs
    from chaosd.recovery.planner import plan
    from chaosd.recovery.restorer import holdings, restore
    from chaosd.recovery.timeline import timeline

    with usage_errors():
        facts = read_model(model, profile, micro_batches)
        site = _site(cluster, devices, memory_gb, mtbf_h)
        before = _current(current, facts, site, dp, pp)
        lost = whole_numbers("--fail", failed)
        _check_lost(lost, before)
        decision = plan(facts, site, before, lost)
        found = restore(facts, site, holdings(facts, before, failed=lost), decision.plan)
        drawn = timeline(streams_of(found.plan, Costs(facts, site)), Costs(facts, site))
        pyplot = load_pyplot() if plot else None
    if json:
        print_json(_as_json(decision, found))
    else:
        _tell(decision, found, drawn)
    if pyplot and plot:
        save(_plot(pyplot, found.plan, drawn), plot)


def _site(cluster: Path | None, devices: int, memory_gb: float | None, mtbf_h: float | None) -> ClusterFacts:
    from chaosd.recovery import models
    from chaosd.recovery.facts import ClusterFacts

    if cluster is not None:
        if memory_gb is not None:
            raise ValueError("--memory-gb goes without --cluster: the file gives each device's memory")
        found = ClusterFacts.from_json(read_text(cluster, "cluster"))
    else:
        memory = {} if memory_gb is None else {"memory_bytes": int(memory_gb * 1e9)}
        found = models.uniform_cluster(devices, **memory)
    return found if mtbf_h is None else replace(found, mtbf_s=mtbf_h * 3600)


def _current(path: Path | None, model: ModelFacts, site: ClusterFacts, dp: int, pp: int) -> ExecutionPlan:
    """The plan in use: from the file, or `dp` equal pipelines of `pp` stages on workers 0, 1, ..."""
    from chaosd.recovery.plans import ExecutionPlan
    from chaosd.recovery.sim_baselines import Setting
    from chaosd.recovery.sim_shapes import Ruler

    if path is not None:
        return ExecutionPlan.from_json(read_text(path, "plan"))
    if len({(device.speed, device.memory_bytes) for device in site.devices}) > 1 or site.pair_rates:
        raise ValueError("the site's devices or links are unequal: give the plan in use with --current FILE")
    return Setting(ruler=Ruler(model, site), dp=dp, pp=pp).first_plan()


def _check_lost(lost: list[int], before: ExecutionPlan) -> None:
    for worker in lost:
        if worker not in before.workers:
            raise ValueError(
                f"--fail names worker {worker}, which the current plan does not use; it uses {_names(before.workers)}"
            )
    if set(lost) >= before.workers:
        raise ValueError("--fail names every worker: nobody is left to plan for; leave at least one out")


def _names(workers: frozenset[int]) -> str:
    ordered = sorted(workers)
    contiguous = ordered == list(range(ordered[0], ordered[-1] + 1))
    return f"{ordered[0]} to {ordered[-1]}" if contiguous else ", ".join(map(str, ordered[:20]))


def _tell(decision: Decision, found: Restoration, drawn: Timeline) -> None:
    from rich.text import Text

    head = Text.assemble((decision.policy.value, "bold green"), f": {decision.reason}")
    legend = Text("  ").join(Text.assemble((f" {MARKS[kind]} ", STYLES[kind]), f" {kind}") for kind in MARKS)
    parts = [_candidates(decision), head, _pipelines(found.plan), *_rows(found.plan, drawn), legend]
    show(*parts, *_transfers(found), Text(found.reason))


def _pipelines(plan: ExecutionPlan) -> Text:
    from rich.text import Text

    shapes = Counter((tuple(s.last_layer - s.first_layer for s in p.stages), p.micro_batches) for p in plan.pipelines)
    shown = "; ".join(
        f"{count} x {len(split)} stages of {'/'.join(map(str, split))} layers, {batches} micro-batches"
        for (split, batches), count in sorted(shapes.items(), reverse=True)
    )
    rerouted = f"; {len(plan.routes)} passes rerouted from workers {_names(frozenset(plan.lost))}" if plan.lost else ""
    return Text(f"pipelines: {shown}{rerouted}")


def _kinds(plan: ExecutionPlan, drawn: Timeline, worker: int) -> list[tuple[str, float, float]]:
    """(kind, start, end) of the worker's spans."""
    from chaosd.recovery.streams import Backward, Forward, ReduceLayer

    own = plan.stage_of_worker[worker][0]
    found: list[tuple[str, float, float]] = []
    for span in drawn.spans[worker]:
        match span.instruction:
            case Forward(pipeline=pipeline) | Backward(pipeline=pipeline) if pipeline != own:
                kind = "guest"
            case Forward():
                kind = "forward"
            case Backward():
                kind = "backward"
            case ReduceLayer():
                kind = "reduce"
            case _:
                kind = "step"
        found.append((kind, span.start_s, span.end_s))
    return found


def _rows(plan: ExecutionPlan, drawn: Timeline) -> list[Text]:
    """One line a worker, pipelines set apart, as wide as the terminal."""
    from rich.console import Console
    from rich.text import Text

    columns = max(COLUMNS_MIN, min(COLUMNS_MAX, Console().width - 14))
    rows = [Text(f"one step, {drawn.step_s:.3f} s:", style="bold")]
    count = 0
    for number, pipeline in enumerate(plan.pipelines):
        for stage in pipeline.stages:
            if stage.worker in plan.lost_set:
                continue
            count += 1
            if count > ROWS_MAX:
                continue
            line = Text(f"{number:>3} worker {stage.worker:<4}"[:14].ljust(14))
            for kind in _cells(_kinds(plan, drawn, stage.worker), drawn.step_s, columns):
                line.append(MARKS[kind] if kind else "·", style=STYLES[kind] if kind else "dim")
            rows.append(line)
    if count > ROWS_MAX:
        rows.append(Text(f"... {count - ROWS_MAX} more workers; --plot FILE draws them all", style="dim"))
    return rows


def _cells(spans: list[tuple[str, float, float]], step_s: float, columns: int) -> list[str]:
    """What fills most of each column; "" where the worker waits."""
    shares: list[Counter[str]] = [Counter() for _ in range(columns)]
    width_s = step_s / columns
    for kind, start_s, end_s in spans:
        for column in range(int(start_s / width_s), min(columns, int(end_s / width_s) + 1)):
            overlap = min(end_s, (column + 1) * width_s) - max(start_s, column * width_s)
            if overlap > 0:
                shares[column][kind] += overlap
    for share in shares:
        share[""] += width_s - sum(share.values())
    return [share.most_common(1)[0][0] for share in shares]


def _transfers(found: Restoration) -> list[Any]:
    if not found.transfers and not found.external:
        return []
    moved: Counter[tuple[int | None, int]] = Counter()
    layers: dict[tuple[int | None, int], set[int]] = {}
    for transfer in (*found.transfers, *found.external):
        key = (transfer.source, transfer.target)
        moved[key] += transfer.size_bytes
        layers.setdefault(key, set()).add(transfer.layer)
    table = table_of("from", "to worker", "GB", "of layers", title="state that moves")
    for (source, target), size_bytes in moved.most_common(TRANSFERS_MAX):
        origin = "another institution" if source is None else f"worker {source}"
        held = sorted(layers[source, target])
        shown = f"{held[0]} to {held[-1]}" if len(held) > 1 else str(held[0])
        table.add_row(origin, str(target), f"{size_bytes / 1e9:.2f}", shown)
    if len(moved) > TRANSFERS_MAX:
        table.add_row(f"... {len(moved) - TRANSFERS_MAX} more", "", "", "")
    return [table]


def _plot(pyplot: Any, plan: ExecutionPlan, drawn: Timeline) -> Any:
    workers = [s.worker for p in plan.pipelines for s in p.stages if s.worker not in plan.lost_set]
    figure, axes = pyplot.subplots(figsize=(12, max(2.5, 0.22 * len(workers))))
    for row, worker in enumerate(workers):
        for kind, start_s, end_s in _kinds(plan, drawn, worker):
            axes.barh(row, end_s - start_s, left=start_s, color=COLOURS[kind], edgecolor="white", linewidth=0.2)
    axes.set_yticks(range(len(workers)), [f"{plan.stage_of_worker[w][0]}: worker {w}" for w in workers], fontsize=6)
    axes.invert_yaxis()
    axes.set(xlabel="seconds", xlim=(0, drawn.step_s), title=f"{plan.policy.value}: one step")
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=colour) for colour in COLOURS.values()]
    axes.legend(
        handles, COLOURS.keys(), fontsize=7, ncols=len(COLOURS), loc="upper center", bbox_to_anchor=(0.5, -0.08)
    )
    return figure
