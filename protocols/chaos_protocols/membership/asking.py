"""What a site asks of the scheduler, one thing at a time: to be let go, to be let in, or for the state that its worker
lacks.

It is asked again at every beat until the roster shows it, so that no message has to arrive. Driven by `Participation`,
which says when; `SchedulerClient` knows whom. Source: spec 12.
"""

from __future__ import annotations

from chaos_protocols.agreement.replica import RosterReplica
from chaos_protocols.links.network import Network
from chaos_protocols.membership.absence import WorkerAbsence
from chaos_protocols.membership.joining import Joining
from chaos_protocols.membership.leaving import Leaving
from chaos_protocols.membership.own import Membership
from chaos_protocols.membership.scheduler_client import SchedulerClient
from chaos_protocols.state.machine import WorkerState
from chaos_protocols.state.worker_session import WorkerSession


class Asking:
    """See the module. It has no state of its own: what is wanted follows from that of the parts."""

    def __init__(
        self,
        replica: RosterReplica,
        network: Network,
        membership: Membership,
        client: SchedulerClient,
        joining: Joining,
        leaving: Leaving,
        session: WorkerSession,
        state: WorkerState,
        absence: WorkerAbsence,
    ) -> None:
        self._replica, self._network, self._membership, self._client = replica, network, membership, client
        self._joining, self._leaving = joining, leaving
        self._session, self._state, self._absence = session, state, absence

    def ask(self) -> None:
        """For what this site wants of the scheduler, if there is anything, and somebody to ask."""
        membership, client = self._membership, self._client
        if membership.ended or (not self._session.present and not membership.leaving):
            return
        if client.scheduler is None:
            return  # nobody to ask yet: at the next beat, or as soon as a neighbour names the scheduler
        client.asked()
        if membership.leaving:
            self._ask_to_leave()
        elif membership.in_roster:
            self._ask_for_state()
        else:
            self._ask_to_join()

    def _ask_to_leave(self) -> None:
        leave = self._leaving.request()
        if leave is not None and self._client.scheduler != self._replica.site:
            self._client.tell(leave)

    def _ask_to_join(self) -> None:
        if self._network.hears_of_two_runs(self._client.is_of_run):
            self._client.forget_named()
            return  # whichever answers first would have this site's data: its operator has to choose
        if self._joining.is_in_vain(self._client.scheduler):
            return
        up = self._network.links.up_sites()
        state = self._state
        if state.is_unsure:
            return  # what it offers would count as all that it has (spec 13.5)
        self._client.tell(self._joining.request(up, state.offer(), state.lineage(), state.unsaved_in()))

    def _ask_for_state(self) -> None:
        state = self._state.request()
        if state is not None and not self._absence.away:
            self._client.tell(state)
