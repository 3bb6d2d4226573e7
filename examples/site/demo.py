"""Four workers and a spare train a small GPT on the project's documents; one is killed, one hangs, one more is killed.

`make demo-site`, or from the project's folder: python -m examples.site.demo
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import statistics
import sys

from benchmarks.site_recovery import STEPS_BETWEEN, Struck, alone, equal, strike
from rich.console import Console
from rich.table import Table

from chaos_protocols.worker_group.suspicion import Work

PLAN = [
    (Work.BACKWARD, signal.SIGKILL),
    (Work.FORWARD, signal.SIGSTOP),
    (Work.UPDATE, signal.SIGKILL),
]
NAMES = {signal.SIGKILL: "killed", signal.SIGSTOP: "hangs"}


def main() -> None:
    console = Console()
    console.print("Four workers, two pipelines of two stages, and a spare; then the same training in one process.")
    found = asyncio.run(strike(PLAN, dp=2, pp=2, spares=1, seed=0))
    if found.failed or not all(each.stepped_s for each in found.strikes):
        console.print(f"the training could not go on: {found.failed or found.strikes}")
        sys.exit(1)
    table = Table(title="What each loss cost: milliseconds from the signal on, steps repeated")
    for column in ("worker", "what", "in its", "answer", "seen", "stopped", "ready", "next step", "repeated"):
        table.add_column(column)
    for each in found.strikes:
        times = (each.seen_s, each.stopped_s, each.ready_s, each.stepped_s)
        table.add_row(
            str(each.worker),
            NAMES[each.number],
            each.work.name.lower(),
            each.policy,
            *(f"{1e3 * (at_s - each.sent_s):.0f}" for at_s in times),
            str(each.repeated),
        )
    console.print(table)
    console.print(_steps(found))
    same = equal(found, alone([], (len(PLAN) + 1) * (STEPS_BETWEEN + 1)))
    console.print(f"The states of all layers after every step are those of one process: {'yes' if same else 'NO'}")
    sys.exit(0 if same else 1)


def _steps(found: Struck) -> Table:
    """Seconds of a step under each plan: what the planner expects, and what was measured."""
    table = Table(title="A step under each plan (expected: on devices that share nothing)")
    for column in ("plan", "policy", "shape", "expected", "measured (median)"):
        table.add_column(column)
    plans = [each for each in found.happened if each.kind == "plan"]
    steps = [each for each in found.happened if each.kind == "step"]
    for plan in plans:
        generation = plan.fields["generation"]
        ends_s = [each.at_s for each in steps if each.fields["generation"] == generation]
        took_s = [b - a for a, b in itertools.pairwise(ends_s)]
        table.add_row(
            str(generation),
            str(plan.fields["policy"]),
            str(plan.fields["shape"]),
            f"{1e3 * float(str(plan.fields['step_s'])):.0f} ms",
            f"{1e3 * statistics.median(took_s):.0f} ms" if took_s else "-",
        )
    return table


if __name__ == "__main__":
    main()
