"""Puts the commands together. Which commands there are is decided here, what they do in their own modules.

(The module is not called `main`, since `chaosd.cli.main` is the entry point's function.)
"""

from __future__ import annotations

import importlib
import importlib.util

import typer

from chaosd.cli import doctor, events, init, leave, link, metrics, page, recover, start, status, trust, up
from chaosd.cli.plug_ins import installed, plug_in

FURTHER_COMMANDS = ("plan", "simulate", "checkpoints", "run")
"""Modules of this package with a `register(app)` of their own, added where they are installed."""

app = typer.Typer(
    name="chaosd",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def chaosd() -> None:
    """Institutions train one model together; this daemon keeps the run alive.

    A first run on one machine, in two terminals:

      $ chaosd init a --bootstrap                # key, a/chaosd.toml
      $ chaosd init b --listen 127.0.0.1:7401    # key, b/chaosd.toml
      (put each site's id and address into the other's file, as init tells)
      $ chaosd start --config a/chaosd.toml      # terminal 1
      $ chaosd start --config b/chaosd.toml      # terminal 2
      $ chaosd status --config a/chaosd.toml --watch

    The other commands talk to the daemon that --config, --data-dir or --api-socket selects; without any of them it is
    that of ./chaosd.toml, if there is one, or of the default data directory.

    Exit codes: 0 done, 1 refused or failed, 2 wrong configuration or usage, 3 no daemon running.
    """


for module in (up, init, start, status, events, page, metrics, link, trust, leave, recover, doctor):
    module.register(app)

for further in FURTHER_COMMANDS:
    if importlib.util.find_spec(f"chaosd.cli.{further}") is not None:
        importlib.import_module(f"chaosd.cli.{further}").register(app)

plug_in(app, installed())
