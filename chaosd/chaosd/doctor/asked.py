"""`chaosd doctor --peer SITE`: the link to one neighbour, looked at from this end and, by asking it, from the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from chaos_protocols.names import SiteId, short
from chaos_protocols.wire.probe import SeenSite
from chaosd.api.client import LocalClient, NoDaemonError, RequestRefusedError, SilentDaemonError
from chaosd.api.status import SeenHere, Status
from chaosd.doctor.check import SILENT_REMEDY, Check, Level
from chaosd.site_names import ID

ADMITS_ALL = "anyone may connect there (admission = open)"
OF_THE_RUN = ("member", "learner", "leaving")


def examine_peer(client: LocalClient, site: str) -> Iterator[Check]:
    """Findings about one neighbour, as they come. Never raises for what it finds."""
    try:
        status = client.status()
        told = client.seen(site)
    except NoDaemonError as error:
        silent = isinstance(error, SilentDaemonError)
        remedy = SILENT_REMEDY if silent else "start it: the daemon asks its neighbour"
        yield Check(name="daemon", level=Level.FAIL, found=str(error), remedy=remedy)
        return
    except RequestRefusedError as error:
        yield Check(
            name="peer", level=Level.FAIL, found=str(error), remedy="name one of these, or `chaosd peer add` it"
        )
        return
    yield _link(told, status.called)
    if told.seen is None:
        if told.linked:
            yield Check(
                name="its view",
                level=Level.WARN,
                found=told.why,
                remedy="its release is older than this question, or its daemon is overloaded: look there",
            )
        return
    yield from _views(status, told.seen)


def _link(told: SeenHere, called: Mapping[str, str]) -> Check:
    named = called.get(str(told.site), "")
    name = f"link {_plain(named)} ({short(told.site)})" if named else f"link {short(told.site)}"
    if told.linked:
        return Check(name=name, level=Level.OK, found="stands")
    names = {site: _plain(name) for site, name in called.items()}
    names |= {short(SiteId(site)): name for site, name in names.items()}
    why = ID.sub(lambda found: names.get(found[0], found[0]), told.why) or "it is being dialled, or dials this site"
    return Check(name=name, level=Level.FAIL, found=why, remedy="`chaosd help when-something-stands` tells why")


def _views(status: Status, seen: SeenSite) -> Iterator[Check]:
    words = f"release {_plain(seen.software)}, round {seen.round}, sees {seen.rtt_s * 1e3:.1f} ms to this site"
    yield Check(name="it runs", level=Level.OK, found=words)
    by = f"what lets this site in there: {_plain(seen.trusted_by)}" if seen.trusted_by else ADMITS_ALL
    yield Check(name="lets us in", level=Level.OK, found=by)
    if (seen.state in OF_THE_RUN) == (status.state in OF_THE_RUN):
        found = f"{_plain(seen.state) or 'outside the run'}; here: {status.state}"
        yield Check(name="roster", level=Level.OK, found=found)
    else:
        found = f"there this site is {_plain(seen.state) or 'outside the run'}, here it is {status.state}"
        remedy = "for some seconds this is usual; if it stays, one of the two is cut off: `chaosd status` at both"
        yield Check(name="roster", level=Level.WARN, found=found, remedy=remedy)
    if seen.reaches:
        yield Check(name="way back", level=Level.OK, found=f"it reaches this site at {_plain(seen.address)}")
        return
    if seen.address or seen.state in OF_THE_RUN:
        found = f"it cannot dial this site at {_plain(seen.address) or 'any address that it knows'}"
        remedy = (
            "needed only if it is to dial: behind NAT this end does. Otherwise set `advertise` to an address that "
            "leads here, and open its port"
        )
    else:
        found = "it has no address of this site: it believes none but the one from which this site dials"
        remedy = "it will believe `advertise` once this site is in the run: ask again then"
    yield Check(name="way back", level=Level.WARN, found=found, remedy=remedy)


def _plain(text: str) -> str:
    """From another site: nothing that a terminal would obey."""
    return "".join(one if one.isprintable() else "?" for one in text)
