"""What a script logs (`Coordinator.log`): by which of a site's workers it is told, at which step, and to whom."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

WRITES = ("add_scalar", "log_metrics")
"""What a logger has: TensorBoard's, or MLflow's."""


class FigureLog:
    """Every worker of a site logs the same, and one of them is to tell it. If that one is lost, what it may not have
    told of its last step is told by the next, which kept it; so a step is never missing, and may be there twice."""

    def __init__(self) -> None:
        self._loggers: list[Any] = []
        self._kept: list[tuple[int, Mapping[str, float]]] = []

    @property
    def writes(self) -> bool:
        """Somebody is told the step as well."""
        return bool(self._loggers)

    def add(self, logger: Any) -> None:
        """See `Coordinator.log_to`."""
        if not (callable(logger) or any(hasattr(logger, name) for name in WRITES)):
            raise ValueError(
                f"log_to({type(logger).__name__}): give a SummaryWriter of TensorBoard, the module mlflow, or what "
                "else has add_scalar(name, value, step) or log_metrics(figures, step=), or a function that makes it"
            )
        self._loggers.append(logger)

    def due(self, step: int, figures: Mapping[str, float], *, tells: bool) -> list[tuple[int, Mapping[str, float]]]:
        """What is to be told now, each with its step; nothing where another worker tells (`tells` is False)."""
        kept = [each for each in self._kept if each[0] == step] if not tells else []
        before, self._kept = self._kept, kept
        if not tells:
            self._kept.append((step, figures))
            return []
        return [*(each for each in before if each[0] < step), (step, figures)]

    def write(self, step: int, figures: Mapping[str, float], *, flush: bool) -> None:
        """To all loggers. `flush`: this process may be killed, and others go on without it."""
        self._loggers = [self._made(logger) for logger in self._loggers]
        for logger in self._loggers:
            if hasattr(logger, "add_scalar"):
                for name, value in figures.items():
                    logger.add_scalar(name, value, step)
            else:
                logger.log_metrics(dict(figures), step=step)
            if flush and callable(getattr(logger, "flush", None)):
                logger.flush()

    @staticmethod
    def _made(logger: Any) -> Any:
        if any(hasattr(logger, name) for name in WRITES):
            return logger
        make: Callable[[], Any] = logger
        made = make()
        if not any(hasattr(made, name) for name in WRITES):
            raise ValueError(
                f"log_to({getattr(make, '__name__', type(make).__name__)}): it made a {type(made).__name__}, which has "
                "neither add_scalar(name, value, step) nor log_metrics(figures, step=)"
            )
        return made
