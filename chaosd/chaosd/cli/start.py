"""`chaosd start`: check the configuration, then become the daemon, in the foreground."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from chaosd.cli.options import EXIT_FAILED, EXIT_USAGE, config_path, fail
from chaosd.config.file import CONFIG_FILE_NAME, FIELD_TEXTS, ConfigError, flag_name

SWITCHES = ("bootstrap", "exit_with_worker")


def register(app: typer.Typer) -> None:
    app.command()(start)


def _flag(field: str, text: str = "") -> Any:
    """The option of a field: its name and its help come from the field."""
    negation = f"/--no-{flag_name(field)[2:]}" if field in SWITCHES else ""
    return typer.Option(flag_name(field) + negation, help=FIELD_TEXTS[field] + text, show_default=False)


def start(
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help=f"TOML file, or its folder; default: ./{CONFIG_FILE_NAME} if there is one"),
    ] = None,
    name: Annotated[str | None, _flag("name")] = None,
    run: Annotated[str | None, _flag("run")] = None,
    data_dir: Annotated[Path | None, _flag("data_dir")] = None,
    listen: Annotated[str | None, _flag("listen")] = None,
    advertise: Annotated[str | None, _flag("advertise")] = None,
    bootstrap: Annotated[bool | None, _flag("bootstrap")] = None,
    peer: Annotated[list[str] | None, _flag("peers", ": SITE@HOST:PORT or NAME=SITE@HOST:PORT, repeatable")] = None,
    trust: Annotated[list[str] | None, _flag("trust", "; repeatable")] = None,
    admission: Annotated[str | None, _flag("admission")] = None,
    min_sites: Annotated[int | None, _flag("min_sites")] = None,
    start_sites: Annotated[int | None, _flag("start_sites")] = None,
    failure_timeout_s: Annotated[float | None, _flag("failure_timeout_s")] = None,
    heartbeat_interval_s: Annotated[float | None, _flag("heartbeat_interval_s")] = None,
    proxy: Annotated[str | None, _flag("proxy")] = None,
    no_proxy: Annotated[list[str] | None, _flag("no_proxy", "; repeatable")] = None,
    proxy_auth_file: Annotated[Path | None, _flag("proxy_auth_file")] = None,
    send_limit_mbit: Annotated[float | None, _flag("send_limit_mbit")] = None,
    bulk_streams: Annotated[int | None, _flag("bulk_streams")] = None,
    congestion: Annotated[str | None, _flag("congestion")] = None,
    verify: Annotated[str | None, _flag("verify")] = None,
    join_hold_s: Annotated[float | None, _flag("join_hold_s")] = None,
    replication: Annotated[str | None, _flag("replication")] = None,
    averaging: Annotated[str | None, _flag("averaging")] = None,
    probe: Annotated[str | None, _flag("probe")] = None,
    memory_checkpoint_every_rounds: Annotated[int | None, _flag("memory_checkpoint_every_rounds")] = None,
    checkpoint: Annotated[str | None, _flag("checkpoint")] = None,
    checkpoint_every_rounds: Annotated[int | None, _flag("checkpoint_every_rounds")] = None,
    checkpoint_every_s: Annotated[float | None, _flag("checkpoint_every_s")] = None,
    mean_time_between_failures_s: Annotated[float | None, _flag("mean_time_between_failures_s")] = None,
    checkpoint_dir: Annotated[Path | None, _flag("checkpoint_dir")] = None,
    checkpoints_kept: Annotated[int | None, _flag("checkpoints_kept")] = None,
    restore_wait_s: Annotated[float | None, _flag("restore_wait_s")] = None,
    worker_socket: Annotated[Path | None, _flag("worker_socket")] = None,
    api_socket: Annotated[Path | None, _flag("api_socket")] = None,
    page: Annotated[str | None, _flag("page")] = None,
    metrics_token_file: Annotated[Path | None, _flag("metrics_token_file")] = None,
    straggler_timeout: Annotated[float | None, _flag("straggler_timeout")] = None,
    norm_max: Annotated[float | None, _flag("norm_max")] = None,
    weight_max: Annotated[float | None, _flag("weight_max")] = None,
    aggregate: Annotated[str | None, _flag("aggregate")] = None,
    clip_radius: Annotated[float | None, _flag("clip_radius")] = None,
    on_hang: Annotated[str | None, _flag("on_hang")] = None,
    exit_with_worker: Annotated[bool | None, _flag("exit_with_worker")] = None,
    log_level: Annotated[str | None, _flag("log_level")] = None,
    log_format: Annotated[str | None, _flag("log_format")] = None,
    found: Annotated[bool | None, typer.Option("--found/--no-found", hidden=True)] = None,
    mirror_every_rounds: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run this site's daemon in the foreground. Ctrl+C leaves the run gracefully, a second Ctrl+C forces.

    Every field of the TOML file is a flag of the same name; a flag wins over the file, a repeated one replaces a list.
    `--found` is the former name of `--bootstrap`, `--mirror-every-rounds` of `--memory-checkpoint-every-rounds`.

      $ chaosd start                      # ./chaosd.toml, as chaosd init wrote it
      $ chaosd start --config hospital/chaosd.toml --log-level debug
      $ chaosd start --data-dir ./b --bootstrap --listen 127.0.0.1:7401
    """
    given = dict(locals())
    path = config_path(given.pop("config"))
    try:
        loaded = _load(path, given)
    except ConfigError as error:
        fail(f"the configuration cannot be used:\n{error}", EXIT_USAGE)
    _run(loaded, lambda: _load(path, given))


def _run(loaded: Any, reload: Callable[[], Any]) -> NoReturn:
    from chaosd.daemon import run_daemon

    become(lambda: run_daemon(loaded, reload=reload))


def become(run: Callable[[], int]) -> NoReturn:
    """Be the daemon that `run` runs: end with its status, or say in a line why it cannot start: with EXIT_FAILED where
    a later start may find that mended, as a service manager makes it, else with EXIT_USAGE."""
    from chaosd.identity import IdentityError
    from chaosd.os_errors import explain, may_pass
    from chaosd.storage.history import HistoryError
    from chaosd.storage.journal.journal import JournalError
    from chaosd.transport.errors import ListenError
    from chaosd.unix_sockets import UnixSocketError

    try:
        code = run()
    except (OSError, ConfigError, IdentityError, JournalError, HistoryError, ListenError) as error:
        plain = isinstance(error, OSError) and not isinstance(error, UnixSocketError)
        text = explain(error) if plain and isinstance(error, OSError) else str(error)
        fail(f"the daemon cannot start: {text}", EXIT_FAILED if may_pass(error) else EXIT_USAGE)
    raise typer.Exit(code)


def overrides_of(given: dict[str, Any]) -> dict[str, object]:
    """The flags that were given, as fields: `--peer` texts taken apart. Raises ConfigError."""
    fields = {field: value for field, value in given.items() if value is not None and value != []}
    if "peer" in fields:
        fields["peers"] = [peer_of(text, "--peer (command line)") for text in fields.pop("peer")]
    return fields


def _load(path: Path | None, given: dict[str, Any]) -> Any:
    from chaosd.config.model import load_config

    return load_config(path, overrides_of(given))


def peer_of(text: str, place: str) -> dict[str, str]:
    """`NAME=SITE@HOST:PORT` taken apart; the name may be missing. Raises ConfigError, which names the `place`."""
    called, at, address = text.rpartition("@")
    name, _, site = called.rpartition("=")
    if not at:
        raise ConfigError(f"{place} = {text!r}: must be SITE@HOST:PORT or NAME=SITE@HOST:PORT")
    return {"site": site, "address": address, **({"name": name} if name else {})}
