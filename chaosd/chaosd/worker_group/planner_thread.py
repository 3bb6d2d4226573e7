"""Asks the planner, on threads of their own, so that a death is seen while it thinks; its answers are events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from chaos_protocols.worker_group.events import (
    AskPlanner,
    Event,
    NoPlanMade,
    NoPlanPrepared,
    PlanMade,
    PlanPrepared,
    PreparePlan,
)
from chaos_protocols.worker_group.machine import WorkerGroupMachine
from chaosd.os_errors import lacking
from chaosd.worker_group.feedback import Feedback
from chaosd.worker_group.planning import SitePlanner
from chaosd.worker_group.ways import Unplannable


class PlannerThread:
    """`feed` takes the answers, `record` an entry of the history."""

    def __init__(
        self,
        planner: SitePlanner,
        feedback: Feedback,
        machine: WorkerGroupMachine,
        feed: Callable[[Event], None],
        record: Callable[..., None],
    ) -> None:
        self._planner, self._feedback, self._machine = planner, feedback, machine
        self._feed, self._record = feed, record
        self._thinking: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Until it has thought its last."""
        await asyncio.gather(*self._thinking, return_exceptions=True)

    def warm_up(self) -> None:
        """Load the solvers while the workers start. What fails in that, the first question shows."""
        self._keep(self._warm_up())

    def ask(self, asked: AskPlanner) -> None:
        """`PlanMade` or `NoPlanMade` follows."""
        self._keep(self._make(asked))

    def prepare(self, wanted: PreparePlan) -> None:
        """`PlanPrepared` or `NoPlanPrepared` follows."""
        if wanted.faster_by:
            self._feedback.learn_settled(self._machine, wanted.anew)
            self.prepare_losses()
        self._keep(self._prepare(wanted))

    def prepare_losses(self) -> None:
        """While training runs, work out what follows the next loss."""
        self._keep(self._feedback.prepare(self._machine))

    async def _warm_up(self) -> None:
        with suppress(Exception):
            await asyncio.to_thread(self._planner.warm_up)

    async def _make(self, asked: AskPlanner) -> None:
        hello = self._machine.hello
        assert hello is not None
        try:
            plan = await asyncio.to_thread(self._planner.make, asked, hello, self._machine.present)
            event: Event = PlanMade(asked=asked.asked, plan=plan)
        except Unplannable as error:
            event = NoPlanMade(asked=asked.asked, reason=str(error), hopeless=error.hopeless)
        except Exception as error:
            event = NoPlanMade(asked=asked.asked, reason=_failed(error), hopeless=True)
        self._feed(event)

    async def _prepare(self, wanted: PreparePlan) -> None:
        hello, idle, drained = self._machine.hello, wanted.idle, wanted.drained
        assert hello is not None
        prepare, present = self._planner.prepare_change, self._machine.present
        try:
            await asyncio.to_thread(prepare, hello, present, idle, drained, faster_by=wanted.faster_by)
        except Unplannable as error:
            self._feed(NoPlanPrepared(idle=idle, drained=drained, reason=str(error)))
            return
        except Exception as error:
            self._record("no-plan", _failed(error))
            self._feed(NoPlanPrepared(idle=idle, drained=drained, reason=_failed(error)))
            return
        facts = {"idle": sorted(idle), **({"drained": sorted(drained)} if drained else {})}
        self._record("plan-prepared", "taken at the end of a step, if nothing changes before", **facts)
        self._feed(PlanPrepared(idle=idle, drained=drained))

    def _keep(self, thought: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(thought)
        self._thinking.add(task)
        task.add_done_callback(self._thinking.discard)


def _failed(error: Exception) -> str:
    remedy = lacking(error)
    return f"the planner failed: {str(error) or type(error).__name__}" + (f": {remedy}" if remedy else "")
