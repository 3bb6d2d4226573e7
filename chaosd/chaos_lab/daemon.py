"""The daemon of a lab's site: `python -m chaos_lab.daemon --config FILE [--shapes FILE]`.

The daemon of `chaosd start`, with three things that no site of an institution has: a transport whose links can be
shaped and broken, routes of the local API that do so, and a log of who contributed to which round. The lab, the soak,
the benchmarks and the tests with real processes start this one.

The file of shapes says how links behave from the start:

    [[shapes]]
    site = "0123456789abcdef0123456789abcdef"   # left out: all neighbours
    rate_mbit = 100.0                           # left out: unlimited
    latency_ms = 20.0                           # one way
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from aiohttp import web

from chaos_lab.api import LabRoutes
from chaos_lab.links.shape import LinkShape
from chaos_lab.links.transport import LabTransport
from chaos_protocols.names import SITE_ID_CHARACTERS, SITES_MAX, SiteId
from chaosd.api.operations import Operations
from chaosd.api.server import LocalApi
from chaosd.cli.options import EXIT_USAGE, fail
from chaosd.cli.start import become
from chaosd.config.file import ConfigError, read_config_file
from chaosd.config.model import SiteConfig, load_config
from chaosd.daemon import Daemon, run_daemon
from chaosd.identity import Identity
from chaosd.storage.history import History
from chaosd.storage.journal.journal import Journal
from chaosd.storage.rounds_log import RoundsLog
from chaosd.transport import Transport, TransportEvents, TransportSettings

MBIT_BYTES_PER_S = 125_000
ROUNDS_NAME = "rounds.jsonl"
"""In the data directory: one line a round (see `rounds_log`)."""

SiteText = Annotated[str, msgspec.Meta(pattern=rf"^[0-9a-f]{{{SITE_ID_CHARACTERS}}}$")]


class StartShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table of the file of shapes: how this site's sending to `site` (None: to all neighbours) is slowed."""

    site: SiteText | None = None
    rate_mbit: Annotated[float, msgspec.Meta(gt=0.0, le=1e6)] | None = None
    latency_ms: Annotated[float, msgspec.Meta(ge=0.0, le=10_000.0)] = 0.0
    """One way."""

    @property
    def shape(self) -> LinkShape:
        """For the transport."""
        rate = None if self.rate_mbit is None else self.rate_mbit * MBIT_BYTES_PER_S
        return LinkShape(rate_bytes_per_s=rate, latency_s=self.latency_ms / 1000)


class ShapesFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    shapes: Annotated[tuple[StartShape, ...], msgspec.Meta(max_length=SITES_MAX)] = ()


def load_shapes(path: Path) -> tuple[StartShape, ...]:
    """Raises ConfigError that names file and field."""
    try:
        return msgspec.convert(read_config_file(path), ShapesFile).shapes
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}") from None


class LabDaemon(Daemon):
    """See the module. `shapes`: in force before the first dial."""

    def __init__(
        self,
        config: SiteConfig,
        identity: Identity,
        journal: Journal,
        history: History,
        *,
        shapes: Sequence[StartShape] = (),
    ) -> None:
        self._shapes = shapes
        super().__init__(config, identity, journal, history)

    def make_transport(self, events: TransportEvents, settings: TransportSettings) -> Transport:
        self.lab_transport = LabTransport(
            identity=self.identity,
            run=self.config.run,
            incarnation=self._journal.incarnation,
            events=events,
            settings=settings,
        )
        return self.lab_transport

    def make_api(self, operations: Operations, further: Sequence[web.RouteDef]) -> LocalApi:
        return super().make_api(operations, [*further, *LabRoutes(self.lab_transport).routes()])

    def make_rounds_log(self) -> RoundsLog:
        return RoundsLog(self.config.data_dir / ROUNDS_NAME)

    def before_start(self) -> None:
        for one in self._shapes:
            self.lab_transport.shape(None if one.site is None else SiteId(one.site), one.shape)


def main(
    config: Annotated[Path, typer.Option("--config", help="TOML file, as for `chaosd start`")],
    shapes: Annotated[Path | None, typer.Option("--shapes", help="TOML file: how links behave from the start")] = None,
) -> None:
    """The daemon of a lab's site. Check both files, then become the daemon."""
    try:
        loaded = load_config(config)
        told = load_shapes(shapes) if shapes is not None else ()
    except ConfigError as error:
        fail(f"the configuration cannot be used:\n{error}", EXIT_USAGE)
    become(lambda: run_daemon(loaded, functools.partial(LabDaemon, shapes=told)))


if __name__ == "__main__":
    typer.run(main)
