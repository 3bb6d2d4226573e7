"""What the sites of a run decide together, by the notes of their rounds (`chaos.sync.notes`) and by counting rounds."""

from __future__ import annotations

from chaos.sync import Part, SyncSession


class CommonDecisions:
    """A part of the Coordinator."""

    def __init__(self) -> None:
        self._rounds_per_epoch = 0
        self._wants_to_end = False
        self._reported: dict[str, float] = {}

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
