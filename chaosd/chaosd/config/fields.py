"""What one value of the configuration may be, each with the sentence that says what is allowed.

Used by `model`, where the fields stand. What fields may be together stands there, too.
"""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Strict

from chaos_protocols.names import SITE_ID_CHARACTERS, SiteId
from chaos_protocols.wire.handshake import STREAMS_FIRST, STREAMS_MAX
from chaosd.addresses import check_loopback, split_address
from chaosd.proxy import parse_direct, parse_proxy

NAME_CHARACTERS_MAX = 64

SEND_LIMIT_MIN_MBIT, SEND_LIMIT_MAX_MBIT = 1.0, 1e6
"""Beside rounds a newcomer gets a quarter: with less than this its transfer would look stalled."""


def _address(text: str) -> str:
    split_address(text)
    return text


def _page_place(text: str) -> str:
    if text:
        check_loopback(text)
    return text


def _site_id(text: str) -> str:
    if not re.fullmatch(rf"[0-9a-f]{{{SITE_ID_CHARACTERS}}}", text):
        raise ValueError(f"must be a site id: {SITE_ID_CHARACTERS} characters 0-9 a-f, as `chaosd id` prints it")
    return text


def is_no_text(text: str) -> bool:
    """Whether the system has handed over bytes that Python could not read as letters in the locale of this shell."""
    return any("\udc80" <= one <= "\udcff" for one in text)


def _label(text: str) -> str:
    if is_no_text(text):
        raise ValueError(
            "cannot be read in the locale of this shell, which has no such letters (`locale` shows it): set "
            "LC_ALL=C.UTF-8 for this command, or write the name in ASCII; the configuration file is always UTF-8"
        )
    if not 1 <= len(text) <= NAME_CHARACTERS_MAX or not text.isprintable() or text != text.strip():
        raise ValueError(f"must be 1 to {NAME_CHARACTERS_MAX} printable characters without spaces at the ends")
    return text


def _absolute(path: Path) -> Path:
    if "\0" in str(path):
        raise ValueError("must be a path, and no path holds a zero character")
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError:
        raise ValueError("there is no such user, so no home folder") from None


def _streams(number: int) -> int:
    if 0 < number < STREAMS_FIRST:
        raise ValueError(f"must be {STREAMS_FIRST} to {STREAMS_MAX}, or 0 for as many as the path asks for")
    return number


def _send_limit(mbit: float) -> float:
    if 0 < mbit < SEND_LIMIT_MIN_MBIT:
        raise ValueError(f"must be at least {SEND_LIMIT_MIN_MBIT:g} Mbit/s, or 0 for no limit")
    return mbit


def _command(text: str) -> str:
    if "\0" in text:
        raise ValueError("must be a command of the shell, and none holds a zero character")
    return text


def _averaging(name: str) -> str:
    from chaos_planner.overlay.choice import policy_named  # numpy, which commands do without

    policy_named(name)
    return name


def default_name() -> str:
    return socket.gethostname()[:NAME_CHARACTERS_MAX].strip() or "site"


Flag = Annotated[bool, Strict()]
Whole = Annotated[int, Strict()]
Number = Annotated[float, Strict()]
Address = Annotated[str, AfterValidator(_address)]
ProxyPlace = Annotated[str, AfterValidator(parse_proxy)]
Direct = Annotated[str, AfterValidator(parse_direct)]
PagePlace = Annotated[str, AfterValidator(_page_place)]
Id = Annotated[SiteId, AfterValidator(_site_id)]
Label = Annotated[str, AfterValidator(_label)]
ShellCommand = Annotated[str, AfterValidator(_command)]
AveragingPolicy = Annotated[str, AfterValidator(_averaging)]
FilePath = Annotated[Path, AfterValidator(_absolute)]
Streams = Annotated[Whole, AfterValidator(_streams)]
SendMbit = Annotated[Number, AfterValidator(_send_limit)]
