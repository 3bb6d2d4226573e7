"""The bounds of a run, with real daemons and scripts: one site does not own the model (spec 19)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.integration.small_training import train
from tests.rigs.site import Cluster, Site, cluster_of, wait_for

from chaos_protocols.names import short

NORM_MAX = 1e5
"""Above the norm of an honest gradient of `gated_worker`, about 8e4."""
EXTRA = f"norm_max = {NORM_MAX}\nweight_max = 10.0"
OWNS_IT = 1e12
"""A tenth of one hostile step would leave larger parameters than this, all honest ones together smaller."""
BOUNDLESS = Path(__file__).parent / "boundless_daemon.py"
SITES = {"cleveland": "Cleveland", "hungary": "Hungary", "va": "VA Long Beach"}


def largest(site: Site) -> float:
    """Of its parameters, as its script has last written it."""
    path = site.folder / "largest"
    return float(json.loads(path.read_text())) if path.exists() else 0.0


def star(cluster: Cluster, middle: Site) -> None:
    """Each other site knows the one in the middle alone, which so is the root of the tree."""
    for number, site in enumerate(cluster.sites):
        site.configure(
            "test",
            bootstrap=number == 0,
            trust=cluster.sites,
            peers=[middle] if site is not middle else [],
            start_sites=3,
            exit_with_worker=True,
            failure_timeout_s=cluster.failure_timeout_s,
            extra=[EXTRA],
        )


@pytest.mark.parametrize("lie", [("--times", "1e20"), ("--samples", "1e15")])
def test_a_script_that_gives_without_measure_counts_within_the_bounds(tmp_path: Path, lie: tuple[str, str]) -> None:
    with cluster_of(tmp_path, SITES, min_sites=3, extra=EXTRA) as cluster:
        for number, site in enumerate(cluster.sites, start=1):
            site.start()
            train(site, number, extra=lie if site.name == "va" else ())
        cleveland, _, va = cluster.sites
        wait_for(lambda: cleveland.round() > 10, "they train")
        assert 0 < largest(cleveland) < OWNS_IT
        bounds = va.client.status().bounds
        assert bounds is not None and (bounds.norm_max, bounds.weight_max) == (NORM_MAX, 10.0)
        assert bounds.void_rounds == 0 and (bounds.clipped_rounds > 0) == (lie[0] == "--times")
        (told,) = va.events("bound")
        assert ("norm of its part" if lie[0] == "--times" else "weight_max") in told.cause
        assert not cleveland.events("refused") and not cleveland.events("bound")
        for site in (cleveland, va):
            outcome = site.client.want_bounds({"norm_max": NORM_MAX * 2})
            assert outcome.done and "2 of the 3 members" in outcome.reason

        def wider() -> bool:
            return all(site.client.bounds().holds.norm_max == NORM_MAX * 2 for site in cluster.sites)

        wait_for(wider, "most operators want it", limit_s=60)
        before = cleveland.round()
        wait_for(lambda: cleveland.round() > before + 5, "they train on", limit_s=60)
        (told,) = cleveland.events("bound")
        assert f"norm_max = {NORM_MAX * 2:g}" in told.reason and f"norm_max = {NORM_MAX:g}" in told.reason


@pytest.mark.parametrize("middle", ["cleveland", "va"])
def test_a_daemon_without_bounds_is_named_and_put_out_and_the_others_go_on(tmp_path: Path, middle: str) -> None:
    """As a leaf of the tree, and as its root: who is linked with both others is."""
    with cluster_of(tmp_path, SITES, min_sites=3, extra=EXTRA) as cluster:
        cleveland, hungary, va = cluster.sites
        star(cluster, next(site for site in cluster.sites if site.name == middle))
        for number, site in enumerate(cluster.sites, start=1):
            site.start(program=[sys.executable, str(BOUNDLESS)] if site is va else None)
            train(
                site,
                number,
                gate=30 if site is va else 0,
                extra=("--times", "1e20", "--from", "30") if site is va else (),
            )
        honest = (cleveland, hungary)

        def all_vote() -> bool:
            return all(sum(one.voter for one in site.client.status().sites) == 3 for site in honest)

        wait_for(all_vote, "two of three are a majority")
        (va.folder / "go").touch()

        def told(kind: str) -> list[str]:
            found = [event for site in honest for event in site.events(kind)]
            return [event.cause for event in found if event.subject in (va.name, short(va.identity.site))]

        def seen() -> bool:
            return any("longer than the run allows" in cause for cause in told("refused"))

        wait_for(seen, "who is sent too much names it")
        before = cleveland.round()
        wait_for(lambda: cleveland.round() > before + 5, "the others go on")
        assert all(0 < largest(site) < OWNS_IT for site in honest)
        wait_for(lambda: told("scale-in"), "it is out")
        causes = [cause for cause in told("refused") if "broke a rule of round" in cause]
        assert not causes, "what was on its way when its link was closed is no further offence"
