"""Real daemons that find out why nothing moves: two founders, a copied machine, files of another site, a reload."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.small_training import train
from tests.rigs.site import Cluster, Site, environment, wait_for

from chaos_protocols.names import short
from chaosd.daemon import EXIT_CAUSE


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    try:
        yield made
    except BaseException:
        print(made.tails())
        raise
    finally:
        made.end()


class Plain(Site):
    """Its daemon is that of `chaosd start`, not the lab's."""

    def daemon_command(self) -> list[str]:
        return [sys.executable, "-m", "chaosd", "start", "--config", str(self.config_path)]

    def await_code(self) -> int:
        """The exit code, when it has ended."""
        daemon = self.daemon
        assert daemon is not None
        return int(daemon.wait(timeout=90))


def add(cluster: Cluster, name: str) -> Plain:
    site = Plain(cluster, name, "Cleveland")
    cluster.sites.append(site)
    return site


def pair(cluster: Cluster, *, second_founds: bool = False, trusted: bool = True) -> tuple[Plain, Plain]:
    """Two sites; the second dials the first."""
    one, other = add(cluster, "one"), add(cluster, "other")
    one.configure("test", bootstrap=True, trust=[other] if trusted else [], peers=[], start_sites=1)
    other.configure("test", bootstrap=second_founds, trust=[one], peers=[one], start_sites=1)
    return one, other


def refusals(site: Site) -> list[str]:
    return [event.cause for event in site.events("refused")]


def test_two_founders_are_told_at_both_ends_and_go_on(cluster: Cluster) -> None:
    one, other = pair(cluster, second_founds=True)
    one.start()
    other.start()
    wait_for(lambda: refusals(one) and refusals(other), "both have it in their history")
    assert set(refusals(one)) <= {"refused-other-run", "peer-in-other-run"}
    assert refusals(other) == ["peer-in-other-run"]
    here, there = one.client.status(), other.client.status()
    assert here.run_id and there.run_id and here.run_id != there.run_id
    assert [refused.site for refused in here.refused] == [there.site]
    (link,) = there.links
    assert link.up is False and "two sites have founded it" in link.why
    assert one.daemon_runs() and other.daemon_runs()


def test_the_scripts_of_two_founders_train_on_and_are_warned(cluster: Cluster) -> None:
    one, other = pair(cluster, second_founds=True)
    for number, site in enumerate((one, other), start=1):
        site.start()
        train(site, number)
    for site in (one, other):
        wait_for(lambda site=site: "chaos: warning: " in script(site), "its script is warned")  # type: ignore[misc]
        (warning,) = [line for line in script(site).splitlines() if "chaos: warning: " in line]
        assert "another run of the same name" in warning and "decide which run stays" in warning
        reached = site.round()
        wait_for(lambda site=site, reached=reached: site.round() > reached + 5, "it trains on")  # type: ignore[misc]


def script(site: Site) -> str:
    """What the site's script has printed."""
    return site.worker_log.read_text() if site.worker_log.exists() else ""


def test_of_a_copied_machine_the_older_daemon_ends_with_a_sentence(cluster: Cluster) -> None:
    one, other = pair(cluster)
    one.start()
    other.start()
    wait_for(lambda: any(link.up for link in other.client.status().links), "they have a link")
    copy = add(cluster, "copy")
    for name in ("site.key", "journal"):
        shutil.copy(other.data_dir / name, copy.data_dir / name)
    copy.configure("test", bootstrap=False, trust=[one], peers=[one], start_sites=1)
    train(other, 1)
    wait_for(lambda: "connected to" in script(other), "the script has said hello")
    copy.start()
    train(copy, 2)
    assert other.await_code() == EXIT_CAUSE
    assert "another daemon with this site's key was started later" in other.tail()
    assert copy.daemon_runs() and one.daemon_runs()
    wait_for(lambda: "another daemon with this site's key" in script(other), "the script of the older one knows")
    wait_for(lambda: "key-used-elsewhere" in refusals(copy), "the newer one has it in its history")
    wait_for(lambda: "has refused another daemon with this site's key" in script(copy), "so has its script")
    assert "it dials from 127.0.0.1" in script(copy) and "chaos: warning: " in script(copy)


def test_files_of_another_site_are_refused_at_the_start(cluster: Cluster) -> None:
    one, other = pair(cluster)
    one.start()
    one.client.leave()
    wait_for(lambda: not one.daemon_runs(), "it has left")
    shutil.copy(one.data_dir / "journal", other.data_dir / "journal")
    ended = subprocess.run(
        other.daemon_command(), env=environment(), capture_output=True, text=True, timeout=150, check=False
    )
    assert ended.returncode == 2 and "the files of two sites are mixed" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_sighup_takes_a_new_trust_over_and_names_what_it_does_not(cluster: Cluster) -> None:
    one, other = pair(cluster, trusted=False)
    one.start()
    other.start()
    wait_for(lambda: "untrusted" in refusals(one), "the first has refused the second")
    assert wait_for(lambda: refusals(other), "and that one knows") == ["peer-does-not-trust"]
    text = one.config_path.read_text()
    one.config_path.write_text(text.replace("trust = []", f'trust = ["{other.identity.site}"]') + "\nmin_sites_ = 1\n")
    one.signal("daemon", signal.SIGHUP)
    wait_for(lambda: [event.outcome for event in one.events("reload")] == ["failed"], "the file has a mistake")
    one.config_path.write_text(text.replace("trust = []", f'trust = ["{other.identity.site}"]'))
    one.signal("daemon", signal.SIGHUP)
    wait_for(lambda: any(link.up for link in other.client.status().links), "the link is there")
    assert one.events("reload")[-1].reason == "taken over: trust"
    wait_for(lambda: not one.client.status().refused, "nobody is refused any more")


def test_sites_of_which_none_founds_the_run_say_so(cluster: Cluster) -> None:
    one, other = pair(cluster)
    one.configure("test", bootstrap=False, trust=[other], peers=[], start_sites=1)
    for number, site in enumerate((one, other), start=1):
        site.start()
        train(site, number)
    for site, far in ((one, other), (other, one)):
        words = f"asking to join: {short(far.identity.site)} wait, too, and none of them is in a run: one site has to"

        def told(site: Site = site, words: str = words) -> bool:
            paused = [event.cause for event in site.events("pause")]
            return words in site.client.status().paused and any(words in cause for cause in paused)

        wait_for(told, "status and history say so")
        assert "start the founding site" in site.client.status().paused_remedy
        assert f"chaos: the run waits: {words} found it (bootstrap = true)" in script(site)


def test_rounds_wait_while_fewer_than_min_sites_are_there_and_go_on_with_the_next(cluster: Cluster) -> None:
    one, other = add(cluster, "one"), add(cluster, "other")
    one.configure("test", bootstrap=True, trust=[other], peers=[], start_sites=1, extra=["min_sites = 2"])
    other.configure("test", bootstrap=False, trust=[one], peers=[one], start_sites=1)
    for number, site in enumerate((one, other), start=1):
        site.start()
        train(site, number)
    wait_for(lambda: one.round() > 3 and other.is_member(), "both train")
    other.kill()
    wait_for(lambda: one.client.status().paused == "rounds wait for 2 sites; here: 1", "one waits, and says so")
    waits = one.round()
    other.start()
    train(other, 2)
    wait_for(lambda: min(one.round(), other.round()) > waits + 3, "rounds go on")
    wait_for(lambda: not one.client.status().paused, "and it says so")
