"""iperf3 as a child process, with a stand-in program: figures, errors, deadlines.

The report has the form of a real one.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from chaosd.monitor import iperf
from chaosd.monitor.probe import ProbeError

REPORT = {
    "start": {"version": "iperf 3.12"},
    "end": {
        "streams": [{"sender": {"mean_rtt": 20_500, "bytes": 12_600_000}, "receiver": {"bytes": 12_500_000}}],
        "sum_sent": {"seconds": 1.0, "bytes": 12_600_000, "bits_per_second": 1.008e8},
        "sum_received": {"seconds": 1.02, "bytes": 12_500_000, "bits_per_second": 98_039_215.0},
    },
}


@pytest.fixture(params=["uvloop", "asyncio"])
def factory(request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    return uvloop.new_event_loop if request.param == "uvloop" else None


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Puts a program called iperf3 in front of the search path; the test writes its body in Python."""

    def write(body: str) -> None:
        path = tmp_path / "iperf3"
        path.write_text(f"#!{sys.executable}\nimport os, sys, time\n{body}\n")
        path.chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return write


def test_the_figures_of_a_report_are_read() -> None:
    result = iperf.parse(json.dumps(REPORT).encode())
    assert (result.method, result.bytes, result.seconds) == ("iperf3", 12_500_000, 1.02)
    assert result.rate_bytes_per_s == pytest.approx(12_254_901.9)
    assert result.rtt_s == pytest.approx(0.0205)


def test_an_error_of_iperf3_is_passed_on() -> None:
    with pytest.raises(ProbeError, match="unable to connect"):
        iperf.parse(b'{"error": "error - unable to connect to server: Connection refused"}')


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_output_is_a_result_or_a_probe_error(output: bytes) -> None:
    with pytest.raises(ProbeError):
        iperf.parse(output)


@pytest.mark.parametrize("value", [-1, 0, 1e300, "many", None, []])
def test_impossible_figures_are_refused(value: object) -> None:
    report = json.loads(json.dumps(REPORT))
    report["end"]["sum_received"]["bits_per_second"] = value
    with pytest.raises(ProbeError):
        iperf.parse(json.dumps(report).encode())


def test_the_program_is_run_with_the_port_and_its_report_read(factory, program) -> None:  # type: ignore[no-untyped-def]
    program(f"assert sys.argv[1:] == '-J -c 127.0.0.1 -p 5299 -t 2'.split(); print({json.dumps(json.dumps(REPORT))})")
    assert iperf.available() is iperf.IperfForm.PROGRAM
    with asyncio.Runner(loop_factory=factory) as runner:
        result = runner.run(iperf.measure("127.0.0.1", 5299, seconds=1.5))
    assert result.bytes == 12_500_000


def test_a_program_that_hangs_is_killed_at_its_deadline(  # type: ignore[no-untyped-def]
    factory, program, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(iperf, "GRACE_S", -0.5)
    program(f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(60)")
    begun_s = time.monotonic()
    with asyncio.Runner(loop_factory=factory) as runner, pytest.raises(ProbeError, match="did not finish"):
        runner.run(iperf.measure("127.0.0.1", 5299))
    assert time.monotonic() - begun_s < 30
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_endless_output_is_not_kept(factory, program) -> None:  # type: ignore[no-untyped-def]
    program("while True: sys.stdout.write('x' * 65536)")
    with asyncio.Runner(loop_factory=factory) as runner, pytest.raises(ProbeError, match="more than"):
        runner.run(iperf.measure("127.0.0.1", 5299))


def test_a_server_that_nobody_visits_ends(factory, program, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(iperf, "GRACE_S", -0.3)
    program("assert '-1' in sys.argv; time.sleep(60)")
    with asyncio.Runner(loop_factory=factory) as runner, pytest.raises(ProbeError, match="did not finish"):
        runner.run(iperf.serve_once("127.0.0.1", 5299))


def test_without_iperf3_the_reason_is_given(factory) -> None:  # type: ignore[no-untyped-def]
    with asyncio.Runner(loop_factory=factory) as runner, pytest.raises(ProbeError, match="built-in probe"):
        runner.run(iperf.measure("127.0.0.1", 5299, form=iperf.IperfForm.UNAVAILABLE))
