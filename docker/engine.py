"""An engine, an image and the compose file for the demo: what is there is used, what is missing is told.

An engine that runs is used as it is. Otherwise, as root, one is started by hand with a folder of its own and without
touching the machine's network (no iptables, no bridge, no forwarding), and ended afterwards.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from chaos_lab.cleaning import is_left, mark

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
IMAGE = "chaos-site:local"
ENGINE_TIMEOUT_S = 30.0
FOLDER_PREFIX = "chaos-docker-"


class UnavailableError(Exception):
    """The demo cannot run here; the text says what is missing and how to get it."""


def new_folder() -> Path:
    """A folder for one demo, with a short path (sockets lie in it); what demos left that were killed is removed."""
    for old in Path("/tmp").glob(f"{FOLDER_PREFIX}*"):  # noqa: S108  # mkdtemp makes them ours alone
        _clean(old)
    folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir="/tmp"))
    mark(folder)
    return folder


def _clean(folder: Path) -> None:
    """End the engine, and with it the containers, of a demo that no longer runs; remove its folder."""
    if not is_left(folder):
        return
    docker = ["docker", "-H", f"unix://{folder}/engine.sock"]
    try:
        listed = subprocess.run([*docker, "ps", "-aq"], capture_output=True, text=True, timeout=30, check=False)
        for command in (["rm", "-f", *listed.stdout.split()], ["network", "prune", "-f"]):
            subprocess.run([*docker, *command], capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        pass  # docker was taken away meanwhile, or the engine does not answer: it is ended below
    try:
        engine = psutil.Process(int((folder / "engine.pid").read_text(encoding="ascii")))
        if any(f"{folder}/" in argument for argument in engine.cmdline()):
            engine.terminate()
            engine.wait(ENGINE_TIMEOUT_S)
    except (OSError, ValueError, psutil.Error):
        pass  # it has ended, or was never there
    if f"{folder}/" in Path("/proc/self/mounts").read_text(encoding="utf-8"):
        print(f"warning: the engine of a killed demo has left mounts below {folder}: end its containers, unmount them")
        return
    shutil.rmtree(folder, ignore_errors=True)
    print(f"removed: {folder} of a demo that was killed")


@contextmanager
def engine(folder: Path) -> Iterator[str]:
    """A running engine; yields how it came about. Raises UnavailableError."""
    if shutil.which("docker") is None:
        raise UnavailableError("the program docker is missing (Debian: apt-get install docker.io docker-compose)")
    if _runs():
        yield "the engine that runs on this machine"
        return
    if os.geteuid() != 0:
        raise UnavailableError("no engine answers, and only root can start one: start Docker, or run this as root")
    if shutil.which("dockerd") is None:
        raise UnavailableError("no engine answers, and dockerd is missing (Debian: apt-get install docker.io)")
    socket = f"unix://{folder}/engine.sock"
    command = ["dockerd", "--data-root", f"{folder}/engine", "--exec-root", f"{folder}/exec",
               "--pidfile", f"{folder}/engine.pid", "-H", socket, "--iptables=false", "--ip6tables=false",
               "--ip-forward=false", "--bridge=none"]  # fmt: skip
    before = os.environ.get("DOCKER_HOST")
    with (folder / "engine.log").open("wb") as log:
        daemon = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    os.environ["DOCKER_HOST"] = socket
    try:
        end_s = time.monotonic() + ENGINE_TIMEOUT_S
        while not _runs():
            if daemon.poll() is not None or time.monotonic() > end_s:
                last = (folder / "engine.log").read_text(errors="replace").splitlines()[-3:]
                raise UnavailableError("the engine does not start:\n" + "\n".join(last))
            time.sleep(0.1)
        yield "an engine of its own, started by hand"
    finally:
        daemon.terminate()
        try:
            daemon.wait(ENGINE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
        if before is None:
            del os.environ["DOCKER_HOST"]
        else:
            os.environ["DOCKER_HOST"] = before


def _runs() -> bool:
    try:
        done = subprocess.run(["docker", "version", "--format", "x"], capture_output=True, timeout=30, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


class Compose:
    """docker compose, of whichever version, with the demo's files."""

    def __init__(self, folder: Path, *, project: str, host_python: bool) -> None:
        self._command = [*_program(), "-p", project, "-f", str(HERE / "compose.yaml")]
        if host_python:
            (folder / "compose.host.yaml").write_text(json.dumps(_host_override(), indent=1), encoding="utf-8")
            self._command += ["-f", str(folder / "compose.host.yaml")]
        self._environment = {**os.environ, "CHAOS_SITES": str(folder / "sites"), "COMPOSE_HTTP_TIMEOUT": "120"}

    def __call__(self, *arguments: str) -> str:
        """Run it; returns what it printed. Raises RuntimeError with its own words."""
        command = [*self._command, *arguments]
        environment = {**self._environment, "DOCKER_HOST": os.environ.get("DOCKER_HOST", "")}
        if not environment["DOCKER_HOST"]:
            del environment["DOCKER_HOST"]
        done = subprocess.run(  # of a session of its own: Ctrl+C is for the demo, not for what it clears up with
            command, capture_output=True, text=True, env=environment, check=False, start_new_session=True
        )
        if done.returncode != 0:
            raise RuntimeError(f"`{' '.join(command)}` failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def container(self, service: str) -> str:
        """The id of a service's container. Raises RuntimeError where there is none: it has ended."""
        if not (found := self("ps", "-q", service).split()):
            raise RuntimeError(f"{service} has no container any more:\n{self('logs', '--tail', '8', service)}")
        return found[0]


def _program() -> list[str]:
    plugin = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
    if plugin.returncode == 0:
        return ["docker", "compose"]
    if shutil.which("docker-compose") is None:
        raise UnavailableError("neither `docker compose` nor docker-compose is there (Debian: docker-compose)")
    return ["docker-compose"]


def make_image(*, registry: bool) -> str:
    """The image of a site, with a registry or without; returns what was done."""
    if registry:
        build = ["docker", "build", "-f", str(HERE / "Dockerfile"), "-t", IMAGE, str(ROOT)]
        subprocess.run(build, check=True, env={**os.environ, "DOCKER_BUILDKIT": os.environ.get("DOCKER_BUILDKIT", "1")})
        return "image built from docker/Dockerfile"
    subprocess.run([str(HERE / "skeleton.sh"), IMAGE], check=True, capture_output=True)
    return "image of empty folders; Python and the project are mounted from this machine"


def remove_image() -> None:
    """So that an engine that was there before has nothing more than it had."""
    subprocess.run(["docker", "rmi", IMAGE], check=False, capture_output=True, start_new_session=True)


def _host_override() -> dict[str, object]:
    """For every service: this machine's programs, Python, environment and checkout at their own places, read-only."""
    from compose import OVERLAY

    from chaos_lab.scenario import load_scenario

    folders = ["/usr"]
    for folder in (sys.base_prefix, sys.prefix, str(ROOT)):
        path = str(Path(folder).resolve())
        if not any(path == known or path.startswith(known + "/") for known in folders):
            folders = [known for known in folders if not known.startswith(path + "/")] + [path]
    service = {
        "entrypoint": [sys.executable, str(HERE / "entrypoint.py")],
        "volumes": [f"{folder}:{folder}:ro" for folder in folders],
        "environment": {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "PYTHONPATH": ":".join(str(ROOT / name) for name in ("chaosd", "sdk", "protocols")),
        },
    }
    names = [site.name for site in load_scenario(OVERLAY).sites]
    return {"version": "3.8", "services": dict.fromkeys(["setup", *names], service)}
