"""`chaosd doctor --peer SITE` on real daemons: what the other end sees, and what is said where it cannot be asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integration.small_training import train
from tests.rigs.site import Site, cluster_of, wait_for

from chaos_protocols.names import SiteId, short
from chaosd.api.client import RequestRefusedError
from chaosd.doctor.asked import examine_peer
from chaosd.doctor.check import Level
from chaosd.doctor.site import examine


def findings(site: Site, peer: str) -> dict[str, tuple[Level, str]]:
    return {check.name.split()[0]: (check.level, check.found) for check in examine_peer(site.client, peer)}


def test_a_peer_says_how_it_sees_this_site_and_one_that_is_gone_is_named(tmp_path: Path) -> None:
    with cluster_of(tmp_path, {"a": "Cleveland", "b": "Hungary"}, min_sites=1) as cluster:
        a, b = cluster.sites
        a.start()
        b.start()
        for number, site in enumerate((a, b), start=1):
            train(site, number)
        wait_for(b.is_member, "both train")
        found = findings(b, a.identity.site)
        assert {level for level, _ in found.values()} == {Level.OK}, found
        (link,) = (one.name for one in examine_peer(b.client, a.identity.site) if one.name.startswith("link"))
        assert link == f"link {a.name} ({short(a.identity.site)})", "by its name"
        peers = [one.name for one in examine(b.config_path) if one.name.startswith("peer ")]
        assert peers == [f"peer {a.name} ({short(a.identity.site)})"], "also where the file gives it none"
        assert set(found) == {"link", "it", "lets", "roster", "way"}
        assert b.address in found["way"][1] and "configuration" in found["lets"][1]
        refused = a.client.change_link(a.name, add=True)
        assert not refused.done and "none of the other sites of the run is" in refused.reason, "this site itself"
        seen = b.client.seen(a.identity.site[:6]).seen
        assert seen is None or seen.reaches, "asked again at once: silence, or the same answer"
        with pytest.raises(RequestRefusedError, match="there are"):
            b.client.seen("nobody")

        a.kill()
        wait_for(lambda: not b.client.seen(a.identity.site).linked, "it is gone")
        wait_for(lambda: "does not run" in findings(b, a.identity.site)["link"][1], "and that is said")
        assert findings(b, a.identity.site)["link"][1].startswith(f"{a.name} does not run")
        b.kill()
        assert findings(b, a.identity.site)["daemon"][0] is Level.FAIL


def test_a_site_that_cannot_be_dialled_from_there_is_told_so(tmp_path: Path) -> None:
    with cluster_of(tmp_path, {"a": "Cleveland", "b": "Hungary"}, min_sites=1) as cluster:
        a, b = cluster.sites
        text = b.config_path.read_text()
        b.config_path.write_text('advertise = "127.0.0.1:9"\n' + text)  # the discard service: nobody is there
        a.start()
        b.start()
        wait_for(lambda: any(link.up for link in b.client.status().links), "the link")
        level, told = findings(b, SiteId(a.identity.site))["way"]
        assert level is Level.WARN and "cannot dial this site at 127.0.0.1:9" in told


def test_an_address_that_counts_only_in_the_run_is_no_wrong_address(tmp_path: Path) -> None:
    """Who has no worker is outside the run: that it is another host than it dials from is not believed."""
    with cluster_of(tmp_path, {"a": "Cleveland", "b": "Hungary"}, min_sites=1) as cluster:
        a, b = cluster.sites
        text = b.config_path.read_text()
        b.config_path.write_text('advertise = "hungary.example:7400"\n' + text)
        a.start()
        b.start()
        wait_for(lambda: any(link.up for link in b.client.status().links), "the link")
        (check,) = (one for one in examine_peer(b.client, a.identity.site) if one.name == "way back")
        assert check.level is Level.WARN and "has no address of this site" in check.found
        assert "once this site is in the run" in check.remedy
