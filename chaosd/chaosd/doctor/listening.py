"""Whether this machine lets a program listen at an address."""

from __future__ import annotations

import socket

from chaosd.addresses import split_address


def why_not(address: str) -> str:
    """What the system says against it now; empty: nothing."""
    host, port = split_address(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, _, _, place = found[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
            probe.listen(1)
    except OSError as error:
        return error.strerror or str(error)
    return ""
