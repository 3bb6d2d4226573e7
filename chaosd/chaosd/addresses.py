"""`host:port`, taken apart and put together again: the one form in which addresses are written, sent and stored."""

from __future__ import annotations

import ipaddress
import re
import socket

EVERY_ADDRESS = "::"
"""Of the machine, of either family."""


def split_address(address: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port` to its parts. ValueError says what is wrong, for a text that names the address."""
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("must be host:port, and an IPv6 address needs brackets, as in [::1]:7400")
    if not colon or not host or not re.fullmatch(r"[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        raise ValueError("must be host:port with a port from 1 to 65535, for example hospital.example.org:7400")
    if re.search(r"[\s/@]", host) or not host.isprintable():
        raise ValueError("must be host:port without spaces, user or path")
    try:
        host.encode("idna")  # as the resolver asks for it
    except UnicodeError:
        raise ValueError("must be host:port, and a name of a host has 1 to 63 letters between two dots") from None
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """The inverse of `split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def network_of(host: str) -> str:
    """Who counts as one stranger: an IPv4 address; of an IPv6 address the first 64 bits, as whoever has one has all of
    those. Any other text stands for itself."""
    try:
        address = ipaddress.ip_address(plain_host(host).partition("%")[0])
    except ValueError:
        return host
    return str(address) if address.version == 4 else str(ipaddress.ip_network((address, 64), strict=False))


def lies_at(address: str, host: str) -> bool:
    """Whether `address` (host:port) is of this host, or of the same IPv6 network; a name is not."""
    try:
        said = split_address(address)[0]
        ipaddress.ip_address(said.partition("%")[0])
    except ValueError:
        return False
    return network_of(said) == network_of(host)


def family_of(host: str) -> socket.AddressFamily:
    """Of the socket that listens on `host`, the first part of an address."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def listening_socket(host: str, port: int) -> socket.socket:
    """One that listens at that address; on `::` to IPv4, too, where the system can. Raises OSError."""
    both = host == EVERY_ADDRESS and socket.has_dualstack_ipv6()
    return socket.create_server((host, port), family=family_of(host), dualstack_ipv6=both)


def plain_host(host: str) -> str:
    """An IPv4 address that came to an IPv6 socket, as people write it; any other as it is."""
    try:
        mapped = getattr(ipaddress.ip_address(host.partition("%")[0]), "ipv4_mapped", None)
    except ValueError:
        return host
    return host if mapped is None else str(mapped)


def check_loopback(address: str) -> None:
    """ValueError unless `address` is one of this machine alone, for what must not be reached from elsewhere."""
    host, _ = split_address(address)
    try:
        local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = False
    if not local:
        raise ValueError(
            f"must be an address of this machine alone, as 127.0.0.1:7480; reach it from elsewhere by ssh: "
            f"ssh -L 7480:127.0.0.1:{split_address(address)[1]} THIS-MACHINE"
        )
