"""Who hears what a connection has to tell once it is over: nobody. Decides nothing.

A connection and its parts name each other. Such a ring is freed only by Python's collector, which looks at old objects
rarely and does not count the 90 KiB that the TLS library holds for each connection: a daemon that lost some thousand
connections grew by 20 MiB. So the parts let go of each other at the end, and a connection goes when the last one who
uses it does.
"""

from __future__ import annotations


class Nobody:
    """Stands in for the sink of a channel and of a frame reader."""

    def secured(self) -> None: ...

    def wants_bytes(self) -> bool:
        return False

    def get_buffer(self) -> memoryview:
        return memoryview(bytearray(1))

    def takes_more(self) -> bool:
        return False

    def received(self, size_bytes: int) -> None: ...

    def writable(self) -> None: ...

    def ended(self, reason: str, end_of_file: bool) -> None: ...

    def frame_received(self, frame: bytes) -> None: ...

    def bulk_buffer(self, header: bytes, size_bytes: int) -> memoryview | None:
        return None

    def bulk_received(self, header: bytes, payload: memoryview | None) -> None: ...


NOBODY = Nobody()
