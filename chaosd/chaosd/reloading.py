"""What SIGHUP does: the configuration is read again, and what can be changed while a daemon runs is changed.

Nothing is taken from a file that cannot be used: the daemon goes on as before, and says why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from chaos_protocols.effects import Record
from chaos_protocols.events import PeersChanged
from chaos_protocols.names import SiteId
from chaos_protocols.wishes import SendLimitSet
from chaosd.config.file import ConfigError
from chaosd.config.model import SiteConfig
from chaosd.driver import Driver

log = logging.getLogger("chaosd")

RELOADED = ("peers", "trust", "admission", "send_limit_mbit", "log_level")
"""Everything else is read at the start alone."""


def reloaded(
    config: SiteConfig,
    read: Callable[[], SiteConfig] | None,
    driver: Driver,
    neighbours: Callable[[SiteConfig], tuple[tuple[SiteId, str], ...]],
) -> SiteConfig:
    """The configuration that is in force from now on. What was done, and what was not, is in the log and the events.
    `neighbours`: whom a site of that configuration dials, with what was changed by command."""
    if read is None:
        log.warning("SIGHUP: this daemon has no configuration file to read again; nothing has changed")
        return config
    try:
        fresh = read()
    except ConfigError as error:
        problem = str(error).replace("\n", "; ")
        _told(driver, config.name, "refused", f"the configuration cannot be used, nothing has changed: {problem}")
        return config
    changed = [field for field in SiteConfig.model_fields if getattr(fresh, field) != getattr(config, field)]
    taken = [field for field in changed if field in RELOADED]
    kept = [field for field in changed if field not in RELOADED]
    after = config.model_copy(update={field: getattr(fresh, field) for field in taken})
    if "log_level" in taken:
        logging.getLogger().setLevel(after.log_level.upper())
    if "send_limit_mbit" in taken:
        limit_sending(driver, after)
    if "peers" in taken:
        driver.feed(PeersChanged(peers=neighbours(after)))
    words = [f"taken over: {', '.join(taken) or 'nothing'}"]
    if kept:
        words.append(f"only at the next start: {', '.join(kept)}")
    _told(driver, config.name, "done", "; ".join(words))
    return after


def limit_sending(driver: Driver, config: SiteConfig) -> None:
    """What the links send in bulk from now on, and what the run plans with."""
    driver.transport.send_limit.change(config.send_bytes_per_s)
    driver.feed(SendLimitSet(bytes_per_s=config.send_bytes_per_s))


def _told(driver: Driver, name: str, outcome: str, reason: str) -> None:
    driver.record(Record(kind="reload", subject=name, cause="SIGHUP", outcome=outcome, duration_s=None, reason=reason))
