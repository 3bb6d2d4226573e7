"""What the sites of a run decide together, by the notes of their rounds (`chaos.sync.notes`) and by counting rounds."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from chaos.sync import Part, SyncSession
from chaos_protocols.wire.worker import FIGURES_MAX, FiguresLogged

if TYPE_CHECKING:
    from chaos.conversation import Conversation

FIGURE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,31}")


class CommonDecisions:
    """A part of the Coordinator."""

    def __init__(self) -> None:
        self._rounds_per_epoch = 0
        self._wants_to_end = False
        self._reported: dict[str, float] = {}
        self._conversation: Conversation | None = None

    @property
    def round(self) -> int:
        """The last round applied."""
        raise NotImplementedError

    def _registered(self) -> SyncSession:
        """Raises ValueError before anything is registered."""
        raise NotImplementedError

    def should_stop(self, mine: bool = True) -> bool:
        """Whether all sites want to end, as they said in the last round; `mine`: whether this one does, said in the
        next. True in the same round at every site, so that all can end their loops together. Needs
        `sync=EveryStep(notes=True)`."""
        session = self._registered()
        session.check(Part(wants_to_end=True))
        self._wants_to_end = mine
        return session.agreed is not None and session.agreed.everybody_wants_to_end

    def report(self, **figures: float) -> None:
        """Tell the other sites figures with the next round, such as the loss of an evaluation; `metrics` has the
        averages, weighted as the gradients are. Needs `sync=EveryStep(notes=True, metrics=...)`."""
        self._registered().check(Part(metrics=figures))
        self._reported.update(figures)

    def log(self, **figures: float) -> None:
        """Tell this site's operator figures, such as the loss of a batch: the newest of each name stand in
        `chaosd status`, on the page (with a curve) and at `/metrics`. They stay at this site (`report` is for all
        sites), nothing follows from them, and without a daemon they go nowhere. At most 32 names of letters, digits,
        points and underscores. Raises ValueError for what is no such name, or no number."""
        if len(figures) > FIGURES_MAX:
            raise ValueError(f"{len(figures)} figures at once; at most {FIGURES_MAX} are kept")
        if wrong := [name for name in figures if not FIGURE_NAME.fullmatch(name)]:
            raise ValueError(f"log({wrong[0][:40]}=...): a name has at most 32 letters, digits, points and underscores")
        numbers = {name: float(value) for name, value in figures.items()}
        self._logged(numbers)
        if self._conversation is not None:
            told = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
            self._conversation.send(FiguresLogged(round=self.round, figures=told))

    def _logged(self, figures: Mapping[str, float]) -> None:
        """For whoever else wants to know."""

    @property
    def epoch(self) -> int:
        """How many epochs are complete, counted in rounds, so that it is the same on every site."""
        if not self._rounds_per_epoch:
            raise ValueError("what an epoch is was not said: register(..., rounds_per_epoch=...), alike on all sites")
        return self.round // self._rounds_per_epoch

    @property
    def metrics(self) -> dict[str, float]:
        """The averages of what was reported with the last round: the same on every site, so that all decide alike."""
        agreed = self._registered().agreed
        return dict(agreed.metrics) if agreed is not None else {}
