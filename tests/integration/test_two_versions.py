"""Institutions upgrade one after the other: daemons, and scripts, of the former release and of the present one train
together through a join, rounds, a failure and a leave. Real processes; the former release is a wheel
(tests/packaging/former) in an environment of its own, which borrows only libraries from this one."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from tests.integration.small_training import WORKER
from tests.rigs.site import VARIABLES, Cluster, Site, wait_for

from chaos_lab.children import environment

pytestmark = pytest.mark.long

WHEELS = Path(__file__).parents[1] / "packaging" / "former"
ROUNDS = 5
"""To be done by every new set of sites."""
FORMER, PRESENT = "former", "present"


@pytest.fixture(scope="module")
def former_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of an environment in which the wheel is installed: what is in it comes before what it borrows."""
    (wheel,) = WHEELS.glob("chaos_train-*.whl")
    folder = tmp_path_factory.mktemp("former")
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    borrowed = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (packages / "borrowed.pth").write_text("\n".join(borrowed) + "\n")
    python = str(folder / "bin" / "python")
    look = "import chaos, chaosd, chaos_protocols as p, importlib.metadata as m; print(m.version('chaos-train'));"
    look += "print(chaos.__file__); print(chaosd.__file__); print(p.__file__)"
    told = subprocess.run([python, "-c", look], capture_output=True, text=True, timeout=150, cwd=folder, check=True)
    version, *places = told.stdout.split()
    assert version in wheel.name and all(Path(place).is_relative_to(packages) for place in places)
    return python


class Institution(Site):
    """`daemon_python`, `worker_python`: which release its daemon and its script are of."""

    daemon_python = worker_python = sys.executable

    def configure(self, run: str, **settings: Any) -> None:
        """By the names that both releases read: the former one has no `bootstrap`, and always ends with its script."""
        super().configure(run, **settings)
        text = self.config_path.read_text(encoding="utf-8")
        assert "\nbootstrap = " in text
        text = text.replace("\nbootstrap = ", "\nfound = ").replace("\nexit_with_worker = true", "")
        if self.daemon_python != sys.executable:  # who founds with this has no floor
            text = text.replace("\nstart_sites = ", "\nmin_sites = ")
        self.config_path.write_text(text, encoding="utf-8")

    def daemon_command(self) -> list[str]:
        return [self.daemon_python, "-m", "chaosd", "start", "--config", str(self.config_path)]

    def train(self, number: int) -> None:  # type: ignore[override]
        command = [self.worker_python, str(WORKER), "--site", str(number), "--socket", str(self.worker_socket)]
        command += ["--folder", str(self.folder), "--numbers", "2000", "--pace", "0.02"]
        self.spawn_worker(command, variables=VARIABLES)

    def command(self, *words: str) -> str:
        """One of its own `chaosd` commands, as its operator would type it."""
        line = [self.daemon_python, "-m", "chaosd", *words, "--config", str(self.config_path)]
        told = subprocess.run(
            line, capture_output=True, text=True, timeout=150, cwd=self.folder, env=environment(**VARIABLES)
        )
        assert told.returncode == 0, told.stdout + told.stderr
        return told.stdout


def institutions(folder: Path, python: str, founder: str, other: str) -> tuple[Cluster, list[Institution]]:
    """Three: the founder; one of the other release, which dials it; one that dials both, with the founder's daemon and
    the other's script."""
    cluster = Cluster(folder)
    pythons = {FORMER: python, PRESENT: sys.executable}
    made = []
    for name, daemon, worker in (("one", founder, founder), ("two", other, other), ("three", founder, other)):
        site = Institution(cluster, name, "")
        site.daemon_python, site.worker_python = pythons[daemon], pythons[worker]
        cluster.sites.append(site)
        made.append(site)
    cluster.wire(min_sites=2)
    return cluster, made


def go_on(sites: list[Institution]) -> None:
    """All are members, and finish further rounds together."""
    wait_for(lambda: all(site.is_member() for site in sites), "all are members")
    reached = max(site.round() for site in sites) + ROUNDS
    wait_for(lambda: all(site.round() >= reached for site in sites), f"round {reached}")


def releases_shown(sites: list[Institution]) -> None:
    """A daemon of the present release shows that of every site; one of the former is not disturbed by hearing more."""
    former, present = WHEELS.glob("chaos_train-*.whl"), metadata.version("chaos-train")
    (of_before,) = (wheel.name.split("-")[1] for wheel in former)
    expected = {site.identity.site: present if site.daemon_python == sys.executable else of_before for site in sites}
    for site in sites:
        if site.daemon_python == sys.executable:
            shown = {one.site: one.software for one in site.client.status().sites}
            assert shown == expected
            assert all(release in site.command("status") for release in set(expected.values()))


def digests_of(site: Institution) -> dict[str, str]:
    """Those of the state after each round, which its script wrote at its end."""
    wait_for(site.report_path.exists, f"{site.name} reports")
    digests: dict[str, str] = json.loads(site.report_path.read_text())["digests"]
    return digests


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("founder", "other"), [(FORMER, PRESENT), (PRESENT, FORMER)])
def test_two_neighbouring_versions_train_together_through_a_join_a_failure_and_a_leave(
    founder: str, other: str, former_python: str, tmp_path: Path
) -> None:
    cluster, (one, two, three) = institutions(tmp_path, former_python, founder, other)
    try:
        for number, site in enumerate((one, two), start=1):
            site.start()
            site.train(number)
        go_on([one, two])
        three.start()  # it dials the former and the present release, and joins while they train
        three.train(3)
        go_on([one, two, three])
        assert all(len(site.client.status().sites) == 3 for site in (one, two, three))
        releases_shown([one, two, three])
        two.kill()  # as when its machine loses power
        wait_for(lambda: len(one.client.status().sites) == 2, "the dead site is removed")
        go_on([one, three])
        two.start()
        two.train(2)
        go_on([one, two, three])
        three.command("leave")
        digests = [digests_of(three)]
        go_on([one, two])
        two.command("leave")
        digests.append(digests_of(two))
        wait_for(lambda: len(one.client.status().sites) == 1, "one is alone")
        one.command("leave")
        digests.append(digests_of(one))
        for left in digests[:2]:
            common = set(left) & set(digests[2])
            assert len(common) >= 2 * ROUNDS and all(left[number] == digests[2][number] for number in common)
        for site in (one, two, three):
            log = site.daemon_log.read_text()
            assert "Traceback" not in log and "broke the rules" not in log and "cannot be read" not in log
    except BaseException:
        print(cluster.tails())
        raise
    finally:
        cluster.end()
