"""The four negotiations of the scheduler (Chaos IV-B, figure 5): scale-out, scale-in, connect-link, disconnect-link.

Each decides the steps of one change of the run, from its cause to its outcome: whom to tell, what to propose, when it
has failed. It is a machine with a transition table and a deadline, makes its own commands, and owns its state: what it
must know comes in events. Driven by `running.py`, which hands them events and carries their orders out.
"""

from chaos_protocols.scheduler.negotiation.base import (
    Committed,
    Conclude,
    DeadlinePassed,
    EverybodyDone,
    LearnerCaughtUp,
    LinkAnswered,
    Negotiation,
    Order,
    ProposalLost,
    Propose,
    Resolution,
    RoundNeverDone,
    SubjectGone,
    Tell,
)
from chaos_protocols.scheduler.negotiation.links import ConnectLink, DisconnectLink
from chaos_protocols.scheduler.negotiation.scale_in import ScaleIn
from chaos_protocols.scheduler.negotiation.scale_out import ScaleOut

__all__ = [
    "Committed",
    "Conclude",
    "ConnectLink",
    "DeadlinePassed",
    "DisconnectLink",
    "EverybodyDone",
    "LearnerCaughtUp",
    "LinkAnswered",
    "Negotiation",
    "Order",
    "ProposalLost",
    "Propose",
    "Resolution",
    "RoundNeverDone",
    "ScaleIn",
    "ScaleOut",
    "SubjectGone",
    "Tell",
]
