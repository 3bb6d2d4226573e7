"""Whether a proven dialer gets in, and which of two connections stays. Pure: facts in, verdict and reason out.

Driven by the transport for each hello whose signature is right.

Two sites may dial each other at once, and exactly one of the two dials must become the link. The rule, for S < P:

1. S commits itself when its hello is on the way. From then on, until that dial ends, it takes nothing of P's dial: no
   hello, and no further stream of a link of P's that is coming up. Its own becomes the link.
2. Before that, a hello of P's wins, and so does a link of P's that comes up: S gives up its dial, and sends no hello.
3. P takes what S dials, whatever it has under way itself, unless P's own link stands.

Why not both give way: S gives way only while it is not committed, so P never had a hello of that dial to give way to.
Why not neither: the connections of a link that P completes were all accepted by S, the last of them before S committed
(1), so S had the link up by then and did not commit (2). So when S's hello arrives, P's own link does not stand, save
that S had it up and lost it. `known` tells that: the last session with P that S had up when it began to dial. A hello
that does not know the session that stands is a straggler of an earlier moment; one that does is a redial.

That a dial is given up for another cause (its time is over, its task cancelled) is no matter of this rule: the other
end, which may have given way to it, dials again.
"""

from __future__ import annotations

from dataclasses import dataclass

from chaos_protocols.causes import Cause, Why
from chaos_protocols.fingerprint import words_of
from chaos_protocols.names import SiteId, other_run, short
from chaos_protocols.wire.handshake import (
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
from chaos_protocols.wire.recovered import RunRecovered
from chaos_protocols.wire.versions import agreed, refusal
from chaosd.transport.handshake import Speaker
from chaosd.transport.settings import KeptOut
from chaosd.transport.starts import UNKNOWN, Start


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingLink:
    """The link to the dialer that exists now, up or coming up."""

    incarnation: int
    session: Session
    streams: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionFacts:
    """What the verdict depends on, apart from the hello."""

    own_site: SiteId
    own_run: str
    own_start: Start
    own_address: str
    own: Speaker
    kept_out: KeptOut | None
    """Why the driver does not admit this site; None = it does."""
    own_run_id: str = ""
    own_recovered: RunRecovered | None = None
    newest: Start = UNKNOWN
    """Of the dialer's daemon, as far as is known here."""
    link: StandingLink | None
    committed: bool
    """We are dialing this site, and our hello is on the way."""


def judge(site: SiteId, hello: Hello, facts: AdmissionFacts) -> tuple[Verdict, str]:
    """The verdict to send and the reason for our own log. `site` is proven."""
    if site == facts.own_site:
        return FIXED_REFUSAL, "it is this site itself"
    if facts.kept_out is not None:
        return FIXED_REFUSAL, facts.kept_out.reason
    own = facts.own
    version = agreed(own.versions, hello.versions)
    if version is None:
        text = refusal(own.versions, hello.versions, software_here=own.software, software_there=hello.software)
        return Verdict(code=REFUSED_VERSION, reason=text, software=own.software), text
    if hello.run != facts.own_run:
        text = f"this site takes part in the run {facts.own_run[:100]!r}, not in {hello.run[:100]!r}"
        return Verdict(code=REFUSED_RUN, reason=text), text
    if other_run(facts.own_run_id, hello.run_id):
        text = f"this site takes part in run {short(facts.own_run_id)} of that name, not in {short(hello.run_id)}"
        refused = Verdict(code=REFUSED_RUN, reason=text, run_id=facts.own_run_id, recovered=facts.own_recovered)
        return refused, text
    accepted = Verdict(
        code=ACCEPTED,
        incarnation=facts.own_start.incarnation,
        address=facts.own_address,
        version=version,
        software=own.software,
        run_id=facts.own_run_id,
        start=facts.own_start.signature,
        run_start=facts.own_start.named,
    )
    if hello.purpose == PURPOSE_CONTROL:
        if hello.session.dialer != site:
            return FIXED_REFUSAL, "a control connection of a session that another site dialed"
        problem = _against_control(site, hello, facts)
    elif hello.purpose == PURPOSE_BULK:
        problem = _against_bulk(hello, facts.link) or _against_ours(site, facts)
    else:
        return FIXED_REFUSAL, f"unknown purpose {hello.purpose!r}"
    return (problem, problem.reason) if problem is not None else (accepted, "accepted")


def why_refused(site: SiteId, hello: Hello, facts: AdmissionFacts, verdict: Verdict, host: str) -> Why | None:
    """What the operator of this site is told of it; None: nothing that anybody has to take away. `host`: it dials from
    there."""
    if (kept_out := facts.kept_out) is not None:
        stranger = Cause.UNTRUSTED.told(other=site, words=words_of(site))
        return stranger if kept_out.stranger else Cause.SHUT_OUT.told(reason=kept_out.reason)
    if verdict.code == REFUSED_VERSION:
        return Cause.REFUSED_VERSION.told(reason=verdict.reason)
    if verdict.code == REFUSED_RUN and verdict.run_id:
        return Cause.REFUSED_RUN.told(there=short(hello.run_id), here=short(verdict.run_id))
    if verdict.code == REFUSED_RUN:
        return Cause.REFUSED_NAME.told(reason=verdict.reason)
    reason = f"{verdict.reason}; it dials from {host}"
    return Cause.REFUSED_START.told(reason=reason) if verdict.newest else None


def _against_control(site: SiteId, hello: Hello, facts: AdmissionFacts) -> Verdict | None:
    link, newest = facts.link, facts.newest
    if link is not None and hello.incarnation < link.incarnation and newest.incarnation < link.incarnation:
        newest = Start(incarnation=link.incarnation)
    if hello.incarnation < newest.incarnation:
        reason = f"start {hello.incarnation} of the dialing daemon is older than start {newest.incarnation}"
        return Verdict(
            code=REFUSED_STALE,
            reason=reason,
            newest=newest.incarnation,
            newest_start=newest.signature,
            newest_run_start=newest.named,
        )
    if link is not None and hello.incarnation == link.incarnation:
        if link.session.dialer != site:
            if hello.known != link.session:
                return _simultaneous("the link is up, dialed from this side")
        elif hello.session.attempt <= link.session.attempt:
            return _stale("a later attempt of the dialer is connected")
    return _against_ours(site, facts)


def _against_ours(site: SiteId, facts: AdmissionFacts) -> Verdict | None:
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
