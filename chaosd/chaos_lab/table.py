"""The lab's live table: sites, links, and what happened, with durations. Plain lines where the output is no
terminal."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from chaos_lab.site import LabSite
from chaos_lab.watching import QUIET_KINDS, Watch
from chaos_protocols.names import SiteId, short
from chaosd.cli.render import event_line, rate_text

EVENTS_SHOWN = 8
INCIDENTS_SHOWN = 12
TABLE_LINES = 4
"""What a table takes beside its rows."""


class Screen:
    """A context manager; `show` after each look."""

    def __init__(self, watch: Watch, console: Console, *, plain: bool) -> None:
        self._watch, self._console = watch, console
        alive = not plain and console.is_terminal
        # transient: at the end the report's tables take its place
        self._live = Live(console=console, refresh_per_second=4, transient=True) if alive else None
        self._told = 0
        self._incidents_told = 0

    def __enter__(self) -> Screen:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self) -> None:
        if self._live is not None:
            self._live.update(render(self._watch, height=self._console.height))
            return
        events, names = self._watch.events, names_of(self._watch)
        for name, event in events[self._told :]:
            if event.kind not in QUIET_KINDS:
                self._console.print(Text(f"{name}: {named(event_line(event), names)}"), soft_wrap=True)
        self._told = len(events)
        finished = [one for one in self._watch.incidents if one.outcome]
        for one in finished[self._incidents_told :]:
            took = f" ({one.duration_s * 1000:.0f} ms)" if one.duration_s is not None else ""
            self._console.print(Text(f"== {one.at_s:6.1f} s  {one.text}: {one.outcome}{took}"), soft_wrap=True)
        self._incidents_told = len(finished)


def render(watch: Watch, *, height: int = 60) -> RenderableType:
    """Everything at a glance, in at most about `height` lines: of what happened, the newest."""
    sites, names = list(watch.processes.sites.values()), names_of(watch)
    head = Text(f"{watch.processes.scenario.name}: round {watch.round}, {watch.elapsed_s:.0f} s", style="bold")
    head.append(f"  {watch.processes.network.kind} network", style="dim")
    links = _links(watch, names)
    left = height - 2 - (len(sites) + TABLE_LINES) - (links.row_count + TABLE_LINES) - TABLE_LINES
    return Group(head, _sites(sites, names), links, _happened(watch, lines=max(2, left)))


def names_of(watch: Watch) -> dict[str, str]:
    """Site id to name."""
    return {site.identity.site: site.name for site in watch.processes.sites.values()}


def named(line: str, names: dict[str, str]) -> str:
    """`line` with names for ids, whole or short, as people tell the sites of a lab apart."""
    for site, name in names.items():
        line = line.replace(site, name).replace(short(SiteId(site)), name)
    return line


def _sites(sites: list[LabSite], names: dict[str, str]) -> Table:
    table = Table("site", "state", "epoch", "round", "phase", "scheduler", "state transfer", expand=False)
    for site in sites:
        status = site.status
        if status is None:
            state = "not started" if not site.started_once else ("ended" if not site.daemon_runs() else "silent")
            table.add_row(Text(site.spec.label or site.name), Text(state, style="dim"), *[""] * 5)
            continue
        style = "green" if site.trains() else "yellow"
        scheduler = names.get(status.scheduler or "", "none")
        transfer = ""
        if status.transfer is not None:
            done, whole = status.transfer.verified_bytes, max(1, status.transfer.total_bytes)
            transfer = f"{100 * done / whole:.0f} % from {len(status.transfer.rate_of_source)}"
        state = f"{status.state}{' (' + status.paused + ')' if status.paused else ''}"
        table.add_row(
            Text(site.spec.label or site.name),
            Text(state[:60], style=style),
            str(status.epoch),
            str(status.round),
            status.worker.phase or "",
            "*" if scheduler == site.name else scheduler,
            transfer,
        )
    return table


def _links(watch: Watch, names: dict[str, str]) -> Table:
    table = Table("link", "rate", "round trip", "", expand=False)
    seen: dict[tuple[str, str], tuple[float | None, float | None, bool | None]] = {}
    for site in watch.running():
        assert site.status is not None
        for link in site.status.links:
            known = seen.get((link.one, link.other))
            own = site.identity.site in (link.one, link.other)
            if known is None or own:
                seen[link.one, link.other] = (link.rate_bytes_per_s, link.rtt_s, link.up)
    for (one, other), (rate, rtt_s, up) in sorted(seen.items()):
        rtt = "" if rtt_s is None else f"{rtt_s * 1000:.1f} ms"
        ends = f"{names.get(one, one[:8])} - {names.get(other, other[:8])}"
        table.add_row(ends, rate_text(rate), rtt, Text("up", "green") if up else Text("down", "red"))
    return table


def _happened(watch: Watch, *, lines: int) -> RenderableType:
    incidents = watch.incidents[-min(INCIDENTS_SHOWN, max(1, lines // 2)) :]
    events = watch.told_once()[-min(EVENTS_SHOWN, max(1, lines - len(incidents))) :]
    script = Table("at", "script", "took", "seen", expand=False)
    for one in incidents:
        took = "" if one.duration_s is None else f"{one.duration_s * 1000:.0f} ms"
        script.add_row(f"{one.at_s:.1f} s", Text(one.text), took, Text(one.outcome or "..."))
    names = names_of(watch)
    told = [f"{name}: {named(event_line(event), names)}" for name, event in events]
    return Group(script, *(Text(line, no_wrap=True, overflow="ellipsis") for line in told))
