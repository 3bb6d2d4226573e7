"""The four negotiations of the scheduler (Chaos IV-B, figure 5).

Each is a machine with a transition table, a deadline, a cause, a measured duration and an outcome, and makes its own
commands. It owns its state: what it must know comes in events. `running.py` drives them.
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
