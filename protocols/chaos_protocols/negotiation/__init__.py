"""The four negotiations of the scheduler (Chaos IV-B, figure 5), and the settling of a round after a failure.

Each is a machine with a transition table, a deadline, a cause, a measured duration and an outcome; `scheduler.py`
drives them.
"""

from chaos_protocols.negotiation.base import (
    Committed,
    Conclude,
    DeadlinePassed,
    EverybodyDone,
    Intent,
    LevelReached,
    LinkAnswered,
    Negotiation,
    Order,
    ProposalLost,
    Propose,
    Settlement,
    SubjectGone,
    Tell,
)
from chaos_protocols.negotiation.links import ConnectLink, DisconnectLink
from chaos_protocols.negotiation.scale_in import ScaleIn
from chaos_protocols.negotiation.scale_out import ScaleOut

__all__ = [
    "Committed",
    "Conclude",
    "ConnectLink",
    "DeadlinePassed",
    "DisconnectLink",
    "EverybodyDone",
    "Intent",
    "LevelReached",
    "LinkAnswered",
    "Negotiation",
    "Order",
    "ProposalLost",
    "Propose",
    "ScaleIn",
    "ScaleOut",
    "Settlement",
    "SubjectGone",
    "Tell",
]
