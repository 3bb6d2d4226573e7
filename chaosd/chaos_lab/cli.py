"""`chaosd lab`: a whole cluster on this machine, from a scenario file; and what is left of one that was killed.

A plug-in of the daemon's command line: found by the entry point `lab` of the group chaosd.commands.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from chaosd.cli.options import EXIT_FAILED, EXIT_USAGE, fail

EXIT_INTERRUPTED = 130
SCALE_MAX = 1000.0


def register(app: typer.Typer) -> None:
    lab = typer.Typer(no_args_is_help=True, help="Try a whole cluster on this machine.")
    lab.command("run")(run)
    lab.command("clean")(clean)
    app.add_typer(lab, name="lab")
    app.command()(demo)


def run(
    scenario: Annotated[Path, typer.Argument(help="TOML file with sites, links and a script of actions")],
    plain: Annotated[bool, typer.Option("--plain", help="lines instead of a live table")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="keep the sites' folders (logs, configurations)")] = False,
    network: Annotated[
        str, typer.Option(help="namespaces (Linux, root), shaped (by the daemons), or auto: the first that works")
    ] = "auto",
    scale: Annotated[float, typer.Option(help="factor on all rates, where the machine would be the limit")] = 1.0,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the figures to this file")] = None,
) -> None:
    """Run a scenario: real daemons, real training processes, links with a given rate and latency, and trouble.

      $ chaosd lab run examples/heart/demo.toml
      $ chaosd lab run examples/heart/churn.toml --plain --json churn.json
      $ chaosd lab run examples/heart/demo.toml --network namespaces --scale 0.2

    With root on Linux every site gets a network namespace of its own and every link a pair of interfaces; otherwise the
    daemons shape the links themselves. The first line says which. Ends with status 1 when anything that the scenario
    demands did not hold; everything that was started is ended, also by Ctrl+C.
    """
    from rich.console import Console

    from chaos_lab.choice import Choice
    from chaos_lab.errors import LabError
    from chaos_lab.run import run_scenario
    from chaos_lab.scenario import ScenarioError, load_scenario

    if network not in get_args(Choice):
        fail(f"--network {network}: choose one of {', '.join(get_args(Choice))}", EXIT_USAGE)
    if not 0 < scale <= SCALE_MAX:
        fail(f"--scale {scale}: choose a factor above 0, at most {SCALE_MAX:g}", EXIT_USAGE)
    console = Console()
    try:
        chosen = cast(Choice, network)
        verdict = run_scenario(load_scenario(scenario), console, plain=plain, keep=keep, network=chosen, scale=scale)
    except ScenarioError as error:
        fail(f"the scenario cannot be used:\n{error}", EXIT_USAGE)
    except LabError as error:
        fail(f"the run failed: {error}", EXIT_FAILED)
    except KeyboardInterrupt:
        fail("interrupted; everything that was started has been ended", EXIT_INTERRUPTED)
    if json_file is not None:
        json_file.write_text(json.dumps(verdict.figures, indent=2, default=str) + "\n", encoding="utf-8")
    if verdict.failures:
        raise typer.Exit(EXIT_FAILED)


def demo(
    plain: Annotated[bool, typer.Option("--plain", help="lines instead of a live table")] = False,
    scenario: Annotated[str, typer.Option(help="demo, steady or churn")] = "demo",
) -> None:
    """Watch four hospitals train together on this machine, from what is installed: nothing to configure, two minutes.

      $ chaosd demo
      $ chaosd demo --scenario churn --plain

    The sites are real daemons and real training processes on the UCI heart disease data. One joins, one is killed and
    comes back, links come and go, one leaves. The same as `chaosd lab run` with the scenario in the example's folder.
    """
    folder = example_folder()
    found = {path.stem: path for path in folder.glob("*.toml")}
    if scenario not in found:
        fail(f"--scenario {scenario}: choose one of {', '.join(sorted(found)) or 'none: ' + str(folder)}", EXIT_USAGE)
    if importlib.util.find_spec("torch") is None:
        fail("the demo's hospitals train with torch: pip install 'chaos-train[torch]'", EXIT_USAGE)
    run(found[scenario], plain=plain, keep=False, network="auto", scale=1.0, json_file=None)


def example_folder() -> Path:
    """The heart example: in an installed package beside this module, in a checkout where it is edited."""
    installed = Path(__file__).with_name("heart")
    return installed if installed.is_dir() else Path(__file__).resolve().parents[2] / "examples" / "heart"


def clean() -> None:
    """Remove what labs left that were killed: their processes, network namespaces and folders.

      $ chaosd lab clean

    The next run on network namespaces does the same. Labs that still run are not touched.
    """
    from chaos_lab.cleaning import clean as clean_up
    from chaos_lab.errors import LabError

    try:
        done = clean_up()
    except LabError as error:
        fail(f"not everything could be removed: {error}", EXIT_FAILED)
    for line in done:
        typer.echo(f"removed: {line}")
    if not done:
        typer.echo("nothing was left")
