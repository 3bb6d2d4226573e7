"""Planted in the rules of whose word counts: what a hostile guest must be able to use."""

from __future__ import annotations

from tests.simulation.mutants.planting import Bug, Patch

CLIENT = "chaos_protocols.membership.scheduler_client:SchedulerClient"

GUESTS = (
    Bug(
        name="whoever is linked is believed",
        patches=(Patch(f"{CLIENT}.is_of_run", "return not replica.was_in_run and", "return True or"),),
        breaks=(1, 5, 6, 7, 11),
        guest=True,
    ),
    Bug(
        name="a guest names the scheduler",
        patches=(Patch(f"{CLIENT}.named", "not self.is_of_run(site)", "False"),),
        breaks=(1, 11),
        guest=True,
    ),
    Bug(
        name="everybody may say what binds a site",
        patches=(Patch("chaos_protocols.inbound:Inbound._may_say", "type(message) in FOR_INSIDERS and", "False and"),),
        breaks=(1, 5, 6, 7, 11),
        guest=True,
    ),
    Bug(
        name="a guest has a say in a round in doubt",
        patches=(
            Patch(
                "chaos_protocols.scheduler.round_resolution:RoundResolution.answered",
                "and roster.record(site) is not None",
                "",
            ),
        ),
        breaks=(11,),
        first=70,
        seeds=110,
        guest=True,
    ),
    Bug(
        name="a guest reports as many links as it likes",
        patches=(
            Patch(
                "chaos_protocols.links.link_state:LinkStateTable._has_room",
                "if len(self._told.get(source, ())) >= each_max and not self._forget_a_gone(source, report):",
                "if False:",
            ),
        ),
        breaks=(11,),
        guest=True,
    ),
    Bug(
        name="a member leads by saying so",
        patches=(Patch("chaos_protocols.agreement.raft.proof:is_believed", "not core.proof_needed)", "True)"),),
        breaks=(1, 2, 7, 11),
        seeds=110,
    ),
    Bug(
        name="any member answers what the scheduler is asked",
        patches=(Patch("chaos_protocols.inbound:Inbound._may_say", "type(message) in ANSWERS and", "False and"),),
        breaks=(1, 8, 11),
        seeds=110,
    ),
    Bug(
        name="votes are not looked at",
        patches=(
            Patch(
                "chaos_protocols.agreement.raft.proof:_is_vote",
                "return core.keys.verify(vote.voter, vote.public_key, vote.signature, words)",
                "return bool(words)",
            ),
        ),
        breaks=(1, 2, 7, 11),
        seeds=110,
    ),
    Bug(
        name="whoever shows a change of the voters is believed to have made it",
        patches=(
            Patch("chaos_protocols.agreement.raft.proof:_leads_from", "not _is_signed(core, mandate)", "False"),
            Patch("chaos_protocols.agreement.raft.proof:_leads_from", "leader != led and not", "False and not"),
        ),
        breaks=(1, 2, 7, 11),
        seeds=240,
    ),
    Bug(
        name="words of another run count",
        patches=(
            Patch(
                "chaos_protocols.links.router:Router.receive", "not self._naming.takes(neighbour, envelope)", "False"
            ),
        ),
        breaks=(1, 2, 6, 7, 8, 11),
        sites=5,
    ),
    Bug(
        name="what a site has said in another run makes its words in this one old",
        patches=(
            Patch(
                "chaos_protocols.links.router:Router.receive",
                "roster.record(envelope.source) is None",
                "self._guard.is_new(envelope)",
            ),
        ),
        breaks=(8, 11),
        sites=5,
    ),
    Bug(
        name="a site of the former release is sent words that name the run",
        patches=(Patch("chaos_protocols.links.naming:RunNaming.may_go", "not envelope.run or", "True or"),),
        breaks=(8,),
        sites=5,
    ),
    Bug(
        name="others say when a site was started again",
        patches=(
            Patch(
                "chaos_protocols.links.network:Network.told_of",
                "self._told_early[site] = report",
                "self.saw_incarnation(site, report.incarnation)",
            ),
        ),
        breaks=(8, 11),
    ),
    Bug(
        name="a member gives its state up because its parent says that the result is gone",
        patches=(
            Patch(
                "chaos_protocols.rounds.reduce.machine:ReduceMachine._parent_has_dropped",
                "if current.member:",
                "if False:",
            ),
        ),
        breaks=(11,),
        first=5,
    ),
)
