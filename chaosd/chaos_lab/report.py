"""What a lab run has shown: the models, the digests, the timeline; and whether everything held that had to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from chaos_lab.watching import Watch
from chaos_protocols.names import short


@dataclass
class RunVerdict:
    """`failures`: each a sentence about what did not hold; `figures` for programs."""

    failures: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)


class _Report(msgspec.Struct, frozen=True):
    """What is read of the report of a site's script. `state_digests`: by round."""

    rounds: int
    parameters_digest: str
    state_digests: dict[int, str] = {}
    auc_common: float | None = None
    auc_alone: float | None = None
    hospital: str = ""


def _doubtful_report(report: object) -> str:
    """Why a report of a script of one's own says nothing; empty: it does."""
    try:
        found = msgspec.convert(report, _Report, str_keys=True)
    except msgspec.ValidationError as error:
        return str(error)
    return "auc_common without auc_alone" if found.auc_alone is None and found.auc_common is not None else ""


def judge(watch: Watch) -> RunVerdict:
    """Check everything against the sites' own reports and logs."""
    verdict = RunVerdict()
    scenario = watch.processes.scenario
    started = [site for site in watch.processes.sites.values() if site.started_once and not site.killed]
    reports = {site.name: site.report() for site in started}
    written: dict[str, dict[str, Any]] = {}
    for name, report in reports.items():
        if report is None:
            verdict.failures.append(f"{name} has written no report")
        elif doubt := _doubtful_report(report):
            verdict.failures.append(f"the report that {name} has written cannot be used: {doubt}")
        else:
            written[name] = report
    _judge_digests(watch, written, verdict)
    _judge_results(watch, verdict)
    rounds = max((report["rounds"] for report in written.values()), default=0)
    if rounds < scenario.checks.rounds_at_least:
        verdict.failures.append(f"{rounds} rounds were trained; at least {scenario.checks.rounds_at_least} are wanted")
    verdict.figures["rounds"] = rounds
    _judge_events(watch, verdict)
    _judge_models(written, scenario.checks.mean_auc_at_least_alone_minus, verdict)
    verdict.figures |= {
        "network": watch.processes.network.kind,
        "seconds": watch.elapsed_s,
        "reports": written,
        "timeline": [
            {"at_s": one.at_s, "action": one.text, "duration_s": one.duration_s, "outcome": one.outcome}
            for one in watch.incidents
        ],
    }
    return verdict


def _judge_digests(watch: Watch, reports: dict[str, dict[str, Any]], verdict: RunVerdict) -> None:
    """Equal rounds, equal bits: the whole state of every site that reports a round, optimizer included.

    A round is that of an epoch: a site that was cut off or stopped may have completed, from parts that had reached it
    before, a round that the others meanwhile did again without it; it is removed for that and takes their state over.
    States that differ for longer differ in a round of the same epoch too.
    """
    by_round: dict[tuple[int, int | None], dict[str, str]] = {}
    for name, report in reports.items():
        epochs = {entry["round"]: entry["epoch"] for entry in watch.processes.sites[name].rounds()}
        for number, digest in report.get("state_digests", {}).items():
            by_round.setdefault((int(number), epochs.get(int(number))), {})[name] = digest
    compared = [digests for digests in by_round.values() if len(digests) > 1]
    differing = [number for (number, _), digests in by_round.items() if len(set(digests.values())) > 1]
    if differing:
        verdict.failures.append(f"the sites' states differ at the end of round {min(differing)}")
    if len(reports) > 1 and not compared:
        verdict.failures.append("no round's state was reported by two sites: nothing was compared")
    last = max((report["rounds"] for report in reports.values()), default=0)
    final = {name: report["parameters_digest"] for name, report in reports.items() if report["rounds"] == last}
    if len(set(final.values())) > 1:
        verdict.failures.append("the final parameters differ: " + ", ".join(f"{n} {d}" for n, d in final.items()))
    verdict.figures |= {"rounds_compared": len(compared), "final_digests": final}


def _judge_results(watch: Watch, verdict: RunVerdict) -> None:
    """All daemons that completed a round in the same epoch completed it with the same result and the same members."""
    seen: dict[tuple[int, int], tuple[str, str]] = {}
    for site in watch.processes.sites.values():
        for entry in site.rounds():
            key = (entry["round"], entry["epoch"])
            found = (entry["digest"], str(sorted(entry["weights"].items())))
            if seen.setdefault(key, found) != found:
                verdict.failures.append(
                    f"{site.name} has another result of round {key[0]} (epoch {key[1]}) than others"
                )
                return
    verdict.figures["results_compared"] = len(seen)


def _judge_events(watch: Watch, verdict: RunVerdict) -> None:
    _judge_sources(watch, verdict)
    _judge_survivors(watch, verdict)
    _judge_elections(watch, verdict)
    for action in watch.processes.scenario.actions:
        if action.do == "leave" and action.site is not None:
            _judge_leave(watch, action.site, verdict)


def _judge_sources(watch: Watch, verdict: RunVerdict) -> None:
    """A joiner gets its state from as many neighbours as the scenario wants, unless somebody has killed others."""
    scenario = watch.processes.scenario
    if any(one.asked for one in watch.incidents):
        return
    transfers = [event for _, event in watch.events if event.kind == "transfer" and event.outcome == "done"]
    sources = max((event.reason.count(";") for event in transfers), default=0)  # "...; planned from A n; B m"
    wanted = scenario.checks.join_sources_at_least
    if any(action.do == "join" for action in scenario.actions) and sources < wanted:
        verdict.failures.append(f"a joiner got its state from {sources} neighbours at most; {wanted} are wanted")


def _judge_survivors(watch: Watch, verdict: RunVerdict) -> None:
    """After each incident the others complete a round within the time that the scenario gives them."""
    limit_s = watch.processes.scenario.checks.survivors_go_on_within_s
    for one in watch.incidents:
        slow = limit_s is not None and not one.asked and one.duration_s is not None and one.duration_s > limit_s
        if slow and "next round" in one.outcome:
            verdict.failures.append(f"{one.text}: the others went on after {one.duration_s:.2f} s, not {limit_s:g} s")


def _judge_elections(watch: Watch, verdict: RunVerdict) -> None:
    end = verdict.figures["rounds"]  # at the end the scheduler leaves too, and hands its role over: no fault
    elections = [event for _, event in watch.events if event.kind == "election" and event.outcome == "done"]
    won = {event.reason for event in elections if event.round < end}
    verdict.figures["elections"] = len(won)
    most = watch.processes.scenario.checks.elections_at_most
    if most is not None and len(won) > most:
        verdict.failures.append(f"{len(won)} elections were won; at most {most} are allowed")


def _judge_leave(watch: Watch, name: str, verdict: RunVerdict) -> None:
    """A graceful leave is not taken for a failure, unless the site was killed or stopped as well."""
    leaver = {name, short(watch.processes.sites[name].identity.site)}
    if any(other.do in ("kill", "stop") and other.site == name for other in watch.processes.scenario.actions):
        return
    if any(one.asked == name for one in watch.incidents):
        return
    for _, event in watch.events:
        if event.kind == "scale-in" and event.subject in leaver and "links are down" in event.cause:
            verdict.failures.append(f"the graceful leave of {name} was recorded as a failure")


def _judge_models(reports: dict[str, dict[str, Any]], margin: float | None, verdict: RunVerdict) -> None:
    if margin is None:
        return
    scored = [report for report in reports.values() if report.get("auc_common") is not None]
    if not scored:
        verdict.failures.append("no report has auc_common and auc_alone: no models were compared")
        return
    common = sum(report["auc_common"] for report in scored) / len(scored)
    alone = sum(report["auc_alone"] for report in scored) / len(scored)
    verdict.figures |= {"mean_auc_common": common, "mean_auc_alone": alone}
    if not common >= alone - margin:  # what is no number is no good model
        verdict.failures.append(
            f"the common model's mean AUC is {common:.3f}, that of models trained alone {alone:.3f}"
        )


def show(watch: Watch, verdict: RunVerdict, console: Console) -> None:
    """The end of a run, for people."""
    timeline = Table("at", "what", "took", "seen", title="What happened")
    for one in watch.incidents:
        took = "" if one.duration_s is None else f"{one.duration_s * 1000:,.0f} ms"
        timeline.add_row(f"{one.at_s:.1f} s", Text(one.text), took, Text(one.outcome))
    if watch.incidents:
        console.print(timeline)
    console.print(Text(f"Network: {watch.processes.network.described}."))
    _show_models(verdict, console)
    console.print(
        Text(
            f"{verdict.figures['rounds']} rounds in {verdict.figures['seconds']:.0f} s; states compared after "
            f"{verdict.figures['rounds_compared']} rounds, results of {verdict.figures['results_compared']}."
        )
    )
    for failure in verdict.failures:
        console.print(Text(f"FAILED: {failure}", style="bold red"))
    if not verdict.failures:
        console.print(Text("Everything held.", style="bold green"))


def _show_models(verdict: RunVerdict, console: Console) -> None:
    reports: dict[str, dict[str, Any]] = verdict.figures["reports"]
    if not any(report.get("auc_common") is not None for report in reports.values()):
        return
    table = Table(
        "site", "common model", "trained alone", "last round", "parameter digest", title="Area under the ROC curve"
    )
    for name, report in reports.items():
        if report.get("auc_common") is None:
            continue
        common, alone = f"{report['auc_common']:.3f}", f"{report['auc_alone']:.3f}"
        label = report.get("hospital", name)
        table.add_row(Text(label), common, alone, str(report["rounds"]), Text(report["parameters_digest"][:16]))
    console.print(table)
