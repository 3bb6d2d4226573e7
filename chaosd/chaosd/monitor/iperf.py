"""Link probe by iperf3, in a short-lived child process. Decides which form of iperf3 there is and when it is too late.

Driven by the driver, which agrees with the neighbour on a port: one site calls `serve_once`, the other `measure`.
Never inside the daemon: the library behind the Python package redirects the standard output of the whole process and
closes file descriptors that it does not own. Either the program `iperf3` runs, or a fresh Python with the package.
Where neither is installed the built-in probe serves.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import math
import shutil
import sys
from enum import Enum
from typing import Any

import msgspec

from chaosd.monitor.probe import ProbeError, ProbeResult

OUTPUT_BYTES_MAX = 1 << 20
"""A report of one second takes about 6 kB; whatever is longer is not read."""
SECONDS_MAX = 60.0
RATE_BYTES_PER_S_MAX = 1e13
GRACE_S = 3.0
"""Start of the child, connection, exchange of results."""
GRACE_AFTER_KILL_S = 1.0

_CLIENT = """
import sys, iperf3
client = iperf3.Client()
client.server_hostname, client.port, client.duration = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
sys.stdout.write(client.run().text)
sys.stdout.flush()
"""
_SERVER = """
import sys, iperf3
server = iperf3.Server()
server.bind_address, server.port = sys.argv[1], int(sys.argv[2])
server.run()
"""


class IperfForm(Enum):
    """How iperf3 can be run here."""

    PROGRAM = "program"
    PACKAGE = "package"
    UNAVAILABLE = "unavailable"


def available() -> IperfForm:
    """Which form of iperf3 there is; imports nothing."""
    if shutil.which("iperf3") is not None:
        return IperfForm.PROGRAM
    if importlib.util.find_spec("iperf3") is not None:
        return IperfForm.PACKAGE
    return IperfForm.UNAVAILABLE


async def measure(host: str, port: int, *, seconds: float = 1.0, form: IperfForm | None = None) -> ProbeResult:
    """Send to the neighbour's `serve_once` for that long (rounded up to whole seconds). Raises ProbeError."""
    whole_seconds = str(math.ceil(min(max(seconds, 1.0), SECONDS_MAX)))
    form = form or available()
    match form:
        case IperfForm.PROGRAM:
            command = ["iperf3", "-J", "-c", host, "-p", str(port), "-t", whole_seconds]
        case IperfForm.PACKAGE:
            command = [sys.executable, "-c", _CLIENT, host, str(port), whole_seconds]
        case IperfForm.UNAVAILABLE:
            raise ProbeError("iperf3 is not installed here; the built-in probe serves instead")
    return parse(await _run(command, timeout_s=int(whole_seconds) + GRACE_S))


async def serve_once(host: str, port: int, *, seconds: float = 1.0, form: IperfForm | None = None) -> None:
    """Let one neighbour measure, then stop. Raises ProbeError when it does not come in time."""
    form = form or available()
    match form:
        case IperfForm.PROGRAM:
            command = ["iperf3", "-s", "-1", "-B", host, "-p", str(port)]
        case IperfForm.PACKAGE:
            command = [sys.executable, "-c", _SERVER, host, str(port)]
        case IperfForm.UNAVAILABLE:
            raise ProbeError("iperf3 is not installed here; the built-in probe serves instead")
    await _run(command, timeout_s=min(max(seconds, 1.0), SECONDS_MAX) + 2 * GRACE_S)


def parse(output: bytes) -> ProbeResult:
    """The figures of an iperf3 report (JSON). Raises ProbeError for anything else, iperf3's own errors included."""
    try:
        report: Any = msgspec.json.decode(output)
        if isinstance(report, dict) and report.get("error"):
            raise ProbeError(f"iperf3: {str(report['error'])[:200]}")
        received = report["end"]["sum_received"]
        rate = float(received["bits_per_second"]) / 8
        size_bytes, seconds = int(received["bytes"]), float(received["seconds"])
        rtt_us = float(report["end"]["streams"][0].get("sender", {}).get("mean_rtt", 0.0))
    except (
        msgspec.MsgspecError,
        LookupError,
        TypeError,
        ValueError,
        ArithmeticError,
        AttributeError,
        RecursionError,
    ) as error:
        raise ProbeError(f"iperf3 gave no readable report: {error!r:.200}") from None
    if not (0 < rate <= RATE_BYTES_PER_S_MAX and 0 < seconds <= 2 * SECONDS_MAX and size_bytes > 0 and rtt_us >= 0):
        raise ProbeError(f"iperf3 reported {rate} bytes/s in {seconds} s, which cannot be")
    return ProbeResult(
        rate_bytes_per_s=rate, rtt_s=min(rtt_us / 1e6, SECONDS_MAX), method="iperf3", bytes=size_bytes, seconds=seconds
    )


async def _run(command: list[str], *, timeout_s: float) -> bytes:
    """Output of a child process; it is dead when this returns, however it returns."""
    try:
        child = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError as error:
        raise ProbeError(f"iperf3 could not be started: {error.strerror}") from error
    assert child.stdout is not None
    output = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            while chunk := await child.stdout.read(64 << 10):
                output += chunk
                if len(output) > OUTPUT_BYTES_MAX:
                    raise ProbeError(f"iperf3 wrote more than {OUTPUT_BYTES_MAX} bytes")
            status = await child.wait()
    except TimeoutError:
        raise ProbeError(f"iperf3 did not finish within {timeout_s:g} s") from None
    finally:
        await _end(child)
    if status != 0 and not output:
        raise ProbeError(f"iperf3 failed with status {status}")
    return bytes(output)


async def _end(child: asyncio.subprocess.Process) -> None:
    """Kill the child if it still runs, and read its pipe to the end: a loop lets go of a pipe only then."""
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(GRACE_AFTER_KILL_S):
            while child.stdout is not None and await child.stdout.read(64 << 10):
                pass
