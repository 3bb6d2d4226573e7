"""Eight workers of one institution and a neighbour train a small GPT on the project's documents, and workers die.

`make demo-site`, or from the project's folder: python -m examples.site.demo
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import statistics
import sys
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from examples.site.drama import Blow, Drama, Institutions, Shown, median_ms, undisturbed
from rich.console import Console
from rich.table import Table
from rich.text import Text

from chaos_lab.errors import LabError

EXIT_INTERRUPTED = 130
PICTURES = ("chaos-site-loss.svg", "chaos-site-rescue.svg")

PAPERS = (
    "What the papers report for the same, on accelerators and clusters, so no comparison of seconds: FlashRecovery, a "
    "restart of all takes 78 to 116 s, and at most one step is repeated; Chameleon keeps 96.22 % of the throughput "
    "with 7 of 8 devices. docs/papers.md has both beside what is measured here."
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=Path, default=Path(), help="folder of the two pictures")
    folder = parser.parse_args().pictures
    if not folder.is_dir():
        parser.error(f"--pictures {folder}: no such folder; make it, or name another one")
    console = Console()
    try:
        shown = asyncio.run(_interruptible(show(console, [folder / name for name in PICTURES])))
    except asyncio.CancelledError:
        console.print("interrupted; everything that was started has been ended")
        sys.exit(EXIT_INTERRUPTED)
    except (TimeoutError, RuntimeError, LabError, OSError) as error:
        console.print(Text(f"the demonstration could not go on: {str(error) or 'no end within the limit'}"))
        sys.exit(1)
    sys.exit(0 if report(shown, console) else 1)


async def _interruptible(showing: Coroutine[Any, Any, Shown]) -> Shown:
    """Ctrl+C, SIGTERM and SIGHUP cancel it, once: what ends the processes is not interrupted."""
    task = asyncio.create_task(showing)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, lambda: task.cancelling() or task.cancel())
    return await task


async def show(console: Console, pictures: list[Path]) -> Shown:
    """The drama, then the same training without it."""
    console.print(
        "Cleveland: eight workers, two pipelines of four stages, and a spare. Hungary: one process. Each has a daemon, "
        "and every step is a round of their run. (Ten processes load torch on this machine first, which takes half a "
        "minute on two cores.) Losses are answered by a spare, or by rerouting to the other pipeline."
    )
    drama = Drama(lambda line: console.print(line, markup=False, highlight=False), pictures)
    with tempfile.TemporaryDirectory(prefix="chaos-demo-") as folder:
        async with Institutions(Path(folder)) as sites:
            await drama.play(sites)
    shown = drama.shown
    if not shown.rescue.whole_s:
        raise RuntimeError("the lost stage did not come back")
    console.print("Now the same training undisturbed, one process at each institution, up to the loss of the stage.")
    with tempfile.TemporaryDirectory(prefix="chaos-demo-") as folder:
        async with Institutions(Path(folder)) as sites:
            shown.undisturbed = await undisturbed(sites, shown.lost_at - 1)
    return shown


def report(shown: Shown, console: Console) -> bool:
    """The tables; whether what is promised held."""
    console.print(_losses(shown))
    console.print(_steps(shown))
    rescue = shown.rescue
    console.print(
        f"The lost stage: its layers have {rescue.lost_bytes / 1e6:.2f} MB of state, of {rescue.state_bytes / 1e6:.2f} "
        f"MB in all; {rescue.came_bytes / 1e6:.2f} MB came from Hungary ({rescue.came_bytes / rescue.lost_bytes:.2f} "
        "times the layers: what differs is looked for in cells of a MiB), whole again "
        f"{rescue.whole_s - rescue.lost_s:.1f} s after the loss, of which new processes took most to start."
    )
    console.print(PAPERS)
    common = shown.common
    equal = bool(common) and all(shown.many[step] == shown.one[step] for step in common)
    before = [step for step in sorted(shown.undisturbed) if step in shown.many]
    same = bool(before) and all(shown.many[step] == shown.undisturbed[step] for step in before)
    console.print(
        f"After each of the {len(common)} steps that both made (the last: {max(common, default=0)}), the states of all "
        f"layers are equal at both institutions, parameters and optimizer, bit by bit: {_word(equal)}"
    )
    console.print(
        f"After each of the {len(before)} steps before the stage was lost they are those of the same training with one "
        f"process at each institution and nothing lost: {_word(same)}. (While Cleveland was without a stage, Hungary "
        "went on alone with its own data, so later states are other ones.)"
    )
    return equal and same


def _word(held: bool) -> str:
    return "yes" if held else "NO"


def _losses(shown: Shown) -> Table:
    table = Table(title="What each loss cost: milliseconds from the signal on")
    for column in ("worker", "what", "answer", "seen", "stopped", "ready", "next step", "repeated"):
        table.add_column(column)
    for each in shown.blows:
        strike = each.strike
        times = (strike.seen_s, strike.stopped_s, strike.ready_s, strike.stepped_s)
        workers = ", ".join(str(worker) for worker in each.workers)
        past = [f"{1e3 * (at_s - strike.sent_s):.0f}" if at_s else "-" for at_s in times]
        table.add_row(workers, each.what, strike.policy, *past, _repeated(each, shown))
    return table


def _repeated(blow: Blow, shown: Shown) -> str:
    strike = blow.strike
    if len(blow.workers) == 1:
        return f"{strike.repeated} step{'' if strike.repeated == 1 else 's'}"
    after = [step for step in shown.many if step > strike.steps_before + 1]
    return f"away for {min(after, default=strike.steps_before + 1) - strike.steps_before - 1} rounds"


def _steps(shown: Shown) -> Table:
    """Seconds of a step under each plan: what the planner expects, and what was measured."""
    table = Table(title="A step under each plan (expected: on devices that share nothing, without the round)")
    for column in ("plan", "policy", "shape", "expected", "measured (median)", "throughput kept"):
        table.add_column(column)
    first_s = 0.0
    for plan in shown.of("plan"):
        took_s = shown.steps_s(int(str(plan.fields["generation"])))
        expected_s = float(str(plan.fields["step_s"]))
        if took_s and not first_s:
            first_s = statistics.median(took_s)
        kept = f"{first_s / statistics.median(took_s):.0%}" if took_s and first_s else "-"
        table.add_row(
            str(plan.fields["generation"]),
            str(plan.fields["policy"]),
            str(plan.fields["shape"]),
            f"{1e3 * expected_s:.0f} ms",
            median_ms(took_s),
            kept,
        )
    return table


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
