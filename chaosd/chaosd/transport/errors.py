"""What can go wrong on a link, by who is to blame (h11): we called it wrongly, the peer broke the rules, the world."""

from __future__ import annotations

from chaos_protocols.causes import Cause, Why


class TransportError(Exception):
    """Any failure of the transport; the text can be shown to a user."""


class LinkUsageError(TransportError):
    """We used the transport wrongly (a frame longer than its limit, a stream that does not exist)."""


class PeerProtocolError(TransportError):
    """The peer broke the rules; its connection is closed and the text becomes the reason."""


class DialError(TransportError):
    """A link could not be brought up; the text says to whom and why."""

    def __init__(self, text: str, why: Why | None = None) -> None:
        """`text`: a few words; `why`: the sentence, if there is one."""
        super().__init__(why.text if why is not None else text)
        self.brief = text
        self.why = why or Why(Cause.LINK_FAILED, text)


class LinkClosed(TransportError):
    """The link (or the stream) that a send was waiting on is gone; the text says why."""


class ListenError(TransportError):
    """The listening port could not be opened; the text names it and the remedy."""
