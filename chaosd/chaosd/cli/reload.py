"""`chaosd reload`: the daemon reads its configuration again."""

from __future__ import annotations

import typer

from chaosd.cli.options import ApiSocketOption, ConfigOption, DataDirOption, JsonOption, daemon, tell


def register(app: typer.Typer) -> None:
    app.command()(reload)


def reload(
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    api_socket: ApiSocketOption = None,
    json: JsonOption = False,
) -> None:
    """Have the daemon read its configuration again, without a restart. The same as SIGHUP, and says what came of it.

    Taken over are peers, trust, admission, send_limit_mbit and log_level; what else was changed is named, and waits for
    the next start. A file that cannot be used changes nothing.

      $ chaosd reload --config hospital/chaosd.toml
    """
    with daemon(config, data_dir, api_socket) as client:
        outcome = client.reload()
    tell(outcome, "reload", as_json=json)
