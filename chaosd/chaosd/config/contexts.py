"""Which site of this machine a command means when nobody says: the last one that was made here.

Every site that `chaosd init` or `chaosd up` makes is remembered by the path of its configuration, one a line, the
newest last, in the user's configuration folder. Driven by the commands; the SDK reads the same file, so that a script
finds the daemon that the commands mean. Decides nothing but the order of places:

1. what the command was told (`--config`),
2. the environment variable CHAOS_CONFIG,
3. chaosd.toml in the working directory,
4. the site made last whose file still exists.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from chaosd.config.file import CONFIG_FILE_NAME

CONFIG_VARIABLE = "CHAOS_CONFIG"
SITES_NAME = "sites"
SITES_REMEMBERED_MAX = 64
SITES_BYTES_MAX = 1 << 18


@dataclass(frozen=True, slots=True)
class Choice:
    """`path`: the configuration that is meant; None: none was ever made. `guessed`: there were others to choose from,
    so the user is told which one was taken."""

    path: Path | None
    guessed: bool = False


def choose(config: Path | None) -> Choice:
    """See the module."""
    if config is not None:
        return Choice(_file_of(config))
    if named := os.environ.get(CONFIG_VARIABLE):
        return Choice(_file_of(Path(named).expanduser()))
    local = Path(CONFIG_FILE_NAME)
    if os.path.isfile(local):
        return Choice(local)
    # Not Path.is_file, which raises where a folder cannot be looked into: one former site of another user's, or on a
    # disk that has failed, would be the end of every command.
    there = [path for path in remembered() if os.path.isfile(path)]
    return Choice(there[-1], guessed=len(there) > 1) if there else Choice(None)


def _file_of(named: Path) -> Path:
    """A folder stands for the configuration in it."""
    return named / CONFIG_FILE_NAME if named.is_dir() else named


def remember(config: Path) -> None:
    """This site was made last. A folder that cannot be written costs only the convenience."""
    path = config.absolute()
    kept = [one for one in remembered() if one != path][-(SITES_REMEMBERED_MAX - 1) :]
    with contextlib.suppress(OSError):
        place = sites_file()
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = place.with_name(f"{place.name}.{os.getpid()}")
        temporary.write_text("".join(f"{one}\n" for one in [*kept, path]), encoding="utf-8")
        temporary.replace(place)


def remembered() -> list[Path]:
    """Configurations of the sites that were made here, the newest last."""
    try:
        with sites_file().open("rb") as file:
            lines = file.read(SITES_BYTES_MAX).decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    return [Path(line) for line in lines if line.startswith("/")]


def sites_file() -> Path:
    """Where they are remembered."""
    import platformdirs

    return Path(platformdirs.user_config_dir("chaosd", appauthor=False)) / SITES_NAME
