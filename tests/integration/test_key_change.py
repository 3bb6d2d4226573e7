"""An institution changes its key while all train: it stays the same site, and a copy of the former key is worth nothing
(spec 20)."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path

import pytest
from tests.integration.small_training import train
from tests.rigs.site import Cluster, Site, cluster_of, wait_for
from tests.rigs.transport import Recorder

from chaos_protocols.fingerprint import words_of
from chaos_protocols.links.keys import FORMER_KEY
from chaos_protocols.names import SiteId
from chaosd.identity import KEY_FILE, Identity
from chaosd.key_files import NEXT_KEY_FILE
from chaosd.transport import DialError, Transport, TransportSettings

SITES = {"cleveland": "Cleveland", "hungary": "Hungary", "va": "VA Long Beach"}


def all_train_on(cluster: Cluster) -> None:
    """All are members, and rounds are done with all of them."""
    wait_for(lambda: all(site.is_member() for site in cluster.sites), "all are members", limit_s=120)
    before = cluster.sites[0].round()
    wait_for(lambda: all(site.round() > before + 5 for site in cluster.sites), "they train on")


def told(site: Site, words: str) -> bool:
    return any(words in event.cause for event in site.events("key"))


async def knock(thief: Identity, site: Site) -> str:
    """Dial a site with that key, as a daemon that was started later than all; how that ends."""
    events = Recorder()
    transport = Transport(
        identity=thief,
        run="test",
        incarnation=int(time.time() * 1000) + 1_000_000,
        events=events,
        settings=TransportSettings(listen_host="127.0.0.1"),
    )
    await transport.start()
    try:
        await transport.dial(site.identity.site, site.address, timeout_s=30.0)
    except DialError as error:
        return error.brief
    finally:
        await transport.close()
    return "let in"


def is_refused(thief: Identity, site: Site) -> bool:
    """With the cause, as the operator over there reads it."""
    refused = asyncio.run(knock(thief, site)) == "refused"
    wait_for(lambda: any(FORMER_KEY in event.reason for event in site.events("refused")), "it says why")
    return refused


@pytest.mark.parametrize("by_words", [pytest.param(False, marks=pytest.mark.long), True])
def test_one_of_three_changes_its_key_and_the_former_one_is_refused(tmp_path: Path, by_words: bool) -> None:
    with cluster_of(tmp_path, SITES, min_sites=3, exit_with_worker=False) as cluster:
        for number, site in enumerate(cluster.sites, start=1):
            site.start()
            train(site, number)
        cleveland, hungary, va = cluster.sites
        all_train_on(cluster)
        (tmp_path / "copy").mkdir()
        shutil.copy(va.data_dir / KEY_FILE, tmp_path / "copy" / KEY_FILE)
        thief = Identity.load(tmp_path / "copy")

        outcome = va.client.change_key("rotate")
        key = SiteId(va.client.key().next_key)
        assert outcome.done and key in outcome.reason and words_of(key) in outcome.reason
        assert va.client.change_key("rotate").reason == outcome.reason, "said again, it is the same key"
        wrong = cleveland.client.change_key("approve", "va", "0" * 32)
        assert wrong.done, "he may have heard wrongly"
        approved = hungary.client.change_key("approve", "va", words_of(key) if by_words else key)
        assert approved.done, approved.reason
        wait_for(lambda: all(told(site, "change of key 1 is agreed") for site in cluster.sites), "both keys count")
        wait_for(lambda: va.client.key().next_agreed, "it is noted for the next start")
        assert not va.client.change_key("cancel").done, "that is for good"
        all_train_on(cluster)

        va.kill("daemon")
        va.start()
        wait_for(lambda: all(told(site, "uses its new key") for site in cluster.sites), "it is settled")
        shown = va.client.key()
        assert (shown.site, shown.key, shown.number) == (va.identity.site, key, 1)
        assert shown.settled and not shown.next_key and not (va.data_dir / NEXT_KEY_FILE).exists()
        assert Identity.load(va.data_dir).site == va.identity.site == thief.site
        all_train_on(cluster)
        assert all(is_refused(thief, site) for site in (cleveland, hungary))

        for site in cluster.sites:
            site.kill("daemon")
        for site in cluster.sites:
            site.start()
        all_train_on(cluster)
        assert all(is_refused(thief, site) for site in (cleveland, hungary))


def test_a_change_that_nobody_has_approved_can_be_taken_back(tmp_path: Path) -> None:
    with cluster_of(tmp_path, {"cleveland": "Cleveland", "hungary": "Hungary"}, min_sites=2) as cluster:
        for number, site in enumerate(cluster.sites, start=1):
            site.start()
            train(site, number)
        cleveland, hungary = cluster.sites
        outcome = hungary.client.change_key("rotate")
        assert not outcome.done or hungary.is_member()
        wait_for(lambda: all(site.is_member() for site in cluster.sites), "both are members", limit_s=120)
        assert hungary.client.change_key("rotate").done
        assert (hungary.data_dir / NEXT_KEY_FILE).stat().st_mode & 0o777 == 0o600
        for asked, why in (
            (("approve", "hungary", "acorn actor"), "16 words"),
            (("approve", "nobody", "0" * 32), "hungary"),
            (("approve", "cleveland", "0" * 32), "hungary"),
        ):
            refused = cleveland.client.change_key(*asked)
            assert not refused.done and why in refused.reason
        assert hungary.client.change_key("cancel").done
        assert not (hungary.data_dir / NEXT_KEY_FILE).exists() and not hungary.client.key().next_key
