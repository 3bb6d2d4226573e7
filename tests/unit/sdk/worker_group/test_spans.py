"""What a worker did is noted where somebody wants it, and never without bound."""

from __future__ import annotations

from chaos.worker_group.exchange.spans import SpanLog
from chaos_protocols.worker_group.messages import SPANS_MAX, DoneSpan
from chaos_protocols.worker_group.suspicion import Work


def test_nothing_is_noted_unless_it_is_wanted() -> None:
    log = SpanLog()
    log.add(Work.FORWARD, 1.0, 2.0, 0)
    log.waited(3.0)
    assert log.taken() == ()


def test_waits_in_a_row_are_one_and_what_was_taken_is_gone() -> None:
    log = SpanLog()
    log.begin(wanted=True)
    log.waited(1.0)  # nothing was done before: nobody knows since when
    log.add(Work.FORWARD, 1.0, 2.0, 5)
    log.add(Work.WAITING, 2.0, 2.5)
    log.add(Work.WAITING, 2.5, 3.0)
    log.waited(4.0)
    assert log.taken() == (DoneSpan(Work.FORWARD, 1.0, 2.0, 5), DoneSpan(Work.WAITING, 2.0, 4.0))
    assert log.taken() == ()


def test_no_more_than_some_are_kept() -> None:
    log = SpanLog()
    log.begin(wanted=True)
    for at in range(SPANS_MAX + 10):
        log.add(Work.FORWARD, at, at + 1, 0)
    log.waited(SPANS_MAX + 100)
    assert len(log.taken()) == SPANS_MAX
