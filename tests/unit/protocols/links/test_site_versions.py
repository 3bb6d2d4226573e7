"""What each site's newest daemon speaks, and of which release it is, whoever says so first."""

from __future__ import annotations

from tests.unit.protocols.one_site import A, B

from chaos_protocols.links.site_versions import SiteVersions
from chaos_protocols.wire.versions import SPOKEN, Versions

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
