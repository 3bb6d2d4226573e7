"""How the daemon's log looks: lines for people, or one JSON object a line for programs (`log_format`).

An entry of the event history carries its fields in the object, `event_id` among them: the id of the fact that caused
it, which `chaosd events` shows too and which the messages that followed carry to the other sites. So event, decision
and effect can be put together over the logs of several sites.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import msgspec

TEXT = "%(asctime)s %(levelname)-7s %(message)s"
RECORD_ATTRIBUTE = "history"
"""The attribute of a log record that holds the fields of the entry which it tells of."""


TOLD_MAX = 4000
"""Characters of a line. Names, reasons and addresses in it may come from other sites."""


class ForTerminals(logging.Filter):
    """Nothing that a terminal would obey, or that looks like another line, gets into the log: every handler has this
    filter. What a record says is put together here, once; the traceback of an error stays as it is."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = shown(record.getMessage()), None
        return True


def shown(text: str) -> str:
    """As `marked` shows it; cut at TOLD_MAX."""
    return marked(text) if len(text) <= TOLD_MAX else f"{marked(text[:TOLD_MAX])}..."


def marked(text: str) -> str:
    """Without control characters and other invisible ones, each shown as a mark."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)


def json_text(value: object, *, indent: int = 0, ascii_only: bool = False) -> str:
    """A JSON document, in one line without `indent`. What a terminal would obey (JSON itself escapes part of it), or a
    reader take for the end of a line, is escaped; with `ascii_only` all other letters, too."""
    data = msgspec.json.encode(value)
    text = (msgspec.json.format(data, indent=indent) if indent else data).decode()

    if text.isprintable() and not ascii_only:
        return text

    def stays(one: str) -> bool:
        return one == "\n" or (one.isprintable() and (one.isascii() or not ascii_only))

    return "".join(one if stays(one) else _escaped(one) for one in text)


def _escaped(character: str) -> str:
    data = character.encode("utf-16-be")
    return "".join(f"\\u{data[at]:02x}{data[at + 1]:02x}" for at in range(0, len(data), 2))


class JsonLines(logging.Formatter):
    """One object a line: `at` (UTC), `level`, `logger`, `text`, fields of an entry, and a traceback where one is."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        told: dict[str, object] = {
            "at": at,
            "level": record.levelname.lower(),
            "logger": record.name,
            "text": record.getMessage(),
        }
        told.update(getattr(record, RECORD_ATTRIBUTE, {}))
        if record.exc_info:
            told["traceback"] = self.formatException(record.exc_info)
        return json_text(told)


def formatter(log_format: str) -> logging.Formatter:
    """For the setting `log_format`."""
    return JsonLines() if log_format == "json" else logging.Formatter(TEXT)
