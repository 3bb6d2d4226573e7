"""The Docker demo: the compose file is that of the overlay, and six sites in containers do what docker/demo.py says.

The demo runs where an engine runs or can be started (root, dockerd, docker-compose); elsewhere the test skips with what
is missing. It needs no registry.
"""

from __future__ import annotations

import fnmatch
import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from chaos_lab.scenario import load_scenario

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
EXIT_UNAVAILABLE = 3
LIMIT_S = 400
"""For a machine with other work on it."""


@pytest.fixture(scope="module")
def compose() -> ModuleType:
    found = importlib.util.spec_from_file_location("docker_compose_maker", DOCKER / "compose.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_the_compose_file_is_up_to_date(compose: ModuleType) -> None:
    page = compose.compose(load_scenario(compose.OVERLAY))
    assert compose.PAGE.read_text(encoding="utf-8") == page, "run `python docker/compose.py`"


def test_every_link_is_a_network_of_its_own_with_two_addresses_in_it(compose: ModuleType) -> None:
    overlay = load_scenario(compose.OVERLAY)
    assert len(overlay.sites) == 6
    subnets = {compose.subnet(overlay, link) for link in overlay.links}
    ends = [compose.address(overlay, link, site) for link in overlay.links for site in link.between]
    assert len(subnets) == len(overlay.links) and len(set(ends)) == len(ends) == 2 * len(overlay.links)
    for link in overlay.links:
        prefix = compose.subnet(overlay, link).removesuffix("0/29")
        assert all(compose.address(overlay, link, site).startswith(prefix) for site in link.between)


def is_sent(place: str, patterns: list[str]) -> bool:
    """Whether the engine gets this path of the repository for a build: the last pattern that it matches decides."""
    sent = True
    for pattern in patterns:
        if fnmatch.fnmatch(place.partition("/")[0], pattern.removeprefix("!")):
            sent = pattern.startswith("!")
    return sent


def copied(dockerfile: Path) -> set[str]:
    """What it copies out of the repository."""
    words = [line.split() for line in dockerfile.read_text(encoding="utf-8").splitlines() if line.startswith("COPY")]
    return {source for _, *sources, _ in words for source in sources if not sources[0].startswith("--from")}


@pytest.mark.parametrize("dockerfile", [DOCKER / "Dockerfile", ROOT / "examples" / "deploy" / "Dockerfile"])
def test_an_image_is_given_all_that_the_wheel_is_made_of(dockerfile: Path) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project, wheel = settings["project"], settings["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {"pyproject.toml", project["readme"], *project["license-files"]}
    needed |= {*wheel["packages"], *wheel["force-include"]}
    patterns = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    sources = copied(dockerfile)
    for place in sorted(needed | sources - {"."}):
        assert (ROOT / place).exists() and is_sent(place, patterns), f"{place} is not sent to the engine"
        assert "." in sources or place.partition("/")[0] in sources, f"{place} is not copied"


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.timeout(LIMIT_S)
def test_six_sites_in_containers_join_die_return_and_leave_with_equal_results() -> None:
    before = engines()
    command = [sys.executable, str(DOCKER / "demo.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S - 10, check=False)
    if done.returncode == EXIT_UNAVAILABLE:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    for told in ("turin is a member", "porto is back", "graz left", "equal at every site", "Everything held."):
        assert told in done.stdout
    assert engines() <= before, "the engine that the demo started has ended"
    assert "chaos-docker-" not in Path("/proc/self/mounts").read_text(encoding="utf-8")


def engines() -> set[str]:
    """Running engines, by process id."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "comm").read_text(encoding="utf-8").strip() == "dockerd":
                found.add(process.name)
        except OSError:
            continue
    return found
