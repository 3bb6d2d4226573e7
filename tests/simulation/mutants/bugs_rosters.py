"""Planted in the roster and its ways: who is in it, who is told, who is missed, who left."""

from __future__ import annotations

from tests.simulation.mutants.planting import Bug, Patch

ROSTERS = (
    Bug(
        name="the contribution of a removed site is accepted",
        patches=(
            Patch(
                "chaos_protocols.views:changed_views",
                "members.discard(remove)",
                "pass",
            ),
            # The second fence: there is no plan over links of a site that is gone.
            Patch(
                "chaos_protocols.proposals:remove_site",
                "left = [link for link in roster.links if site not in link.key]",
                "left = list(roster.links)",
            ),
        ),
        breaks=(5, 8),
    ),
    Bug(
        name="a learner counts in a round",
        patches=(
            Patch("chaos_protocols.views:changed_views", "listeners.add(add_listener)", "members.add(add_listener)"),
        ),
        breaks=(5, 8),
    ),
    Bug(
        name="a leaver is recorded as failed",
        patches=(
            Patch(
                "chaos_protocols.proposals:remove_site",
                'cause="left" if negotiation.left else "failed"',
                'cause="failed"',
            ),
        ),
        breaks=(9,),
    ),
    Bug(
        name="a leaver goes before its last round",
        patches=(
            Patch("chaos_protocols.standing:Standing.finish_if_done", "or not answer.finished", ""),
            Patch(
                "chaos_protocols.standing:Standing.finish_if_done",
                "(machine.rounds.done < answer.last_round or behind)",
                "False",
            ),
        ),
        breaks=(9,),
    ),
    Bug(
        name="requests to leave are forgotten",
        patches=(
            Patch(
                "chaos_protocols.requests:leave_requested",
                "    roster = scheduler.host.roster\n",
                "    return\n    roster = scheduler.host.roster\n",
            ),
        ),
        breaks=(8,),
    ),
    Bug(
        name="replays are let through",
        patches=(
            Patch(
                "chaos_protocols.routing:ReplayGuard.is_new",
                "if sequence in seen or sequence <= highest - REPLAY_WINDOW:",
                "if False:",
            ),
        ),
        breaks=(6,),
    ),
    Bug(
        name="a restarted daemon is not noticed",
        patches=(
            Patch("chaos_protocols.site:SiteMachine.restarted_as", "return self.incarnations.get(site)", "return None"),
        ),
        breaks=(8,),
    ),
    Bug(
        name="the former life of a restarted daemon counts as the new one",
        patches=(
            Patch(
                "chaos_protocols.standing:Standing.in_roster",
                "return record is not None and record.incarnation == self.machine.incarnation"
                " and self.evicted_epoch is None",
                "return record is not None and self.evicted_epoch is None",
            ),
        ),
        breaks=(2, 4, 7, 8),
    ),
    Bug(
        name="silence is not noticed",
        patches=(
            Patch(
                "chaos_protocols.liveness:LinkTable._tick_link",
                "if max(silent_s, unheard_s) <= limit_s:",
                "if True:",
            ),
        ),
        breaks=(8,),
    ),
    Bug(
        name="reports of dead links are ignored",
        patches=(
            Patch(
                "chaos_protocols.routing:OverlayView.is_up",
                "return (one, other) not in self._denied and (other, one) not in self._denied",
                "return True",
            ),
        ),
        breaks=(8,),
    ),
    Bug(
        name="commands and answers from a roster that is not up to date",
        patches=(
            Patch(
                "chaos_protocols.site:SiteMachine.roster_is_newest",
                "return self.raft.term_at(self.raft.commit_index) == self.raft.term",
                "return True",
            ),
        ),
        breaks=(1, 2, 5, 8, 9),
        seeds=400,
    ),
    Bug(
        name="the log goes to a site that was never admitted",
        patches=(
            Patch(
                "chaos_protocols.requests:join_requested",
                "    accepted, final, reason = _judge_join(scheduler, site, request, now_s)\n",
                "    accepted, final, reason = _judge_join(scheduler, site, request, now_s)\n"
                "    from chaos_protocols.messages import RaftEnvelope\n"
                "    from chaos_protocols.raft import messages as raft\n"
                "    core = scheduler.host.raft._core\n"
                "    snapshot = raft.Snapshot(index=1, term=1, configuration=scheduler.host.configuration, state=b'')\n"
                "    told = raft.SnapshotRequest(term=core.term, leader=core.site, snapshot=snapshot, tenure=0)\n"
                "    scheduler.host.tell(site, RaftEnvelope(message=told))\n",
            ),
        ),
        breaks=(5,),
    ),
    Bug(
        name="the state goes to whoever asks",
        patches=(
            Patch(
                "chaos_protocols.transfer.source:TransferSource.received",
                "self._require(served[0] == site, site,",
                "self._require(True, site,",
            ),
        ),
        breaks=(5,),
    ),
)
