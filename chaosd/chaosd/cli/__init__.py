"""The command line: `chaosd` (and `chaos-train`, the same commands).

The application lives in app.py, one module a command beside it. Nothing heavy is imported before a command needs it:
the help of `chaosd` shall be there in 0.2 s.
"""

from __future__ import annotations


def main() -> None:
    """The console script's entry."""
    from chaosd.cli.app import app

    app()
