"""Planted in the roster and its ways: who is in it, who is told, who is missed, who left."""

from __future__ import annotations

from tests.simulation.mutants.planting import Bug, Patch

ROSTERS = (
    Bug(
        name="a daemon whose key was started elsewhere goes on",
        patches=(
            Patch(
                "chaos_protocols.membership.participation:Participation.dial_failed",
                "why.cause is Cause.KEY_ELSEWHERE",
                "why.cause is Cause.NO_WORKER",
            ),
        ),
        breaks=(8,),
        first=80,
        seeds=160,
    ),
    Bug(
        name="the contribution of a removed site is accepted",
        patches=(
            Patch(
                "chaos_protocols.agreement.views:changed_views",
                "members.discard(remove)",
                "pass",
            ),
            # The second fence: there is no plan over links of a site that is gone.
            Patch(
                "chaos_protocols.scheduler.removals:remove_site",
                "left = [link for link in roster.links if site not in link.key]",
                "left = list(roster.links)",
            ),
        ),
        breaks=(5, 8),
    ),
    Bug(
        name="a learner counts in a round",
        patches=(
            Patch(
                "chaos_protocols.agreement.views:changed_views",
                "listeners.add(add_listener)",
                "members.add(add_listener)",
            ),
        ),
        breaks=(5, 8),
    ),
    Bug(
        name="a leaver is recorded as failed",
        patches=(
            Patch(
                "chaos_protocols.scheduler.removals:remove_site",
                '"left" if removal.left else ',
                "",
            ),
        ),
        breaks=(9,),
    ),
    Bug(
        name="a leaver goes before its last round is everywhere",
        patches=(
            Patch("chaos_protocols.membership.leaving:Leaving.finish_if_done", "or not answer.finished", ""),
            Patch(
                "chaos_protocols.membership.leaving:Leaving.finish_if_done",
                "and lacks_last and",
                "and False and",
            ),
        ),
        breaks=(9,),
    ),
    Bug(
        name="a leaver keeps no last checkpoint",
        patches=(
            Patch(
                "chaos_protocols.state.last_checkpoint:LastCheckpoint._unwritten",
                "return have if best is None or have > best else None",
                "return None",
            ),
        ),
        breaks=(9,),
    ),
    Bug(
        name="requests to leave are forgotten",
        patches=(
            Patch(
                "chaos_protocols.scheduler.admission:Admission.leave_requested",
                "    running = next(",
                "    return\n    running = next(",
            ),
        ),
        breaks=(8,),
    ),
    Bug(
        name="replays are let through",
        patches=(
            Patch(
                "chaos_protocols.links.link_state:ReplayGuard.is_new",
                "sequence in known.seen or sequence <= known.highest - REPLAY_WINDOW or",
                "",
            ),
        ),
        breaks=(6,),
    ),
    Bug(
        name="a dead connection of a link that lives is not noticed",
        patches=(
            Patch(
                "chaos_protocols.links.silence:LinkWatch.dead_connection",
                "limit_s = self.limit_s(failure_timeout_s)",
                'return ""\n    limit_s = self.limit_s(failure_timeout_s)',
            ),
        ),
        breaks=(8,),
    ),
    Bug(
        name="a restarted daemon is not noticed",
        patches=(
            Patch(
                "chaos_protocols.links.network:Network.restarted_as",
                "return self.incarnations.get(site)",
                "return None",
            ),
        ),
        breaks=(8,),
    ),
    Bug(
        name="the former life of a restarted daemon counts as the new one",
        patches=(
            Patch(
                "chaos_protocols.membership.own:Membership.in_roster",
                "return record is not None and record.incarnation == self._incarnation and self.evicted_epoch is None",
                "return record is not None and self.evicted_epoch is None",
            ),
        ),
        breaks=(2, 4, 7, 8),
    ),
    Bug(
        name="silence is not noticed",
        patches=(
            Patch(
                "chaos_protocols.links.silence:LinkWatch.silence",
                "limit_s = self.limit_s(failure_timeout_s)",
                'return ""\n    limit_s = self.limit_s(failure_timeout_s)',
            ),
        ),
        breaks=(8,),
    ),
    Bug(
        name="reports of dead links are ignored",
        patches=(
            Patch(
                "chaos_protocols.links.link_state:LinkStateTable.is_up",
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
                "chaos_protocols.agreement.replica:RosterReplica.is_newest",
                "return self.raft.term_at(self.raft.commit_index) == self.raft.term",
                "return True",
            ),
            # Else its commands wait for those that have taken its log in its term, and so has it by then.
            Patch(
                "chaos_protocols.scheduler.proposer:Proposer.quorum_in_reach", "if host.has_answered(site)", "if True"
            ),
        ),
        breaks=(1, 2, 5, 8, 9),
        seeds=120,
    ),
    Bug(
        name="the log goes to a site that was never admitted",
        patches=(
            Patch(
                "chaos_protocols.scheduler.admission:Admission._join_answer",
                "    if answer is not None:\n",
                "    from chaos_protocols.wire.control import RaftEnvelope\n"
                "    from chaos_protocols.agreement.raft import messages as raft\n"
                "    core = self._facts.raft._core\n"
                "    snapshot = raft.Snapshot(index=1, term=1, configuration=self._facts.configuration, state=b'')\n"
                "    told = raft.SnapshotRequest(term=core.term, leader=core.site, snapshot=snapshot, tenure=0)\n"
                "    self._facts.tell(site, RaftEnvelope(message=told))\n"
                "    if answer is not None:\n",
            ),
        ),
        breaks=(5,),
    ),
    Bug(
        name="the state goes to whoever asks",
        patches=(
            Patch(
                "chaos_protocols.state.transfer.source:TransferSource.received",
                "self._require(served[0] == site, site,",
                "self._require(True, site,",
            ),
        ),
        breaks=(5,),
    ),
)
