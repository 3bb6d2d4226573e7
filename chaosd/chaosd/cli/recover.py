"""`chaosd recover`: an operator decides from which state a run goes on that stands for want of one."""

from __future__ import annotations

from typing import Annotated

import typer

from chaosd.cli.options import ApiSocketOption, ConfigOption, DataDirOption, JsonOption, daemon, fail, tell

EXIT_USAGE = 2


def register(app: typer.Typer) -> None:
    app.command()(recover)


def recover(
    origin: Annotated[
        str | None,
        typer.Option("--from", metavar="SITE:ROUND", help="go on from this site's state of this round"),
    ] = None,
    anew: Annotated[
        bool,
        typer.Option("--anew", help="begin again with round 1 and a fresh worker: all that was trained is given up"),
    ] = False,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    api_socket: ApiSocketOption = None,
    json: JsonOption = False,
) -> None:
    """Decide from which state the run goes on, when it waits for a newer one that will not come back.

    `chaosd status` says which state it waits for, for whom, and what is here. All sites do what one operator decides.
    Refused while a member trains, and where there is no such state.

      $ chaosd recover --from cleveland:5200
      $ chaosd recover --anew
    """
    if (origin is None) == (not anew):
        fail("say either --from SITE:ROUND or --anew", EXIT_USAGE)
    site, number = _split(origin) if origin is not None else ("", 0)
    with daemon(config, data_dir, api_socket) as client:
        outcome = client.recover(site, number)
    tell(outcome, "recover", as_json=json)


def _split(origin: str) -> tuple[str, int]:
    site, _, number = origin.rpartition(":")
    if not site or not number.isascii() or not number.isdigit() or not int(number):
        fail(f"--from {origin}: must be SITE:ROUND, as in cleveland:5200", EXIT_USAGE)
    return site, int(number)
