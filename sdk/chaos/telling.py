"""How an error of the SDK that no script catches is shown: its sentence alone, with the line of the script. Also where
it refuses a call that makes no sense, and where a second Ctrl+C has stopped the script.

A traceback of fifteen lines before the text that counts hides what to do. CHAOS_TRACEBACK=1 shows it all the same, and
every other kind of error is shown as ever. In a notebook too: the shell that runs it is asked for, never imported.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

from chaos.at_exit import script_failed
from chaos.errors import ChaosError, HalfAppliedStep
from chaos.signals import is_at_once
from chaos.worker_group.exchange.lacks import lacks_files, too_few_files

TRACEBACK_VARIABLE = "CHAOS_TRACEBACK"
PACKAGE = Path(__file__).parent
REFUSALS = (ValueError, TypeError)
"""What this package raises where a call makes no sense."""

_before = sys.excepthook


def install() -> None:
    """From now on, in this process. Twice is as good as once."""
    global _before
    if sys.excepthook is not told:
        _before, sys.excepthook = sys.excepthook, told
    ChaosError._render_traceback_ = _in_notebook  # type: ignore[attr-defined]
    shell = _shell()
    if shell is not None and not shell.custom_exceptions:  # a handler of the user's own goes before ours
        shell.set_custom_exc(REFUSALS, _told_in_cell)


def told(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """In place of the interpreter's `sys.excepthook`."""
    script_failed(error)
    if _alone(error) and (isinstance(error, ChaosError) or is_at_once(error) or _is_refused_use(error, trace)):
        print(_sentence(error, trace), file=sys.stderr, flush=True)
        return
    _before(kind, error, trace)
    if lacks_files(error):  # whichever call has met the limit: it is seldom what holds the files
        print(f"chaos: {too_few_files()}", file=sys.stderr, flush=True)


def _is_refused_use(error: BaseException, trace: TracebackType | None) -> bool:
    """Whether this package itself says that a call makes no sense: not an error that came up within it."""
    frames = traceback.extract_tb(trace)
    if not isinstance(error, REFUSALS) or not frames:
        return False
    last = frames[-1]
    return Path(last.filename).is_relative_to(PACKAGE) and (last.line or "").startswith("raise ")


def _in_notebook(error: ChaosError) -> list[str]:
    """What IPython and Jupyter show of it."""
    if _alone(error):
        return [_sentence(error, error.__traceback__)]
    return traceback.format_exception(error)


def _told_in_cell(
    shell: Any,
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
    tb_offset: int | None = None,
) -> None:
    """In place of the shell's own, for the kinds of REFUSALS; it shows what an error says that it wants shown."""
    if _alone(error) and _is_refused_use(error, trace):
        sentence = [_sentence(error, trace)]
        error._render_traceback_ = lambda: sentence  # type: ignore[attr-defined]
    shell.showtraceback((kind, error, trace), tb_offset=tb_offset)


def _shell() -> Any:
    """The IPython that runs this process, None in a script."""
    module = sys.modules.get("IPython")
    return module.get_ipython() if module is not None else None


def _alone(error: BaseException) -> bool:
    """Whether the sentence says all: an update that failed was stopped by something in the script."""
    return not traceback_wanted() and not isinstance(error, HalfAppliedStep)


def traceback_wanted() -> bool:
    return os.environ.get(TRACEBACK_VARIABLE, "0") != "0"


def _sentence(error: BaseException, trace: TracebackType | None) -> str:
    return f"chaos: {error}{_where(trace)}"


def _where(trace: TracebackType | None) -> str:
    """The script's own line: the last one that is not of this package."""
    frames = [one for one in traceback.extract_tb(trace) if not Path(one.filename).is_relative_to(PACKAGE)]
    if not frames:
        return ""
    return f" [{_named(frames[-1].filename)}, line {frames[-1].lineno}; {TRACEBACK_VARIABLE}=1 shows more]"


def _named(filename: str) -> str:
    """A file by its name, a cell by its number, as the shell writes it: `Cell In[3]`."""
    naming = getattr(getattr(_shell(), "compile", None), "format_code_name", None)
    of_cell = naming(filename) if naming is not None else None
    return " ".join(of_cell) if of_cell else Path(filename).name
