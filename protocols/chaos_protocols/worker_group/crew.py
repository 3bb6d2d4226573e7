"""The processes of a worker group: who was started, who is here, who is through; and who is let in.

Owned by the machine. A number is given to one process and never again, so that nothing late of a former process can be
taken for its successor's.
"""

from __future__ import annotations

from chaos_protocols.worker_group.messages import VERSION, GroupHello

RESTARTS_WITHIN_S = 3600.0


OTHER_CODE = (
    "beware: its loss or its layers, or what of the script's own files these call, is not the code of worker {}. Where "
    "that computes something else, the model that comes out is nobody's: let no worker choose its code by its number "
    "(CHAOS_WORKER), and leave the files of the script as they are while workers start"
)


class Crew:
    """`places`: how many are started at once. `restarts`: how many processes may be started for ones that died, within
    `RESTARTS_WITHIN_S`."""

    def __init__(self, token: str, places: int, restarts: int) -> None:
        self._token, self._places, self._restarts = token, places, restarts
        self._next = 0
        self.begun = False
        """A plan was in force."""
        self._restarts_s: dict[bool, list[float]] = {False: [], True: []}
        """By whether the training had begun."""
        self.starting: set[int] = set()
        """Started, no hello yet."""
        self.present: set[int] = set()
        """Said hello and not gone."""
        self.done: set[int] = set()
        """Asks for no further step; gone or not."""
        self.hello: GroupHello | None = None
        """The first one: what is trained."""

    def start(self) -> int:
        """The number of a new process."""
        worker, self._next = self._next, self._next + 1
        self.starting.add(worker)
        return worker

    def begins(self) -> None:
        """A plan is in force, from the first one on."""
        self.begun = True

    def may_restart(self, now_s: float) -> bool:
        """Whether one that died may be replaced; counts it if so. Until the training has begun nothing is lost with a
        worker, not even with all of them: then each place may be filled anew that often."""
        begun = self.begun
        past_s = self._restarts_s[begun] = [
            at_s for at_s in self._restarts_s[begun] if at_s > now_s - RESTARTS_WITHIN_S
        ]
        if len(past_s) >= self._restarts * (1 if begun else self._places):
            return False
        past_s.append(now_s)
        return True

    def refusal(self, worker: int, hello: GroupHello) -> str:
        """Why this one cannot take part, or empty."""
        first = self.hello
        if hello.version != VERSION or hello.token != self._token or worker not in self.starting:
            return "it is none of the workers that were started here"
        if first is not None and hello.torch != first.torch:
            return f"it has torch {hello.torch}, the others {first.torch}; start all from one environment"
        if first is not None and hello.script and first.script and hello.script != first.script:
            return (
                "its script is not the one that the others run: the file was changed since they were started. Put it "
                "back until this training is over, or end the training and start it again with the new one"
            )
        if first is not None and hello.samples != first.samples:
            return (
                f"its data set has {hello.samples} samples, that of the others {first.samples}; which samples a "
                "micro-batch has follows from that, so make it the same in every process"
            )
        if first is not None and (hello.model, hello.micro_batches) != (first.model, first.micro_batches):
            return (
                "its initial parameters, layers, batch, seed or steps differ from the other workers'; make them the "
                "same in every process (torch.manual_seed(...) before the model is made)"
            )
        return ""

    def let_in(self, worker: int, hello: GroupHello) -> str:
        """It is here; what is to be told of that."""
        first = self.hello = self.hello or hello
        self.starting.discard(worker)
        self.present.add(worker)
        if hello.code and first.code and hello.code != first.code:
            return f"it said hello; {OTHER_CODE.format(first.worker)}"
        return "it said hello"

    def through(self, worker: int) -> None:
        """Its script asks for no further step."""
        self.done.add(worker)

    def went(self, worker: int) -> bool:
        """It is gone; False if it was not here, or was through."""
        known = worker in self.starting or worker in self.present
        self.starting.discard(worker)
        self.present.discard(worker)
        return known and worker not in self.done
