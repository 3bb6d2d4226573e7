"""One run of a scenario, from start to verdict."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

from chaos_lab.actions import Script
from chaos_lab.children import ended_by_signals
from chaos_lab.choice import Choice, open_network
from chaos_lab.demo_page.server import DemoPage
from chaos_lab.network import Redraws
from chaos_lab.processes import Processes
from chaos_lab.report import RunVerdict, judge, show
from chaos_lab.scenario import Scenario
from chaos_lab.table import Screen
from chaos_lab.watching import Watch

LOOK_S = 0.1


def run_scenario(
    scenario: Scenario,
    console: Console,
    *,
    plain: bool,
    keep: bool,
    network: Choice = "auto",
    scale: float = 1.0,
    page: DemoPage | None = None,
) -> RunVerdict:
    """Start the sites, carry the script out, let the members end in one common round, judge. `page`: who looks at it
    may kill sites and have others join, and the sites train on while somebody looks. Raises LabError when it cannot go
    on; leaves nothing behind in any case."""
    with (
        ended_by_signals(),
        open_network(scenario, network, scale=scale) as links,
        Processes(scenario, keep=keep, network=links) as processes,
    ):
        console.print(Text(f"network: {links.described}"), soft_wrap=True)
        if keep:
            console.print(Text(f"logs and configurations: {processes.folder}"), soft_wrap=True)
        redraws = Redraws(links, scenario.redraw)
        redraws.step(time.monotonic())
        for site in processes.sites.values():
            if site.spec.start:
                processes.start(site)
        if page is not None and processes.network.kind != "namespaces":  # where no browser reaches them
            page.clients = {site.name: site.client for site in processes.sites.values()}
        watch = Watch(processes)
        script = Script(processes, watch)
        try:
            with Screen(watch, console, plain=plain) as screen:
                while not script.done or (page is not None and page.visit.stays(time.monotonic())):
                    _look(watch, screen)
                    script.step()
                    redraws.step(time.monotonic())
                    if page is not None:
                        page.show(page.visit.step(watch, script, viewers=page.viewers))
                if page is not None:
                    page.show_stage("ending")
                _end_together(processes, watch, screen)
        finally:
            script.close()
        verdict = judge(watch)
        show(watch, verdict, console)
        return verdict


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
