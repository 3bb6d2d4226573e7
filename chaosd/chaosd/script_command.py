"""How a training script is started that a command was given."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def python_command(script: Sequence[str]) -> list[str]:
    """A script is run by this interpreter; anything else as it is."""
    return [sys.executable, "-u", *script] if script and script[0].endswith(".py") else list(script)
