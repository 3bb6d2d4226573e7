"""An interpreter that starts with this folder on its path sees what macOS has of the system: no memfd, no seals, no
pidfd, no TCP_INFO, credentials of a peer by other names, and `sys.platform` says so.

What no kernel but that one does is not shown: launchd, its sockets' sizes, F_FULLFSYNC, which is an fsync here.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
import sys
import sysconfig

sysconfig.get_config_vars()  # the interpreter's own file of them is found by the platform's name
import zoneinfo  # noqa: E402, F401 - these ask for the platform when they are imported, and are Linux's here

import aiohttp  # noqa: E402, F401
import numpy  # noqa: E402, F401
import psutil  # noqa: E402, F401
import uvloop  # noqa: E402, F401

MISSING = {
    os: ("memfd_create", "pidfd_open", "posix_fallocate", "sched_getaffinity", "sched_setaffinity", "fdatasync"),
    fcntl: ("F_ADD_SEALS", "F_GET_SEALS", "F_SEAL_SHRINK", "F_SEAL_GROW", "F_SEAL_SEAL"),
    socket: ("TCP_USER_TIMEOUT", "TCP_INFO", "TCP_KEEPIDLE", "SOCK_CLOEXEC", "SOCK_NONBLOCK", "TCP_QUICKACK"),
    select: ("epoll",),
}
F_FULLFSYNC = 51
SOL_LOCAL, LOCAL_PEERCRED, LOCAL_PEERPID = 0, 1, 2

fcntl_here, getsockopt_here = fcntl.fcntl, socket.socket.getsockopt


def fcntl_there(file: int, command: int, argument: int = 0) -> object:
    if command == F_FULLFSYNC:
        return os.fsync(file)
    return fcntl_here(file, command, argument)


def getsockopt_there(self: socket.socket, level: int, option: int, *size: int) -> object:
    if self.family != socket.AF_UNIX or level != SOL_LOCAL:
        return getsockopt_here(self, level, option, *size)
    pid, uid, _ = struct.unpack("3i", getsockopt_here(self, socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return struct.pack("Ii", 0, uid) + bytes(68) if option == LOCAL_PEERCRED else struct.pack("i", pid)


for module, names in MISSING.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
fcntl.F_FULLFSYNC = F_FULLFSYNC  # type: ignore[attr-defined]
fcntl.fcntl = fcntl_there  # type: ignore[assignment]
socket.socket.getsockopt = getsockopt_there  # type: ignore[assignment, method-assign]
sys.platform = "darwin"
