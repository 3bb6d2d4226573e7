"""What the operating system's refusals mean for whoever runs a site, and what to do about them, in one place."""

from __future__ import annotations

import errno
import resource
import socket
import sqlite3
import sys
from pathlib import Path

SOCKET_PATH_BYTES_MAX = 107 if sys.platform == "linux" else 103
"""sun_path holds 108 bytes on Linux and 104 on macOS, with a final zero."""

FILES_FIXED, FILES_A_PEER = 64, 5
"""A daemon without peers opens about so many files and sockets; a link of four streams takes five more."""

FILES_FIXED_OF_A_GROUP, FILES_A_PROCESS = 32, 4
"""`chaosd run` has some 16 open without workers; of each process its pidfd, its memory's size and its line, and while
it is started a pipe."""

FILES_USUAL = 1024
"""The soft limit of most systems: enough for two hundred peers."""


def brief(error: Exception) -> str:
    """What went wrong, in the system's own words, for a text that says where."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def explain(error: OSError, path: Path | str = "") -> str:
    """Cause and remedy of an error of the operating system, with the file that it is about."""
    about = str(path or error.filename or "")
    text = f"{about}: {error.strerror or error}" if about else str(error.strerror or error)
    remedy = remedy_of(error)
    if "AF_UNIX path too long" in str(error):
        return (
            f"{about} has {len(str(about).encode())} bytes, and the path of a unix socket at most "
            f"{SOCKET_PATH_BYTES_MAX}: choose a shorter one"
        )
    return f"{text}: {remedy}" if remedy else text


def remedy_of(error: OSError) -> str:
    """What to do about it; empty where the system's own words are all that can be said."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return f"this process may open {files_allowed()} files; raise it with `ulimit -n {FILES_USUAL}`"
    return _REMEDIES.get(error.errno or 0, "")


def lacking(error: BaseException) -> str:
    """What to do where the system gives a process no further thread, or no memory; empty for other errors."""
    if isinstance(error, MemoryError):
        return _REMEDIES[errno.ENOMEM]
    return _REMEDIES[errno.EAGAIN] if "can't start new thread" in str(error) else ""


def explain_listening(error: OSError, where: str) -> str:
    """Why nothing can listen at `where` (host:port), and what to do; of a port that is taken see there."""
    if isinstance(error, socket.gaierror) or error.errno in _NAME_ERRORS:
        return (
            f"the name in {where} leads to no address: correct it, or listen on 0.0.0.0 and put the name that others "
            "dial into `advertise`"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return (
            f"{where} is no address of this machine (`ip addr` shows those): listen on one of them or on 0.0.0.0; the "
            "address that others dial, as behind a port forwarding, is `advertise`"
        )
    if error.errno == errno.EINVAL and where.lower().startswith("[fe80:"):
        return (
            f"{where} is an address of one network alone, and there may be several: name its interface, too, as in "
            "[fe80::1%eth0]:7400 (`ip addr` shows both)"
        )
    if error.errno == errno.EACCES:
        return f"{where} is for the administrator: ports from 1024 on are for everybody"
    return f"{where} cannot be listened on: {error.strerror or error}"


_NAME_ERRORS = (socket.EAI_NONAME, socket.EAI_AGAIN)
"""As `socket.create_server` hands them on, without their class."""

_REMEDIES = {
    errno.EAGAIN: (
        "the system gives this user no further process or thread: `ulimit -u` and a container's limit of processes say "
        "how many there may be, and under `ulimit -v` a thread may find no room; raise that, or end something else"
    ),
    errno.ENOMEM: "too little memory: free some, or raise the limit (`ulimit -v`, the container's)",
    errno.EACCES: "this user has no permission; run as the owner, or choose another folder",
    errno.EPERM: "this user has no permission; run as the owner, or choose another folder",
    errno.ENOSPC: "the disk is full; free space there, then start again",
    errno.EDQUOT: "this user's quota is used up; free space there, then start again",
    errno.EROFS: "that file system is read-only; choose another folder",
    errno.EEXIST: "something else is there; move it away, or choose another path",
    errno.ENOTDIR: "a part of that path is a file; choose another path",
    errno.ENAMETOOLONG: "that path is too long; choose a shorter one",
}


_MAY_PASS = frozenset(
    {
        errno.EADDRINUSE,
        errno.EADDRNOTAVAIL,
        errno.EDQUOT,
        errno.EIO,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ENOSPC,
        errno.EROFS,
        *_NAME_ERRORS,
    }
)
_SQLITE_MAY_PASS = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_NOMEM})


def may_pass(error: BaseException) -> bool:
    """Whether a later start may find that mended, without a word of the operator's changed: a disk has room again, the
    network gives the machine its address. At the root of `error` lies what the system said."""
    root: BaseException | None = error
    while root is not None:
        if isinstance(root, OSError) and root.errno in _MAY_PASS:
            return True
        if isinstance(root, sqlite3.Error) and getattr(root, "sqlite_errorcode", 0) & 0xFF in _SQLITE_MAY_PASS:
            return True
        root = root.__cause__
    return False


def files_allowed() -> int:
    """How many files and sockets this process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def raise_files_allowed(peers: int) -> str:
    """Take as many open files as the system gives without being asked. The sentence for people where they are too few
    for so many peers; else empty."""
    needed = FILES_FIXED + FILES_A_PEER * peers
    if not (allowed := _raised_but_below(needed)):
        return ""
    return (
        f"this daemon may open {allowed} files and sockets, and needs about {needed}: links and workers will be "
        f"refused. Raise the limit with `ulimit -n {max(needed, FILES_USUAL)}` before the start"
    )


def raise_files_for_workers(processes: int) -> str:
    """The same for `chaosd run` with so many processes, which inherit the limit: workers have sockets to others."""
    needed = FILES_FIXED_OF_A_GROUP + FILES_A_PROCESS * processes
    if not (allowed := _raised_but_below(needed)):
        return ""
    return (
        f"this command may open {allowed} files and sockets, and needs {needed} for {processes} processes. Raise the "
        f"limit with `ulimit -n {max(needed, FILES_USUAL)}` (`ulimit -Hn` says how far), or start fewer"
    )


def _raised_but_below(needed: int) -> int:
    """Take as many open files as the system gives. How many these are, if fewer than needed; else 0."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft != hard:
        wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    allowed = files_allowed()
    return 0 if allowed == resource.RLIM_INFINITY or allowed >= needed else allowed


FILES_MAX = 1 << 16
"""A daemon with the most links that are allowed stays below it."""
