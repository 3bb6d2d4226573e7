"""What the commands share: which daemon is meant, how to speak with it, how to tell that it does not answer."""

from __future__ import annotations

import codecs
import math
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer

from chaosd.config.contexts import choose
from chaosd.config.file import API_SOCKET_NAME, CONFIG_FILE_NAME, ConfigError, default_data_dir, read_config_file

if TYPE_CHECKING:
    from chaosd.api.client import LocalClient
    from chaosd.api.status import Outcome

Row = TypeVar("Row")

EXIT_FAILED, EXIT_USAGE, EXIT_NO_DAEMON = 1, 2, 3
PANEL = "Which daemon"
SILENT = (
    "Its process is there: `ps -eo pid,stat,args | grep '[c]haosd'` shows a stopped one with T (`kill -CONT PID` has "
    "it go on), one that waits for a disk with D. What was asked for may still be done then: `chaosd events` tells."
)

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        help=f"its TOML file, or its folder [dim](default: CHAOS_CONFIG, ./{CONFIG_FILE_NAME}, the site made last)[/]",
        rich_help_panel=PANEL,
    ),
]
DataDirOption = Annotated[Path | None, typer.Option("--data-dir", help="its data directory", rich_help_panel=PANEL)]
ApiSocketOption = Annotated[Path | None, typer.Option("--api-socket", help="its API socket", rich_help_panel=PANEL)]
JsonOption = Annotated[bool, typer.Option("--json", help="print JSON, for programs")]


def say(text: str) -> None:
    """A line on stderr. The terminal may be closed, or nobody read the pipe any more; what is to be done next is done
    all the same."""
    with suppress(OSError, ValueError):
        typer.echo(text, err=True)


def fail(text: str, code: int) -> NoReturn:
    """Tell the user on stderr and end with `code`."""
    say(text)
    raise typer.Exit(code)


def config_path(config: Path | None) -> Path | None:
    """The file that is meant: `config.contexts.choose`. Where it was chosen out of several, the user is told which."""
    chosen = choose(config)
    if chosen.guessed:
        typer.echo(f"({chosen.path}, the site made last; --config or CHAOS_CONFIG names another)", err=True)
    return chosen.path


def selected(config: Path | None, data_dir: Path | None, api_socket: Path | None) -> tuple[Path, Path]:
    """(data directory, API socket) of the daemon that the options select. Reads the file only as far as needed.

    Raises ConfigError. The file's other fields are not checked here: a typing error in one of them must not keep an
    operator from asking the daemon that runs."""
    path = config_path(config) if data_dir is None or config is not None else None
    values: dict[str, Any] = (
        {} if path is None or (api_socket is not None and config is None) else read_config_file(path)
    )
    if data_dir is not None:
        values["data_dir"] = data_dir
    for field in ("data_dir", "api_socket"):
        if not isinstance(values.get(field, Path()), Path):
            raise ConfigError(f"{path}: {field} = {values[field]!r}: must be a path in quotes")
    folder = values.get("data_dir") or default_data_dir()
    return folder, api_socket or values.get("api_socket") or folder / API_SOCKET_NAME


@contextmanager
def daemon(config: Path | None, data_dir: Path | None, api_socket: Path | None) -> Iterator[LocalClient]:
    """A client of the selected daemon; what goes wrong with it becomes one clear line and an exit code."""
    from chaosd.api.client import (
        LocalClient,
        NoDaemonError,
        RequestRefusedError,
        SilentDaemonError,
        SocketUnusableError,
    )

    try:
        yield LocalClient(selected(config, data_dir, api_socket)[1])
    except ConfigError as error:
        fail(str(error), EXIT_USAGE)
    except SocketUnusableError as error:
        fail(str(error), EXIT_NO_DAEMON)
    except SilentDaemonError as error:
        fail(f"{error}.\n{SILENT}", EXIT_NO_DAEMON)
    except NoDaemonError as error:
        path = choose(config).path
        start = "chaosd up" if path is None else f"chaosd start --config {shlex.quote(str(path))}"
        if config is None and data_dir is not None:  # the site that was made last is another one
            start = f"chaosd start --data-dir {shlex.quote(str(data_dir))}"
        fail(
            f"{error}.\nStart one with `{start}`; if it runs elsewhere, "
            "name it with --config, --data-dir or --api-socket.",
            EXIT_NO_DAEMON,
        )
    except RequestRefusedError as error:
        fail(f"the daemon refused: {error}", EXIT_FAILED)


def echo_json(value: object, *, indent: int = 0) -> None:
    """One JSON document on one line of stdout (`indent`: on several). JSON is UTF-8 whatever the locale: where that has
    other bytes for a letter, or none, it is escaped."""
    from chaosd.log_format import json_text

    other = codecs.lookup(sys.stdout.encoding or "utf-8").name != "utf-8"
    typer.echo(json_text(value, indent=indent, ascii_only=other))


def without_nan(part: Any) -> Any:
    """The same for JSON, which has no NaN, and nothing that is infinite: None (null) in its place; keys are texts."""
    if isinstance(part, float) and not math.isfinite(part):
        return None
    if isinstance(part, dict):
        return {str(key): without_nan(inner) for key, inner in part.items()}
    return [without_nan(inner) for inner in part] if isinstance(part, list | tuple) else part


def echo_list(found: Sequence[Row], line: Callable[[Row], str], nothing: str, *, as_json: bool) -> None:
    """A list for a reader, `line` for each or `nothing` where it is empty; or as one JSON document."""
    if as_json:
        echo_json(found)
        return
    for row in found:
        typer.echo(line(row))
    if not found:
        typer.echo(nothing)


def echo_lines(found: Row, lines: Callable[[Row], Iterable[str]], *, as_json: bool) -> None:
    """One thing for a reader, in `lines`; or as a JSON document."""
    if as_json:
        echo_json(found)
        return
    for line in lines(found):
        typer.echo(line)


def leaves_to_subcommand(context: typer.Context, *given: object) -> bool:
    """For a group that shows something where it stands alone: whether a subcommand was named. The options are that
    one's to take."""
    if context.invoked_subcommand is not None and any(given):
        fail(f"options belong after `{context.invoked_subcommand}`", EXIT_USAGE)
    return context.invoked_subcommand is not None


def tell(outcome: Outcome, what: str, *, as_json: bool) -> None:
    """Print how a request ended; exit code 1 when it was not done. The reason may be another site's."""
    from chaosd.log_format import shown

    if as_json:
        echo_json(outcome)
    else:
        done = "done" if outcome.done else "not done"
        typer.echo(f"{what}: {done} after {outcome.duration_s:.3f} s: {shown(outcome.reason)}", err=not outcome.done)
    if not outcome.done:
        raise typer.Exit(EXIT_FAILED)
