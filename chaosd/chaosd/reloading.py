"""What `chaosd reload` and SIGHUP do: the configuration is read again, and what can be changed while a daemon runs is.

Nothing is taken from a file that cannot be used: the daemon goes on as before, and says why.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from aiohttp import web

from chaos_protocols.effects import Record
from chaos_protocols.events import PeersChanged
from chaos_protocols.wishes import SendLimitSet
from chaosd.api.answers import json_answer
from chaosd.api.status import Outcome
from chaosd.config.file import ConfigError
from chaosd.config.model import SiteConfig
from chaosd.driver import Driver

RELOADED = ("peers", "trust", "admission", "send_limit_mbit", "log_level")
"""Everything else is read at the start alone."""


def reloaded(
    config: SiteConfig,
    read: Callable[[], SiteConfig] | None,
    driver: Driver,
    lists: Callable[[SiteConfig], PeersChanged],
    *,
    cause: str = "SIGHUP",
) -> tuple[SiteConfig, Outcome]:
    """The configuration that is in force from now on, and what was done, and was not; that is in the log and the
    events, too. `lists`: what the machine of a site of that configuration is told, with what was changed by command.
    `cause`: who asked."""
    began_s = time.monotonic()

    def told(done: bool, reason: str) -> Outcome:
        outcome = "done" if done else "failed"
        record = Record(
            kind="reload", subject=config.name, cause=cause, outcome=outcome, duration_s=None, reason=reason
        )
        driver.record(record)
        return Outcome(done=done, reason=reason, duration_s=time.monotonic() - began_s)

    if read is None:
        return config, told(False, "this daemon has no configuration file to read again; nothing has changed")
    try:
        fresh = read()
    except ConfigError as error:
        problem = str(error).replace("\n", "; ")
        return config, told(False, f"the configuration cannot be used, nothing has changed: {problem}")
    changed = [field for field in SiteConfig.model_fields if getattr(fresh, field) != getattr(config, field)]
    taken = [field for field in changed if field in RELOADED]
    kept = [field for field in changed if field not in RELOADED]
    after = config.model_copy(update={field: getattr(fresh, field) for field in taken})
    if "log_level" in taken:
        logging.getLogger().setLevel(after.log_level.upper())
    if "send_limit_mbit" in taken:
        limit_sending(driver, after)
    if lists(after) != lists(config):
        driver.feed(lists(after))
    words = [f"taken over: {', '.join(taken) or 'nothing'}"]
    if kept:
        words.append(f"only at the next start: {', '.join(kept)}")
    return after, told(True, "; ".join(words))


def limit_sending(driver: Driver, config: SiteConfig) -> None:
    """What the links send in bulk from now on, and what the run plans with."""
    driver.transport.send_limit.change(config.send_bytes_per_s)
    driver.feed(SendLimitSet(bytes_per_s=config.send_bytes_per_s))


def local_routes(reload: Callable[[str], Outcome]) -> list[web.RouteDef]:
    """For the unix socket. `reload`: of the daemon, with the cause."""

    async def asked(request: web.Request) -> web.StreamResponse:
        return json_answer(reload("chaosd reload"))

    return [web.post("/v1/reload", asked)]
