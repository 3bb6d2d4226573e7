"""The entry point of a site's container: `setup` makes keys and configurations once, `site NAME` runs a site.

`site` gives each of its links the rate of the overlay's file by tc, and the latency too where the kernel has netem;
where it has not, the latency is made from outside (docker/demo.py). Then it runs the daemon and the training script
until both have ended. SIGTERM (`docker stop`) and SIGINT leave the run after the running round.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from chaos_lab import rules
from chaos_lab.errors import LabError
from chaos_lab.facilities import tool
from chaos_lab.running import configuration, status_of
from chaos_lab.scenario import LinkSpec, Scenario, load_scenario
from chaosd.api.client import LocalClient
from chaosd.identity import KEY_FILE, Identity

HERE = Path(__file__).resolve().parent
OVERLAY = Path(os.environ.get("CHAOS_OVERLAY", HERE / "six.toml"))
SITES, SITE = Path("/sites"), Path("/site")
PORT = 7400
START_TIMEOUT_S = 60.0
LOOK_S = 0.2


def setup(overlay: Scenario, folder: Path) -> None:
    """A key and a configuration for every site, which trusts all others and peers with its neighbours; keys that are
    there stay."""
    ids = {}
    for site in overlay.sites:
        home = folder / site.name
        home.mkdir(parents=True, exist_ok=True)
        known = (home / KEY_FILE).exists()
        ids[site.name] = (Identity.load if known else Identity.create)(home).site
    for number, site in enumerate(overlay.sites):
        near = [link.between for link in overlay.links if site.name in link.between]
        far = [other for pair in near for other in pair if other != site.name]
        text = configuration(
            name=site.name,
            run=overlay.name,
            data_dir=Path("."),
            listen=f"0.0.0.0:{PORT}",
            bootstrap=number == 0,
            trust=ids.values(),
            peers=[(ids[other], f"{other}:{PORT}") for other in far],
            start_sites=overlay.start_sites or sum(one.start for one in overlay.sites),
            failure_timeout_s=overlay.failure_timeout_s,
            extra=[f'advertise = "{site.name}:{PORT}"'],
        )
        (folder / site.name / "chaosd.toml").write_text(text, encoding="utf-8")
        print(f"{site.name}: {ids[site.name]}")


def shape(overlay: Scenario, name: str) -> None:
    """Rates of this site's links, and latencies where the kernel can. Raises LabError."""
    from compose import address  # beside this file

    devices = {words[3].partition("/")[0]: words[1] for words in map(str.split, _addresses())}
    for link in overlay.links:
        if name not in link.between:
            continue
        device = devices[address(overlay, link, name)]
        rate_mbit = math.inf if link.rate_mbit is None else link.rate_mbit
        far = link.between[1 - link.between.index(name)]
        print(f"link to {far}: {link.rate_mbit or 'any'} Mbit/s, {_set(device, rate_mbit, link)}", flush=True)


def _addresses() -> list[str]:
    return tool("ip", "-o", "-4", "addr", "show").splitlines()


def _set(device: str, rate_mbit: float, link: LinkSpec) -> str:
    try:
        tool("tc", "-batch", "-", text=rules.netem(device, rate_mbit, link.latency_ms, link.loss))
    except LabError:
        tool("tc", "-batch", "-", text=rules.limit(device, rate_mbit))
        return "latency from outside (this kernel has no netem)"
    return f"{link.latency_ms:g} ms by netem"


def run(overlay: Scenario, name: str) -> int:
    """Daemon and training script, until both have ended. Returns 0 when both ended well."""
    site = next((one for one in overlay.sites if one.name == name), None)
    if site is None:
        raise LabError(f"there is no site '{name}' in {OVERLAY}")
    if not (SITE / "chaosd.toml").exists():
        raise LabError(f"{SITE}/chaosd.toml is missing: run the service `setup` first")
    shape(overlay, name)
    values = {"name": name, "socket": str(SITE / "worker.sock"), "report": str(SITE / "report.json"),
              "until": str(SITE / "until"), **site.values}  # fmt: skip
    daemon = subprocess.Popen([sys.executable, "-m", "chaos_lab.daemon", "--config", str(SITE / "chaosd.toml")])
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: asked.append(number))
    worker = None
    if _answers(daemon, asked):
        arguments = [argument.format(**values) for argument in overlay.worker.arguments]
        worker = subprocess.Popen([sys.executable, str(overlay.worker.script), *arguments])
    running = [process for process in (worker, daemon) if process is not None]
    told: set[int] = set()  # once each: a second signal forces a daemon, and the others take that for a failure
    while any(process.poll() is None for process in running):
        if asked and running[0].pid not in told:
            told.add(running[0].pid)
            running[0].send_signal(signal.SIGINT)  # the script leaves, and its daemon ends with it (exit_with_worker)
        if running[0].poll() not in (None, 0) and daemon.poll() is None and daemon.pid not in told:
            told.add(daemon.pid)
            daemon.send_signal(signal.SIGINT)  # a script that failed: this site has nothing to give
        time.sleep(LOOK_S)
    return max(abs(process.wait()) for process in running)


def _answers(daemon: subprocess.Popen[bytes], asked: list[int]) -> bool:
    """True when the daemon's local API answers."""
    client, end_s = LocalClient(SITE / "api.sock"), time.monotonic() + START_TIMEOUT_S
    while daemon.poll() is None and not asked and time.monotonic() < end_s:
        if status_of(client) is not None:
            return True
        time.sleep(0.05)
    return False


def main() -> int:
    try:
        overlay = load_scenario(OVERLAY)
        match sys.argv[1:]:
            case ["setup"]:
                setup(overlay, SITES)
            case ["site", name]:
                return run(overlay, name)
            case _:
                print(__doc__)
                return 2
    except (LabError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
