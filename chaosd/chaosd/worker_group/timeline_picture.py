"""A picture (SVG) of what workers did when, beside what the planner expected: rows of bars over seconds. Pure.

It reads well on light and dark backgrounds, since it brings its own, and stays small: bars of a kind are one path a
lane, and what is narrower than can be seen is left out where there is much of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT = 1000, 164, 24
PLOT = WIDTH - LEFT - RIGHT
ROW, EXPECTED_Y, EXPECTED_HEIGHT, DONE_Y, DONE_HEIGHT = 36, 4, 7, 14, 15
LINE = 15
ROWS_MAX = 64
BARS_MAX = 1000
"""Of a lane; beyond, bars below `SEEN_PX` are left out."""
SEEN_PX = 0.25
LABEL_PX = 13.0
"""A pass that is at least so wide bears the number of its micro-batch."""
CHARACTERS_MAX = 150
ROW_CHARACTERS_MAX = 24
MARK_CHARACTERS_MAX = 84

KINDS = {
    "forward": "forward pass",
    "backward": "backward pass",
    "reduce": "sums of gradients",
    "update": "update",
    "waiting": "waiting",
    "building": "groups, and state that moves",
}
STYLE = """
text{font:11px sans-serif;fill:#333}.n{font-size:8px;fill:#fff;text-anchor:middle}.h{font-size:14px;font-weight:bold}
.w{font-weight:bold}.e{text-anchor:end}.m{text-anchor:middle}.bg{fill:#fff}.g{stroke:#ddd}.k{stroke:#c22;stroke-width:1}
.mt{paint-order:stroke;stroke:#fff;stroke-width:4px}.x{stroke:#c22;stroke-width:2.5}.p{opacity:.45}
.forward{fill:#3b7dc4}.backward{fill:#c8701a}.reduce{fill:#8e5cc4}.update{fill:#2f9e6e}.waiting{fill:#bbb}
.building{fill:#b5475f}
@media (prefers-color-scheme:dark){text{fill:#ddd}.bg{fill:#1b1e22}.g{stroke:#3a3f45}.mt{stroke:#1b1e22}
.waiting{fill:#667}.k,.x{stroke:#f66}.n{fill:#fff}}
""".replace("\n", "")


@dataclass(frozen=True, slots=True)
class Bar:
    """`kind`: of `KINDS`; seconds from the panel's beginning."""

    kind: str
    start_s: float
    end_s: float
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A worker. `lost_s`: when it was seen dead or hanging."""

    name: str
    layers: str
    expected: Sequence[Bar]
    done: Sequence[Bar]
    lost_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """`marks`: moments with their text, in order."""

    title: str
    lines: Sequence[str]
    length_s: float
    rows: Sequence[Row]
    marks: Sequence[tuple[float, str]] = ()


def picture(title: str, panels: Sequence[Panel]) -> str:
    """The whole file."""
    parts: list[str] = []
    y = 28.0
    parts.append(_text(16, y, title, "h"))
    y = _legend(parts, y + 20)
    for panel in panels:
        y = _panel(parts, panel, y + 30)
    height = math.ceil(y + 16)
    name = escape(title, {'"': "&quot;"})
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{name}"><title>{escape(title)}</title><style>{STYLE}</style>'
        f'<rect class="bg" width="{WIDTH}" height="{height}"/>'
    )
    return head + "\n" + "\n".join(parts) + "\n</svg>\n"


def _legend(parts: list[str], y: float) -> float:
    x = 16.0
    for kind, words in KINDS.items():
        thin = kind == "waiting"
        parts.append(
            f'<rect class="{kind}" x="{x:g}" y="{y - (5 if thin else 9):g}" width="16" height="{3 if thin else 10}"/>'
        )
        parts.append(_text(x + 21, y, words))
        x += 21 + 6.3 * len(words) + 18
    y += LINE + 3
    parts.append(_cross(24, y - 4))
    parts.append(_text(37, y, "lost: what it did in the step in which it died, a worker cannot tell"))
    y += LINE + 3
    parts.append(_text(16, y, "Of each worker: above, thin and pale, what the planner expects on devices that share "
                       "nothing; below, what it did. Numbers: micro-batches."))  # fmt: skip
    return y


def _panel(parts: list[str], panel: Panel, y: float) -> float:
    """Where it ends."""
    parts.append(_text(16, y, panel.title, "h"))
    for line in panel.lines:
        y += LINE
        parts.append(_text(16, y, line))
    rows = panel.rows[:ROWS_MAX]
    top = y + 8
    begin = top + LINE * len(panel.marks) + (6 if panel.marks else 0)
    bottom = begin + ROW * len(rows)
    scale = PLOT / max(panel.length_s, 1e-9)
    y = _axis(parts, panel.length_s, begin, bottom)
    for number, row in enumerate(rows):
        _row(parts, row, begin + ROW * number, scale)
    _marks(parts, panel.marks, top, bottom, scale)
    if len(panel.rows) > len(rows):
        y += LINE
        parts.append(_text(16, y, f"and {len(panel.rows) - len(rows)} workers more, which are not drawn"))
    return y


def _row(parts: list[str], row: Row, y: float, scale: float) -> None:
    parts.append(_text(16, y + 14, row.name, "w"))
    parts.append(_text(16, y + 28, row.layers[:ROW_CHARACTERS_MAX]))
    parts.append('<g class="p">' + _bars(row.expected, y + EXPECTED_Y, EXPECTED_HEIGHT, scale) + "</g>")
    parts.append(_bars(row.done, y + DONE_Y, DONE_HEIGHT, scale))
    for bar in row.done:
        if bar.label and (bar.end_s - bar.start_s) * scale >= LABEL_PX:
            middle = LEFT + (bar.start_s + bar.end_s) / 2 * scale
            parts.append(f'<text class="n" x="{middle:.1f}" y="{y + DONE_Y + 10.5:g}">{escape(bar.label)}</text>')
    if row.lost_s is not None:
        parts.append(_cross(LEFT + row.lost_s * scale, y + DONE_Y + DONE_HEIGHT / 2))


def _bars(bars: Sequence[Bar], y: float, height: float, scale: float) -> str:
    """A path for each kind."""
    least = SEEN_PX if len(bars) > BARS_MAX else 0.02
    found: dict[str, list[str]] = {}
    for bar in bars:
        x, width = LEFT + bar.start_s * scale, (bar.end_s - bar.start_s) * scale
        if width >= least:
            thin = bar.kind == "waiting"
            at, high = (y + height / 2 - 1.5, 3.0) if thin else (y, height)
            gap = 0.5 if width > 3 and not thin else 0.0  # so that two passes of a kind are seen as two
            found.setdefault(bar.kind, []).append(f"M{x:.1f} {at:g}h{width - gap:.2f}v{high:g}h-{width - gap:.2f}z")
    return "".join(f'<path class="{kind}" d="{"".join(each)}"/>' for kind, each in found.items())


def _marks(parts: list[str], marks: Sequence[tuple[float, str]], top: float, bottom: float, scale: float) -> None:
    """Each text has a line of its own, so that moments of one millisecond are read as well."""
    at = [LEFT + at_s * scale for at_s, _ in marks]
    for number, x in enumerate(at):
        parts.append(f'<path class="k" d="M{x:.1f} {top + LINE * number + 3:g}V{bottom:g}"/>')
    for number, (x, (_, text)) in enumerate(zip(at, marks, strict=True)):
        shown = text if len(text) <= MARK_CHARACTERS_MAX else text[: MARK_CHARACTERS_MAX - 3] + "..."
        left = x < LEFT + PLOT / 2
        kind = "mt" if left else "mt e"
        parts.append(_text(x + (4 if left else -4), top + LINE * number + 11, shown, kind))


def _axis(parts: list[str], length_s: float, top: float, bottom: float) -> float:
    parts.append(f'<path class="g" d="M{LEFT} {bottom:g}h{PLOT}"/>')
    step_s, digits = _nice(length_s / 8)
    at_s, number = 0.0, 0
    while at_s <= length_s * 1.0001:
        x = LEFT + at_s * PLOT / max(length_s, 1e-9)
        parts.append(f'<path class="g" d="M{x:.1f} {top:g}V{bottom + 4:g}"/>')
        parts.append(_text(x, bottom + 17, f"{at_s:.{digits}f}", "m"))
        number += 1
        at_s = number * step_s
    parts.append(_text(16, bottom + 17, "seconds"))
    return bottom + 17


def _nice(rough_s: float) -> tuple[float, int]:
    """1, 2 or 5 times a power of ten, and how many digits it needs behind the point."""
    power = math.floor(math.log10(max(rough_s, 1e-9)))
    factor = next(each for each in (1, 2, 5, 10) if each * 10.0**power >= rough_s * 0.9999)
    if factor == 10:
        factor, power = 1, power + 1
    return factor * 10.0**power, max(0, -power)


def _cross(x: float, y: float) -> str:
    return f'<path class="x" d="M{x - 4:.1f} {y - 4:.1f}l8 8m0-8l-8 8"/>'


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    shown = text if len(text) <= CHARACTERS_MAX else text[: CHARACTERS_MAX - 3] + "..."
    name = f' class="{kind}"' if kind else ""
    return f'<text{name} x="{x:.1f}" y="{y:.1f}">{escape(_printable(shown))}</text>'


def _printable(text: Iterable[str]) -> str:
    """Without what XML does not take."""
    return "".join(each if each >= " " and each not in "\ufffe\uffff" and not "\ud800" <= each <= "\udfff" else " "
                   for each in text)  # fmt: skip
