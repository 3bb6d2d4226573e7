"""Planted in the agreement: what is on the disk, who votes, what counts as committed.

Not planted: that an entry of an earlier term is committed by counting alone (thesis 3.6.2). A scheduler proposes and
answers nothing before an entry of its own term is committed, and that entry is appended at once when it is elected; the
order of five events that shows the difference is in tests/unit/protocols/agreement/raft.
"""

from __future__ import annotations

from tests.simulation.mutants.planting import Bug, Patch

RAFT = "chaos_protocols.agreement.raft"

AGREEMENT = (
    Bug(
        name="a vote is not persisted",
        patches=(
            Patch(
                f"{RAFT}.core:Core.set_term",
                "self.term, self.vote, self._hard_state_changed = term, vote, True",
                "self.term, self.vote = term, vote",
            ),
        ),
        breaks=(7,),
    ),
    Bug(
        name="log entries are not persisted",
        patches=(Patch(f"{RAFT}.core:Core.append", "self._appended += entries", "pass"),),
        breaks=(1, 7),
    ),
    Bug(
        name="an answer outruns the disk",
        patches=(Patch(f"{RAFT}.core:Core.take_effects", "effects.insert(0, persist)", "effects.append(persist)"),),
        breaks=(1, 7),
    ),
    Bug(
        name="two votes in one term",
        patches=(
            Patch(f"{RAFT}.election:receive_vote", "and core.vote in (None, source)", ""),
            Patch(f"{RAFT}.election:receive_vote", "and core.leader is None", ""),
            Patch(f"{RAFT}.election:receive_vote", "if core.vote is None:", "if True:"),
        ),
        breaks=(1, 7),
    ),
    Bug(
        name="elected by itself alone",
        patches=(
            Patch(
                f"{RAFT}.core:Core.has_majority",
                "sum(site in sites for site in voters) >= majority(len(voters))",
                "len(sites) >= 1",
            ),
        ),
        breaks=(1,),
    ),
    Bug(
        name="elected with a shorter log",
        patches=(
            Patch(
                f"{RAFT}.election:log_serves",
                "return (last_term, last_index) >= (core.log.last_term, core.log.last_index)",
                "return True",
            ),
        ),
        breaks=(1,),
        first=110,
        seeds=160,
    ),
    Bug(
        name="committed by one voter",
        patches=(Patch(f"{RAFT}.replication:commit", "matches[majority(len(matches)) - 1]", "matches[0]"),),
        breaks=(1,),
    ),
    Bug(
        name="a learner counts in the quorum",
        patches=(
            Patch(
                f"{RAFT}.replication:commit",
                "for site in core.voters]",
                "for site in (*core.voters, *core.log.configuration.learners)]",
            ),
            Patch(f"{RAFT}.replication:commit", "majority(len(matches))", "majority(len(core.voters))"),
        ),
        breaks=(1,),
    ),
    Bug(
        name="two membership changes at once",
        patches=(
            Patch(
                f"{RAFT}.machine:RaftMachine._refusal",
                "voters_changed(core.log.configuration, configuration) > 1",
                "False",
            ),
            Patch(
                "chaos_protocols.scheduler.voters:next_voters",
                "return with_vote(configuration, candidates[0])",
                "return with_vote(with_vote(configuration, candidates[0]), candidates[-1])",
            ),
        ),
        breaks=(1,),
    ),
    Bug(
        name="a change of voters on top of one that is not committed",
        patches=(
            Patch(
                f"{RAFT}.machine:RaftMachine._refusal",
                "if self.configuration_pending and not self._alone_in_every_majority(configuration):",
                "if False:",
            ),
            # The second fence: the scheduler has one proposal under way at a time.
            Patch("chaos_protocols.scheduler.proposer:Proposer.is_free", "self._in_flight is None and", ""),
        ),
        breaks=(1,),
    ),
    Bug(
        name="a removed leader keeps leading",
        patches=(
            Patch(f"{RAFT}.replication:announce_commit", "if core.site not in core.voters:", "if False:"),
            # The second fence: a scheduler that leaves hands its role over first, and asks the next one.
            Patch(
                "chaos_protocols.membership.asking:Asking._ask_to_leave",
                "and self._client.scheduler != self._replica.site",
                "",
            ),
        ),
        breaks=(1,),
    ),
    Bug(
        name="a follower drops what is committed",
        patches=(
            Patch(f"{RAFT}.follower:take_entries", "if log.term_at(entry.index) == entry.term:", "if False:"),
            Patch(f"{RAFT}.follower:take_entries", "if entry.index <= core.commit_index:", "if False:"),
        ),
        breaks=(1,),
    ),
)
