"""Sites that are not let in: told to the operator, in bounded memory and in bounded words (spec 12.14)."""

from __future__ import annotations

from tests.unit.protocols.one_site import A, B, Bench, records

from chaos_protocols import events
from chaos_protocols.causes import Cause
from chaos_protocols.links.refusals import REFUSALS_KEPT, REFUSALS_TOLD_MAX, REFUSALS_WINDOW_S
from chaos_protocols.names import SiteId

UNTRUSTED = Cause.UNTRUSTED.told(other=B, words="acorn")


def refuse(bench: Bench, site: SiteId = B, why: object = UNTRUSTED) -> None:
    bench.handle(events.SiteRefused(site=site, why=why))  # type: ignore[arg-type]


def test_a_site_that_knocks_all_the_time_is_told_once_in_a_window_for_each_cause() -> None:
    bench = Bench(A)
    for _ in range(50):
        refuse(bench)
    assert [one.cause for one in records(bench.taken(), "refused")] == ["untrusted"]
    assert bench.machine.network.refusals.sites[B].count == 50
    refuse(bench, why=Cause.REFUSED_VERSION.told(reason="2 and 3"))
    assert [one.cause for one in records(bench.taken(), "refused")] == ["refused-other-version"]
    bench.now_s += REFUSALS_WINDOW_S
    refuse(bench, why=Cause.REFUSED_VERSION.told(reason="2 and 3"))
    assert len(records(bench.taken(), "refused")) == 1


def test_any_number_of_keys_fills_neither_memory_nor_history() -> None:
    bench = Bench(A)
    for number in range(500):
        refuse(bench, SiteId(f"{number:032x}"))
    assert len(records(bench.taken(), "refused")) == REFUSALS_TOLD_MAX
    assert list(bench.machine.network.refusals.sites)[-1] == f"{499:032x}"
    assert len(bench.machine.network.refusals.sites) == REFUSALS_KEPT
    bench.now_s += REFUSALS_WINDOW_S
    refuse(bench)
    assert len(records(bench.taken(), "refused")) == 1, "the next window"


def test_a_site_that_got_its_link_is_forgotten() -> None:
    bench = Bench(A)
    refuse(bench)
    bench.up(B)
    assert not bench.machine.network.refusals.sites
