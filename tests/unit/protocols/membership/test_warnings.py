"""What only a person can take away is told at the script while training goes on (spec 2.16, 12.16)."""

from __future__ import annotations

from tests.unit.protocols.follower import Follower, hello, to_worker
from tests.unit.protocols.one_site import A, B, Bench, C, D, records, roster_of, sent

from chaos_protocols import events
from chaos_protocols.causes import Cause
from chaos_protocols.links.refusals import NEWER_LINK_S, REFUSALS_WINDOW_S
from chaos_protocols.membership.warnings import WARNINGS_MAX
from chaos_protocols.names import SiteId
from chaos_protocols.wire.starts import OlderStartRefused
from chaos_protocols.wire.user_words import RunWarned

OTHER_RUN = Cause.REFUSED_RUN.told(there="11", here="22")
OLDER = Cause.REFUSED_START.told(reason="start 1 is older than start 7; it dials from 10.0.0.9")


def refused(bench: Bench, site: SiteId, why: object) -> None:
    bench.handle(events.SiteRefused(site=site, why=why))  # type: ignore[arg-type]


def warned(bench: Bench) -> list[str]:
    """What its script hears within a second in which all links live."""
    bench.taken()
    return [one.reason for one in to_worker(Follower.alive(bench, 1.0), RunWarned)]  # type: ignore[arg-type]


def with_script() -> Follower:
    bench = Follower(B, roster_of(A, B))
    hello(bench)
    return bench


def test_a_script_hears_once_that_a_second_run_of_this_name_is_there_and_what_to_do() -> None:
    bench = with_script()
    refused(bench, D, OTHER_RUN)
    (text,) = warned(bench)
    assert "another run of the same name" in text and "decide which run stays" in text and text.startswith("dddddddd")
    refused(bench, D, OTHER_RUN)
    bench.handle(events.DialFailed(site=D, reason="refused", why=Cause.OTHER_RUN.told(site="d", there="1", here="2")))
    assert warned(bench) == [], "from whichever end, it is one matter"
    hello(bench)
    assert len(warned(bench)) == 1, "a new worker has heard nothing yet"


def test_a_refusal_that_is_long_over_is_not_told_to_a_new_script() -> None:
    bench = with_script()
    refused(bench, D, OTHER_RUN)
    bench.now_s += REFUSALS_WINDOW_S
    hello(bench)
    assert warned(bench) == []


def test_what_concerns_the_other_site_alone_is_no_matter_of_the_script() -> None:
    bench = with_script()
    refused(bench, D, Cause.UNTRUSTED.told(other=D, words="acorn"))
    refused(bench, C, Cause.REFUSED_VERSION.told(reason="2 and 3"))
    assert warned(bench) == []


def test_any_number_of_keys_fills_no_script_with_warnings() -> None:
    bench = with_script()
    for number in range(WARNINGS_MAX + 20):
        refused(bench, SiteId(f"{number:032x}"), OTHER_RUN)
    assert len(warned(bench)) == WARNINGS_MAX
    assert warned(bench) == []


def test_the_newer_start_hears_that_an_older_one_with_its_key_was_refused() -> None:
    bench = Bench(A, roster_of(A, B)).up(B, incarnation=7)
    bench.taken()
    refused(bench, B, OLDER)
    assert sent(bench.taken(), OlderStartRefused) == [(B, OlderStartRefused(older_than=7, reason=OLDER.text))]
    refused(bench, B, OLDER)
    assert not sent(bench.taken(), OlderStartRefused), "once in a window, however often it comes back"


def test_nobody_is_told_of_an_older_start_where_no_newer_one_has_a_link() -> None:
    bench = Bench(A, roster_of(A, B))
    refused(bench, B, OLDER)
    assert not sent(bench.taken(), OlderStartRefused)


def test_a_newer_start_hears_what_was_refused_while_its_streams_came_up_and_nothing_older() -> None:
    for passed_s, heard in ((0.5, [(B, OlderStartRefused(older_than=7, reason=OLDER.text))]), (NEWER_LINK_S, [])):
        bench = Bench(A, roster_of(A, B))
        refused(bench, B, OLDER)
        bench.now_s += passed_s
        bench.taken()
        bench.up(B, incarnation=7)
        assert sent(bench.taken(), OlderStartRefused) == heard
    bench = Bench(A, roster_of(A, B))
    refused(bench, B, OTHER_RUN)
    assert not sent(bench.up(B, incarnation=7).taken(), OlderStartRefused), "for another cause"


def test_who_hears_that_its_key_is_used_elsewhere_warns_and_goes_on() -> None:
    bench = with_script()
    bench.hear(A, OlderStartRefused(older_than=1, reason=OLDER.text))
    (record,) = records(bench.out, "refused")
    assert record.cause == "key-used-elsewhere" and "10.0.0.9" in record.reason
    (text,) = warned(bench)
    assert "site a has refused" in text and "10.0.0.9" in text and "find the other machine" in text
    bench.hear(A, OlderStartRefused(older_than=1, reason=OLDER.text))
    assert not records(bench.taken(), "refused") and bench.machine.membership.in_roster


def test_a_word_about_another_start_a_relayed_one_and_that_of_an_outsider_count_for_nothing() -> None:
    bench = with_script()
    bench.up(D)
    bench.hear(A, OlderStartRefused(older_than=2, reason="of another life"))
    bench.hear(D, OlderStartRefused(older_than=1, reason="says an outsider"))
    bench.hear(A, OlderStartRefused(older_than=1, reason="relayed"), by=D)
    assert warned(bench) == [] and not bench.machine.participation.warnings.heard_of_copy
