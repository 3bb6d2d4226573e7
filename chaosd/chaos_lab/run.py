"""One run of a scenario, from start to verdict."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

from chaos_lab.actions import Script
from chaos_lab.children import ended_by_signals
from chaos_lab.choice import Choice, open_network
from chaos_lab.network import Redraws
from chaos_lab.processes import Processes
from chaos_lab.report import RunVerdict, judge, show
from chaos_lab.scenario import Scenario
from chaos_lab.table import Screen
from chaos_lab.watching import Watch
from chaosd.api.client import NoDaemonError, RequestRefusedError

LOOK_S = 0.1
PAGE_WAIT_S = 20.0


def run_scenario(
    scenario: Scenario,
    console: Console,
    *,
    plain: bool,
    keep: bool,
    network: Choice = "auto",
    scale: float = 1.0,
    page: bool = False,
) -> RunVerdict:
    """Start the sites, carry the script out, let the members end in one common round, judge. `page`: say where the live
    page of the first site is. Raises LabError when it cannot go on; leaves nothing behind in any case."""
    with (
        ended_by_signals(),
        open_network(scenario, network, scale=scale) as links,
        Processes(scenario, keep=keep, network=links) as processes,
    ):
        console.print(Text(f"network: {links.described}"), soft_wrap=True)
        if keep:
            console.print(f"logs and configurations: {processes.folder}")
        redraws = Redraws(links, scenario.redraw)
        redraws.step(time.monotonic())
        for site in processes.sites.values():
            if site.spec.start:
                processes.start(site)
        if page:
            _tell_page(processes, console)
        watch = Watch(processes)
        script = Script(processes, watch)
        try:
            with Screen(watch, console, plain=plain) as screen:
                while not script.done:
                    _look(watch, screen)
                    script.step()
                    redraws.step(time.monotonic())
                _end_together(processes, watch, screen)
        finally:
            script.close()
        verdict = judge(watch)
        show(watch, verdict, console)
        return verdict


def _tell_page(processes: Processes, console: Console) -> None:
    """The address lets one browser in, once, within two minutes. A site in a network namespace of its own has its page
    there, where no browser is."""
    site = next(site for site in processes.sites.values() if site.spec.start)
    if processes.network.kind == "namespaces":
        console.print("no live page: the sites are in network namespaces; `--network shaped` has one")
        return
    try:
        site.await_daemon(PAGE_WAIT_S)
        console.print(f"live page of {site.name}: {site.client.page().url}", soft_wrap=True, highlight=False)
    except (NoDaemonError, RequestRefusedError) as error:
        console.print(f"no live page: {error}")


def _look(watch: Watch, screen: Screen) -> None:
    begun_s = time.monotonic()
    watch.processes.network.check()
    watch.look()
    screen.show()
    time.sleep(max(0.0, LOOK_S - (time.monotonic() - begun_s)))


def _end_together(processes: Processes, watch: Watch, screen: Screen) -> None:
    """All members stop after the same round, so that their final models can be compared bit for bit."""
    last = watch.round + processes.scenario.last_rounds
    fresh = Path(f"{processes.until}.new")
    fresh.write_text(str(last), encoding="utf-8")
    fresh.replace(processes.until)
    members = [site for site in processes.sites.values() if site.expected]
    for site in members:
        site.expected = False
    while any(site.daemon_runs() or (site.worker is not None and site.worker.poll() is None) for site in members):
        _look(watch, screen)
