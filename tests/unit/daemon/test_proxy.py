"""The way out through an HTTP proxy: whom it serves, what is asked of it, what its answers mean."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from pathlib import Path

import pytest
from tests.rigs.pipes import nobody_writes_for_long
from tests.rigs.proxy import proxying

from chaosd.config.making import make_site
from chaosd.config.model import ConfigError, SiteConfig, load_config
from chaosd.proxy import HEAD_BYTES_MAX, Proxy, ProxyError, connect, parse_direct, parse_proxy

PROXY = Proxy(host="proxy.example", port=3128)
GRANTED = b"HTTP/1.1 200 Connection established\r\n\r\n"


def test_everybody_is_reached_through_it_but_this_machine_and_who_is_named() -> None:
    direct = tuple(map(parse_direct, ("10.0.0.0/8", ".Clinic.example", "heart.example", "192.168.7.9", "fd00::/8")))
    proxy = Proxy(host="proxy.example", port=3128, direct=direct)
    straight = ("127.0.0.1", "127.3.2.1", "::1", "localhost", "10.9.8.7", "clinic.example", "LAB.clinic.example.")
    for host in (*straight, "heart.example", "a.heart.example", "192.168.7.9", "fd12::1"):
        assert not proxy.serves(host), host
    for host in ("11.0.0.1", "myclinic.example", "example", "192.168.7.8", "fe80::1%eth0", "localhost.example"):
        assert proxy.serves(host), host


@pytest.mark.parametrize(
    ("given", "meant"),
    [("", ""), ("p.example:3128", "p.example:3128"), ("http://p.example:80/", "p.example:80"), ("[::1]:1", "[::1]:1")],
)
def test_a_proxy_is_written_as_other_addresses_or_as_one_of_the_web(given: str, meant: str) -> None:
    assert parse_proxy(given) == meant


@pytest.mark.parametrize("wrong", ["p.example", "socks5://p:1080", "https://p:3128", "http://p:3128/path", "p:99999"])
def test_what_is_no_http_proxy_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        parse_proxy(wrong)


@pytest.mark.parametrize("wrong", ["", "10.0.0.0/99", "a b", "http://x", "*.example", "host:80", "::1/200"])
def test_who_is_reached_straight_is_named_as_host_domain_address_or_network(wrong: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        parse_direct(wrong)


def test_a_password_in_the_wrong_place_is_refused_and_not_repeated() -> None:
    for given in ("http://anna:secret@p.example:3128", "anna:secret@p.example:3128"):
        with pytest.raises(ConfigError, match="proxy_auth_file") as caught:
            load_config(None, {"proxy": given})
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"no_proxy": ["10.0.0.0/8"]}, "--no-proxy"),
        ({"proxy": "p:1", "probe": "iperf3"}, "--probe"),
    ],
)
def test_fields_that_are_of_no_use_without_each_other_are_told(fields: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        load_config(None, fields)


def test_a_site_has_none_unless_its_configuration_names_one(tmp_path: Path) -> None:
    assert SiteConfig(data_dir=tmp_path).way_out is None
    config = SiteConfig(data_dir=tmp_path, proxy="http://p.example:3128", no_proxy=("10.0.0.0/8",))
    assert config.way_out == Proxy(host="p.example", port=3128, direct=("10.0.0.0/8",))


def test_a_site_that_is_made_with_a_proxy_has_it_in_its_file(tmp_path: Path) -> None:
    path, _, _ = make_site(tmp_path / "a", {"proxy": "http://proxy.example:3128/"})
    assert load_config(path).proxy == "proxy.example:3128"


def test_an_ipv6_host_is_asked_for_in_brackets_and_the_password_comes_from_its_file(tmp_path: Path) -> None:
    assert PROXY.request("fd00::1", 7400) == b"CONNECT [fd00::1]:7400 HTTP/1.1\r\nHost: [fd00::1]:7400\r\n\r\n"
    file = tmp_path / "proxy.auth"
    proxy = Proxy(host="p", port=1, auth_file=file)
    with pytest.raises(ProxyError, match="cannot be read: No such file"):
        proxy.request("h", 1)
    for wrong in (b"no colon", b"a:b\nc:d", b"a:" + bytes(5000)):
        file.write_bytes(wrong)
        with pytest.raises(ProxyError, match="user:password"):
            proxy.request("h", 1)
    file.write_text("Aladdin:open sesame\n")
    # The pair and its form are the example of RFC 7617, section 2.
    assert b"\r\nProxy-Authorization: Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==\r\n" in proxy.request("h", 1)


def test_a_pipe_in_the_place_of_the_password_is_refused_and_keeps_no_dial_waiting(tmp_path: Path) -> None:
    file = tmp_path / "proxy.auth"
    with nobody_writes_for_long(file), pytest.raises(ProxyError, match="it is no ordinary file"):
        Proxy(host="p", port=1, auth_file=file).request("h", 1)


def test_an_answer_may_come_in_any_pieces() -> None:
    whole = b"HTTP/1.0 200 OK\r\nVia: 1.1 p\r\n\r\n"
    assert [PROXY.is_open(whole[:length]) for length in range(len(whole) + 1)] == [False] * len(whole) + [True]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"SSH-2.0-OpenSSH", "no HTTP proxy"),
        (b"HTTP/2 200\r\n\r\n", "no HTTP proxy"),
        (b"HTTP/1.1 yes\r\n\r\n", "no HTTP proxy"),
        (b"HTTP/1.1 " + bytes(HEAD_BYTES_MAX), "no HTTP proxy"),
        (GRANTED + b"x", "of its own"),
        (b"HTTP/1.1 403 Forbidden\r\n\r\n<html>", "answers 403 Forbidden: its operator has to allow CONNECT"),
        (b"HTTP/1.1 407 Who?\r\n\r\n", "it wants a user and a password, see proxy_auth_file"),
        (b"HTTP/1.1 401 Unauthorized\r\n\r\n", "it wants a user and a password, see proxy_auth_file"),
        (b"HTTP/1.1 502 \x1b[31mred\xff\r\n\r\n", "answers 502 [31mred"),
        (b"HTTP/1.1 503\r\n\r\n", "answers 503"),
    ],
)
def test_an_answer_that_opens_no_tunnel_is_told_in_words(answer: bytes, told: str) -> None:
    with pytest.raises(ProxyError) as caught:
        PROXY.is_open(answer)
    text = caught.value.strerror or ""
    assert text.startswith("through the proxy proxy.example:3128: ") and told in text and text.isprintable()


def test_a_thread_gets_a_tunnel_and_a_wrong_password_is_told(tmp_path: Path) -> None:
    file = tmp_path / "proxy.auth"
    file.write_text("anna:right")
    with proxying(user="anna:right", hosts={"far.invalid": "127.0.0.1"}) as there, proxying() as echo:
        host, port = there.address.split(":")
        proxy = Proxy(host=host, port=int(port), auth_file=file)
        with connect(f"far.invalid:{echo.address.split(':')[1]}", 5.0, proxy) as tunnel:
            tunnel.sendall(b"CONNECT nobody.invalid:1 HTTP/1.1\r\n\r\n")
            assert tunnel.recv(100)
        file.write_text("anna:wrong")
        with pytest.raises(ProxyError, match="does not take the user and password of"):
            connect("far.invalid:1", 5.0, proxy)
        there._end()
        with pytest.raises(ProxyError, match=r"through the proxy 127\.0\.0\.1:[0-9]+: Connection refused"):
            connect("far.invalid:1", 5.0, proxy)


def test_a_proxy_that_never_comes_to_the_end_of_its_answer_holds_a_thread_no_longer_than_was_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        over = threading.Event()

        def trickle() -> None:
            taken, _ = listening.accept()
            with taken, contextlib.suppress(OSError):
                taken.sendall(b"HTTP/1.1 200 Connection established\r\nVia: ")
                while not over.wait(0.1):
                    taken.sendall(b"x")

        thread = threading.Thread(target=trickle)
        thread.start()
        began_s = time.monotonic()
        try:
            with pytest.raises(ProxyError, match="does not answer in time"):
                Proxy(host="127.0.0.1", port=listening.getsockname()[1]).open("far.example", 7400, timeout_s=0.5)
            assert time.monotonic() - began_s < 10.0
        finally:
            over.set()
            thread.join()
