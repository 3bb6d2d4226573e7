"""What each site's newest daemon speaks, and of which release it is, whoever says so first."""

from __future__ import annotations

import msgspec
from tests.unit.protocols.one_site import A, B, Bench, C, D, roster_of

from chaos_protocols import events
from chaos_protocols.agreement.commands import SetRules, version_needed
from chaos_protocols.links.site_versions import KNOWN_MAX, SiteVersions
from chaos_protocols.names import SiteId
from chaos_protocols.wire.control import LinkStateAdvertisement
from chaos_protocols.wire.versions import BEFORE, OLDEST, SPOKEN, Versions

FORMER = Versions(oldest=2, newest=2)


def test_the_release_that_a_first_report_left_out_is_taken_from_a_later_one_of_the_same_start() -> None:
    versions = SiteVersions(A, 1, SPOKEN)
    versions.heard(B, 5, FORMER, "")
    assert versions.of(B) == FORMER and versions.software_of(B) == ""
    versions.heard(B, 5, FORMER, "0.2.0")
    assert versions.software_of(B) == "0.2.0"
    versions.heard(B, 5, FORMER, "")
    assert versions.software_of(B) == "0.2.0", "who does not say it does not take it back"


def test_a_newer_start_replaces_what_was_known_and_an_older_one_changes_nothing() -> None:
    versions = SiteVersions(A, 1, SPOKEN)
    versions.heard(B, 5, FORMER, "0.2.0")
    versions.heard(B, 4, SPOKEN, "0.3.0")
    versions.heard(B, 6, None, "0.3.0")
    assert versions.of(B) == FORMER and versions.software_of(B) == "0.2.0"
    versions.heard(B, 6, SPOKEN, "")
    assert versions.of(B) == SPOKEN and versions.software_of(B) == ""


def test_no_report_changes_what_this_site_knows_of_itself() -> None:
    """A neighbour that had forgotten what it speaks reported the least, and it never was renewed (seed 9097909, 3
    sites)."""
    versions = SiteVersions(A, 4, SPOKEN)
    versions.heard(A, 4, BEFORE, "")
    assert versions.of(A) == SPOKEN and versions.of_start(A, 4, FORMER) == SPOKEN


def test_no_report_changes_what_a_start_has_said_in_its_own_handshake() -> None:
    versions = SiteVersions(A, 1, SPOKEN)
    versions.met(B, 5, FORMER, "0.2.0")
    versions.heard(B, 5, SPOKEN, "")
    assert versions.of(B) == FORMER and versions.neighbour_lacks(B, SPOKEN.newest)
    versions.heard(B, 6, SPOKEN, "0.3.0")
    assert versions.of(B) == SPOKEN, "it was started again, as others say"
    assert versions.neighbour_lacks(B, SPOKEN.newest), "which the link to it has not shown yet"
    versions.met(B, 6, SPOKEN, "0.3.0")
    assert not versions.neighbour_lacks(B, SPOKEN.newest)


def test_what_a_start_speaks_is_what_it_says_itself_first_in_its_handshake_then_in_its_envelopes() -> None:
    versions, newest = SiteVersions(A, 1, SPOKEN), SPOKEN.newest
    versions.heard(B, 9, FORMER, "")
    assert versions.of_start(B, 6, SPOKEN) == SPOKEN, "a report of a start that never was says nothing of this one"
    versions.said(B, 6, newest)
    versions.said(B, 5, 3)
    assert versions.of_start(B, 6, FORMER) == Versions(oldest=FORMER.oldest, newest=newest)
    assert versions.of_start(B, 6, BEFORE) == Versions(oldest=OLDEST, newest=newest)
    versions.said(B, 9, newest)
    assert versions.of_start(B, 9, SPOKEN).newest == newest, "not what others report"
    versions.heard(B, 9, Versions(oldest=4, newest=newest), "")
    assert versions.of_start(B, 9, SPOKEN) == Versions(oldest=4, newest=newest)
    versions.met(B, 9, FORMER, "")
    assert versions.of_start(B, 9, SPOKEN) == FORMER
    assert versions.of_start(A, 1, FORMER) == SPOKEN


def test_what_the_run_has_used_before_is_held_back_for_nobody() -> None:
    """A site that is recorded with less has read such a command all the same (seed 26 of the simulator, 25 sites)."""
    roster = roster_of(A, B)
    assert roster.version() < 7
    command = SetRules(version=7, views=roster.views)
    assert version_needed(command) == 7
    versions = SiteVersions(A, 1, SPOKEN)
    assert versions.holds_back(command, roster, lambda _: None)
    assert not versions.holds_back(command, msgspec.structs.replace(roster, needs=7), lambda _: None)


def test_of_sites_that_a_member_only_names_no_more_is_remembered_than_the_table_of_links_holds() -> None:
    """It names one after the other, each with a link that is up and then is not: that made room for the next."""
    bench, guest = Bench(B, roster_of(A, B, C, D)).up(A, C), SiteId("f" * 32)
    bench.handle(events.LinkUp(site=guest, incarnation=1, address="", versions=FORMER))
    told = LinkStateAdvertisement(
        neighbour=D, incarnation=1, up=True, rtt_s=0.0, rate_bytes_per_s=0.0, reason="", versions=FORMER
    )
    bench.hear(C, told)
    for number in range(2 * KNOWN_MAX):
        named = msgspec.structs.replace(told, neighbour=SiteId(f"{number:032x}"))
        bench.hear(C, named)
        bench.hear(C, msgspec.structs.replace(named, up=False, versions=None))
    versions = bench.machine.network.versions
    assert len(versions._spoken) <= KNOWN_MAX and len(versions._software) <= KNOWN_MAX
    assert versions.of(D) == FORMER and versions.of(A) == SPOKEN, "of the run all is known still"
    assert versions.of(guest) == FORMER, "and of a neighbour outside the run"
