"""Planted in the bulk path: chunks of a round, whole results, blocks of a state.

Not planted: that the weight of a contribution is not checked (`ReduceMachine.contribute`), since a site's own machine
gives no other; that a source with progress is given up (`TransferMachine.progressed` dropped), since somebody else has
the state: all that is lost is time. Nor that void results stay, or that a fetched result is not compared with its
digest: seeds see both too seldom. tests/unit says all four.
"""

from __future__ import annotations

from tests.simulation.mutants.planting import Bug, Patch

REDUCE = "chaos_protocols.rounds.reduce"
TRANSFER = "chaos_protocols.state.transfer"

BULK = (
    Bug(
        name="bulk: a chunk of an older tag is accepted",
        patches=(
            Patch(
                f"{REDUCE}.machine:ReduceMachine._flow",
                "one.tag != header.tag",
                "one.tag.round < header.tag.round",
            ),
        ),
        breaks=(2, 3, 6, 8),
        seeds=300,
    ),
    Bug(
        name="bulk: only the first child's sum is added",
        patches=(
            Patch(
                f"{REDUCE}.tree:TreeFlow._sum_of_chunk_0",
                "for site, child in self._children.items() if not child.empty)",
                "for site, child in self._children.items() if not child.empty)[:1]",
            ),
        ),
        breaks=(3,),
        seeds=300,
    ),
    Bug(
        name="bulk: what an encoding lost under a tag that was stopped is owed",
        patches=(
            Patch(f"{REDUCE}.residuals:Residuals.write", "self._written.add(chunk)", "self._side[chunk] ^= 1"),
            Patch(f"{REDUCE}.residuals:Residuals.write", "return 1 - self._side", "return self._side"),
        ),
        breaks=(3,),
        seeds=300,
    ),
    # A round is done again where it was held only after a site was let in again, or the run went on from a state: then
    # nothing is owed (spec 9.32). An engine that ends a round in the instant in which it is resolved is left to
    # `test_residuals`.
    Bug(
        name="bulk: what an encoding lost in a round that is void is owed",
        patches=(Patch(f"{REDUCE}.residuals:Residuals.begin", "if not member or round_number", "if round_number"),),
        breaks=(3,),
        story="159",
    ),
    Bug(
        name="bulk: grants of the last connection hold after it",
        patches=(Patch(f"{REDUCE}.tree:TreeFlow.link_lost", "self._limit = None", "pass"),),
        breaks=(8,),
        seeds=300,
    ),
    Bug(
        name="bulk: a child does not say again what it lacks when its link is back",
        patches=(
            Patch(
                f"{REDUCE}.tree:TreeFlow.link_up",
                "if site == self.place.parent and self.finished < self.count:",
                "if False:",
            ),
        ),
        breaks=(8,),
        seeds=300,
    ),
    Bug(
        name="bulk: a chunk of a result is taken without its hash",
        patches=(Patch(f"{REDUCE}.tree:TreeFlow.received_down", "message.hash == found", "True"),),
        breaks=(2, 3),
        seeds=300,
    ),
    Bug(
        name="bulk: a finished tree is kept over a round that is done again",
        patches=(
            Patch(
                f"{REDUCE}.machine:ReduceMachine.open",
                "self._kept = [kept for kept in self._kept if kept.tag.round != tag.round]",
                "pass",
            ),
            # The second fence: what a child wants is looked up by its tag.
            Patch(
                f"{REDUCE}.machine:ReduceMachine._position_told",
                "if one.tag == header.tag:",
                "if one.tag.round == header.tag.round:",
            ),
            Patch(
                f"{REDUCE}.machine:ReduceMachine._flow",
                "one.tag != header.tag",
                "(one.tag != header.tag and not isinstance(header, ChunkWant))",
            ),
        ),
        breaks=(2, 3, 8),
        seeds=300,
    ),
    Bug(
        name="bulk: a block counts before its hash was checked",
        patches=(
            Patch(
                f"{TRANSFER}.joiner:TransferMachine.received",
                "self.progressed(site, now_s=now_s)",
                "self.progressed(site, now_s=now_s); self.verified_ranges.add(header.start, stop)",
            ),
        ),
        breaks=(4,),
        seeds=300,
    ),
    Bug(
        name="bulk: what a lost source owes is taken for verified",
        patches=(
            Patch(
                f"{TRANSFER}.assignment:Assignment.take_back",
                "self._unassigned += source.owed()",
                "[self._verified.add(*one) for one in source.owed()]",
            ),
        ),
        breaks=(4,),
        seeds=300,
    ),
    Bug(
        name="bulk: the root divides without the last weight",
        patches=(Patch(f"{REDUCE}.tree:TreeFlow._combine", "fsum(self.weights)", "fsum(self.weights[:-1])"),),
        breaks=(3,),
        seeds=300,
    ),
    Bug(
        name="bulk: what a child wants is forgotten",
        patches=(Patch(f"{REDUCE}.tree:TreeFlow.wanted", "self._wants[site] = message.next", "pass"),),
        breaks=(8,),
        seeds=300,
    ),
    Bug(
        name="bulk: a listener does not wait for all trees",
        patches=(
            Patch(
                f"{REDUCE}.machine:ReduceMachine._resolved",
                "if not any(flow.finished < flow.count for flow in current.trees.values()):",
                "if any(flow.finished == flow.count for flow in current.trees.values()) and (not current.member or "
                "not any(flow.finished < flow.count for flow in current.trees.values())):",
            ),
        ),
        breaks=(2, 3),
        seeds=300,
    ),
)
