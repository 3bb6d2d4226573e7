"""What a hostile guest can do to a run: rounds a second with and without it, and what the daemons' memory grows by.

Real hospitals train in a full mesh; a guest, which every site lets connect and which is in no roster, attacks one of
them at a time, each attack with a key of its own: it floods link reports, made-up rosters, orders, other lies and long
words, asks for programs to be started, breaks rules, comes and goes. Intervals with and without it alternate. In the
end the site that it is linked to is killed and started again while the guest offers it a roster of its own making, and
all members must be there as before. Bounds: at least 0.9 of the rounds a second; nothing that has to be cleaned up
afterwards.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import psutil
from tests.rigs.hostile import FAR, Hostile, lies, report_of
from tests.rigs.site import Cluster, Site, wait_for

from benchmarks.sites import training_cluster
from chaos_protocols.agreement.commands import encode_roster
from chaos_protocols.agreement.raft.messages import Configuration, Snapshot, SnapshotRequest
from chaos_protocols.membership.facts import empty_roster
from chaos_protocols.names import SiteId
from chaos_protocols.wire import control as messages
from chaos_protocols.wire.keys import KeyChain
from chaos_protocols.wire.probe import IPERF_WANT, IperfHeader
from chaos_protocols.wire.probe import encode as encode_probe
from chaosd.transport import DialError, LinkClosed

SITES, PACE_S, KEYS = 3, 0.02, 200
AT_ONCE = 200
"""Messages between two looks at the clock."""
PAUSE_S = 0.01
CHAINS = 200
"""Of keys, in one message: 12 KB."""

Attack = Callable[[Hostile, float], Coroutine[Any, Any, int]]


def run(*, short: bool, seed: int) -> dict[str, Any]:
    """Per attack: rounds a second, as a share of those in the quiet intervals around it; what the guest sent."""
    del seed  # nothing is drawn
    interval_s, repeats = (4.0, 2) if short else (15.0, 5)
    with training_cluster(SITES, pace_s=PACE_S, guests=KEYS) as cluster:
        return asyncio.run(_measure(cluster, interval_s, repeats))


async def _measure(cluster: Cluster, interval_s: float, repeats: int) -> dict[str, Any]:
    victim, hostile = cluster.sites[0], Hostile(cluster)
    await hostile.transport.start()
    figures: dict[str, Any] = {"sites": SITES, "interval_s": interval_s, "repeats": repeats}
    bytes_before = _memory_bytes(cluster)
    quiet: list[float] = []
    try:
        for name, attack in ATTACKS.items():
            shares, sent = [], 0
            for _ in range(repeats):
                before = await asyncio.to_thread(_rounds_per_s, victim, interval_s)
                begun = asyncio.create_task(attack(hostile, interval_s + 0.5))
                await asyncio.sleep(0.25)
                under = await asyncio.to_thread(_rounds_per_s, victim, interval_s)
                sent += await begun
                quiet.append(before)
                shares.append(under / before)
            figures[f"{name}_share_of_rounds"] = round(statistics.median(shares), 3)
            figures[f"{name}_sent"] = sent
        figures["quiet_rounds_per_s"] = round(statistics.median(quiet), 2)
        grown = max(after - before for after, before in zip(_memory_bytes(cluster), bytes_before, strict=True))
        figures["memory_grown_mib"] = round(grown / (1 << 20), 1)
        figures["restart_taken_over"] = await _restart_under_attack(cluster, hostile)
    finally:
        await hostile.transport.close()
    return figures


# -- attacks: each takes a link and the time, and says how many messages it got rid of


async def _keep_saying(hostile: Hostile, for_s: float, make: Callable[[int], list[messages.Envelope]]) -> int:
    await hostile.link()
    end_s, sent = time.monotonic() + for_s, 0
    while time.monotonic() < end_s:
        for envelope in make(sent):
            sent += hostile.transport.send_control(hostile.target, messages.encode_envelope(envelope))
        if not hostile.transport.links():
            try:
                await hostile.link()
            except (AssertionError, DialError):
                return sent
        await asyncio.sleep(PAUSE_S)
    return sent


async def _reports(hostile: Hostile, for_s: float) -> int:
    """Links to sites that nobody knows, thousands of them, each report signed."""

    def make(sent: int) -> list[messages.Envelope]:
        sites = [SiteId(f"{sent + number:032x}") for number in range(AT_ONCE)]
        return [hostile.signed(hostile.envelope(report_of(site, up=True))) for site in sites]

    return await _keep_saying(hostile, for_s, make)


async def _lies(hostile: Hostile, for_s: float) -> int:
    """Whatever is well formed and none of its business, a made-up roster first."""
    return await _keep_saying(hostile, for_s, lambda _: [forged_roster(hostile), *lies(hostile)] * 10)


async def _orders(hostile: Hostile, for_s: float) -> int:
    """To have links with addresses where nobody is."""

    def make(sent: int) -> list[messages.Envelope]:
        said = [
            messages.ConnectOrder(
                negotiation=f"x{sent + number}",
                other=SiteId(f"{sent + number:032x}"),
                address=f"127.0.0.1:{1 + number}",
                probe=True,
            )
            for number in range(AT_ONCE)
        ]
        return [hostile.signed(hostile.envelope(one)) for one in said]

    return await _keep_saying(hostile, for_s, make)


async def _programs(hostile: Hostile, for_s: float) -> int:
    """Measurements, for which a program would be started."""
    await hostile.link()
    end_s, sent = time.monotonic() + for_s, 0
    while time.monotonic() < end_s:
        try:
            await hostile.transport.send_bulk(hostile.target, 1, encode_probe(IperfHeader(kind=IPERF_WANT)))
            sent += 1
        except (LinkClosed, KeyError):
            await hostile.link()
        await asyncio.sleep(PAUSE_S)
    return sent


async def _breaks_rules(hostile: Hostile, for_s: float) -> int:
    """With one key, as often as it is let in."""
    await hostile.link()
    end_s, sent = time.monotonic() + for_s, 0
    while time.monotonic() < end_s:
        sent += hostile.transport.send_control(hostile.target, b"\xc1 no envelope")
        await asyncio.sleep(PAUSE_S)
        if not hostile.transport.links():
            try:
                await hostile.transport.dial(hostile.target, hostile.victim.address, timeout_s=1.0)
            except DialError:
                await asyncio.sleep(PAUSE_S)
    return sent


async def _long_words(hostile: Hostile, for_s: float) -> int:
    """Which take long to read, of a kind that only a site of the run may say."""
    chains = (KeyChain(first=hostile.identity.public_key),) * CHAINS
    return await _keep_saying(
        hostile, for_s, lambda _: [hostile.envelope(messages.KeysTold(chains=chains)) for _ in range(AT_ONCE // 4)]
    )


async def _comes_and_goes(hostile: Hostile, for_s: float) -> int:
    """With one key, as often as it is let in."""
    await hostile.link()
    end_s, linked = time.monotonic() + for_s, 0
    while time.monotonic() < end_s:
        hostile.transport.close_link(hostile.target, "it comes again")
        try:
            await hostile.transport.dial(hostile.target, hostile.victim.address, timeout_s=1.0)
            linked += 1
        except DialError:
            await asyncio.sleep(PAUSE_S)
    return linked


ATTACKS: dict[str, Attack] = {
    "reports": _reports,
    "lies": _lies,
    "orders": _orders,
    "programs": _programs,
    "broken_rules": _breaks_rules,
    "long_words": _long_words,
    "comes_and_goes": _comes_and_goes,
}


def forged_roster(hostile: Hostile) -> messages.Envelope:
    """A snapshot of the agreement in which the guest leads a run of itself."""
    own = hostile.identity.site
    roster = msgspec.structs.replace(empty_roster("test"), epoch=FAR - 1)
    configuration = Configuration(voters=(own,), learners=(hostile.target,))
    snapshot = Snapshot(index=FAR - 1, term=FAR - 1, configuration=configuration, state=encode_roster(roster))
    request = SnapshotRequest(term=FAR - 1, leader=own, snapshot=snapshot, tenure=1)
    return hostile.signed(hostile.envelope(messages.RaftEnvelope(message=request)))


async def _restart_under_attack(cluster: Cluster, hostile: Hostile) -> bool:
    """Whether a site that was killed and started again took the guest's roster over. Raises AssertionError where it is
    no member afterwards, or the rounds stand."""
    victim = cluster.sites[0]
    await asyncio.to_thread(_start_again, victim)
    await _lies(hostile, 5.0)
    members = {site.identity.site for site in cluster.sites}

    def all_are_back() -> bool:
        known = [{one.site for one in site.client.status().sites} for site in cluster.sites]
        return all(site.is_member() for site in cluster.sites) and all(sites == members for sites in known)

    await asyncio.to_thread(wait_for, all_are_back, "all sites are members after the attack", limit_s=60)
    wanted = max(site.round() for site in cluster.sites) + 5

    def rounds_go_on() -> bool:
        return all(site.round() > wanted for site in cluster.sites)

    await asyncio.to_thread(wait_for, rounds_go_on, "rounds go on after the attack", limit_s=30)
    return any(site.client.status().epoch >= FAR - 1 for site in cluster.sites)


def _start_again(site: Site) -> None:
    assert site.daemon is not None
    site.daemon.kill()
    site.daemon.wait()
    site.start()


def _memory_bytes(cluster: Cluster) -> list[int]:
    return [psutil.Process(site.daemon.pid).memory_info().rss for site in cluster.sites if site.daemon is not None]


def _rounds_per_s(site: Site, interval_s: float) -> float:
    begun_s, first = time.monotonic(), site.round()
    time.sleep(interval_s)
    return (site.round() - first) / (time.monotonic() - begun_s)
