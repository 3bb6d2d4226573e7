"""The page's server, asked as a browser and as an attacker ask: who gets in, what is answered, what may be changed."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path

import msgspec
import pytest
from tests.rigs.pipes import nobody_writes_for_long
from tests.unit.daemon.api.local_api import FakeControl, record, sample_status
from tests.unit.daemon.page.page_kit import SITE, browser, kinds, let_in, opened, read_messages

from chaos_lab.children import free_port
from chaosd.api.status import EventRecord, Status
from chaosd.page import feed as feed_module
from chaosd.page import server as server_module
from chaosd.page.access import PageDoor
from chaosd.page.feed import BACKLOG_MAX, QUEUE_MAX, VIEWERS_MAX, LiveFeed
from chaosd.page.gate import SECRET_HEADER
from chaosd.page.server import PageServer
from chaosd.worker_group.board import GroupView


async def test_without_a_ticket_the_page_says_how_to_open_it_and_nothing_else(tmp_path: Path) -> None:
    async with opened(tmp_path) as one, browser() as session:
        answer = await session.get(f"{one.origin}/")
        text = await answer.text()
        assert answer.status == 401 and "chaosd page" in text and "main.js" not in text
        for path in ("/v1/session", "/v1/live"):
            refused = await session.get(one.origin + path)
            assert refused.status == 401 and "chaosd page" in (await refused.json())["error"]
        assert not answer.cookies


async def test_the_address_of_chaosd_page_lets_one_browser_in_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as one, browser() as session, browser() as other:
        url = await one.ticket_address()
        answer = await session.get(url)
        assert answer.status == 200 and "main.js" in await answer.text()
        (cookie,) = answer.cookies.values()
        assert cookie["httponly"] and cookie["samesite"] == "Strict" and cookie["path"] == "/"
        assert (await session.get(f"{one.origin}/")).status == 200
        assert (await other.get(url)).status == 401
        assert (await other.get(f"{one.origin}/?ticket=wrong")).status == 401


@pytest.mark.parametrize("path", ["/", "/v1/live", "/v1/session", "/metrics", "/assets/main.js", "/none"])
@pytest.mark.parametrize(
    "headers",
    [{"Host": "evil.example:7480"}, {"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}],
    ids=lambda headers: next(iter(headers)),
)
async def test_foreign_requests_get_nothing_even_with_a_session(
    tmp_path: Path, path: str, headers: dict[str, str]
) -> None:
    async with opened(tmp_path) as one, browser() as session:
        await let_in(one, session)
        answer = await session.get(one.origin + path, headers=headers)
        assert (answer.status, await answer.read()) == (403, b"")
        assert "Access-Control-Allow-Origin" not in answer.headers


async def test_every_answer_forbids_what_the_page_does_not_need(tmp_path: Path) -> None:
    async with opened(tmp_path) as one, browser() as session:
        await let_in(one, session)
        for path in ("/", "/assets/page.css", "/v1/session", "/metrics", "/none", "/v1/link"):
            answer = await session.get(one.origin + path)
            policy = answer.headers["Content-Security-Policy"]
            assert policy.startswith("default-src 'none'") and "unsafe" not in policy and "http" not in policy
            assert "frame-ancestors 'none'" in policy and answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Cache-Control"] == "no-store" and answer.headers["X-Frame-Options"] == "DENY"
        live = await session.get(f"{one.origin}/v1/live")
        assert "Content-Security-Policy" in live.headers
        live.close()


async def test_everything_that_the_page_loads_is_in_the_package(tmp_path: Path) -> None:
    async with opened(tmp_path) as one, browser() as session:
        pages = [await (await session.get(await one.ticket_address())).text()]
        for name in re.findall(r'(?:src|href)="([^"#]+)"', pages[0]):
            answer = await session.get(one.origin + name)
            assert answer.status == 200, name
            pages.append(await answer.text())
        scripts = [name for text in pages for name in re.findall(r'from "\./([\w.]+)"', text)]
        assert {"text.js", "charts.js", "overlay.js", "actions.js"} <= set(scripts)
        for name in scripts:
            answer = await session.get(f"{one.origin}/assets/{name}")
            assert answer.status == 200 and answer.content_type == "text/javascript"
            pages.append(await answer.text())
        outside = [text for page in pages for text in re.findall(r"https?://[^\"'\s)]+", page)]
        assert set(outside) <= {"http://www.w3.org/2000/svg"}  # the name of a vocabulary, which nobody loads
        assert not [page for page in pages if re.search(r"innerHTML|insertAdjacentHTML|document\.write|eval\(", page)]
        assert not re.search(r"<script>|style=|\son\w+=", pages[0])


async def test_the_stream_begins_with_history_and_status_as_the_local_api_has_them(tmp_path: Path) -> None:
    async with opened(tmp_path, records=3) as one, browser() as session:
        await let_in(one, session)
        answer = await session.get(f"{one.origin}/v1/live")
        assert answer.content_type == "text/event-stream"
        found = await read_messages(answer, lambda got: "metrics" in kinds(got))
        assert kinds(found)[:5] == ["record", "record", "record", "status", "metrics"]
        assert [msgspec.convert(data, EventRecord) for kind, data in found if kind == "record"] == one.control.history
        assert msgspec.convert(found[3][1], Status) == one.control.current
        assert found[4][1] == "chaosd_rounds_total 3.0"
        answer.close()


async def test_what_happens_comes_with_the_next_tick_well_within_a_second(tmp_path: Path) -> None:
    async with opened(tmp_path, records=1) as one, browser() as session:
        await let_in(one, session)
        answer = await session.get(f"{one.origin}/v1/live")
        await read_messages(answer, lambda got: "metrics" in kinds(got))
        one.control.happen(record(2, reason="Switzerland joins"))
        one.control.current = sample_status(paused="because")
        found = await read_messages(answer, lambda got: any(k == "status" and d["paused"] for k, d in got))
        assert [data["reason"] for kind, data in found if kind == "record"] == ["Switzerland joins"]
        assert feed_module.TICK_S <= 0.5
        answer.close()


async def test_a_browser_that_comes_back_gets_what_it_missed(tmp_path: Path) -> None:
    async with opened(tmp_path, records=10) as one, browser() as session:
        await let_in(one, session)
        answer = await session.get(f"{one.origin}/v1/live", headers={"Last-Event-ID": "7"})
        found = await read_messages(answer, lambda got: "status" in kinds(got))
        assert [data["id"] for kind, data in found if kind == "record"] == [8, 9, 10]
        answer.close()


async def test_a_long_history_is_not_told_whole(tmp_path: Path) -> None:
    async with opened(tmp_path, records=BACKLOG_MAX + 50) as one, browser() as session:
        await let_in(one, session)
        for last in ("", "1", "-3", "9" * 30, "x"):
            answer = await session.get(f"{one.origin}/v1/live", headers={"Last-Event-ID": last})
            found = await read_messages(answer, lambda got: "status" in kinds(got))
            ids = [data["id"] for kind, data in found if kind == "record"]
            assert ids == list(range(51, BACKLOG_MAX + 51)), last
            answer.close()


async def test_the_end_of_the_daemon_is_told_with_its_reason(tmp_path: Path) -> None:
    async with opened(tmp_path) as one, browser() as session:
        await let_in(one, session)
        answer = await session.get(f"{one.origin}/v1/live")
        await read_messages(answer, lambda got: "metrics" in kinds(got))
        await one.page.close("left the run")
        found = await read_messages(answer, lambda got: "end" in kinds(got))
        assert found[-1] == ("end", "left the run")
        assert await answer.content.read() == b""


async def test_viewers_are_bounded_and_a_closed_one_makes_room(tmp_path: Path) -> None:
    async with opened(tmp_path) as one, browser() as session:
        await let_in(one, session)
        answers = [await session.get(f"{one.origin}/v1/live") for _ in range(VIEWERS_MAX)]
        refused = await session.get(f"{one.origin}/v1/live")
        assert refused.status == 503 and "close one" in (await refused.json())["error"]
        for answer in answers:
            answer.close()
        async with asyncio.timeout(60):
            while (again := await session.get(f"{one.origin}/v1/live")).status != 200:
                again.release()
        again.close()


async def test_a_viewer_that_does_not_keep_up_is_cut_off_and_costs_no_more_than_its_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feed_module, "TICK_S", 0.0)
    control = FakeControl()
    feed = LiveFeed(control, lambda: 0)
    slow, _ = feed.join(None)
    quick, _ = feed.join(None)
    quick_got = 0
    async with asyncio.timeout(60):
        while feed.viewers == 2:
            assert slow.queue.qsize() <= QUEUE_MAX
            quick_got += await quick.queue.get() is not None
    assert slow.queue.qsize() == 1 and slow.queue.get_nowait() is None
    assert quick_got >= QUEUE_MAX - 1
    feed.leave(slow)
    feed.leave(quick)
    await feed.close("")


async def test_nobody_looks_and_nothing_is_asked(tmp_path: Path) -> None:
    async with opened(tmp_path) as one, browser() as session:
        await let_in(one, session)
        answer = await session.get(f"{one.origin}/v1/live")
        await read_messages(answer, lambda got: "metrics" in kinds(got))
        answer.close()
        names = {task.get_name() for task in asyncio.all_tasks()}
        async with asyncio.timeout(60):
            while "tell the open pages" in names:
                await (await session.get(f"{one.origin}/v1/session")).read()  # the loop goes round
                names = {task.get_name() for task in asyncio.all_tasks()}


async def test_a_feed_that_cannot_read_goes_on_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(feed_module, "TICK_S", 0.01)
    control = FakeControl()
    feed = LiveFeed(control, lambda: 0)
    viewer, _ = feed.join(None)
    whole = control.status
    fails = iter((True, True))

    def status() -> Status:
        if next(fails, False):
            raise RuntimeError("no")
        return whole()

    monkeypatch.setattr(control, "status", status)
    with caplog.at_level(logging.CRITICAL):
        async with asyncio.timeout(60):
            assert await viewer.queue.get() is not None
    await feed.close("")


async def test_the_feed_tells_the_workers_of_this_sites_own_group_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feed_module, "TICK_S", 0.0)
    control = FakeControl()
    control.current = msgspec.structs.replace(
        control.current, worker=msgspec.structs.replace(control.current.worker, pid=7)
    )
    group = GroupView(
        pid=7, command="train", phase="training", generation=1, step=2, shape="", run="", written=0.0, workers=()
    )
    groups = [msgspec.structs.replace(group, pid=8, command="another"), group]
    feed = LiveFeed(control, lambda: 0, lambda: groups)
    viewer, _ = feed.join(None)
    heard: list[bytes] = []
    async with asyncio.timeout(60):
        while len(heard) < 2:
            message = await viewer.queue.get()
            assert message is not None
            if b"event: workers" in message[1]:
                heard.append(message[1])
                groups.clear()
    await feed.close("")
    assert b'"command":"train"' in heard[0] and b"data: null" in heard[1]


async def test_changes_are_asked_for_by_the_page_itself_and_answered_as_the_commands_are(tmp_path: Path) -> None:
    async with opened(tmp_path) as one, browser() as session:
        secret = await let_in(one, session)
        own = {"Origin": one.origin, SECRET_HEADER: secret}
        answer = await session.post(f"{one.origin}/v1/link", json={"site": "beta", "add": True}, headers=own)
        assert (answer.status, (await answer.json())["reason"]) == (200, "as asked")
        answer = await session.post(f"{one.origin}/v1/leave", json={"reason": "on the page"}, headers=own)
        assert answer.status == 200
        assert one.control.asked == [("link", "beta", True), ("leave", "on the page")]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/link", {"site": "beta", "add": False}),
        ("/v1/leave", {}),
        ("/v1/accept", {"site": "b" * 32}),
        ("/v1/block", {"site": "b" * 32, "ban": True}),
    ],
)
@pytest.mark.parametrize("lacks", ["cookie", "secret", "origin", "right secret", "own origin"])
async def test_a_change_without_all_three_proofs_is_refused_and_changes_nothing(
    tmp_path: Path, path: str, body: dict[str, object], lacks: str
) -> None:
    async with opened(tmp_path) as one, browser() as session, browser() as stranger:
        secret = await let_in(one, session)
        headers = {"Origin": one.origin, SECRET_HEADER: secret}
        if lacks in ("secret", "origin"):
            del headers[{"secret": SECRET_HEADER, "origin": "Origin"}[lacks]]
        elif lacks == "right secret":
            headers[SECRET_HEADER] = "x" * len(secret)
        elif lacks == "own origin":
            headers["Origin"] = "http://localhost:1"
        who = stranger if lacks == "cookie" else session
        answer = await who.post(one.origin + path, json=body, headers=headers)
        assert answer.status in (401, 403)
        assert one.control.asked == []


async def test_a_secret_of_another_session_is_no_good(tmp_path: Path) -> None:
    async with opened(tmp_path) as one, browser() as session, browser() as other:
        await let_in(one, session)
        headers = {"Origin": one.origin, SECRET_HEADER: await let_in(one, other)}
        assert (await session.post(f"{one.origin}/v1/leave", json={}, headers=headers)).status == 403
        assert one.control.asked == []


@pytest.mark.parametrize("body", [b"", b"{", b'{"site": 3, "add": true}', b'{"site": "x"}', b"[]", b"\xff"])
async def test_a_body_that_is_none_is_refused(tmp_path: Path, body: bytes) -> None:
    async with opened(tmp_path) as one, browser() as session:
        headers = {"Origin": one.origin, SECRET_HEADER: await let_in(one, session)}
        answer = await session.post(f"{one.origin}/v1/link", data=body, headers=headers)
        assert answer.status == 400 and "LinkBody" in (await answer.json())["error"]
        assert one.control.asked == []


async def test_metrics_are_those_of_the_local_api_and_need_no_session(tmp_path: Path) -> None:
    async with opened(tmp_path) as one, browser() as session:
        answer = await session.get(f"{one.origin}/metrics")
        assert answer.status == 200 and answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert await answer.read() == one.control.metrics()


async def test_metrics_need_the_token_where_one_is_configured(tmp_path: Path) -> None:
    token_file = tmp_path / "metrics.token"
    async with opened(tmp_path, token_file=token_file) as one, browser() as session:
        assert (await session.get(f"{one.origin}/metrics")).status == 503
        token_file.write_text(" \n")
        assert (await session.get(f"{one.origin}/metrics", headers={"Authorization": "Bearer "})).status == 401
        token_file.write_text("right\n")
        for given, status in ((None, 401), ("Bearer wrong", 401), ("Basic right", 401), ("Bearer right", 200)):
            headers = {"Authorization": given} if given else {}
            assert (await session.get(f"{one.origin}/metrics", headers=headers)).status == status, given


async def test_a_pipe_in_the_place_of_the_token_is_refused_and_keeps_the_daemon_waiting_for_nobody(
    tmp_path: Path,
) -> None:
    token_file = tmp_path / "metrics.token"
    with nobody_writes_for_long(token_file):
        async with opened(tmp_path, token_file=token_file) as one, browser() as session:
            answer = await session.get(f"{one.origin}/metrics", headers={"Authorization": "Bearer who:late"})
            assert answer.status == 503 and "no ordinary file" in (await answer.json())["error"]


async def test_the_page_is_off_until_it_is_asked_for(tmp_path: Path) -> None:
    async with opened(tmp_path, address="") as one, browser() as session:
        assert one.page.address == ""
        url = await one.ticket_address(address=f"127.0.0.1:{free_port()}")
        assert (await session.get(url)).status == 200
        assert (await session.get(await one.ticket_address())).status == 200


async def test_another_daemon_on_the_usual_port_is_no_reason_to_have_no_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "DEFAULT_PAGE", f"127.0.0.1:{free_port()}")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    async with opened(tmp_path / "a", address="") as one, opened(tmp_path / "b", address="") as other:
        urls = [await one.ticket_address(), await other.ticket_address()]
        assert one.page.address == server_module.DEFAULT_PAGE != other.page.address
        async with browser() as session:
            assert [(await session.get(url)).status for url in urls] == [200, 200]


@pytest.mark.parametrize("address", ["0.0.0.0:7480", "192.0.2.1:7480", "example.org:80", "[::]:7480", "7480"])
async def test_the_page_opens_on_loopback_alone(tmp_path: Path, address: str) -> None:
    async with opened(tmp_path, address="") as one:
        assert "cannot be opened: must be" in await one.ticket_address(address=address)
        assert one.page.address == ""


async def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    async with opened(tmp_path / "a") as one, opened(tmp_path / "b", address="") as other:
        told = await other.ticket_address(address=one.page.address)
        assert "cannot listen" in told and "choose another address" in told
        with pytest.raises(OSError, match="choose another address"):
            await PageServer(one.control, site=SITE, door=PageDoor(one.page.address), metrics_token_file=None).start()


async def test_another_life_of_the_daemon_opens_the_page_again_for_those_who_were_in(tmp_path: Path) -> None:
    async with opened(tmp_path, address="") as one, browser() as session:
        url = await one.ticket_address(address=f"127.0.0.1:{free_port()}")
        assert (await session.get(url)).status == 200
        before = one.page.address
        await one.page.close("its script has left")
        next_life = PageServer(one.control, site=SITE, door=one.page.door, metrics_token_file=None)
        await next_life.start()
        try:
            assert next_life.address == before
            assert (await session.get(f"http://{before}/v1/session")).status == 200
        finally:
            await next_life.close("the test is over")


async def test_a_page_that_only_a_command_had_opened_keeps_no_later_life_from_starting(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    async with opened(tmp_path / "a") as one, opened(tmp_path / "b", address="") as other:
        other.page.door.address = one.page.address  # taken by another daemon meanwhile
        await other.page.start()
        assert other.page.address == "" and other.page.door.address == ""
