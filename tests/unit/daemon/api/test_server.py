"""The local API and its client: routes, limits, refusals, the socket file, followers of events."""

from __future__ import annotations

import asyncio
import json
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import uvloop
from aiohttp import ClientSession, UnixConnector
from tests.unit.daemon.api.local_api import THERE, FakeControl, ask_raw, post, record, served

from chaosd.api import server as api_module
from chaosd.api.answers import BODY_BYTES_MAX, CLOSE_TIMEOUT_S
from chaosd.api.client import LocalClient, NoDaemonError, RequestRefusedError
from chaosd.api.server import LocalApi, last_event_id
from chaosd.api.status import Outcome
from chaosd.unix_sockets import UnixSocketError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "api.sock"


@pytest.fixture
def control() -> FakeControl:
    return FakeControl(records=25)


@pytest.fixture
def client(path: Path, control: FakeControl) -> Iterator[LocalClient]:
    with served(path, control):
        yield LocalClient(path)


def test_the_status_arrives_as_it_was_given(client: LocalClient, control: FakeControl) -> None:
    assert client.status() == control.current


def test_events_come_in_order_after_an_id_and_at_most_as_many_as_asked(client: LocalClient) -> None:
    assert [item.id for item in client.events(after_id=3, limit=4)] == [4, 5, 6, 7]


@pytest.mark.parametrize("count", [1, 7, 25, 100])
def test_the_last_events_are_the_newest_ones(client: LocalClient, count: int) -> None:
    assert [item.id for item in client.last_events(count)] == list(range(max(1, 26 - count), 26))


@pytest.mark.parametrize("records", [0, 1, 2, 3, 4, 7, 8, 9, 1000])
def test_the_last_id_is_found_in_few_look_ups(records: int) -> None:
    control = FakeControl(records=records)
    looked_up = 0
    events = control.events

    def counted(after_id: int, limit: int) -> list[api_module.EventRecord]:
        nonlocal looked_up
        looked_up += 1
        return events(after_id, limit)

    control.events = counted  # type: ignore[method-assign]
    assert last_event_id(control) == records
    assert looked_up <= 2 * max(records, 1).bit_length() + 3


def test_the_last_id_is_found_where_old_events_were_dropped() -> None:
    control = FakeControl()
    control.history = [record(number) for number in range(5_000, 5_003)]
    assert last_event_id(control) == 5_002


def test_link_leave_and_their_outcomes_pass_through(client: LocalClient, control: FakeControl) -> None:
    control.outcome = Outcome(done=False, reason="would split the overlay", duration_s=0.5)
    assert client.change_link("beta", add=True) == control.outcome
    assert client.change_link("beta", add=False) == control.outcome
    assert client.leave("maintenance") == control.outcome
    assert control.asked == [("link", "beta", True), ("link", "beta", False), ("leave", "maintenance")]


def test_an_operators_word_on_the_state_passes_through(client: LocalClient, control: FakeControl) -> None:
    assert client.recover("beta", 70) == client.recover("", 0) == control.outcome
    assert control.asked == [("recover", "beta", 70), ("recover", "", 0)]


@pytest.mark.parametrize("target", ["/v1/lab/shape", "/v1/lab/break", "/v1/shape", "/v1/lab"])
def test_no_route_of_a_daemon_shapes_or_breaks_links(
    client: LocalClient, path: Path, control: FakeControl, target: str
) -> None:
    status, answer = post(path, target, json.dumps({"site": THERE}).encode())
    assert status == 404 and "error" in answer
    assert control.asked == []


@pytest.mark.parametrize(
    ("target", "body", "said"),
    [
        ("/v1/link", b"", "not a LinkBody"),
        ("/v1/link", b"\xff\xfe", "not a LinkBody"),
        ("/v1/link", b"[]", "not a LinkBody"),
        ("/v1/link", b'{"site": "x"}', "missing required field `add`"),
        ("/v1/link", b'{"site": "x", "add": "yes"}', "$.add"),
        ("/v1/link", b'{"site": "", "add": true}', "$.site"),
        ("/v1/link", b'{"site": "x", "add": true, "more": 1}', "`more`"),
        ("/v1/link", b"[" * 5_000, "not a LinkBody"),
        ("/v1/leave", json.dumps({"reason": "x" * 1025}).encode(), "$.reason"),
        ("/v1/recover", b"{}", "either a site and a round"),
        ("/v1/recover", b'{"site": "x"}', "either a site and a round"),
        ("/v1/recover", b'{"site": "x", "round": 3, "anew": true}', "either a site and a round"),
        ("/v1/recover", b'{"site": "x", "round": -1}', "$.round"),
    ],
)
def test_a_malformed_request_is_refused_with_the_field_and_reaches_nobody(
    client: LocalClient, path: Path, control: FakeControl, target: str, body: bytes, said: str
) -> None:
    status, answer = post(path, target, body)
    assert status == 400
    assert said in str(answer["error"])
    assert control.asked == []


def test_a_body_beyond_the_limit_is_refused(client: LocalClient, path: Path) -> None:
    status, answer = post(path, "/v1/leave", b" " * (BODY_BYTES_MAX + 1))
    assert status == 413
    assert "error" in answer


@pytest.mark.parametrize(
    "query", ["after=-1", "after=x", "limit=0", "limit=10001", "last=0", f"after={1 << 63}", "after=%C2%B2"]
)
def test_a_query_outside_its_range_is_refused_with_the_range(client: LocalClient, query: str) -> None:
    with pytest.raises(RequestRefusedError, match="must be a whole number from") as caught:
        client.ask("GET", f"/v1/events?{query}", list[object])
    assert caught.value.status == 400


@pytest.mark.parametrize(("method", "target", "status"), [("GET", "/v1/nothing", 404), ("GET", "/v1/leave", 405)])
def test_an_unknown_route_gets_an_error_as_json(client: LocalClient, method: str, target: str, status: int) -> None:
    with pytest.raises(RequestRefusedError, match=target) as caught:
        client.ask(method, target, Outcome)
    assert caught.value.status == status


def test_a_defect_of_the_daemon_is_one_line_for_the_asker(client: LocalClient, control: FakeControl) -> None:
    def broken() -> None:
        raise RuntimeError("secret detail")

    control.status = broken  # type: ignore[method-assign,assignment]
    with pytest.raises(RequestRefusedError) as caught:
        client.status()
    assert caught.value.status == 500
    assert "RuntimeError" in str(caught.value)
    assert "secret detail" not in str(caught.value)


def test_garbage_on_the_socket_does_not_hurt_the_next_asker(client: LocalClient, path: Path) -> None:
    assert b"400" in ask_raw(path, b"\x00\x01garbage\r\n\r\n")
    assert client.status().run == "heart"


def test_the_socket_is_for_its_owner_only(client: LocalClient, path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_socket_is_gone_after_the_end(path: Path, control: FakeControl) -> None:
    with served(path, control):
        assert path.exists()
    assert not path.exists()


def test_a_socket_left_behind_by_a_killed_daemon_is_replaced(path: Path, control: FakeControl) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with served(path, control):
        assert LocalClient(path).status().run == "heart"


def test_a_second_daemon_is_refused_and_the_first_one_stays(client: LocalClient, path: Path) -> None:
    with pytest.raises(UnixSocketError, match="a daemon already answers"), served(path, FakeControl()):
        pass
    assert client.status().run == "heart"


def test_a_file_that_is_no_socket_is_never_removed(path: Path, control: FakeControl) -> None:
    path.write_text("precious")
    with pytest.raises(UnixSocketError, match="is no socket"), served(path, control):
        pass
    assert path.read_text() == "precious"


def test_a_missing_folder_is_told(tmp_path: Path, control: FakeControl) -> None:
    with pytest.raises(UnixSocketError, match="cannot listen"), served(tmp_path / "none" / "api.sock", control):
        pass


def test_closing_leaves_the_socket_of_a_successor_alone(path: Path, control: FakeControl) -> None:
    with served(path, control):
        path.unlink()
        successor = socket.socket(socket.AF_UNIX)
        successor.bind(str(path))
    assert path.exists()
    successor.close()


def test_nobody_answering_is_told_with_the_path(path: Path) -> None:
    with pytest.raises(NoDaemonError, match=r"api\.sock"):
        LocalClient(path).status()


def test_a_daemon_that_is_stuck_is_told_from_one_that_is_not_there(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stuck:
        stuck.bind(str(path))
        stuck.listen()
        with pytest.raises(NoDaemonError, match=r"does not answer \(nothing within 0\.05 s"):
            LocalClient(path).ask("GET", "/v1/status", Outcome, timeout_s=0.05)


def test_an_answer_of_another_language_is_told_as_such(path: Path, control: FakeControl) -> None:
    with served(path, control), pytest.raises(RequestRefusedError, match="another version"):
        LocalClient(path).ask("GET", "/v1/status", list[int])


def test_a_daemon_of_another_release_that_lacks_a_request_is_told_with_what_to_do(
    path: Path, control: FakeControl
) -> None:
    """Between the installation of a release and the next start of the daemon the commands are the newer ones."""
    with (
        served(path, control),
        pytest.raises(RequestRefusedError, match=r"not know GET /v1/not-yet, since .* after an upgrade start it again"),
    ):
        LocalClient(path).ask("GET", "/v1/not-yet", Outcome)


def test_a_follower_gets_history_and_news_once_each_and_ends_with_the_daemon(path: Path, control: FakeControl) -> None:
    with served(path, control) as running:
        stream = LocalClient(path).follow_events(after_id=23)
        assert [next(stream).id, next(stream).id] == [24, 25]
        running.happen(record(26))
        assert next(stream).id == 26
        running.happen(None)
        assert list(stream) == []


async def test_a_record_that_is_in_the_history_and_in_the_news_is_sent_once(path: Path) -> None:
    control = FakeControl(records=2)
    original = control.events

    def with_news(after_id: int, limit: int) -> list[api_module.EventRecord]:
        control.happen(record(3))  # falls between subscription and reading of the history
        return original(after_id, limit)

    control.events = with_news  # type: ignore[method-assign]
    async with running(path, control):
        async with ClientSession(connector=UnixConnector(str(path))) as session:
            async with session.get("http://x/v1/events/follow?after=0") as answer:
                first = [msgspec.json.decode(await answer.content.readline())["id"] for _ in range(3)]
                control.happen(record(4))
                assert [*first, msgspec.json.decode(await answer.content.readline())["id"]] == [1, 2, 3, 4]


async def test_a_silent_stream_carries_signs_of_life(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_module, "SIGN_OF_LIFE_S", 0.01)
    async with running(path, FakeControl()):
        async with ClientSession(connector=UnixConnector(str(path))) as session:
            async with session.get("http://x/v1/events/follow") as answer:
                assert await answer.content.readline() == b"\n"


async def test_followers_beyond_the_limit_are_refused_and_gone_ones_make_room(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_module, "FOLLOWERS_MAX", 1)
    control = FakeControl()
    async with running(path, control):
        async with ClientSession(connector=UnixConnector(str(path))) as session:
            async with session.get("http://x/v1/events/follow"):
                async with session.get("http://x/v1/events/follow") as refused:
                    assert refused.status == 503
            await until(lambda: not control.followers)
            async with session.get("http://x/v1/events/follow") as answer:
                assert answer.status == 200


async def test_closing_ends_the_followers_at_once(path: Path) -> None:
    control = FakeControl()
    api = LocalApi(path, control)
    await api.start()
    async with ClientSession(connector=UnixConnector(str(path))) as session:
        async with session.get("http://x/v1/events/follow") as answer:
            await until(lambda: bool(control.followers))
            async with asyncio.timeout(CLOSE_TIMEOUT_S / 2):
                await api.close()
            assert await answer.content.read() == b""
    assert not control.followers


async def test_a_change_goes_on_to_its_end_when_the_asker_goes_away(path: Path) -> None:
    control = FakeControl()
    control.gate = asyncio.Event()
    async with running(path, control):
        async with ClientSession(connector=UnixConnector(str(path))) as session:
            asking = asyncio.create_task(session.post("http://x/v1/link", json={"site": "beta", "add": True}))
            await until(lambda: bool(control.asked))
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        control.gate.set()
        async with asyncio.timeout(60):
            await until(lambda: bool(control.finished_changes))
    assert control.finished_changes == 1


async def test_a_change_that_never_ends_does_not_outlive_the_daemon(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = FakeControl()
    control.gate = asyncio.Event()
    api = LocalApi(path, control)
    api._http._runner._shutdown_timeout = 0.01
    await api.start()
    async with ClientSession(connector=UnixConnector(str(path))) as session:
        asking = asyncio.create_task(session.post("http://x/v1/link", json={"site": "beta", "add": True}))
        await until(lambda: bool(control.asked))
        await api.close()
        answer = await asking
        assert answer.status == 503 and "has ended before the link was done" in (await answer.json())["error"]
    assert [task for task in asyncio.all_tasks() if task.get_name() == "api link"] == []
    assert control.finished_changes == 0


async def test_closing_twice_or_before_the_start_is_harmless(path: Path) -> None:
    api = LocalApi(path, FakeControl())
    await api.close()
    other = LocalApi(path, FakeControl())
    await other.start()
    await other.close()
    await other.close()
    assert not path.exists()


def test_the_api_works_on_uvloop_as_on_the_standard_loop(path: Path, control: FakeControl) -> None:
    with served(path, control, new_loop=uvloop.new_event_loop) as running_api:
        stream = LocalClient(path).follow_events(after_id=24)
        assert next(stream).id == 25
        running_api.happen(record(26))
        assert next(stream).id == 26
        running_api.happen(None)
        assert list(stream) == []
    assert not path.exists()


LOOP_TURNS_MAX = 100_000


async def until(true: Callable[[], bool]) -> None:
    """Gives the loop its turns until the condition holds; a condition that never does fails the test."""
    for _ in range(LOOP_TURNS_MAX):
        if true():
            return
        await asyncio.sleep(0)
    raise AssertionError("the condition never came true")


class running:
    """An API on the test's own loop."""

    def __init__(self, path: Path, control: FakeControl) -> None:
        self.api = LocalApi(path, control)

    async def __aenter__(self) -> LocalApi:
        await self.api.start()
        return self.api

    async def __aexit__(self, *error: object) -> None:
        await self.api.close()
