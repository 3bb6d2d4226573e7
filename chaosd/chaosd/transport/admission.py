"""Whether a proven dialer gets in, and which of two connections stays. Pure: facts in, verdict and reason out.

Driven by the transport for each hello whose signature is right.

Two sites may dial each other at once; both ends must keep the same connection. The rule: an attempt is *committed*
once its hello is on the way. A peer's hello that arrives before we committed wins, and we give up our attempt. If both
are committed, the attempt of the smaller site id wins. A hello may still arrive late, after the winning link is up;
`known` (the last session that the dialer had seen accepted when it wrote the hello) tells such a straggler from a real
redial by a peer that lost the link before we noticed: only the latter knows the session that stands.

Both ends come to the same answer. Let S < P, both committed. S refuses P's hello, since S < P; P accepts that of S. If
S's link is up already when P's hello arrives, P wrote it before accepting S, so `known` is not that session: refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from chaos_protocols.names import PROTOCOL_VERSION, SiteId
from chaosd.transport.handshake import (
    ACCEPTED,
    FIXED_REFUSAL,
    PURPOSE_BULK,
    PURPOSE_CONTROL,
    REFUSED_RUN,
    REFUSED_SIMULTANEOUS,
    REFUSED_STALE,
    REFUSED_VERSION,
    Hello,
    Session,
    Verdict,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingLink:
    """The link to the dialer that exists now, up or coming up."""

    incarnation: int
    session: Session
    streams: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the verdict depends on, apart from the hello."""

    own_site: SiteId
    own_run: str
    own_incarnation: int
    own_address: str
    distrust: str | None
    """Why the driver does not admit this site; None = it does."""
    link: StandingLink | None
    committed: bool
    """We are dialing this site, and our hello is on the way."""


def judge(site: SiteId, hello: Hello, facts: Facts) -> tuple[Verdict, str]:
    """The verdict to send and the reason for our own log. `site` is proven."""
    if site == facts.own_site:
        return FIXED_REFUSAL, "it is this site itself"
    if facts.distrust is not None:
        return FIXED_REFUSAL, facts.distrust
    if hello.version != PROTOCOL_VERSION:
        text = f"this site speaks protocol version {PROTOCOL_VERSION}, the dialer {hello.version}; update the older one"
        return Verdict(code=REFUSED_VERSION, reason=text), text
    if hello.run != facts.own_run:
        text = f"this site takes part in the run {facts.own_run[:100]!r}, not in {hello.run[:100]!r}"
        return Verdict(code=REFUSED_RUN, reason=text), text
    accepted = Verdict(code=ACCEPTED, incarnation=facts.own_incarnation, address=facts.own_address)
    if hello.purpose == PURPOSE_CONTROL:
        if hello.session.dialer != site:
            return FIXED_REFUSAL, "a control connection of a session that another site dialed"
        refusal = _against_control(site, hello, facts)
    elif hello.purpose == PURPOSE_BULK:
        refusal = _against_bulk(hello, facts.link)
    else:
        return FIXED_REFUSAL, f"unknown purpose {hello.purpose!r}"
    return (refusal, refusal.reason) if refusal is not None else (accepted, "accepted")


def _against_control(site: SiteId, hello: Hello, facts: Facts) -> Verdict | None:
    link = facts.link
    if link is not None and hello.incarnation != link.incarnation:
        if hello.incarnation < link.incarnation:
            return _stale("a newer start of the dialing daemon is connected")
        return None
    if link is not None and link.session.dialer == site:
        if hello.session.attempt <= link.session.attempt:
            return _stale("a later attempt of the dialer is connected")
        return None
    if link is not None:
        return None if hello.known == link.session else _simultaneous("the link is up, dialed from this side")
    if facts.committed and facts.own_site < site:
        return _simultaneous("this side dials too, and has the smaller site id")
    return None


def _against_bulk(hello: Hello, link: StandingLink | None) -> Verdict | None:
    if link is None or hello.incarnation != link.incarnation or hello.session != link.session:
        return _stale("the link that this stream belongs to is gone")
    if hello.stream >= link.streams:
        return _stale(f"the link has {link.streams} streams")
    return None


def _stale(reason: str) -> Verdict:
    return Verdict(code=REFUSED_STALE, reason=reason)


def _simultaneous(reason: str) -> Verdict:
    return Verdict(code=REFUSED_SIMULTANEOUS, reason=reason)
