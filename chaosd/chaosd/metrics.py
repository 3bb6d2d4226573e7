"""What this daemon counts: one registry of its own, in the format of Prometheus; the API, `chaosd status` and the page
read from it and from nothing else. What can be looked up at any time is not counted here, but looked up when somebody
asks: `monitor/gauges.py`, in the same registry.

Decides nothing. Filled in where a fact passes: the driver (events and effects), the bulk streams (bytes), the link
meter (probes), a task that looks at the loop. Labels are bounded: words of this program, or the id of a site, which is
made of digits; never a name, an address or a text from outside. All names begin with `chaosd_`; docs/monitoring.md
lists them. Units are in the names: seconds, bytes.

A registry of its own, not the library's global one: a process may hold several daemons (the tests do), and what counts
here must not depend on what else is imported.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from chaos_protocols import effects, events
from chaos_protocols.rounds.phases import RoundPhase
from chaos_protocols.wire.control import CaughtUp
from chaos_protocols.wire.worker import LoadState, TrainFrom

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
LOOP_LOOK_S = 0.25
"""Between two looks at the loop's lag: as often as a heartbeat, so that a lag that matters to one is seen."""

FAST_S = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Bounds of what takes from 0.1 ms (an event) to seconds (a disk that stalls), two a decade."""

RECORD_KINDS = frozenset(
    {
        "scale-out", "scale-in", "connect-link", "disconnect-link", "election", "link-down", "resolve", "pause",
        "resume", "plan", "worker", "refused", "transfer", "source", "restore", "checkpoint", "restore-point",
        "reload", "rules", "key", "split", "rest", "skip", "bound", "drift", "recovered",
    }
)  # fmt: skip
RECORD_OUTCOMES = frozenset({"done", "failed", "refused", ""})

ROUND_OUTCOMES = ("reduced", "fetched", "empty", "missed")
FAILURE_KINDS = ("dial", "link", "worker", "transfer", "source", "peer")

PHASES = tuple(phase.value for phase in RoundPhase)
STATE_PHASES = ("fetch", "load", "catch_up", "promote")
"""How a worker gets into the run: see `StatePhases`."""


class Metrics:
    """Every metric of one daemon; the attribute is where it is counted, the text what an operator reads."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"chaosd_{name}", text, labels, registry=registry)

        self.events = counter("events", "Facts that the site's machine was told, by kind", "event")
        told = "Deciding about one fact and carrying the effects out"
        self.event_seconds = Histogram("chaosd_event_seconds", told, registry=registry, buckets=FAST_S)
        self.rounds = counter(
            "rounds",
            "Rounds by how they ended here: reduced, fetched from a neighbour, empty (all gave weight 0), missed",
            "outcome",
        )
        self.records = counter("records", "Entries of the event history, by kind and outcome", "kind", "outcome")
        self.failures = counter(
            "failures",
            "What went wrong around this site: dial, link, worker, transfer, source (of one), peer (broke rules)",
            "kind",
        )
        self.links = counter("link_changes", "Links of this site that came up or went down", "change")
        self.links_up = Gauge("chaosd_links_up", "Links of this site that are up", registry=registry)
        self.control_messages = counter(
            "control_messages", "Messages on control connections, relayed ones included", "direction"
        )
        self.control_bytes = counter("control_bytes", "Bytes of these messages, without TLS", "direction")
        # Looked up once: `labels` costs more than the counting.
        self.control_received = (self.control_messages.labels("received"), self.control_bytes.labels("received"))
        self.control_sent = (self.control_messages.labels("sent"), self.control_bytes.labels("sent"))
        self.bulk_bytes = counter(
            "bulk_bytes",
            "Payload of bulk frames, by direction and purpose: averaging, state, other (probes, descriptions)",
            "direction",
            "kind",
        )
        self.transfers = counter("transfers", "Transfers of the state to this site, by outcome", "outcome")
        self.state_phase_seconds = Gauge(
            "chaosd_state_phase_seconds",
            "The last state that this site's worker got: until verified (fetch), until loaded (load), until every "
            "result since was applied (catch_up), until it trained as a member (promote)",
            ("phase",),
            registry=registry,
        )
        self.journal_seconds = Histogram(
            "chaosd_journal_persist_seconds",
            "Writing an entry of the agreement to the journal, with fsync",
            registry=registry,
            buckets=FAST_S,
        )
        self.loop_lag_seconds = Histogram(
            "chaosd_loop_lag_seconds",
            f"How late the event loop was, looked at every {LOOP_LOOK_S:g} s",
            registry=registry,
            buckets=FAST_S,
        )
        self.loop_lag_longest_seconds = Gauge(
            "chaosd_loop_lag_longest_seconds", "The latest that the event loop was since the start", registry=registry
        )
        self.phase_seconds = counter(
            "phase_seconds",
            "How long this site was in each phase: compute, reduce (it waits for the others), update, standby",
            "phase",
        )
        self.probes = counter("probes", "Measurements of links")
        self.probe_bytes = counter("probe_bytes", "What they sent")
        self.probe_seconds = counter("probe_seconds", "How long they took")
        self.probes_saved = counter("probes_saved", "Links whose rate was known from what they carried anyway")

        self._of_event: dict[type[events.Event], tuple[Counter, ...]] = {}
        self._begin_at_zero()

    def _begin_at_zero(self) -> None:
        """The growth of a counter that is first told with 1 cannot be seen: what an alarm looks at begins at 0."""
        for metric, values in (
            (self.rounds, ROUND_OUTCOMES),
            (self.failures, FAILURE_KINDS),
            (self.transfers, ("finished", "failed")),
            (self.links, ("up", "down")),
            (self.phase_seconds, PHASES),
        ):
            for value in values:
                metric.labels(value)
        self.records.labels("election", "done")

    def _counted_besides(self) -> dict[type[events.Event], tuple[Counter, ...]]:
        """What an event counts for, besides its kind."""
        return {
            events.ReduceFinished: (self.rounds.labels("reduced"),),
            events.ResultFetched: (self.rounds.labels("fetched"),),
            events.RoundCameUpEmpty: (self.rounds.labels("empty"),),
            events.ResultMissed: (self.rounds.labels("missed"),),
            events.LinkUp: (self.links.labels("up"),),
            events.LinkLost: (self.links.labels("down"), self.failures.labels("link")),
            events.DialFailed: (self.failures.labels("dial"),),
            events.WorkerLost: (self.failures.labels("worker"),),
            events.TransferFinished: (self.transfers.labels("finished"),),
            events.TransferFailed: (self.transfers.labels("failed"), self.failures.labels("transfer")),
        }

    def value(self, name: str, **labels: str) -> float:
        """The present value of a sample, for those who show it; 0.0 for one that was never counted."""
        full = f"chaosd_{name}"
        for family in self.registry.restricted_registry([full]).collect():  # the others are not even looked at
            for sample in family.samples:
                if sample.name == full and sample.labels == labels:
                    return float(sample.value)
        return 0.0

    def text(self) -> bytes:
        """All of it, in Prometheus' text format (`CONTENT_TYPE`)."""
        return generate_latest(self.registry)

    # -- facts that pass the driver

    def handled(self, event: events.Event, seconds: float) -> None:
        """The machine was told, and what it wanted was done."""
        kind = type(event)
        counters = self._of_event.get(kind)
        if counters is None:
            besides = self._counted_besides().get(kind, ())
            counters = self._of_event[kind] = (self.events.labels(kind.__name__), *besides)  # looked up once
        for counter in counters:
            counter.inc()
        self.event_seconds.observe(seconds)

    def recorded(self, record: effects.Record) -> None:
        """An entry of the history. Kinds and outcomes that are not known count as `other`."""
        kind = record.kind if record.kind in RECORD_KINDS else "other"
        self.records.labels(kind, record.outcome if record.outcome in RECORD_OUTCOMES else "other").inc()

    async def watch_loop(self) -> None:
        """Measures how late the loop is, until it is cancelled."""
        longest_s = 0.0
        while True:
            due_s = time.monotonic() + LOOP_LOOK_S
            await asyncio.sleep(LOOP_LOOK_S)
            late_s = max(0.0, time.monotonic() - due_s)
            self.loop_lag_seconds.observe(late_s)
            longest_s = max(longest_s, late_s)
            self.loop_lag_longest_seconds.set(longest_s)


class PhaseClock:
    """How long this site has been in which phase of a round."""

    def __init__(self, seconds: Counter, now_s: float) -> None:
        self._seconds = {phase: seconds.labels(phase) for phase in PHASES}
        self._phase, self._since_s = "standby", now_s

    def look(self, phase: str, now_s: float) -> None:
        """After every event."""
        if phase != self._phase:
            self.count(now_s)
            self._phase = phase

    def count(self, now_s: float) -> None:
        """The phase goes on, and what it has taken so far is counted: when somebody asks."""
        self._seconds[self._phase].inc(max(0.0, now_s - self._since_s))
        self._since_s = now_s


class StatePhases:
    """Takes the times of a state on its way into this site's worker, from events and effects as they pass.

    fetch: from the order to fetch it until its last block is verified. load: until the worker has taken it over.
    catch_up: until the scheduler is told that every result since is applied. promote: until it is told to train.
    """

    def __init__(self, gauge: Gauge, clock: Callable[[], float] = time.monotonic) -> None:
        self._gauge, self._clock = gauge, clock
        self._phase = ""
        self._since_s = 0.0

    def event(self, event: events.Event) -> None:
        match event:
            case events.TransferFinished() if self._phase == "fetch":
                self._next("load")
            case events.WorkerLoaded() if self._phase == "load":
                self._next("catch_up")
            case events.WorkerLost() | events.TransferFailed():
                self._phase = ""
            case _:
                pass

    def effect(self, effect: Any) -> None:
        match effect:
            case effects.FetchState():
                self._phase, self._since_s = "fetch", self._clock()
            case effects.ToWorker(message=LoadState()) if not self._phase:
                self._phase, self._since_s = "load", self._clock()  # from a copy or a checkpoint, without a transfer
            case effects.SendEnvelope(envelope=envelope) if isinstance(envelope.message, CaughtUp):
                if self._phase == "catch_up":
                    self._next("promote")
            case effects.ToWorker(message=TrainFrom()):
                if self._phase == "catch_up":  # nobody needed to be told: this site schedules itself
                    self._next("promote")
                if self._phase == "promote":
                    self._next("")
            case _:
                pass

    def _next(self, phase: str) -> None:
        now_s = self._clock()
        self._gauge.labels(self._phase).set(now_s - self._since_s)
        self._phase, self._since_s = phase, now_s
