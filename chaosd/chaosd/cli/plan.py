"""`chaosd plan`: what this site would do if these workers failed now, and why; nothing is changed.

A calculation: nothing carries it out yet. The facts come from files (the profiler's, the operator's) or from the
built-in model and equal devices; the answer is a table of candidates, the chosen plan as a timeline of one step, the
transfers, and the reason.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chaosd.cli.options import EXIT_FAILED, JsonOption, fail
from chaosd.cli.planning import (
    PlotOption,
    load_pyplot,
    print_json,
    read_model,
    read_text,
    require_solver,
    save,
    show,
    table_of,
    usage_errors,
    whole_numbers,
)

if TYPE_CHECKING:
    from rich.text import Text

    from chaos_planner.pipelines.estimates.timeline import Timeline
    from chaos_planner.pipelines.facts.site import ClusterFacts, ModelProfile
    from chaos_planner.pipelines.plans.execution import ExecutionPlan
    from chaos_planner.pipelines.search.decisions import RecoveryDecision
    from chaos_planner.pipelines.transfers.restorer import Restoration

ROWS_MAX = 48
"""Workers drawn in the terminal; the plot has them all."""

COLUMNS_MIN, COLUMNS_MAX = 40, 160
NAMED_MAX = 20
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


FACTS = "Facts"
ModelOption = Annotated[str, typer.Option("--model", help="built-in model", rich_help_panel=FACTS)]
ProfileOption = Annotated[
    Path | None, typer.Option("--profile", help="model facts from the profiler (JSON)", rich_help_panel=FACTS)
]
ClusterOption = Annotated[
    Path | None, typer.Option("--cluster", help="devices, rates and times of the site (JSON)", rich_help_panel=FACTS)
]
CurrentOption = Annotated[
    Path | None, typer.Option("--current", help="execution plan in use (JSON)", rich_help_panel=FACTS)
]
MemoryOption = Annotated[
    float | None, typer.Option("--memory-gb", help="memory of a device, without --cluster", rich_help_panel=FACTS)
]
MtbfOption = Annotated[
    float | None,
    typer.Option(
        "--mtbf-h",
        help="hours between failures of the site [dim](default: 10 % of the devices fail in an hour)[/]",
        rich_help_panel=FACTS,
    ),
]


def plan_command(
    model: ModelOption = "llama2-7b",
    profile: ProfileOption = None,
    cluster: ClusterOption = None,
    current: CurrentOption = None,
    memory_gb: MemoryOption = None,
    mtbf_h: MtbfOption = None,
    devices: Annotated[int, typer.Option(help="equal devices, without --cluster", min=1)] = 32,
    dp: Annotated[int, typer.Option(help="pipelines in use, without --current", min=1)] = 8,
    pp: Annotated[int, typer.Option(help="stages of each, without --current", min=1)] = 4,
    micro_batches: Annotated[int | None, typer.Option(help="micro-batches of a step over all pipelines", min=1)] = None,
    failed: Annotated[str, typer.Option("--fail", help="workers that fail now, with commas")] = "",
    answering: Annotated[
        bool, typer.Option("--restartable", help="the failed workers' devices still answer: a restart is possible")
    ] = False,
    external_gbit: Annotated[
        float | None, typer.Option("--external-gbit", help="Gbit/s at which another institution can send lost state")
    ] = None,
    plot: PlotOption = None,
    json: JsonOption = False,
) -> None:
    """What to do when these workers fail now: reroute, form other pipelines, restart.

    Shows every candidate with its step time, transition and score, the chosen
    plan as a timeline of one step (a row for each worker: F forward, B backward,
    G a rerouted micro-batch, R all-reduce, S optimizer), the state that moves,
    and the reason. Workers are numbered from 0 along the pipelines. Nothing is
    changed.

      $ chaosd plan --model llama2-7b --devices 32 --dp 8 --pp 4 --fail 3,17
      $ chaosd plan --devices 8 --dp 2 --fail 5 --plot step.png
      $ chaosd plan --profile model.json --cluster site.json --fail 3 --json

    Exit codes: 0 planned, 1 no plan is possible (the line says what would make
    it possible), 2 wrong input.
    """
    from chaos_planner.pipelines.costs.durations import Costs
    from chaos_planner.pipelines.estimates.timeline import timeline
    from chaos_planner.pipelines.search.decisions import NoPlan, Settings
    from chaos_planner.pipelines.search.planner import plan
    from chaos_planner.pipelines.streams.compile import streams_of
    from chaos_planner.pipelines.transfers.restorer import holdings, restore

    with usage_errors():
        require_solver()
        facts = read_model(model, profile, micro_batches)
        site = _site(cluster, devices, memory_gb, mtbf_h)
        before = _current(current, facts, site, dp, pp)
        lost = frozenset(whole_numbers("--fail", failed))
        _check_lost(lost, site)
        settings = Settings(
            restartable=lost if answering else frozenset(),
            external_rate_bytes_per_s=None if external_gbit is None else external_gbit * 1e9 / 8,
        )
        try:
            decision = plan(facts, site, before, lost, settings)
        except NoPlan as error:
            fail(f"error: {error}", EXIT_FAILED)
        found = restore(facts, site, holdings(facts, before, failed=lost), decision.plan)
        costs = Costs(facts, site)
        drawn = timeline(streams_of(found.plan, costs), costs)
        pyplot = load_pyplot() if plot else None
    if json:
        print_json(_as_json(decision, found))
    else:
        _tell(decision, found, drawn)
    if pyplot and plot:
        save(_plot(pyplot, found.plan, drawn), plot)


def _site(cluster: Path | None, devices: int, memory_gb: float | None, mtbf_h: float | None) -> ClusterFacts:
    from chaos_planner.pipelines.facts import models
    from chaos_planner.pipelines.facts.site import ClusterFacts

    if cluster is not None:
        if memory_gb is not None:
            raise ValueError("--memory-gb goes without --cluster: the file gives each device's memory")
        found = ClusterFacts.from_json(read_text(cluster, "cluster"))
    else:
        if memory_gb is not None and not math.isfinite(memory_gb):
            raise ValueError(f"--memory-gb is {memory_gb}; allowed: a finite number")
        memory = {} if memory_gb is None else {"memory_bytes": int(memory_gb * 1e9)}
        found = models.uniform_cluster(devices, **memory)
    return found if mtbf_h is None else replace(found, mtbf_s=mtbf_h * 3600)


def _current(path: Path | None, model: ModelProfile, site: ClusterFacts, dp: int, pp: int) -> ExecutionPlan:
    """The plan in use: from the file, or `dp` equal pipelines of `pp` stages on workers 0, 1, ..."""
    from chaos_planner.pipelines.plans.execution import ExecutionPlan
    from chaos_planner.pipelines.search.equal_devices import EqualDevices

    if path is not None:
        return ExecutionPlan.from_json(read_text(path, "plan"))
    if len({(device.speed, device.memory_bytes) for device in site.devices}) > 1 or site.pair_rates:
        raise ValueError("the site's devices or links are unequal: give the plan in use with --current FILE")
    return EqualDevices(model, site).symmetric_plan(dp, pp)


def _check_lost(lost: frozenset[int], site: ClusterFacts) -> None:
    for worker in sorted(lost - site.workers):
        raise ValueError(f"--fail names worker {worker}, which the site does not have; it has {_names(site.workers)}")
    if lost >= site.workers:
        raise ValueError("--fail names every worker: nobody is left to plan for; leave at least one out")


def _names(workers: frozenset[int]) -> str:
    ordered = sorted(workers)
    if len(ordered) > 2 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"{ordered[0]} to {ordered[-1]}"
    return ", ".join(map(str, ordered[:NAMED_MAX])) + (", ..." if len(ordered) > NAMED_MAX else "")


def _candidates(decision: RecoveryDecision) -> Any:
    columns = ("policy", "step", "samples/s", "transition", "state moved", "peak memory", "score")
    table = table_of(*columns, title="candidates (score: samples a second until the next failure)")
    for each in decision.candidates:
        if not each.available:
            table.add_row(each.policy.value, "not possible", style="dim")
            continue
        table.add_row(
            each.policy.value,
            f"{each.step_s:.3f} s",
            f"{each.samples_per_s:.3f}",
            f"{each.transition_s:.2f} s",
            f"{each.transfer_bytes / 1e9:.1f} GB",
            f"{each.peak_bytes / 1e9:.1f} GB",
            f"{each.score:.3f}",
            style="bold green" if each.policy is decision.policy else "",
        )
    return table


def _refusals(decision: RecoveryDecision) -> list[Text]:
    from rich.text import Text

    refused = [each for each in decision.candidates if not each.available]
    lines = [Text(f"{each.policy.value}: {each.why_not}", style="dim") for each in refused]
    if not decision.complete:
        share = decision.step_s / decision.bound_s - 1
        text = f"search cut short after {decision.examined} plans: no step is under {decision.bound_s:.3f} s"
        lines.append(Text(f"{text} (at most {100 * share:.1f} % better than this one)", style="dim"))
    return lines


def _as_json(decision: RecoveryDecision, found: Restoration) -> dict[str, object]:
    candidates = [
        {
            "policy": each.policy.value,
            "why_not": each.why_not,
            "step_s": each.step_s,
            "samples_per_s": each.samples_per_s,
            "transition_s": each.transition_s,
            "transfer_bytes": each.transfer_bytes,
            "peak_bytes": each.peak_bytes,
            "score": each.score,
        }
        for each in decision.candidates
    ]
    moves = [
        {
            "layer": part.layer,
            "kind": part.kind.value,
            "start_byte": part.start_byte,
            "stop_byte": part.stop_byte,
            "source": part.source,
            "target": part.target,
        }
        for part in (*found.transfers, *found.external)
    ]
    return {
        "policy": decision.policy.value,
        "reason": decision.reason,
        "complete": decision.complete,
        "bound_s": decision.bound_s,
        "candidates": candidates,
        "plan": found.plan.to_json(),
        "transfers": moves,
        "transfer_s": found.time_s,
    }


def _tell(decision: RecoveryDecision, found: Restoration, drawn: Timeline) -> None:
    from rich.text import Text

    head = Text(decision.reason, style="bold green")
    legend = Text("  ").join(Text.assemble((f" {MARKS[kind]} ", STYLES[kind]), f" {kind}") for kind in MARKS)
    parts = [_candidates(decision), *_refusals(decision), head, _pipelines(found.plan)]
    show(*parts, *_rows(found.plan, drawn), legend, *_transfers(found), Text(found.reason))


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
    from chaos_planner.pipelines.streams.instructions import Backward, Forward, ReduceLayer

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
    width_s = step_s / columns
    shares: list[dict[str, float]] = [{} for _ in range(columns)]
    for kind, start_s, end_s in spans:
        for column in range(int(start_s / width_s), min(columns, int(end_s / width_s) + 1)):
            overlap_s = min(end_s, (column + 1) * width_s) - max(start_s, column * width_s)
            if overlap_s > 0:
                shares[column][kind] = shares[column].get(kind, 0.0) + overlap_s
    found: list[str] = []
    for share in shares:
        busiest = max(share, key=lambda kind: share[kind], default="")
        found.append(busiest if busiest and share[busiest] > width_s - sum(share.values()) else "")
    return found


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
