"""What a daemon counts: every metric says what it is, labels stay few, the phases of a state are told apart."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families
from tests.unit.daemon.api.local_api import FakeControl, served
from tests.unit.sdk.line import ShortFolder

from chaos_protocols import effects, events
from chaos_protocols.names import SiteId
from chaos_protocols.wire.control import CaughtUp, Envelope
from chaos_protocols.wire.plans import ReplicationPlan, Tag
from chaos_protocols.wire.versions import NEWEST
from chaos_protocols.wire.worker import LoadState, TrainFrom
from chaosd import metrics as module
from chaosd.api.client import LocalClient
from chaosd.metrics import STATE_PHASES, Metrics, PhaseClock, StatePhases

OPERATING = Path(__file__).resolve().parents[3] / "docs" / "operating.md"
A = SiteId("a" * 32)
TAG = Tag(epoch=1, round=1)


def names(metrics: Metrics) -> set[str]:
    return {family.name for family in metrics.registry.collect()}


def test_every_metric_is_documented_for_operators_and_says_what_it_is() -> None:
    text = OPERATING.read_text(encoding="utf-8")
    for family in Metrics().registry.collect():
        assert family.name.startswith("chaosd_") and family.documentation
        shown = family.name + ("_total" if family.type == "counter" else "")
        assert f"`{shown}`" in text, f"{shown} is not in docs/operating.md"


def test_what_an_alarm_looks_at_is_told_with_0_before_it_happens() -> None:
    """Prometheus sees no growth in a counter whose first sample is 1."""
    text = Metrics().text().decode()
    assert 'chaosd_failures_total{kind="peer"} 0.0' in text
    assert 'chaosd_records_total{kind="election",outcome="done"} 0.0' in text
    assert 'chaosd_rounds_total{outcome="reduced"} 0.0' in text


def test_time_is_counted_for_the_phase_that_was_seen_when_it_began() -> None:
    metrics = Metrics()
    clock = PhaseClock(metrics.phase_seconds, 100.0)
    for now_s, phase in ((101.0, "compute"), (103.0, "reduce"), (103.5, "reduce"), (104.0, "update")):
        clock.look(phase, now_s)
    told = [metrics.value("phase_seconds_total", phase=phase) for phase in ("standby", "compute", "reduce", "update")]
    assert told == [1.0, 2.0, 1.0, 0.0]


def test_a_value_is_read_by_its_name_and_all_its_labels() -> None:
    metrics = Metrics()
    metrics.bulk_bytes.labels("sent", "state").inc(7)
    assert metrics.value("bulk_bytes_total", direction="sent", kind="state") == 7
    assert metrics.value("bulk_bytes_total", direction="sent") == 0
    assert metrics.value("never_counted_total") == 0


def test_two_daemons_in_a_process_count_apart_and_leave_the_global_registry_alone() -> None:
    one, other = Metrics(), Metrics()
    one.rounds.labels("reduced").inc()
    assert (one.value("rounds_total", outcome="reduced"), other.value("rounds_total", outcome="reduced")) == (1, 0)
    assert not names(one) & {family.name for family in REGISTRY.collect()}


def test_facts_are_counted_by_what_they_mean() -> None:
    metrics = Metrics()
    for event in (
        events.ReduceFinished(tag=TAG, digest="", weights=()),
        events.RoundCameUpEmpty(tag=TAG),
        events.ResultFetched(round=1, digest=""),
        events.ResultMissed(tag=TAG),
        events.LinkUp(site=A, incarnation=1, address=""),
        events.LinkLost(site=A, incarnation=1, reason=""),
        events.DialFailed(site=A, reason=""),
        events.WorkerLost(reason=""),
        events.TransferFinished(transfer="t"),
        events.TransferFailed(transfer="t", reason=""),
        events.TimerFired(),
    ):
        metrics.handled(event, 0.002)
    assert [metrics.value("rounds_total", outcome=o) for o in ("reduced", "empty", "fetched", "missed")] == [1] * 4
    assert [metrics.value("failures_total", kind=k) for k in ("link", "dial", "worker", "transfer")] == [1] * 4
    assert [metrics.value("link_changes_total", change=c) for c in ("up", "down")] == [1, 1]
    assert [metrics.value("transfers_total", outcome=o) for o in ("finished", "failed")] == [1, 1]
    assert metrics.value("events_total", event="TimerFired") == 1 and metrics.value("event_seconds_count") == 11


def test_words_from_outside_never_become_a_label() -> None:
    metrics = Metrics()
    for kind in ("election", "<script>", "x" * 1000):
        metrics.recorded(
            effects.Record(kind=kind, subject=kind, cause="", outcome="done", duration_s=None, reason=kind)
        )
    assert metrics.value("records_total", kind="election", outcome="done") == 1
    assert metrics.value("records_total", kind="other", outcome="done") == 2
    assert b"<script>" not in metrics.text()


def test_what_is_told_is_read_back_by_a_parser_of_the_format() -> None:
    metrics = Metrics()
    metrics.bulk_bytes.labels("sent", "state").inc(1 << 30)
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
    }
    assert samples["chaosd_bulk_bytes_total", (("direction", "sent"), ("kind", "state"))] == 1 << 30


def test_the_local_api_tells_them_as_prometheus_reads_them() -> None:
    with ShortFolder() as folder:
        path, control = Path(folder) / "api.sock", FakeControl()
        with served(path, control):
            assert LocalClient(path).metrics() == control.metrics().decode()
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(path))
                connection.sendall(b"GET /v1/metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                assert b"content-type: text/plain; version=0.0.4" in connection.recv(1 << 16).lower()


class Run:
    """Facts and orders that pass a driver, a second apart."""

    def __init__(self) -> None:
        self.metrics, self.now_s = Metrics(), 0.0
        self.phases = StatePhases(self.metrics.state_phase_seconds, lambda: self.now_s)

    def happen(self, *things: object) -> dict[str, float]:
        for thing in things:
            self.now_s += 1.0
            if type(thing).__module__ == events.__name__:
                self.phases.event(thing)  # type: ignore[arg-type]
            else:
                self.phases.effect(thing)
        return {phase: self.metrics.value("state_phase_seconds", phase=phase) for phase in STATE_PHASES}


PLAN = ReplicationPlan(transfer="t", joiner=A, round=3, state_bytes=1, shard_bytes=1, ranges=(), reason="")
FETCH = effects.FetchState(plan=PLAN, have=False)
LOAD, TRAIN = effects.ToWorker(message=LoadState(round=3)), effects.ToWorker(message=TrainFrom(round=4))
REPORT = effects.SendEnvelope(
    neighbour=A,
    envelope=Envelope(
        version=NEWEST,
        source=A,
        destination=A,
        incarnation=1,
        sequence=1,
        epoch=1,
        event_id="e",
        hops=0,
        public_key=b"",
        signature=b"",
        message=CaughtUp(round=3, transfer="t", waits=False),
    ),
)


def test_phases_of_a_state_are_timed_from_the_order_to_the_first_round() -> None:
    told = Run().happen(
        FETCH, events.TransferFinished(transfer="t"), LOAD, events.WorkerLoaded(round=3), REPORT, REPORT, TRAIN, TRAIN
    )
    assert told == {"fetch": 1.0, "load": 2.0, "catch_up": 1.0, "promote": 2.0}


def test_state_from_a_copy_has_no_fetch_and_a_site_that_schedules_itself_reports_to_nobody() -> None:
    told = Run().happen(LOAD, events.WorkerLoaded(round=3), TRAIN)
    assert told == {"fetch": 0.0, "load": 1.0, "catch_up": 1.0, "promote": 0.0}


def test_transfer_that_fails_leaves_no_time_behind() -> None:
    told = Run().happen(FETCH, events.TransferFailed(transfer="t", reason=""), events.WorkerLoaded(round=3), TRAIN)
    assert set(told.values()) == {0.0}


async def test_lag_of_the_loop_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOP_LOOK_S", 0.01)
    metrics = Metrics()
    watching = asyncio.ensure_future(metrics.watch_loop())
    while metrics.value("loop_lag_seconds_count") < 3:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    assert 0.0 <= metrics.value("loop_lag_seconds_sum") < 60.0
