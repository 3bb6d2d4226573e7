"""Traffic between the sites of a lab, to measure its links: `python lab_traffic.py serve|echo|copy|send|count ...`.

Started inside the sites' namespaces by the tests; plain sockets, so that nothing but the link is measured.
"""

from __future__ import annotations

import socket
import statistics
import sys
import threading
import time

PORT = 9000
CHUNK = bytes(64 << 10)
WARM_UP_S = 0.5
ECHOES = 20


def serve(host: str) -> None:
    """Echo, or count for a copy, as the first byte of a connection asks."""
    with socket.create_server((host, PORT)) as server:
        print("ready", flush=True)
        while True:
            threading.Thread(target=_serve_one, args=(server.accept()[0],), daemon=True).start()


def _serve_one(connection: socket.socket) -> None:
    with connection:
        if connection.recv(1) == b"e":
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while data := connection.recv(100):
                connection.sendall(data)
            return
        begun_s, counted_bytes, counted_since_s, last_s = time.monotonic(), 0, 0.0, 0.0
        while data := connection.recv(1 << 20):
            last_s = time.monotonic()
            if last_s - begun_s < WARM_UP_S:
                counted_since_s = last_s
            else:
                counted_bytes += len(data)
        connection.sendall(f"{counted_bytes * 8e-6 / (last_s - counted_since_s)}".encode())


def echo(host: str) -> None:
    """Print the median round trip in milliseconds."""
    with socket.create_connection((host, PORT), timeout=90) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(b"e")
        took_ms = []
        for _ in range(ECHOES):
            begun_s = time.monotonic()
            connection.sendall(b"x")
            connection.recv(1)
            took_ms.append((time.monotonic() - begun_s) * 1000)
    print(statistics.median(took_ms))


def copy(host: str, seconds: str) -> None:
    """Print the goodput in Mbit/s, as the receiver counted it after a moment of warming up."""
    with socket.create_connection((host, PORT), timeout=90) as connection:
        connection.sendall(b"c")
        end_s = time.monotonic() + float(seconds)
        while time.monotonic() < end_s:
            connection.sendall(CHUNK)
        connection.shutdown(socket.SHUT_WR)
        print(connection.recv(100).decode())


def send(host: str, number: str) -> None:
    """Send so many datagrams, a millisecond apart."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(int(number)):
            sender.sendto(b"x", (host, PORT))
            time.sleep(0.001)


def count(host: str, silence_s: str) -> None:
    """Print how many datagrams came, after so many seconds without one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind((host, PORT))
        receiver.settimeout(float(silence_s))
        print("ready", flush=True)
        came = 0
        try:
            while receiver.recv(10):
                came += 1
        except TimeoutError:
            print(came)


if __name__ == "__main__":
    {"serve": serve, "echo": echo, "copy": copy, "send": send, "count": count}[sys.argv[1]](*sys.argv[2:])
