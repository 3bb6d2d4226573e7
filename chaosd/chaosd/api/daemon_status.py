"""What `chaosd status` shows, read off the driver and its machine."""

from __future__ import annotations

import math
import os
from importlib import metadata

import msgspec

from chaos_protocols.links.liveness import LinkPhase, Neighbour
from chaos_protocols.names import SiteId
from chaos_protocols.state.transfer import SourceProgress
from chaos_protocols.wire.encodings import FP32
from chaos_protocols.wire.waits import SiteWait
from chaosd.api.outside import outside_words, shown_roster
from chaosd.api.status import (
    AveragingStatus,
    BoundsStatus,
    EventRecord,
    LinkStatus,
    LoggedFigure,
    ProbingStatus,
    RefusedSite,
    SiteSummary,
    Status,
    StorageStatus,
    TransferStatus,
    WaitStatus,
    WorkerStatus,
)
from chaosd.config.model import SiteConfig
from chaosd.driver import Driver
from chaosd.monitor.encoding_errors import errors_over_sites
from chaosd.plan_adapter import depth_s
from chaosd.storage.folders import folder_bytes
from chaosd.storage.history import HistoryRecord


def version() -> str:
    try:
        return metadata.version("chaos-train")
    except metadata.PackageNotFoundError:  # run from a source tree that was not installed
        return "unknown"


def build_status(driver: Driver, config: SiteConfig, address: str) -> Status:
    """A snapshot of everything that an operator asks first."""
    machine = driver.machine
    roster, rounds = shown_roster(machine), machine.rounds
    pause = machine.participation.pause
    why, named = pause.why(), driver.names.in_text
    return Status(
        version=version(),
        run=config.run,
        run_id=machine.roster.run_id,
        site=machine.site,
        name=config.name,
        address=address,
        pid=os.getpid(),
        incarnation=machine.incarnation,
        state=machine.membership.state.value,
        paused=named(why.text) if why is not None else "",
        paused_cause=why.cause.code if why is not None else "",
        paused_for=why.cause.value.waits_for if why is not None else "",
        paused_remedy=why.cause.value.remedy if why is not None else "",
        paused_s=driver.now_s() - pause.since_s if pause.since_s is not None else 0.0,
        epoch=roster.epoch,
        term=machine.raft.term,
        scheduler=machine.scheduler_site(),
        round=rounds.completed_round,
        round_s=machine.scheduler.pace.round_s,
        result_digest=rounds.digest,
        sites=_sites(driver),
        links=_links(driver),
        worker=WorkerStatus(
            connected=driver.workers.connected,
            pid=driver.workers.pid,
            round=rounds.worker_round,
            phase=rounds.phase.value,
            figures=tuple(
                LoggedFigure(name=name, round=number, value=value)
                for name, (number, value) in sorted(driver.workers.figures.items())
            ),
        ),
        transfer=_transfer(driver),
        probing=_probing(driver),
        send_limit_bytes_per_s=driver.transport.send_limit.rate_bytes_per_s,
        storage=_storage(driver, config),
        refused=_refused(driver),
        uptime_s=driver.now_s() - driver.started_s,
        tree=_tree(driver),
        waits_for=_waits(driver, machine.participation.waits.waited_for),
        resting=_waits(driver, machine.participation.waits.resting),
        skips=machine.participation.skips.reason,
        averaging=_averaging(driver),
        bounds=_bounds(driver),
        recovered=tuple(named(one.text) for one in machine.participation.recovered.heard.values()),
        blocked=tuple(sorted(driver.conduct.blocked)),
        outside=named(outside_words(machine)),
        called={str(site): name for site, name in {**driver.names.known(), **driver.names.given()}.items()},
    )


def _bounds(driver: Driver) -> BoundsStatus | None:
    machine = driver.machine
    bounds = machine.roster.bounds_of(machine.rounds.completed_round + 1)
    kept = machine.participation.bounded
    if not bounds.any:
        return None
    return BoundsStatus(
        norm_max=bounds.norm_max,
        weight_max=bounds.weight_max,
        clipped_rounds=kept.clipped_rounds,
        void_rounds=kept.void_rounds,
        clip_radius=bounds.clip_radius,
        drawn_in_rounds=kept.drawn_in_rounds,
        away=kept.away,
    )


def _waits(driver: Driver, told: tuple[SiteWait, ...]) -> tuple[WaitStatus, ...]:
    name_of, named = driver.machine.participation.waits.name_of, driver.names.in_text
    return tuple(
        WaitStatus(site=one.site, name=name_of(one.site), seconds=one.seconds, reason=named(one.reason)) for one in told
    )


def _tree(driver: Driver) -> tuple[tuple[str, str], ...]:
    machine = driver.machine
    view = machine.roster.view_of(machine.rounds.completed_round + 1)
    if view is None:
        return ()
    edges = ((str(child), str(parent)) for tree in view.plan.trees for child, parent in tree.parent)
    return tuple(dict.fromkeys(edges))


def _averaging(driver: Driver) -> AveragingStatus | None:
    machine = driver.machine
    view = machine.roster.view_of(machine.rounds.completed_round + 1)
    if view is None or not view.plan.trees or not machine.membership.in_roster:
        return None
    links = {link.key: link for link in machine.roster.links}
    rate = machine.planner.rate_bytes_per_s(view.plan, links)
    size_bytes = machine.rounds.delivery.round_bytes
    predicted_s = None
    if size_bytes and 0 < rate < math.inf:
        predicted_s = size_bytes / rate + max(2 * depth_s(tree, links) for tree in view.plan.trees)
    vectors = driver.bulk.reduce.vectors
    errors = errors_over_sites(machine.network.encoding_errors())
    return AveragingStatus(
        encoding=vectors.coded.name if vectors is not None else FP32,
        relative_error=vectors.coded.error if vectors is not None else None,
        errors_known=errors.sites if errors is not None else 0,
        mean_error=errors.mean if errors is not None else None,
        worst_error=errors.worst if errors is not None else None,
        worst_site=errors.worst_site if errors is not None else "",
        trees=len(view.plan.trees),
        rate_bytes_per_s=rate if rate < math.inf else 0.0,
        predicted_s=predicted_s,
        took_s=driver.round_clock.usual_s,
        reason=driver.names.in_text(view.plan.reason),
    )


def _sites(driver: Driver) -> tuple[SiteSummary, ...]:
    machine = driver.machine
    voters = machine.configuration.voters
    found = []
    for record in shown_roster(machine).sites:
        done: int | None = None
        state, phase = record.state, None
        age_s: float | None = None
        software = machine.network.versions.software_of(record.site)
        if record.site == machine.site:
            done, phase, software = machine.rounds.completed_round, machine.rounds.phase.value, version()
            if not machine.membership.in_roster:  # after a leave the roster may be one of before, until it joins
                state = machine.membership.state.value
            age_s = 0.0
        elif (heard := machine.network.steps.of(record.site)) is not None:
            done, phase, age_s = heard.round, heard.phase, max(0.0, driver.now_s() - heard.at_s)
        found.append(
            SiteSummary(
                site=record.site,
                name=record.name,
                address=record.address,
                state=state,
                voter=record.site in voters,
                round=done,
                phase=phase,
                software=software,
                age_s=age_s,
            )
        )
    return tuple(found)


def _links(driver: Driver) -> tuple[LinkStatus, ...]:
    machine, named = driver.machine, driver.names.in_text
    sockets = {link.site: link for link in driver.transport.links()}
    found = []
    for link in machine.roster.links:
        far: SiteId | None = None
        if machine.site in link.key:
            far = link.other if link.one == machine.site else link.one
        neighbour = machine.links.neighbours.get(far) if far is not None else None
        own = sockets.get(far) if far is not None else None
        found.append(
            LinkStatus(
                one=link.one,
                other=link.other,
                rate_bytes_per_s=link.rate_bytes_per_s or None,
                rtt_s=neighbour.rtt_s if neighbour is not None else (link.rtt_s or None),
                up=machine.link_is_up(link.one, link.other),
                why=named(_why_down(neighbour)),
                streams=len(own.streams) if own is not None else 0,
                congestion=own.congestion if own is not None else "",
            )
        )
    agreed = set(machine.roster.neighbours(machine.site))
    for site in machine.links.up_sites():  # before this site is admitted, and while its link is not agreed
        if site not in agreed:
            rtt_s = machine.links.neighbours[site].rtt_s
            found.append(LinkStatus(one=machine.site, other=site, rate_bytes_per_s=None, rtt_s=rtt_s, up=True))
    for site, neighbour in sorted(machine.links.neighbours.items()):
        if site not in agreed and (why := named(_why_down(neighbour))):
            found.append(LinkStatus(one=machine.site, other=site, rate_bytes_per_s=None, rtt_s=None, up=False, why=why))
    return tuple(found)


def _why_down(neighbour: Neighbour | None) -> str:
    if neighbour is None or neighbour.phase in (LinkPhase.UP, LinkPhase.REDIALLING) or not neighbour.wanted:
        return ""
    return neighbour.why.text if neighbour.why is not None else ""


def _refused(driver: Driver) -> tuple[RefusedSite, ...]:
    """Who tried last comes first."""
    machine, now_s = driver.machine, driver.now_s()
    return tuple(
        RefusedSite(
            site=site,
            cause=one.why.cause.code,
            reason=one.why.text,
            count=one.count,
            ago_s=max(0.0, now_s - one.last_s),
        )
        for site, one in reversed(machine.network.refusals.sites.items())
    )


def _probing(driver: Driver) -> ProbingStatus:
    value = driver.metrics.value
    return ProbingStatus(
        probes=round(value("probes_total")),
        bytes=round(value("probe_bytes_total")),
        seconds=value("probe_seconds_total"),
        saved=round(value("probes_saved_total")),
    )


def _storage(driver: Driver, config: SiteConfig) -> StorageStatus:
    state = driver.machine.state
    files, folders = state.files, {config.data_dir, config.checkpoint_dir}
    return StorageStatus(
        folder=str(config.data_dir),
        bytes=sum(folder_bytes(folder) for folder in folders),
        checkpoints=len(files.offers),
        checkpoint_round=max(files.offers).round if files.offers else None,
        interval_s=files.interval_s(state.memory.pause_s) if files.enabled else None,
        checkpoint_failure=files.failure,
    )


def _transfer(driver: Driver) -> TransferStatus | None:
    plan = driver.machine.state.fetch.plan
    if plan is None:
        return None
    known, nothing = driver.bulk.replication.sources_of(plan.transfer), SourceProgress(0.0, 0)
    sources = {str(part.source): known.get(part.source, nothing) for part in plan.ranges}
    return TransferStatus(
        round=plan.round,
        verified_bytes=driver.machine.state.fetch.verified_bytes,
        total_bytes=plan.state_bytes,
        rate_of_source={site: one.rate_bytes_per_s for site, one in sources.items()},
        bytes_of_source={site: one.received_bytes for site, one in sources.items()},
    )


class Detail(msgspec.Struct, frozen=True):
    """What `HistoryRecord.detail` may hold."""

    times: int = 1


def event_record(record: HistoryRecord) -> EventRecord:
    """A row of the history as the API shows it."""
    return EventRecord(
        id=record.id,
        at_unix_s=record.at_unix_s,
        kind=record.kind,
        subject=record.subject,
        cause=record.cause,
        outcome=record.outcome,
        duration_s=record.duration_s,
        epoch=record.epoch or 0,
        round=record.round or 0,
        reason=record.reason,
        event_id=record.event_id,
        times=_times(record),
    )


def _times(record: HistoryRecord) -> int:
    """A file that was changed by hand is no reason to show nothing."""
    try:
        return msgspec.json.decode(record.detail, type=Detail).times
    except msgspec.DecodeError:
        return 1
