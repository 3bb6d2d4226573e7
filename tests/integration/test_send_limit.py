"""A site that may send little: real daemons, whatever the machine is doing."""

from __future__ import annotations

import re
import time
from pathlib import Path

from tests.integration.small_training import train
from tests.integration.test_causes import add
from tests.rigs.site import Cluster, Site, wait_for

MBIT = 4.0
SLACK_BYTES = 64 << 10
"""What may go ahead of its turn, and headers."""


def sent_bytes(site: Site) -> float:
    """In bulk, whatever for."""
    found = re.findall(r'^chaosd_bulk_bytes_total\{direction="sent",kind="\w+"\} (\S+)$', site.client.metrics(), re.M)
    assert found
    return sum(map(float, found))


def test_a_site_sends_no_more_than_it_may_and_the_run_plans_with_it_until_it_is_lifted(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    try:
        one, other, third = (add(cluster, name) for name in ("one", "other", "third"))
        sites = (one, other, third)
        for number, site in enumerate(sites):
            rest = [far for far in sites if far is not site]
            site.configure("test", bootstrap=site is one, trust=rest, peers=list(sites[:number]), start_sites=3)
        text = one.config_path.read_text()
        one.config_path.write_text(f"send_limit_mbit = {MBIT}\n{text}")
        for number, site in enumerate(sites, start=1):
            site.start()
            train(site, number, pace_s=0.0)
        wait_for(lambda: min(site.round() for site in sites) > 3, "they train together")
        assert one.client.status().send_limit_bytes_per_s == MBIT * 1e6 / 8
        assert f"chaosd_send_limit_bytes_per_second {MBIT * 1e6 / 8}" in one.client.metrics()

        begun_s, before, began_at = time.monotonic(), sent_bytes(one), one.round()
        wait_for(lambda: one.round() > began_at + 6, "rounds go on")
        sent = sent_bytes(one) - before
        assert sent <= MBIT * 1e6 / 8 * (time.monotonic() - begun_s) + SLACK_BYTES

        wait_for(
            lambda: (told := other.client.status().averaging) and "send at most" in told.reason, "it is planned with"
        )

        one.config_path.write_text(text)
        assert one.client.reload().reason == "taken over: send_limit_mbit"
        assert one.client.status().send_limit_bytes_per_s == 0.0
        assert one.events("reload")[-1].cause == "chaosd reload"
        began_at = one.round()
        wait_for(lambda: one.round() > began_at + 6, "rounds go on")
    except BaseException:
        print(cluster.tails())
        raise
    finally:
        cluster.end()
