"""What the engines of averaging and of state transfer report, made events of the site's machine. Decides nothing."""

from __future__ import annotations

import logging

from chaos_protocols import effects, events
from chaos_protocols.names import SiteId, short
from chaos_protocols.wire.plans import Tag
from chaosd.driver import Driver
from chaosd.neighbours import Neighbours
from chaosd.storage.rounds_log import RoundsLog

log = logging.getLogger("chaosd")


class EngineReports:
    """The `ReduceEvents` and `ReplicationEvents` of a daemon. `rounds_log`: in a lab only."""

    def __init__(self, driver: Driver, neighbours: Neighbours, rounds_log: RoundsLog | None) -> None:
        self._driver, self._neighbours, self._rounds_log = driver, neighbours, rounds_log

    # -- averaging

    def reduce_finished(self, tag: Tag, digest: str, weights: tuple[tuple[SiteId, float], ...]) -> None:
        if self._rounds_log is not None:
            self._rounds_log.append(tag, digest, weights)
        self._driver.round_clock.finished(tag, self._driver.now_s())
        found = self._driver.bulk.reduce.findings(tag.round)
        self._driver.feed(found.of_round(tag, digest, weights))

    def round_came_up_empty(self, tag: Tag) -> None:
        self._driver.feed(events.RoundCameUpEmpty(tag=tag))

    def result_fetched(self, round_number: int, digest: str) -> None:
        self._driver.feed(self._driver.bulk.reduce.findings(round_number).of_fetched(round_number, digest))

    def result_lost(self, tag: Tag, reason: str) -> None:
        log.info("the result of round %d cannot be had any more: %s", tag.round, reason)
        self._driver.feed(events.ResultMissed(tag=tag))

    # -- state transfer

    def transfer_progress(self, transfer: str, verified_bytes: int) -> None:
        self._driver.feed(events.TransferProgressed(transfer=transfer, verified_bytes=verified_bytes))

    def transfer_finished(self, transfer: str) -> None:
        held_bytes = self._driver.bulk.replication.same_bytes
        self._driver.feed(events.TransferFinished(transfer=transfer, held_bytes=held_bytes))

    def source_dropped(self, transfer: str, site: SiteId, reason: str, wrong: bool) -> None:
        cause = f"sent bytes that fail their hash: {reason}" if wrong else reason
        self._driver.metrics.failures.labels("source").inc()
        self._driver.record(
            effects.Record(
                kind="source",
                subject=short(site),
                cause=cause,
                outcome="",
                duration_s=None,
                reason="no longer a source of the state transfer",
            )
        )

    def transfer_failed(self, transfer: str, reason: str) -> None:
        self._driver.feed(events.TransferFailed(transfer=transfer, reason=reason))

    # -- both

    def peer_broke_rules(self, site: SiteId, reason: str) -> None:
        self._neighbours.broke_rules(site, reason)
