"""`--watch`: one loop for all commands that keep showing something."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from chaosd.cli.options import echo_json

if TYPE_CHECKING:
    from rich.console import RenderableType

Seen = TypeVar("Seen")


def watch(
    look: Callable[[], Seen | None], render: Callable[[Seen], RenderableType], *, every_s: float, as_json: bool
) -> None:
    """Look every `every_s` seconds and show it, as a picture that changes or (`as_json`) a line each time, until Ctrl+C
    or nothing is to be seen any more (None)."""
    with contextlib.suppress(KeyboardInterrupt):
        (_tell_lines if as_json else _draw)(look, render, every_s)


def _tell_lines(look: Callable[[], Seen | None], _: object, every_s: float) -> None:
    while (seen := look()) is not None:
        echo_json(seen)
        time.sleep(every_s)


def _draw(look: Callable[[], Seen | None], render: Callable[[Seen], RenderableType], every_s: float) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console()
    if not console.is_terminal:  # a file or a pipe: nothing can be drawn over there, and it is to see each as it comes
        while (seen := look()) is not None:
            console.print(render(seen))
            time.sleep(every_s)
        return
    with Live(console=console, auto_refresh=False) as live:
        while (seen := look()) is not None:
            live.update(render(seen), refresh=True)
            time.sleep(every_s)
