"""Listening on a unix socket: the local API's and the worker's, opened and cleared in the same way.

The file system is the door: mode 0600 from the first moment on, nothing is overwritten that is no socket, and a socket
that a daemon still answers at is left alone.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import stat
from pathlib import Path

from chaosd.os_errors import SOCKET_PATH_BYTES_MAX, explain

log = logging.getLogger("chaosd")
PROBE_TIMEOUT_S = 1.0
LISTEN_BACKLOG = 16


class UnixSocketError(OSError):
    """The socket cannot be used; the text says why and what to do."""


class UnixListener:
    """A listening socket at `path`, until `close` takes the file away again (only if it is still ours)."""

    def __init__(self, path: Path, setting: str) -> None:
        """`setting`: the field of the configuration that names the path, for the remedy. A file left by a daemon that
        is gone is removed. Raises UnixSocketError."""
        self.path = path
        size = len(os.fsencode(path))
        if size > SOCKET_PATH_BYTES_MAX:
            raise UnixSocketError(
                f"{path}: the path has {size} bytes and a unix socket's at most {SOCKET_PATH_BYTES_MAX}; "
                f"choose a shorter {setting}"
            )
        _clear(path, setting)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        umask = os.umask(0o177)  # the file must never exist with wider rights, not even between bind and chmod
        try:
            self.socket.bind(str(path))
            self.socket.listen(LISTEN_BACKLOG)
            self.socket.setblocking(False)
            facts = path.lstat()
        except OSError as error:
            self.socket.close()
            raise UnixSocketError(_cannot(path, setting, error)) from error
        finally:
            os.umask(umask)
        self._inode = (facts.st_dev, facts.st_ino)

    def close(self) -> None:
        """Close the socket and remove its file, unless a successor has put its own there. Never raises: a file that
        stays is replaced at the next start, and a disk that fails must not hide why the daemon ends."""
        self.socket.close()
        try:
            facts = self.path.lstat()
            if (facts.st_dev, facts.st_ino) == self._inode:
                self.path.unlink()
        except FileNotFoundError:
            pass
        except OSError as error:
            log.warning("%s stays behind: %s", self.path, explain(error))


def _clear(path: Path, setting: str) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise UnixSocketError(_cannot(path, setting, error)) from error
    if not stat.S_ISSOCK(mode):
        raise UnixSocketError(f"{path} exists and is no socket; move it away or choose another {setting}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)  # left behind by a daemon that was killed
            return
        except OSError as error:  # a full backlog (EAGAIN), or no answer in time: somebody listens
            if error.errno != errno.EAGAIN and not isinstance(error, TimeoutError):
                raise UnixSocketError(_cannot(path, setting, error)) from error
    raise UnixSocketError(
        f"a daemon already answers at {path}; stop it with `chaosd leave`, or give this one its own data_dir"
    )


def _cannot(path: Path, setting: str, error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return (
            f"cannot listen on the {setting} {path}: the folder {path.parent} is not there; make it "
            f"(`mkdir -p -m 700`), or choose another {setting}"
        )
    return f"cannot listen on the {setting} {explain(error, path)}"
