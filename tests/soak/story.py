"""The end of a soak, for people and for programs: the figures when it held, the story when it did not."""

from __future__ import annotations

from typing import Any

from benchmarks.measure import machine

from tests.soak.fire import Fire

FAULTS_SHOWN, EVENTS_SHOWN = 12, 60
Figures = dict[str, Any]


def figures_of(fire: Fire) -> Figures:
    """Everything that was counted and measured."""
    oracles = fire.oracles
    return {
        "faults": len(fire.wounds.all),
        "rounds": fire.round,
        "longest_pause_s": fire.longest_pause_s,
        **fire.wounds.all_heals(),
        "states_compared": oracles.states_compared,
        "states_ambiguous": oracles.states_ambiguous,
        "elections": oracles.elections,
        "wrong_blocks_refused": oracles.wrong_blocks,
        "broken_records_seen": oracles.broken_records,
        "full_disks_that_ended_a_daemon": fire.disk_ends,
        "starts_refused_on_a_full_disk": fire.disk_refusals,
        "workers_that_ended_by_themselves": len(fire.worker_ends),
        "resources": fire.resources.figures(),
        "by_kind": fire.wounds.figures(),
    }


def as_result(figures: Figures, *, seed: int, seconds: float, means: str) -> Figures:
    """One JSON object in the manner of the benchmarks."""
    return {
        "benchmark": "soak", "figures": figures, "machine": machine(), "seed": seed, "seconds": seconds, "means": means,
    }  # fmt: skip


def told(figures: Figures) -> str:
    """The figures as a table."""
    lines = [f"{'fault':22} {'count':>5} {'healed after s':>22} {'next rounds after s':>22}"]
    lines.append(f"{'':22} {'':>5} {'median':>11}{'max':>11} {'median':>11}{'max':>11}")
    for kind, row in figures["by_kind"].items():
        cells = [
            f"{row[key]:11.2f}" if key in row else f"{'':11}"
            for key in ("heal_median_s", "heal_max_s", "pause_median_s", "pause_max_s")
        ]
        lines.append(f"{kind:22} {row['count']:5d} {cells[0]}{cells[1]} {cells[2]}{cells[3]}")
    for key, value in figures.items():
        if not isinstance(value, dict):
            lines.append(f"{key.replace('_', ' '):40} {value if isinstance(value, int) else f'{value:.2f}'}")
    for key, value in figures["resources"].items():
        lines.append(f"{key.replace('_', ' '):40} {f'{value:.1f}' if isinstance(value, float) else value}")
    return "\n".join(lines)


def story(fire: Fire) -> str:
    """What led to a violation: the last faults, every site's state, the last events of all sites, the logs' ends."""
    sites = fire.sites.sites.values()
    for site in sites:
        if site.daemon_runs() and "daemon" not in site.stopped:
            site.ask()
            fire.oracles.heard(site.name, site.news())
    events = fire.oracles.events[-EVENTS_SHOWN:]
    begun_s = events[0][0] if events else 0.0
    parts = [
        "the last faults:",
        *fire.told[-FAULTS_SHOWN:],
        "the sites:",
        *(site.told() for site in sites),
        "ids: " + ", ".join(f"{site.name} {site.identity.site[:8]}" for site in sites),
        "the last events, as they were heard, with the site's own clock:",
        *(
            f"{heard_s - begun_s:6.1f} {event.at_unix_s:.3f} {name}: {event.kind} {event.subject} {event.outcome} "
            f"round {event.round} epoch {event.epoch} ({event.cause}) {event.reason}"
            for heard_s, name, event in events
        ),
        *(site.tail() for site in sites),
    ]
    return "\n".join(parts)
