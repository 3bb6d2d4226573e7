"""What a site's user is told when nothing moves: why, whom it waits for, since when, and when it goes on.

The causes and their texts stand in `chaos_protocols.causes`; which of them holds is found here, the same whenever it is
asked, from what the other parts know.
"""

from __future__ import annotations

from collections.abc import Iterable

from chaos_protocols.agreement.replica import RosterReplica
from chaos_protocols.causes import Cause, Why
from chaos_protocols.links.network import Network
from chaos_protocols.membership.join_hold import JoinHold
from chaos_protocols.membership.joining import Joining
from chaos_protocols.membership.own import Membership
from chaos_protocols.membership.recovered_runs import RecoveredRuns
from chaos_protocols.membership.scheduler_client import SchedulerClient
from chaos_protocols.membership.waits import Waits
from chaos_protocols.names import SiteId, short
from chaos_protocols.outbox import Outbox
from chaos_protocols.rounds.machine import RoundMachine
from chaos_protocols.rounds.phases import RoundPhase
from chaos_protocols.state.machine import WorkerState
from chaos_protocols.wire.user_words import RunPaused, RunResumed

HEARD_LASTS = 4
"""So many times as long as it takes until the scheduler says it again, what it said holds."""

LINKS_TOLD_MAX = 4
"""Of peers without a link; the others are counted."""


class Pause:
    """See the module. Driven by `Participation`, at every beat. `since_s`: when it began; None: nothing pauses."""

    def __init__(
        self,
        outbox: Outbox,
        replica: RosterReplica,
        network: Network,
        membership: Membership,
        client: SchedulerClient,
        joining: Joining,
        hold: JoinHold,
        rounds: RoundMachine,
        state: WorkerState,
        waits: Waits,
        recovered: RecoveredRuns,
    ) -> None:
        self.since_s: float | None = None
        self._outbox = outbox
        self._replica = replica
        self._network = network
        self._membership = membership
        self._client = client
        self._joining = joining
        self._hold = hold
        self._rounds = rounds
        self._state = state
        self._waits = waits
        self._recovered = recovered
        self._told = ""
        """The reason that was told last; empty: it goes on."""
        self._cause: Cause | None = None
        self._cause_s = 0.0
        """What holds it up, and since when."""
        self._recorded: Cause | None = None
        """The cause that stands in the history."""
        self._heard = ("", float("-inf"))
        """What the scheduler last said that the run waits for, and when."""

    def heard(self, source: SiteId, reason: str) -> None:
        """The scheduler says which state the run waits for, and for whom; it says so again as long as that lasts."""
        if source == self._client.scheduler:
            self._heard = (reason, self._outbox.now_s)

    def tell(self) -> None:
        """The worker hears of every new reason; the event history has the beginning, each cause that lasts, the end."""
        why, outbox = self.why(), self._outbox
        reason, cause = (why.text, why.cause) if why is not None else ("", None)
        if cause is not self._cause:
            self._cause, self._cause_s = cause, outbox.now_s
        lasts = outbox.now_s >= self._cause_s + outbox.settings.stateless_s
        if cause is not self._recorded and (cause is None or self._recorded is None or lasts):
            outbox.record("pause" if cause else "resume", outbox.facts.name, reason or self._told, "", None, "")
            self._recorded = cause
            if cause is None or self.since_s is None:
                self.since_s = outbox.now_s if cause else None
        if reason != self._told:
            if self._state.session.present:
                self._state.session.tell(RunPaused(reason=reason[:REASON_MAX]) if reason else RunResumed())
            self._told = reason

    def reason(self) -> str:
        """The sentence; empty when rounds can go on."""
        why = self.why()
        return why.text if why is not None else ""

    def why(self) -> Why | None:
        """Why nothing moves; None when rounds can go on."""
        roster = self._replica.roster
        if not self._membership.takes_part:
            return self._why_outside()
        if self._client.is_lost:
            return self._why_no_scheduler()
        if roster.model is None:
            return Cause.FOUNDERS_WORKER.told()
        if stands := self._why_transfer_stands():
            return stands
        if not roster.started:
            return Cause.MIN_SITES.told(wanted=roster.min_sites, here=len(roster.member_ids()))
        if short := self._why_short():
            return short
        if waits := self._what_the_run_waits_for() or self._hold.why():
            return waits
        if self._is_without_state():
            return self._why_no_state()
        if promised := self._why_not_yet():
            return promised
        waits_for = self._waits.reason()
        return Cause.ROUND_WAITS.told(reason=waits_for) if waits_for else None

    # -- outside the run

    def _why_outside(self) -> Why:
        """The nearest cause: its own worker, its links, those that it is linked with, the run's answer."""
        network, joining = self._network, self._joining
        if not self._state.session.present:
            return joining.refusal or Cause.NO_WORKER.told()
        up = network.links.up_sites()
        if not up:
            return self._why_no_link()
        if network.hears_of_two_runs(self._client.is_of_run):
            runs = network.runs_heard(self._client.is_of_run)
            told = "; ".join(f"{short(run)}: {_named(sites)}" for run, sites in runs.items())
            return Cause.TWO_RUNS.told(runs=told)
        if self._state.is_unsure:
            return Cause.SCRIPT_ANSWERS.told()  # `Asking` says nothing before
        beats = [beat for site in up if (beat := network.links.neighbours[site].beat) is not None]
        a_run_is_there = any(beat.epoch > 0 for beat in beats)
        if unheard := self._why_unheard(up, a_run_is_there):
            return unheard
        if joining.answer is not None:
            return joining.answer
        if not beats or self._client.scheduler is not None:
            return Cause.ASKING.told()
        if a_run_is_there:
            return Cause.RUN_WITHOUT_SCHEDULER.told(sites=_named(up))
        if self._replica.was_in_run:
            return self._why_no_scheduler()
        failed = self._failed_links()
        return Cause.NO_FOUNDER.told(sites=_named(up), links=f"; {failed}" if failed else "")

    def _why_unheard(self, up: Iterable[SiteId], a_run_is_there: bool) -> Why | None:
        """Nobody answers, or there is nobody whose answer this site would believe."""
        if unproven := self._why_unproven():
            return unproven
        if a_run_is_there and (unknown := self._why_unknown(up)):
            return unknown
        if a_run_is_there and self._joining.is_unheard:  # whoever was named may be gone since
            return Cause.RUN_WITHOUT_SCHEDULER.told(sites=_named(up))
        return None

    def _why_unproven(self) -> Why | None:
        scheduler, voters = self._client.scheduler, sorted(self._replica.raft.voters_in_force)
        if scheduler is None or not self._joining.is_in_vain(scheduler):
            return None
        return Cause.UNPROVEN.told(site=short(scheduler), voters=_named(voters))

    def _why_unknown(self, up: Iterable[SiteId]) -> Why | None:
        """No neighbour is one that may name the scheduler to it: all that its journal knows may be gone (spec 4.12)."""
        replica = self._replica
        if self._client.scheduler is not None or not replica.was_in_run:
            return None
        if any(self._client.is_of_run(site) for site in up):
            return None
        known = _named(sorted(replica.others)) or "itself alone"
        return Cause.UNKNOWN_MEMBERS.told(sites=_named(up), known=known)

    def _why_no_link(self) -> Why:
        if not self._network.links.neighbours:
            return Cause.NO_PEER.told()
        failed = self._failed_links()
        return Cause.NO_LINK.told(links=failed) if failed else Cause.ASKING.told()

    def _failed_links(self) -> str:
        """Of the sites that a link is wanted to; first the causes that somebody has to take away."""
        links = self._network.links
        found = [
            (one.why.cause in (Cause.NOT_RUNNING, Cause.UNREACHABLE), one.site, one.why.text)
            for one in links.neighbours.values()
            if one.why is not None and not links.is_up(one.site)
        ]
        told = [text for _, _, text in sorted(found)[:LINKS_TOLD_MAX]]
        if len(found) > LINKS_TOLD_MAX:
            told.append(f"and {len(found) - LINKS_TOLD_MAX} more")
        return "; ".join(told)

    # -- in the run

    def _why_short(self) -> Why | None:
        """Too few members count in the next round."""
        roster = self._replica.roster
        view = roster.view_of(self._rounds.completed_round + 1)
        if view is None or not roster.is_short(view):
            return None
        return Cause.FLOOR.told(wanted=roster.floor_sites, here=len(view.members))

    def _what_the_run_waits_for(self) -> Why | None:
        outbox, (reason, heard_s) = self._outbox, self._heard
        over = self._rounds.active or self._state.is_coming or self._replica.roster.resolving
        if not reason or over or outbox.now_s > heard_s + HEARD_LASTS * outbox.settings.retry_s:
            return None
        return Cause.STATE_AWAITED.told(reason=reason)

    def _why_no_scheduler(self) -> Why:
        reachable, voters = self._network.reachable(), self._replica.configuration.voters
        forgot = self._network.without_journal(voters)
        lacking = [site for site in voters if site not in reachable and site not in forgot]
        told = [f"cannot reach {_named(lacking)}"] if lacking else []
        told += [f"{_named(forgot)} came back without its journal, and so without its vote"] if forgot else []
        if not told:
            return Cause.ELECTION.told()
        way_out = self._recovered.way_out()
        return Cause.NO_QUORUM.told(missing=", ".join(told), recovered=f"; {way_out}" if way_out else "")

    def _is_without_state(self) -> bool:
        """For longer than it takes to be asked for, and nothing is on its way."""
        return not self._state.is_coming and self._lacks_state()

    def _lacks_state(self) -> bool:
        outbox, session = self._outbox, self._state.session
        if not session.present or self._rounds.worker_round is not None:
            return False
        return outbox.now_s - session.since_s > outbox.settings.stateless_s

    def _why_not_yet(self) -> Why | None:
        """A transfer was asked for, and its sources have yet to reach the round whose state they send: that takes as
        long as they compute, in which no byte moves and no round is done. A worker that has a part of the state is
        brought to that round before."""
        fetch, brought = self._state.fetch, self._rounds.delivery.is_damaged
        if fetch.plan is None or (fetch.waits and not brought) or fetch.verified_bytes or not self._lacks_state():
            return None
        return Cause.STATE_PROMISED.told(round=fetch.plan.round, sites=_named(fetch.sources()))

    def _why_transfer_stands(self) -> Why | None:
        """Some of the state has come, and no more comes: how far it is, and who owes the rest."""
        fetch, links = self._state.fetch, self._network.links
        plan = fetch.stands()
        if plan is None:
            return None
        told = [
            f"{short(site)} ({'linked, sends nothing' if links.is_up(site) else 'no link'})" for site in fetch.sources()
        ]
        return Cause.TRANSFER_STANDS.told(
            round=plan.round, done=f"{fetch.verified_bytes:,}", size=f"{plan.state_bytes:,}",
            percent=100 * fetch.verified_bytes // plan.state_bytes, sources=", ".join(told[:LINKS_TOLD_MAX]),
        )  # fmt: skip

    def _why_no_state(self) -> Why:
        network, completed = self._network, self._rounds.completed_round
        standby = RoundPhase.STANDBY.value
        heard = (network.steps.of(site) for site in network.reachable())
        if any(step is not None and step.phase != standby for step in heard):
            return Cause.STATE_COMES.told(round=completed)
        return Cause.SCRIPTS_REST.told() if self._waits.resting else Cause.STATE_LOST.told(round=completed)


REASON_MAX = 4096
"""Characters of `RunPaused.reason`."""


def _named(sites: Iterable[SiteId]) -> str:
    return ", ".join(short(site) for site in sites)
