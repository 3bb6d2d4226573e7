"""The log as JSON lines: one object a line, whatever a text holds; an entry of the history with its fields."""

from __future__ import annotations

import json
import logging

from chaosd.log_format import RECORD_ATTRIBUTE, TOLD_MAX, ForTerminals, formatter


def line(text: str, *arguments: object, log_format: str = "json", **extra: object) -> str:
    record = logging.LogRecord("chaosd", logging.WARNING, __file__, 1, text, arguments, None)
    for name, value in extra.items():
        setattr(record, name, value)
    return formatter(log_format).format(record)


def test_a_line_is_one_object_whatever_its_text_holds() -> None:
    told = line("site %s\nleft", '"\x1b[2J\u2028')
    assert "\n" not in told
    found = json.loads(told)
    assert (found["level"], found["logger"], found["text"]) == ("warning", "chaosd", 'site "\x1b[2J\u2028\nleft')
    assert found["at"].endswith("+00:00")


def test_an_entry_of_the_history_brings_its_fields() -> None:
    fields = {"event_id": "e7", "kind": "scale-in", "outcome": "done", "epoch": 3, "duration_s": None}
    found = json.loads(line("it left", **{RECORD_ATTRIBUTE: fields}))
    assert {**fields, "text": "it left"}.items() <= found.items()


def test_a_traceback_is_a_field_and_not_further_lines() -> None:
    try:
        raise RuntimeError("no")
    except RuntimeError as error:
        told = line("it failed", exc_info=(RuntimeError, error, error.__traceback__))
    assert "\n" not in told and "RuntimeError: no" in json.loads(told)["traceback"]


def test_the_log_for_people_is_a_plain_line() -> None:
    assert line("hello", log_format="text").endswith("WARNING hello")


def test_what_peers_wrote_neither_moves_the_cursor_nor_makes_further_lines_nor_fills_the_disk() -> None:
    record = logging.LogRecord(
        "chaosd",
        logging.WARNING,
        __file__,
        1,
        "site %s left: %s",
        ("\x1b[2J\r", "bad\nCRITICAL forged\u202e" + "x" * 9999),
        None,
    )
    assert ForTerminals().filter(record)
    told = formatter("text").format(record)
    assert not set("\x1b\r\n\u202e") & set(told) and "CRITICAL forged" in told and len(told) < TOLD_MAX + 100
    assert told.endswith("...")
