"""`chaosd recover`: an operator decides from which state a run goes on that stands for want of one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from chaosd.cli.options import ApiSocketOption, ConfigOption, DataDirOption, JsonOption, daemon, echo_lines, fail, tell

if TYPE_CHECKING:
    from chaosd.api.status import Status

EXIT_USAGE = 2
CHOICES = """\
{why}

chaosd recover --from SITE:ROUND   goes on from that state; the rounds after it, up to {round}, are done again
chaosd recover --anew              begins again with round 1; all {round} rounds are given up
It goes on by itself, and nothing is lost, if what it waits for comes back."""


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

    Without an option: which state it waits for, for whom, what is here, and what each way costs. All sites do what one
    operator decides. Refused while a member trains, and where there is no such state.

      $ chaosd recover
      $ chaosd recover --from cleveland:5200
      $ chaosd recover --anew
    """
    if origin is not None and anew:
        fail("say either --from SITE:ROUND or --anew", EXIT_USAGE)
    if origin is None and not anew:
        with daemon(config, data_dir, api_socket) as client:
            echo_lines(client.status(), _choices, as_json=json)
        return
    site, number = _split(origin) if origin is not None else ("", 0)
    with daemon(config, data_dir, api_socket) as client:
        outcome = client.recover(site, number)
    tell(outcome, "recover", as_json=json)


def _choices(status: Status) -> Iterator[str]:
    """What an operator can decide, and what it costs."""
    from chaos_protocols.causes import Cause
    from chaosd.cli.render import printable

    if status.paused_cause in (Cause.STATE_AWAITED.code, Cause.STATE_LOST.code):
        yield CHOICES.format(why=printable(status.paused), round=status.round)
        return
    why = f"; it waits for something else: {printable(status.paused)}" if status.paused else ""
    yield f"the run waits for no state, so there is nothing to recover (round {status.round} is done){why}"


def _split(origin: str) -> tuple[str, int]:
    site, _, number = origin.rpartition(":")
    if not site or not number.isascii() or not number.isdigit() or not int(number):
        fail(f"--from {origin}: must be SITE:ROUND, as in cleveland:5200", EXIT_USAGE)
    return site, int(number)
