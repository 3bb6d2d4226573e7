"""The command line: `chaosd` (and `chaos-train`, the same commands).

The application lives in app.py, one module a command beside it. Nothing heavy is imported before a command needs it:
the help of `chaosd` shall be there in 0.2 s. Driven by people and their scripts; what concerns a daemon is asked
over its local API (`chaosd.api`).
"""

from __future__ import annotations

import codecs
import io
import os
import sys

from chaosd import hang_up

TRACEBACK_VARIABLE = "CHAOS_TRACEBACK"
"""Set to 1: whatever goes wrong is shown with the calls that led there."""

DAEMONS = ("start", "up")
"""The commands that become a daemon."""

EXIT_DEFECT, EXIT_INTERRUPTED, EXIT_PIPE = 1, 130, 141


def main() -> None:
    """The console script's entry. What goes wrong is told in a sentence."""
    if len(sys.argv) > 1 and sys.argv[1] in DAEMONS:
        hang_up.ends_nothing()  # before what takes longest: the modules of the commands
    _say_what_can_be_said()
    try:
        from chaosd.cli.app import app

        app()
    except SystemExit as end:
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        raise SystemExit(EXIT_PIPE) from None  # typer and rich see it first, and say that the command has failed
    except KeyboardInterrupt:  # while the command is still being loaded
        raise SystemExit(EXIT_INTERRUPTED) from None
    except BrokenPipeError:  # `chaosd events | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(EXIT_PIPE) from None
    except Exception as error:
        if os.environ.get(TRACEBACK_VARIABLE, "0") != "0":
            raise
        raise SystemExit(_told(error)) from None


def _say_what_can_be_said() -> None:
    """A name has a letter that the locale of this shell lacks: it is shown as a question mark, and ends no command. Nor
    does a path whose bytes are no text in UTF-8: they are written as they are."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        utf_8 = codecs.lookup(sys.stdout.encoding).name == "utf-8"
        sys.stdout.reconfigure(errors="surrogateescape" if utf_8 else "replace")


def _told(error: Exception) -> int:
    from chaosd.os_errors import explain, lacking

    if isinstance(error, OSError):
        text = explain(error)
    elif remedy := lacking(error):
        text = f"{str(error) or type(error).__name__}: {remedy}"
    else:
        text = f"{type(error).__name__}: {error}; this is a defect of chaosd, {TRACEBACK_VARIABLE}=1 shows where"
    print(f"chaosd: {text}", file=sys.stderr)
    return EXIT_DEFECT
