"""`chaosd recover`: an operator decides how a run goes on that stands for want of a state, or of a majority."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from chaosd.cli.options import ApiSocketOption, ConfigOption, DataDirOption, JsonOption, daemon, echo_lines, fail, tell

if TYPE_CHECKING:
    from chaosd.api.status import LostMajority, Status

EXIT_USAGE = 2
CHOICES = """\
{why}

chaosd recover --from SITE:ROUND   goes on from that state; {after} done again
chaosd recover --anew              begins again with round 1; {all} given up
It goes on by itself, and nothing is lost, if what it waits for comes back."""

LOST = """\
No scheduler since {since}{started} ({silent}): {missing} of {voters} voters cannot be reached, or
have lost their journals: {names}.
In reach: {near}. This site has the state of round {round}.

If they come back, on their data directories, the run goes on by itself, and nothing is lost.
If they are gone for good, this site can make a new run of what it has, alone in it at first (generation {generation}):

  {command}

Then lost is what they alone had agreed on or done, and nobody here has. Every other site joins at its own operator's
word, `chaosd recover --follow {site}`. If they live, and only the network is cut, two runs train on apart: they never
mix, and the sites of one have to follow the other."""

OUTSIDE = """\
This site is not in the run, as its journal says: it has nothing to recover, and cannot give up anybody for the others.
{missing} of the {voters} voters that it knows of cannot be reached: {names}.

If they come back, this site joins by itself while its script runs. If they are gone for good, the operator of a site
in the run decides, with `chaosd recover` there; `chaosd recover --follow SITE` here then goes over to its run."""

NOT_HERE = """\

Not here and now: {problem}."""


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
    without: Annotated[
        list[str] | None,
        typer.Option(
            "--without",
            metavar="SITE",
            help="make a new run of what this site has, and give this voter up; all missing",
        ),
    ] = None,
    follow: Annotated[
        str | None,
        typer.Option("--follow", metavar="SITE", help="go over to the run that this site has recovered"),
    ] = None,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    api_socket: ApiSocketOption = None,
    json: JsonOption = False,
) -> None:
    """Decide how a run goes on that stands: from which state, or without which voters.

    Without an option: what it waits for, what is here, and what each way costs. `--from` and `--anew`: where a state is
    lacked; all sites do what one operator decides. `--without` and `--follow`: where a majority of the voters is gone
    for good; each operator decides for his own site.

      $ chaosd recover
      $ chaosd recover --from cleveland:5200
      $ chaosd recover --anew
      $ chaosd recover --without hungary --without switzerland
      $ chaosd recover --follow cleveland
    """
    if sum((origin is not None, anew, bool(without), follow is not None)) > 1:
        fail("say one of --from SITE:ROUND, --anew, --without SITE (once for each), --follow SITE", EXIT_USAGE)
    site, number = _split(origin) if origin is not None else ("", 0)
    with daemon(config, data_dir, api_socket) as client:
        if without:
            outcome = client.recover_without(without)
        elif follow is not None:
            outcome = client.follow(follow)
        elif origin is not None or anew:
            outcome = client.recover(site, number)
        else:
            status = client.status()
            lost = client.recovery() if _may_lack_a_majority(status) else None
            if lost is not None and _has_lost_its_majority(status, lost):
                echo_lines(lost, _without, as_json=json)
            else:
                echo_lines(status, _choices, as_json=json)
            return
    tell(outcome, "recover", as_json=json)


def _may_lack_a_majority(status: Status) -> bool:
    """It stands, and not because its scheduler waits for a state; or another site has recovered it."""
    return bool(status.recovered) or (bool(status.paused) and not _lacks_a_state(status))


def _lacks_a_state(status: Status) -> bool:
    from chaos_protocols.causes import Cause

    return status.paused_cause in (Cause.STATE_AWAITED.code, Cause.STATE_LOST.code)


def _has_lost_its_majority(status: Status, lost: LostMajority) -> bool:
    from chaos_protocols.causes import Cause

    gone = 2 * len(lost.missing) >= max(1, lost.voters) and bool(status.paused)
    return bool(lost.heard) or status.paused_cause == Cause.NO_QUORUM.code or gone


def _without(lost: LostMajority) -> Iterator[str]:
    """What an operator gives up, for whom, and how."""
    from chaosd.cli.render import moment, printable

    for told in lost.heard:
        yield f"{printable(told)}."
    if not lost.missing:
        yield f"This site's own run does not lack a majority (round {lost.round})."
        return
    if lost.outside:
        missing, names = len(lost.missing), printable(", ".join(lost.missing))
        yield OUTSIDE.format(missing=missing, voters=lost.voters, names=names)
        return
    yield LOST.format(
        since=moment(time.time() - lost.silent_s, "%H:%M"),
        started=", when this daemon was started" if lost.since_start else "",
        silent=f"{lost.silent_s:.0f} s",
        missing=len(lost.missing),
        voters=lost.voters,
        names=printable(", ".join(lost.missing)),
        near=printable(", ".join(lost.in_reach)) or "nobody",
        round=lost.round,
        generation=lost.generation,
        command=printable(lost.command),
        site=printable(lost.site),
    )
    if lost.problem:
        yield NOT_HERE.format(problem=printable(lost.problem))


def _choices(status: Status) -> Iterator[str]:
    """What an operator can decide, and what it costs."""
    from chaosd.cli.render import printable

    if _lacks_a_state(status):
        after, everything = "what was trained after it is", "all that was trained is"
        if status.round:  # a daemon that was started since has done none, and does not know how many there were
            after = f"the rounds after it, up to {status.round}, are"
            everything = f"all {status.round} rounds are"
        yield CHOICES.format(why=printable(status.paused), after=after, all=everything)
        return
    why = f"; it waits for something else: {printable(status.paused)}" if status.paused else ""
    yield f"the run waits for no state, so there is nothing to recover (round {status.round} is done){why}"


def _split(origin: str) -> tuple[str, int]:
    site, _, number = origin.rpartition(":")
    if not site or not number.isascii() or not number.isdigit() or not int(number):
        fail(f"--from {origin}: must be SITE:ROUND, as in cleveland:5200", EXIT_USAGE)
    return site, int(number)
