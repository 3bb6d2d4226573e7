"""What the sites of a run decide together, by the notes of their rounds (`chaos.sync.notes`) and by counting rounds."""

from __future__ import annotations

import contextlib
import math
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from chaos.figures import FigureLog
from chaos.sync import LocalStepsSession, Part, SyncSession
from chaos.sync.every_step import EveryStepSession
from chaos_protocols.wire.worker import FIGURES_MAX, FiguresLogged

if TYPE_CHECKING:
    from chaos.conversation import Conversation
    from chaos.worker_group.exchange.notes import SiteNotes

FIGURE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,31}")


class CommonDecisions(ABC):
    """A part of the Coordinator."""

    def __init__(self) -> None:
        self._rounds_per_epoch = 0
        self._wants_to_end = False
        self._reported: dict[str, float] = {}
        self._conversation: Conversation | None = None
        self._session: SyncSession | None = None
        self._figures = FigureLog()
        self._untold: dict[str, float | None] = {}
        self._logging = threading.RLock()
        """A script may watch its machine in a thread of its own, and log what it sees."""

    @property
    @abstractmethod
    def round(self) -> int:
        """The last round applied."""

    @property
    @abstractmethod
    def left(self) -> bool:
        """True once this site is out of the run."""

    @abstractmethod
    def _registered(self) -> SyncSession:
        """Raises ValueError before anything is registered."""

    @property
    def steps(self) -> int:
        """How many steps the run has made: as many as rounds, in a mode with local steps `every` for each round and
        this site's own since. The clock for schedules, logging and the end (`while coordinator.steps < 10_000`), also
        at a site that joined late."""
        if self._own_steps is not None:
            return self._own_steps
        session = self._registered()
        return session.steps if isinstance(session, LocalStepsSession) else self.round

    @contextlib.contextmanager
    def common_model(self) -> Iterator[None]:
        """`with coordinator.common_model(): evaluate(model)`: in a mode with local steps, what all sites have in common
        as of the last round is in the parameters and buffers meanwhile, the same at all sites in the same round; then
        this site's own are back. With `EveryStep` that is always so. No step may be made within."""
        if self._own_steps is not None and self._own_phase:
            raise ValueError(
                "common_model() is not there for local steps of parallelize(): after each step that is a round (one of "
                f"{self._own_phase}) the model is what all sites have in common; evaluate it then, as it is"
            )
        session = self._registered() if self._own_steps is None else self._session
        with session.common_model() if isinstance(session, LocalStepsSession) else contextlib.nullcontext():
            yield

    def keep_common_model(self) -> None:
        """At the end of a training with local steps, after `request_node_exit`: what all sites have in common as of the
        last round stays in the parameters and buffers; what this site has done since is dropped. With `EveryStep` there
        is nothing of the kind. Raises ValueError while this site is in the run."""
        if self._own_steps is not None:
            return  # the last step is a round
        session = self._registered()
        if not self.left:
            raise ValueError(
                "keep_common_model() is for the end, after request_node_exit(); while this site trains the common "
                "model is shown by `with coordinator.common_model():`"
            )
        if isinstance(session, LocalStepsSession):
            session.reset(self.round)

    def should_stop(self, mine: bool = True) -> bool:
        """Whether all sites want to end, as they said in the last round; `mine`: whether this one does, said in the
        next. True in the same round at every site, so that all can end their loops together. Needs
        `sync=EveryStep(notes=True)`."""
        if (own := self._own_notes) is not None:
            return own.ask(mine)
        session = self._registered()
        session.check(Part(wants_to_end=True))
        self._wants_to_end = mine
        return session.agreed is not None and session.agreed.everybody_wants_to_end

    def report(self, **figures: float) -> None:
        """Tell the other sites figures with the next round, such as the loss of an evaluation; `metrics` has the
        averages, weighted as the gradients are. Needs `sync=EveryStep(notes=True, metrics=...)`. Raises ValueError for
        what is no number."""
        numbers = {name: _number("report", name, value) for name, value in figures.items()}  # as they are now
        if (own := self._own_notes) is not None:
            own.report(numbers)
            return
        self._registered().check(Part(metrics=numbers))
        self._reported.update(numbers)

    def log(self, **figures: float) -> None:
        """Tell this site's operator figures, such as the loss of a batch: the newest of each name stand in
        `chaosd status`, on the page (with a curve) and at `/metrics`. They stay at this site (`report` is for all
        sites), and nothing follows from them. At most 32 names of letters, digits, points and underscores. They go to
        what `log_to` named as well. Any thread may call it. Of several workers (`chaosd run`) all call it, and those
        of the one that `speaks` count; the next one's, if it is lost. While a micro-batch is computed those of any
        worker do: their mean is told, once a step. Raises ValueError for what is no such name, or
        no number."""
        if len(figures) > FIGURES_MAX:
            raise ValueError(f"{len(figures)} figures at once; at most {FIGURES_MAX} are kept")
        if wrong := [name for name in figures if not FIGURE_NAME.fullmatch(name)]:
            raise ValueError(f"log({wrong[0][:40]}=...): a name has at most 32 letters, digits, points and underscores")
        numbers = {name: _number("log", name, value) for name, value in figures.items()}
        with self._logging:
            if self._goes_with_step(numbers):
                return
            own = self._own_steps
            self._log_at(own if own is not None else self.steps if self._figures.writes else 0, numbers)

    def _log_at(self, step: int, figures: Mapping[str, float]) -> None:
        """These are the site's at this step."""
        with self._logging:
            for at, each in self._figures.due(step, figures, tells=self._tells):
                self._tell({name: value if math.isfinite(value) else None for name, value in each.items()})
                self._figures.write(at, each, flush=self._own_steps is not None)

    def _tell(self, figures: dict[str, float | None]) -> None:
        """The daemon, or the controller of these workers, as many at once as they take; what nobody takes yet goes with
        the next."""
        self._untold.update(figures)
        if self._conversation is not None:
            for some in _by_message(figures):
                self._conversation.send(FiguresLogged(round=self.round, figures=some))
        elif not all(map(self._tell_group, _by_message(self._untold))):
            while len(self._untold) > FIGURES_MAX:
                del self._untold[next(iter(self._untold))]
            return
        self._untold.clear()

    def log_to(self, logger: Any) -> None:
        """Write the figures of `log` there too, at `steps`: a TensorBoard `SummaryWriter`, the module `mlflow` with a
        run of its own, or whatever has their `add_scalar(name, value, step)` or `log_metrics(dict, step=)`; or a
        function that makes one (`lambda: SummaryWriter("runs/a")`), called when there is something to write. Of several
        workers (`chaosd run`) one writes, so give them the function: else each of them opens a file, or begins a run.
        Raises ValueError for what has neither."""
        self._figures.add(logger)

    @property
    def lr_factor(self) -> float:
        """What the learning rates of the last update were multiplied by (`EveryStep(lr_rule=...)`), and those of the
        present one within `apply` of a numpy training, which must do it itself: the same at all sites. 1 without a
        rule."""
        if (own := self._own_notes) is not None:
            return own.lr_factor
        session = self._registered()
        return session.lr_factor if isinstance(session, EveryStepSession) else 1.0

    @property
    @abstractmethod
    def _own_steps(self) -> int | None:
        """Updates of a model whose training is of workers; None: it is none."""

    @property
    @abstractmethod
    def _own_phase(self) -> int:
        """Local steps of a model of stages between two rounds; 0: each step is a round, or the model is whole."""

    @property
    @abstractmethod
    def _tells(self) -> bool:
        """Whether what this process logs is what its site logs."""

    @abstractmethod
    def _tell_group(self, figures: dict[str, float | None]) -> bool:
        """Tell the controller of these workers. False: it does not listen yet, or there is none."""

    @abstractmethod
    def _goes_with_step(self, figures: Mapping[str, float]) -> bool:
        """Whether a micro-batch is being computed, whose step tells the mean of what was logged with each of them."""

    @property
    @abstractmethod
    def _own_notes(self) -> SiteNotes | None:
        """Of a model whose training is of workers; None: it is none."""

    @property
    def epoch(self) -> int:
        """How many epochs are complete, counted in rounds, so that it is the same on every site."""
        if not self._rounds_per_epoch:
            raise ValueError("what an epoch is was not said: register(..., rounds_per_epoch=...), alike on all sites")
        return self.round // self._rounds_per_epoch

    @property
    def metrics(self) -> dict[str, float]:
        """The averages of what was reported with the last round: the same on every site, so that all decide alike."""
        if (own := self._own_notes) is not None:
            return own.metrics
        agreed = self._registered().agreed
        return dict(agreed.metrics) if agreed is not None else {}


def _by_message(figures: Mapping[str, float | None]) -> list[dict[str, float | None]]:
    """In messages that the other end takes: what is logged while a micro-batch is computed comes in several calls, and
    so does what nobody took before."""
    names = list(figures)
    return [{name: figures[name] for name in names[at : at + FIGURES_MAX]} for at in range(0, len(names), FIGURES_MAX)]


def _number(call: str, name: str, value: Any) -> float:
    try:
        return float(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, RuntimeError):  # of a tensor with several values
        shape = getattr(value, "shape", None)
        what = f"a {type(value).__name__}" if shape is None else f"a {type(value).__name__} of shape {tuple(shape)}"
        raise ValueError(f"{call}({name}=...) takes a number, as of loss.mean().item(), not {what}") from None
