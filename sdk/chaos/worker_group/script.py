"""What the script of this process is, so that workers of one training run the same: one that is started later on would
run what its file holds by then."""

from __future__ import annotations

import ast
import functools
import sys
from typing import Any

from blake3 import blake3


@functools.cache
def script_digest() -> str:
    """BLAKE3 of its statements: comments and layout make no difference. Empty where it has no file, or none of Python.

    Asked once and kept: what runs is what the file held at the beginning."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        with open(path or "", "rb") as file:
            return blake3(ast.dump(ast.parse(file.read())).encode()).hexdigest()
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ""


def is_of_the_script(module: Any) -> bool:
    """Whether a module is the script, or one beside it: not of the interpreter, and not installed."""
    if module is sys.modules.get("__main__"):
        return True
    path = getattr(module, "__file__", None)
    return isinstance(path, str) and not path.startswith((sys.prefix, sys.base_prefix))
