"""Puts the commands together. Which commands there are is decided here, what they do in their own modules.

(The module is not called `main`, since `chaosd.cli.main` is the entry point's function.)
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import Annotated

import typer

from chaosd.cli import (
    block,
    bounds,
    doctor,
    events,
    init,
    key,
    leave,
    link,
    metrics,
    page,
    peer,
    recover,
    reload,
    start,
    status,
    trust,
    up,
)
from chaosd.cli.plug_ins import installed, plug_in

FURTHER_COMMANDS = ("plan", "simulate", "checkpoint", "run", "workers", "service", "pages")
"""Modules of this package with a `register(app)` of their own, added where they are installed."""

app = typer.Typer(
    name="chaosd",
    add_completion=True,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        init.version()
        raise typer.Exit


@app.callback()
def chaosd(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="The same as `chaosd version`.")
    ] = False,
) -> None:
    """Institutions train one model together; this daemon keeps the run alive.

    A first run on one machine:

      $ chaosd up a -- python train.py               # makes a site, runs it
      $ chaosd up b --peer ... -- python train.py    # as the first one says
      $ chaosd accept c428fe34 -c a/chaosd.toml      # lets the second in
      $ chaosd status -c a/chaosd.toml --watch

    The other commands talk to the daemon that --config, --data-dir or --api-socket selects; without any of them it is
    that of CHAOS_CONFIG, of ./chaosd.toml, or of the site made last. `chaosd help` has the documentation.

    Exit codes: 0 done, 1 refused or failed, 2 wrong configuration or usage, 3 no daemon running.
    """
    if os.environ.get("NO_COLOR"):  # tables heed it by themselves
        context.color = False


COMMANDS = (
    *(up, init, start, status, events, page, metrics, link, peer, trust, key),
    *(block, bounds, reload, leave, recover),
)

for module in COMMANDS:
    module.register(app)
doctor.register(app)

for further in FURTHER_COMMANDS:
    if importlib.util.find_spec(f"chaosd.cli.{further}") is not None:
        importlib.import_module(f"chaosd.cli.{further}").register(app)

plug_in(app, installed())
