"""What can go wrong for a user of the SDK. Every text says what happened, to whom, why, and what to do now."""

from __future__ import annotations


class ChaosError(Exception):
    """Base of all errors of the SDK."""


class NoDaemon(ChaosError):
    """No daemon answers on the socket."""


class DaemonLost(ChaosError):
    """The daemon ended or closed the connection, and did not come back in time. The model holds the state of the end of
    the last completed round."""


class Refused(ChaosError):
    """The daemon does not take this worker; the text is its reason."""


class LeftRun(ChaosError):
    """The script goes on training although the run has dismissed this site."""

    @classmethod
    def told_already(cls, round: int, reason: str) -> LeftRun:
        """Its loop did not end when it was told. `reason`: why this site left; may be empty."""
        why = f" ({reason})" if reason else ""
        return cls(
            f"this site left the run after round {round}{why}; end the training loop when step() returns False or "
            "capture_exit_event() is true. To take part again, start the script again"
        )


class SharedMemoryTooSmall(ChaosError):
    """The arena does not fit into the memory that is free."""


class TooFewThreads(ChaosError):
    """The system gives this process no further thread."""


class TooFewFiles(ChaosError):
    """This process of a worker may open no further file or socket."""


class DaemonProtocolError(ChaosError):
    """The daemon broke the rules of the conversation; both were probably installed from different versions."""


class ChangedOutside(ChaosError):
    """The script has changed the training state outside of a round (an `optimizer.step()` left in the loop, say), so
    that it differs from that of the other sites. The text says what to write instead; started again, the script gets
    the state of the run."""


class HalfAppliedStep(ChaosError):
    """The update of a round failed half-way (for example: out of memory in the optimizer). The model's state belongs to
    no round; the cause is chained. Start the script again: it then joins anew and gets the state from its
    neighbours."""

    @classmethod
    def after(cls, round: int, error: BaseException) -> HalfAppliedStep:
        """Of the update that followed on `round`."""
        return cls(
            f"the update after round {round} failed half-way ({type(error).__name__}: {error}), so the model's state "
            "belongs to no round; start the script again, it gets the state from its neighbours"
        )


class ScheduleOver(ChaosError):
    """A learning-rate schedule has an end, and the next step would be beyond it. Nothing of that step is given or
    applied; the model holds the state of the last one."""


class NothingFinite(ChaosError):
    """One round was computed again and again, and no site had a finite gradient. The model holds the state of the last
    completed round."""

    @classmethod
    def after(cls, tries: int, round: int, reason: str) -> NothingFinite:
        """`reason`: what is not finite here."""
        return cls(
            f"{reason}, in {tries} tries of round {round} one after the other, and no other site had anything to give: "
            f"training does not get on. The model still has the state of round {round - 1}. A smaller learning rate, "
            "clipping, or a look at the data and the loss will help; a buffer that holds infinities for good (a mask) "
            "is each site's own with register_buffer(..., persistent=False)"
        )
