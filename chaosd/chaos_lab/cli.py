"""`chaosd lab`: a whole cluster on this machine, from a scenario file; and what is left of one that was killed.

A plug-in of the daemon's command line: found by the entry point `lab` of the group chaosd.commands.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from chaosd.cli.options import EXIT_FAILED, EXIT_USAGE, fail, without_nan

if TYPE_CHECKING:
    from chaos_lab.demo_page.server import DemoPage

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
    _run(scenario, plain=plain, keep=keep, network=network, scale=scale, json_file=json_file)


def _run(
    scenario: Path,
    *,
    plain: bool,
    keep: bool,
    network: str,
    scale: float,
    json_file: Path | None,
    page: DemoPage | None = None,
) -> None:
    from rich.console import Console

    from chaos_lab.choice import Choice
    from chaos_lab.errors import LabError
    from chaos_lab.run import run_scenario
    from chaos_lab.scenario import ScenarioError, load_scenario

    if network not in get_args(Choice):
        fail(f"--network {network}: choose one of {', '.join(get_args(Choice))}", EXIT_USAGE)
    if not 0 < scale <= SCALE_MAX:
        fail(f"--scale {scale}: choose a factor above 0, at most {SCALE_MAX:g}", EXIT_USAGE)
    if json_file is not None:
        _check_file("--json", json_file)
    console = Console()
    try:
        chosen = cast(Choice, network)
        verdict = run_scenario(
            load_scenario(scenario), console, plain=plain, keep=keep, network=chosen, scale=scale, page=page
        )
    except ScenarioError as error:
        fail(f"the scenario cannot be used:\n{error}", EXIT_USAGE)
    except LabError as error:
        fail(f"the run failed: {error}", EXIT_FAILED)
    except KeyboardInterrupt:
        fail("interrupted; everything that was started has been ended", EXIT_INTERRUPTED)
    if json_file is not None:
        _write_figures(json_file, verdict.figures)
    if verdict.failures:
        raise typer.Exit(EXIT_FAILED)


def _check_file(option: str, path: Path) -> None:
    """What is written at the end can be written there: a run of minutes shall not end with that it cannot."""
    if path.is_dir():
        fail(f"{option} {path} is a folder: name a file in it", EXIT_USAGE)
    try:
        if path.is_file():
            path.open("ab").close()
        elif not path.exists():  # neither a pipe nor a device
            tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        fail(f"{option} {path} cannot be written: {error.strerror}; name a file in a folder of yours", EXIT_USAGE)


def _write_figures(path: Path, figures: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(without_nan(figures), indent=2, default=str) + "\n", encoding="utf-8")
    except OSError as error:
        fail(f"--json {path} cannot be written: {error.strerror}", EXIT_FAILED)


def demo(
    plain: Annotated[bool, typer.Option("--plain", help="lines instead of a live table")] = False,
    scenario: Annotated[str, typer.Option(help="demo, steady or churn")] = "demo",
    network: Annotated[str, typer.Option(help="shaped, namespaces (no live page then) or auto")] = "shaped",
    seeds: Annotated[int, typer.Option(help="of the comparison at the end; 0: leave it out", min=0, max=100)] = 5,
    png: Annotated[Path, typer.Option(help="where the picture of the comparison goes")] = Path("chaos-demo.png"),
) -> None:
    """Watch four hospitals train together on this machine, from what is installed: nothing to configure, two minutes.

      $ chaosd demo
      $ chaosd demo --scenario churn --plain

    The sites are real daemons and real training processes on the UCI heart disease data. One joins, one is killed and
    comes back, links come and go, one leaves. The address of the live page is printed at the beginning: there you can
    kill sites and let them join yourself, and the run goes on as long as you look. At the end, here and on the page:
    what the hospitals take part for, each one's own model against the common one, on the patients of all of them.
    """
    folder = example_folder()
    found = {path.stem: path for path in folder.glob("*.toml")}
    if scenario not in found:
        fail(f"--scenario {scenario}: choose one of {', '.join(sorted(found)) or 'none: ' + str(folder)}", EXIT_USAGE)
    if importlib.util.find_spec("torch") is None:
        fail("the demo's hospitals train with torch: pip install 'chaos-train[torch]'", EXIT_USAGE)
    if seeds:
        _check_file("--png", png)
    from chaos_lab.demo_page.server import DemoPage
    from chaos_lab.errors import LabError

    try:
        with DemoPage() as page:
            typer.echo(f"live page, with buttons that kill a site or let one join: {page.url}")
            _play(page, found[scenario], plain=plain, network=network, seeds=seeds, png=png)
    except LabError as error:
        fail(str(error), EXIT_FAILED)


def _play(page: DemoPage, scenario: Path, *, plain: bool, network: str, seeds: int, png: Path) -> None:
    """The run, then what it is for; the comparison is made also where the run did not hold, so that both are seen."""
    failed: typer.Exit | None = None
    try:
        _run(scenario, plain=plain, keep=False, network=network, scale=1.0, json_file=None, page=page)
    except typer.Exit as error:
        failed = error
    if seeds and (failed is None or failed.exit_code == EXIT_FAILED):
        typer.echo("\neach hospital's own model and the common one, trained again from several beginnings:", nl=True)
        page.show_stage("comparing")
        try:
            failed = _compare(page, seeds, png) or failed
        except KeyboardInterrupt:
            fail("interrupted; everything that was started has been ended", EXIT_INTERRUPTED)
    page.show_stage("over")
    if failed is not None:
        raise failed


def _compare(page: DemoPage, seeds: int, png: Path) -> typer.Exit | None:
    """What each hospital gains, in the terminal, as a file and on the page."""
    from chaos_lab.children import end, ended_by_signals, uninterrupted

    with ended_by_signals(), tempfile.TemporaryDirectory(prefix="chaos-demo-") as folder:
        figures = Path(folder) / "figures.json"
        command = [sys.executable, str(example_folder() / "compare.py"), "--seeds", str(seeds)]
        with uninterrupted():
            process = subprocess.Popen(  # of a session of its own: Ctrl+C is for us, who end it
                [*command, "--png", str(png), "--json", str(figures)], start_new_session=True
            )
        try:
            failed = process.wait()
        finally:
            end(process)
        if figures.exists():
            page.show_picture(json.loads(figures.read_text(encoding="utf-8")))
    return typer.Exit(EXIT_FAILED) if failed else None


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
