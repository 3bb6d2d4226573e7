"""How a status and an event look to a person: rich tables and plain lines. Used by `status`, `events` and the lab.

Names and reasons may come from other sites: they are shown as text, never as markup or terminal commands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from chaos_protocols.names import short
from chaos_protocols.wire.encodings import FP32
from chaosd.api.status import (
    AveragingStatus,
    BoundsStatus,
    EventRecord,
    LinkStatus,
    LoggedFigure,
    SiteSummary,
    Status,
    StorageStatus,
    TransferStatus,
)

UNKNOWN = "–"
OLD_S = 2.0
"""What a site said longer ago is shown with its age."""
WIDEST = 1000
"""Columns within which a table is measured that is to be on lines of its own."""
AT_BLANKS = frozenset({"phase"})
"""What goes on in a second line while the rest has room: "compute, 0:01:15 ago"."""
BROKEN = AT_BLANKS | {"site", "address"}
"""What is broken anywhere where a terminal is too narrow for all."""
REFUSED_SHOWN_MAX = 5
"""The others are in `chaosd status --json`."""
STATE_STYLES = {"member": "green", "learner": "cyan", "joining": "cyan", "leaving": "yellow", "removed": "red"}


def printable(text: str) -> str:
    """`text` without anything that a terminal would obey."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def rate_text(rate_bytes_per_s: float | None) -> str:
    return UNKNOWN if rate_bytes_per_s is None else f"{rate_bytes_per_s * 8 / 1e6:,.1f} Mbit/s"


def moment(unix_s: float, form: str = "%H:%M:%S") -> str:
    """The time of day here, after the date where that is not today's: a run lasts for weeks."""
    at = datetime.fromtimestamp(unix_s)
    return at.strftime(form if at.date() == datetime.now().date() else f"%Y-%m-%d {form}")


def event_line(record: EventRecord) -> str:
    """One event on one line: time, kind, outcome, duration, epoch, round, subject, cause and reason."""
    at = moment(record.at_unix_s, "%H:%M:%S.%f")[:-3]
    duration = "" if record.duration_s is None else f"{record.duration_s:.3f} s"
    words = [printable(word) for word in (record.subject, record.cause, record.reason) if word]
    position = f"epoch {record.epoch:<4d} round {record.round:<6d}"
    kind, outcome = printable(record.kind), printable(record.outcome)
    return f"{at}  {kind:<15s} {outcome:<8s} {duration:>10s}  {position} {' · '.join(words)}".rstrip()


def render_status(status: Status) -> RenderableType:
    """The whole status as a person wants to see it, most important first."""
    names = _names(status)
    parts: list[RenderableType] = [_headline(status, names)]
    if status.paused:
        parts.append(_paused(status))
    parts += [Text(line, style="yellow") for line in _absent(status)]
    if status.sites:
        parts.append(_Sites(status))
    if status.links:
        parts.append(_links(status.links, names))
        parts += [Text(printable(link.why), style="red") for link in status.links if link.why]
    parts += _rounds(status, names)
    parts.append(_worker(status))
    for refused in status.refused[:REFUSED_SHOWN_MAX]:
        told = f"refused {refused.site} {_duration(refused.ago_s)} ago: {printable(refused.reason)}"
        parts.append(Text(told, style="yellow"))
    parts += [Text(printable(told), style="yellow") for told in status.recovered if told not in status.paused]
    if status.blocked:
        told = ", ".join(names.get(site, short(site)) for site in status.blocked)
        parts.append(Text(f"blocked by this site's operator: {told} (`chaosd unblock SITE`)", style="yellow"))
    if status.send_limit_bytes_per_s:
        parts.append(
            Text(f"this site sends at most {status.send_limit_bytes_per_s * 8e-6:,g} Mbit/s (send_limit_mbit)")
        )
    if status.probing is not None and (status.probing.probes or status.probing.saved):
        cost = status.probing
        parts.append(
            Text(
                f"links measured: {cost.probes} by probes ({cost.bytes / 2**20:,.1f} MiB, {cost.seconds:.1f} s), "
                f"{cost.saved} by what they carried anyway",
                style="dim",
            )
        )
    if status.worker.figures:
        parts.append(Text(logged_text(status.worker.figures)))
    if status.storage is not None:
        parts.append(Text(_storage(status.storage), style="dim"))
    if status.transfer is not None:
        parts.append(_transfer(status.transfer, names))
    return Group(*parts)


def logged_text(figures: Sequence[LoggedFigure]) -> str:
    """What the script logs; there is something."""
    told = ", ".join(f"{one.name} {_figure(one.value)}" for one in figures)
    return f"the script logs: {told} (round {max(one.round for one in figures)})"


def _figure(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.6g}"


def _named(text: str, names: dict[str, str]) -> str:
    """`text` with the names of the sites whose ids stand in it."""
    for site, name in names.items():
        text = text.replace(site, name)
    return text


def _rounds(status: Status, names: dict[str, str]) -> list[Text]:
    """How the rounds are averaged, and what may be given to them."""
    lines = []
    if status.averaging is not None and len(status.sites) > 1:
        lines.append(Text(_named(_averaging(status.averaging), names), style="dim"))
    if status.bounds is not None:
        lines.append(Text(_bounds(status.bounds), style="yellow" if status.bounds.void_rounds else "dim"))
    return lines


def _averaging(averaging: AveragingStatus) -> str:
    trees = "one tree" if averaging.trees == 1 else f"{averaging.trees} trees"
    told = f"averaged along {trees}, {rate_text(averaging.rate_bytes_per_s)}"
    if averaging.encoding != FP32:
        told += f", in {printable(averaging.encoding)}"
        if averaging.relative_error is not None:
            told += f" (relative error {averaging.relative_error:.2g}{_errors(averaging)})"
    if averaging.predicted_s is not None:
        told += f": {averaging.predicted_s:.3f} s predicted"
    if averaging.took_s is not None:
        told += f", {averaging.took_s:.3f} s taken since this site gave its part"
    return f"{told} ({printable(averaging.reason)})"


def _errors(averaging: AveragingStatus) -> str:
    """Of the other sites, where any says its own."""
    if averaging.mean_error is None or averaging.worst_error is None or averaging.errors_known < 2:
        return ""
    told = f"; mean {averaging.mean_error:.2g} of {averaging.errors_known} sites"
    return f"{told}, worst {averaging.worst_error:.2g} at {averaging.worst_site}"


def _bounds(bounds: BoundsStatus) -> str:
    """What may be given, and what came of it."""
    norm = f"norm {bounds.norm_max:g}" if bounds.norm_max else "any norm"
    weight = f"weight {bounds.weight_max:g}" if bounds.weight_max else "any weight"
    told = f"a site gives at most {norm} and {weight}: {bounds.clipped_rounds:,} parts of this site were clipped"
    if bounds.clip_radius:
        told += f", {bounds.drawn_in_rounds:,} drawn in to {bounds.clip_radius:g} from the last result"
        told += f" (the last was {bounds.away:.4g} away)" if bounds.away else ""
    return told + (f"; {bounds.void_rounds:,} results were too long, and applied nowhere" if bounds.void_rounds else "")


def _storage(storage: StorageStatus) -> str:
    where = f"data: {printable(storage.folder)}, {storage.bytes / 2**20:,.1f} MiB"
    if storage.interval_s is None:
        return f"{where}; no checkpoints are written (checkpoint = off)"
    fails = storage.checkpoint_failure
    failed = f"; the last try failed: {printable(fails)}" if fails else ""
    if storage.checkpoint_round is None:
        return f"{where}; no checkpoint yet{failed}"
    often = f", one every {storage.interval_s:,.0f} s" if storage.interval_s else ""
    return f"{where}; newest of {storage.checkpoints} checkpoints: round {storage.checkpoint_round}{often}{failed}"


def _paused(status: Status) -> Text:
    text = Text(f"paused: {printable(status.paused)}", style="bold yellow")
    if status.paused_for:
        text.append(f"\nwaits for {printable(status.paused_for)}, for {_duration(status.paused_s)}", style="yellow")
    if status.paused_remedy:
        text.append(f"\nwhat to do: {printable(status.paused_remedy)}", style="yellow")
    if status.paused_for:  # a line of its own: a command that is broken over two cannot be copied
        told = f"\nmore: `chaosd help when-something-stands`, at {printable(status.paused_cause)}"
        text.append(told, style="yellow")
    return text


def _headline(status: Status, names: dict[str, str]) -> Text:
    scheduler = UNKNOWN if status.scheduler is None else names.get(status.scheduler, short(status.scheduler))
    pace = "" if status.round_s is None else f" ({status.round_s:.3f} s each)"
    text = Text()
    text.append(printable(status.name) or short(status.site), style="bold")
    text.append(f" {short(status.site)} in run {printable(status.run)}: ")
    text.append(printable(status.state), style=STATE_STYLES.get(status.state, "bold"))
    if release := _common_release(status):
        text.append(f", all of release {release}")
    text.append(
        f"\nepoch {status.epoch}  term {status.term}  round {status.round}{pace}  scheduler {scheduler}"
        f"\nresult {printable(status.result_digest)[:12] or UNKNOWN}  up {_duration(status.uptime_s)}"
    )
    if status.outside:
        text.append(f"\n{printable(status.outside)}", style="yellow")
    return text


def _names(status: Status) -> dict[str, str]:
    """By id; with the beginning of the id where another site of the run has that name, too."""
    often = Counter(site.name for site in status.sites)
    alone = {site.site: printable(site.name) or short(site.site) for site in status.sites}
    twins = {
        site.site: f"{alone[site.site]} ({short(site.site)})"
        for site in status.sites
        if site.name and often[site.name] > 1
    }
    return {site: printable(name) for site, name in status.called.items()} | alone | twins


class _Sites:
    """Each site on one line. Where its address has no room there (an outer name, IPv6) all stand below, whole: one that
    is broken over lines cannot be copied."""

    def __init__(self, status: Status) -> None:
        self._status = status

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        whole = self._table(addresses=True)
        if Measurement.get(console, options.update(max_width=WIDEST), whole).minimum <= options.max_width:
            yield whole
            return
        yield self._table(addresses=False)
        names = _names(self._status)
        below = Table(*_columns("site", "address", folded=BROKEN), box=SIMPLE_HEAD, pad_edge=False)
        for site in self._status.sites:
            below.add_row(Text(names[site.site]), Text(printable(site.address) or UNKNOWN))
        yield below

    def _table(self, *, addresses: bool) -> Table:
        """The scheduler and a release that all have stand above."""
        status, known = self._status, any(site.software for site in self._status.sites)
        titles = ["site", "id", "address", "state", "vote", "round", "phase", "release"]
        left_out = {"" if addresses else "address", "release" if not known or _common_release(status) else ""}
        shown = [at for at, title in enumerate(titles) if title not in left_out]
        folded = AT_BLANKS if addresses else BROKEN
        table = Table(*_columns(*(titles[at] for at in shown), folded=folded), box=SIMPLE_HEAD, pad_edge=False)
        for site in status.sites:
            cells = _site_cells(site, status)
            table.add_row(*(cells[at] for at in shown), style="bold" if site.site == status.site else "")
        for column in table.columns:  # by itself a column is taken to have room if its longest word has
            if column.no_wrap or addresses:
                lines = (line for cell in column.cells if isinstance(cell, Text) for line in cell.split(", "))
                column.min_width = max((line.cell_len for line in lines), default=0)
        return table


def _columns(*titles: str, folded: frozenset[str]) -> list[Column]:
    """What is not folded stays whole: half a word would name another thing."""
    return [Column(one, no_wrap=one not in folded, overflow="fold" if one in folded else "ignore") for one in titles]


def _common_release(status: Status) -> str:
    """That all sites are of, this one among them, as far as anybody says it; else empty. What this site is of stands
    nowhere while it is outside."""
    releases = {site.software for site in status.sites}
    here = any(site.site == status.site for site in status.sites)
    return printable(releases.pop()) if here and len(releases) == 1 else ""


def _site_cells(site: SiteSummary, status: Status) -> list[Text]:
    name = printable(site.name) + (" (this)" if site.site == status.site else "")
    return [
        Text(name),
        Text(short(site.site)),
        Text(printable(site.address)),
        Text(printable(site.state), style=STATE_STYLES.get(site.state, "")),
        Text("yes" if site.voter else "no"),
        Text(UNKNOWN if site.round is None else str(site.round), justify="right"),
        _phase(site),
        Text(printable(site.software or UNKNOWN)),
    ]


def _phase(site: SiteSummary) -> Text:
    """What its worker does, or did when the site was last heard of."""
    phase = printable(site.phase or UNKNOWN)
    if site.age_s is None or site.age_s <= OLD_S:
        return Text(phase)
    return Text(f"{phase}, {_duration(site.age_s)} ago", style="yellow")


def _absent(status: Status) -> list[str]:
    """Whom a round waits for, and who counts with weight 0 though its worker has the state."""
    lines = [
        f"waits for {printable(one.name)}: {one.seconds:.0f} s without its part of round {status.round + 1}"
        + (f"; {printable(one.reason)}" if one.reason else "")
        for one in status.waits_for
    ]
    for one in status.resting:
        lines.append(f"weight 0: {printable(one.name)} for {one.seconds:.0f} s: {printable(one.reason)}")
    return [*lines, f"weight 0: this site: {printable(status.skips)}"] if status.skips else lines


def _links(links: tuple[LinkStatus, ...], names: dict[str, str]) -> Table:
    table = Table("link", "rate", "round trip", "up", box=SIMPLE_HEAD, pad_edge=False)
    for link in links:
        ends = f"{names.get(link.one, short(link.one))} <-> {names.get(link.other, short(link.other))}"
        up = {None: Text(UNKNOWN), True: Text("up", style="green"), False: Text("down", style="red")}[link.up]
        rtt = UNKNOWN if link.rtt_s is None else f"{link.rtt_s * 1e3:.1f} ms"
        rate = Text(rate_text(link.rate_bytes_per_s), justify="right")
        table.add_row(Text(ends), rate, Text(rtt, justify="right"), up)
    return table


def _worker(status: Status) -> Text:
    worker = status.worker
    if not worker.connected:
        return Text(
            "worker: none connected (start the training script; one that runs has yet to call register)", style="yellow"
        )
    at = UNKNOWN if worker.round is None else str(worker.round)
    return Text(f"worker: pid {worker.pid or UNKNOWN}, round {at}, phase {printable(worker.phase or UNKNOWN)}")


def _transfer(transfer: TransferStatus, names: dict[str, str]) -> Table:
    table = Table.grid(padding=(0, 1))
    done, whole = transfer.verified_bytes, transfer.total_bytes
    amount = f"{done / 2**20:,.1f} of {whole / 2**20:,.1f} MiB"
    rate = sum(transfer.rate_of_source.values())
    if rate > 0 and done < whole:
        amount += f", {rate_text(rate)}, {(whole - done) / rate:,.0f} s left"
    bar = ProgressBar(total=max(whole, 1), completed=done, width=30)
    table.add_row(Text(f"state of round {transfer.round}"), bar, Text(amount))
    for site, seen in sorted(transfer.rate_of_source.items()):
        amount = f"{transfer.bytes_of_source.get(site, 0) / 2**20:,.1f} MiB, {rate_text(seen)}"
        table.add_row(Text(f"  from {names.get(site, short(site))}"), Text(""), Text(amount))
    return table


def _duration(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
