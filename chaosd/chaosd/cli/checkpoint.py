"""`chaosd checkpoint list`, `export` and `import`: what lies in this site's folder, and copies out of it and into it.

Need no daemon; one that runs sees what was imported at its next start.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chaosd.cli.checkpoints import checkpoint_folder, checkpoints
from chaosd.cli.options import ConfigOption, DataDirOption, config_path, fail
from chaosd.log_format import marked
from chaosd.os_errors import explain

EXIT_FAILED, EXIT_USAGE = 1, 2

FolderOption = Annotated[Path | None, typer.Option("--folder", help="this folder instead of that of the configuration")]

checkpoint_app = typer.Typer(
    no_args_is_help=True, help="List and verify checkpoints, copy them out as plain safetensors, or bring them in."
)


def register(app: typer.Typer) -> None:
    checkpoint_app.command("list")(checkpoints)
    app.add_typer(checkpoint_app, name="checkpoint")
    app.command("checkpoints", hidden=True)(checkpoints)  # its former name


@checkpoint_app.command("export")
def export(
    file: Annotated[Path, typer.Argument(help="the safetensors file to write")],
    round_number: Annotated[int | None, typer.Option("--round", help="this round instead of the newest")] = None,
    folder: FolderOption = None,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Verify the newest checkpoint of this site and copy it: any program that knows safetensors reads it.

    $ chaosd checkpoint export model.safetensors
    $ chaosd checkpoint export best.safetensors --round 5200
    """
    from chaosd.storage.checkpoint_file import CheckpointError
    from chaosd.storage.exchange import export_file, newest_in

    try:
        head = export_file(newest_in(folder or checkpoint_folder(config, data_dir), round_number), file)
    except CheckpointError as error:
        fail(marked(str(error)), EXIT_FAILED)
    except OSError as error:
        fail(explain(error, error.filename or file), EXIT_FAILED)
    typer.echo(
        f"{file}: the state of round {head.facts.round} of '{marked(head.run)}', {head.size_bytes:,} bytes, verified"
    )


@checkpoint_app.command("import")
def bring_in(
    file: Annotated[Path, typer.Argument(help="a checkpoint, or a safetensors file with the same arrays")],
    round_number: Annotated[int | None, typer.Option("--round", help="the round that it counts as")] = None,
    folder: FolderOption = None,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Bring a state into this site's folder, so that a run can go on from it.

    A file of another program must have the names, types and shapes of a checkpoint that lies there. The daemon offers
    it from its next start; `chaosd recover --from SITE:ROUND` has a run that stands go on from it.

      $ chaosd checkpoint import model.safetensors --round 5200
    """
    from chaosd.config.model import ConfigError, load_config
    from chaosd.storage.checkpoint_file import CheckpointError
    from chaosd.storage.exchange import import_file

    try:
        path = config_path(config) if data_dir is None or config is not None else None
        run = load_config(path, {} if data_dir is None else {"data_dir": data_dir}).run
        place = folder or checkpoint_folder(config, data_dir)
        target, facts = import_file(file, place, run=run, round_number=round_number)
    except ConfigError as error:
        fail(str(error), EXIT_USAGE)
    except CheckpointError as error:
        fail(marked(f"{file}: {error}"), EXIT_FAILED)  # it may name arrays of a file that came from elsewhere
    except OSError as error:
        fail(explain(error, error.filename or file), EXIT_FAILED)
    typer.echo(f"{target}: the state of round {facts.round} of run '{run}'; (re)start the daemon to have it offered")
