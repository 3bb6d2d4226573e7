"""The routes that only a lab's daemon has, and their client: shapes and broken records reach the transport, checked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.daemon.api.local_api import THERE, FakeControl, post, served
from tests.unit.lab.fake_transport import FakeLabTransport

from chaos_lab.api import LabClient, LabRoutes


@pytest.fixture
def transport() -> FakeLabTransport:
    return FakeLabTransport()


@pytest.fixture
def client(tmp_path: Path, transport: FakeLabTransport) -> Iterator[LabClient]:
    path = tmp_path / "api.sock"
    with served(path, FakeControl(), further=LabRoutes(transport).routes()):
        yield LabClient(path)


def test_a_shape_reaches_the_transport(client: LabClient, transport: FakeLabTransport) -> None:
    assert client.shape(THERE, rate_bytes_per_s=1e6, latency_s=0.02, cut_out=True).done
    assert client.shape(corrupt_probability=0.5, corrupt_stream_min=1).done
    assert transport.asked == [(THERE, 1e6, 0.02, False, True, 0.0, 0), (None, None, 0.0, False, False, 0.5, 1)]


def test_a_record_is_broken_where_the_connection_stands(client: LabClient, transport: FakeLabTransport) -> None:
    assert client.break_record(THERE, stream=1).done
    transport.stands = False
    outcome = client.break_record(THERE)
    assert not outcome.done and outcome.reason == "there is no such connection"
    assert transport.asked == [("break", THERE, 1), ("break", THERE, None)]


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("shape", {"latency_s": 11}),
        ("shape", {"rate_bytes_per_s": 0}),
        ("shape", {"corrupt_probability": 1.5}),
        ("shape", {"more": 1}),
        ("break", {}),
        ("break", {"site": THERE, "stream": 16}),
    ],
)
def test_what_is_outside_its_range_is_refused(
    client: LabClient, transport: FakeLabTransport, route: str, body: dict[str, float]
) -> None:
    status, answer = post(client.path, f"/v1/lab/{route}", json.dumps(body).encode())
    assert status == 400 and answer["error"]
    assert transport.asked == []


def test_the_other_routes_are_those_of_every_daemon(client: LabClient) -> None:
    assert client.change_link("beta", add=True).done
