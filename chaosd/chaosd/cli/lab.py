"""`chaosd lab run`: a whole cluster on this machine, from a scenario file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from chaosd.cli.options import EXIT_FAILED, EXIT_USAGE, fail

EXIT_INTERRUPTED = 130


def register(app: typer.Typer) -> None:
    lab = typer.Typer(no_args_is_help=True, help="Try a whole cluster on this machine.")
    lab.command("run")(run)
    app.add_typer(lab, name="lab")


def run(
    scenario: Annotated[Path, typer.Argument(help="TOML file with sites, links and a script of actions")],
    plain: Annotated[bool, typer.Option("--plain", help="lines instead of a live table")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="keep the sites' folders (logs, configurations)")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the figures to this file")] = None,
) -> None:
    """Run a scenario: real daemons, real training processes, links with a given rate and latency, and trouble.

      $ chaosd lab run examples/heart/demo.toml
      $ chaosd lab run examples/heart/churn.toml --plain --json churn.json

    The links are shaped by the daemons themselves: no root is needed. Ends with status 1 when anything that the
    scenario demands did not hold; everything that was started is ended, also by Ctrl+C.
    """
    from rich.console import Console

    from chaosd.lab.processes import LabError
    from chaosd.lab.run import run_scenario
    from chaosd.lab.scenario import ScenarioError, load_scenario

    console = Console()
    try:
        verdict = run_scenario(load_scenario(scenario), console, plain=plain, keep=keep)
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
