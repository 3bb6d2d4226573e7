"""What `chaosd doctor` finds: each trouble is made for real, in a temporary folder, on loopback, by a lowered limit."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.rigs.proxy import opening_context, proxying
from tests.unit.daemon.api.local_api import FakeControl, served
from typer.testing import CliRunner

from chaos_lab.children import free_port
from chaos_protocols.wire.handshake import FULL_FRAME_BYTES, HANDSHAKE_BYTES_MAX
from chaosd.config.model import PeerConfig, SiteConfig, load_config
from chaosd.doctor import site as doctor
from chaosd.doctor.check import Check, Level
from chaosd.doctor.peers import check_peer, check_peers
from chaosd.doctor.site import examine
from chaosd.identity import Identity
from chaosd.proxy import Proxy
from chaosd.transport.tls import server_context


def site(folder: Path, **fields: object) -> SiteConfig:
    return load_config(None, {"data_dir": folder, "listen": f"127.0.0.1:{free_port()}", **fields})


@contextlib.contextmanager
def answering(greet: ssl.SSLContext | bytes, *, large: bool = True) -> Iterator[str]:
    """A listener on loopback that greets one caller: with a TLS handshake and, if `large` ones pass, a challenge; or
    with these bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)

        def greet_one() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.settimeout(60)
                if isinstance(greet, bytes):
                    connection.sendall(greet)
                else:
                    with greet.wrap_socket(connection, server_side=True) as secured:
                        if large:
                            secured.sendall(bytes(FULL_FRAME_BYTES))
                        while secured.recv(HANDSHAKE_BYTES_MAX):
                            pass

        thread = threading.Thread(target=greet_one)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join(timeout=60)


def test_a_fresh_founding_site_has_no_failure(tmp_path: Path) -> None:
    Identity.create(tmp_path)
    path = tmp_path / "chaosd.toml"
    path.write_text(f'data_dir = "."\nfound = true\nlisten = "127.0.0.1:{free_port()}"\n')
    checks = list(examine(path))
    assert [check for check in checks if check.level is Level.FAIL] == []
    assert [check.name for check in checks] == [
        *("versions", "configuration", "key", "data_dir", "disk", "daemon", "sockets", "port"),
        *("page", "metrics", "checkpoints"),
        *("clock", "memory", "open files", "proxy", "iperf3", "workers", "peers"),
    ]


def test_every_finding_that_is_not_ok_has_a_remedy(tmp_path: Path) -> None:
    config = site(tmp_path / "none", peers=[{"site": "0" * 32, "address": f"127.0.0.1:{free_port()}"}], probe="iperf3")
    checks = [doctor.check_key(config), doctor.check_data_dir(config.data_dir), *check_peers(config, 0.5)]
    assert all(check.level is not Level.OK and check.remedy for check in checks)


def test_a_wrong_configuration_is_a_failure_for_each_wrong_field(tmp_path: Path) -> None:
    path = tmp_path / "chaosd.toml"
    path.write_text("min_sites = 0\nlisten = 'x'\n")
    failures = [check for check in examine(path) if check.level is Level.FAIL]
    assert ["listen" in failures[0].found, "min_sites" in failures[1].found, len(failures)] == [True, True, 2]


def test_a_missing_key_points_to_init(tmp_path: Path) -> None:
    check = doctor.check_key(site(tmp_path))
    assert check.level is Level.FAIL
    assert "chaosd init" in check.remedy


def test_a_key_that_others_can_read_is_a_failure(tmp_path: Path) -> None:
    Identity.create(tmp_path)
    (tmp_path / "site.key").chmod(0o644)
    check = doctor.check_key(site(tmp_path))
    assert check.level is Level.FAIL
    assert "chmod 600" in check.found


def test_a_site_among_its_own_peers_is_a_failure(tmp_path: Path) -> None:
    own = Identity.create(tmp_path).site
    assert doctor.check_key(site(tmp_path, peers=[{"site": own, "address": "h:1"}])).level is Level.FAIL


def test_a_port_in_use_is_a_failure_and_that_of_the_running_daemon_is_not(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        listen = f"127.0.0.1:{holder.getsockname()[1]}"
        assert doctor.check_port(listen, None).level is Level.FAIL
        assert doctor.check_port(listen, 4711).level is Level.OK


def test_an_address_of_another_machine_cannot_be_listened_on() -> None:
    assert doctor.check_port("192.0.2.1:7400", None).level is Level.FAIL  # TEST-NET-1 of RFC 5737: nobody's


def test_a_folder_that_cannot_be_written_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(doctor.tempfile, "NamedTemporaryFile", refuse)  # root may write everywhere, so it is played
    check = doctor.check_data_dir(tmp_path)
    assert (check.level, "Permission denied" in check.found) == (Level.FAIL, True)


def test_a_folder_without_room_is_not_called_somebody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(doctor.tempfile, "NamedTemporaryFile", refuse)
    check = doctor.check_data_dir(tmp_path)
    assert check.level is Level.FAIL and "free space" in check.remedy and "make it yours" not in check.remedy


def test_a_daemon_that_may_not_be_asked_is_not_taken_for_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    check = doctor.check_daemon(site(tmp_path, api_socket=tmp_path / "file" / "api.sock"))
    assert check.level is Level.FAIL and "socket cannot be used" in check.found


def test_looking_at_the_folder_leaves_nothing_in_it(tmp_path: Path) -> None:
    assert doctor.check_data_dir(tmp_path).level is Level.OK
    assert doctor.check_data_dir(tmp_path / "a" / "b").level is Level.WARN
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("free_bytes", "level"), [(1 << 20, Level.FAIL), (1 << 30, Level.WARN), (1 << 40, Level.OK)])
def test_the_less_room_the_louder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_bytes: int, level: Level
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=free_bytes)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage)
    assert doctor.check_disk(tmp_path).level is level


def test_a_low_limit_of_open_files_is_told_with_the_command_that_raises_it(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    peers = [{"site": f"{number:032x}", "address": "h:1"} for number in range(100)]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (500, hard))
        few, many = doctor.check_file_limit(site(tmp_path)), doctor.check_file_limit(site(tmp_path, peers=peers))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (few.level, many.level) == (Level.WARN, Level.FAIL)
    assert "ulimit -n" in many.remedy


def test_a_clock_that_was_never_set_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.time, "time", lambda: 1000.0)
    assert doctor.check_clock().level is Level.WARN


def test_shared_memory_is_tried_for_real(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: str) -> int:
        raise OSError(1, "Operation not permitted")

    open_before = len(os.listdir("/proc/self/fd"))
    assert doctor.check_shared_memory().level is not Level.FAIL
    assert len(os.listdir("/proc/self/fd")) == open_before
    monkeypatch.setattr(doctor.os, "memfd_create", refuse)
    assert doctor.check_shared_memory().level is Level.FAIL


def test_iperf3_is_missed_only_where_it_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.shutil, "which", lambda _: None)
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda _: None)
    levels = [doctor.check_iperf3(probe).level for probe in ("builtin", "off", "iperf3")]
    assert levels == [Level.OK, Level.OK, Level.WARN]


def test_a_peer_is_known_by_its_certificate(tmp_path: Path) -> None:
    peer = Identity.create(tmp_path / "peer")
    with answering(server_context(peer)) as address:
        check = check_peer(PeerConfig(site=peer.site, address=address), 5.0)
    assert (check.level, "answers as itself" in check.found) == (Level.OK, True)


def test_another_site_at_the_peers_address_is_a_failure_that_names_it(tmp_path: Path) -> None:
    stranger = Identity.create(tmp_path / "stranger")
    with answering(server_context(stranger)) as address:
        check = check_peer(PeerConfig(site="0" * 32, address=address), 5.0)
    assert (check.level, stranger.site in check.found) == (Level.FAIL, True)


def test_a_peer_whose_address_is_this_sites_own_is_told_as_that(tmp_path: Path) -> None:
    own = Identity.create(tmp_path)
    with answering(server_context(own)) as address:
        named = site(tmp_path, peers=[{"site": "0" * 32, "address": address}], bootstrap=True)
        (check,) = check_peers(named, 5.0)
    assert (check.level, check.found) == (Level.FAIL, f"{address} leads to this site itself")


def test_a_proxy_that_opens_tls_is_told_from_another_site(tmp_path: Path) -> None:
    with answering(opening_context(tmp_path)) as address:
        check = check_peer(PeerConfig(site="0" * 32, address=address), 5.0)
    assert check.level is Level.FAIL and "a firewall or proxy that opens TLS" in check.found
    assert "leave this host and port out" in check.remedy


def test_what_a_proxy_refuses_is_no_matter_of_the_peers_firewall(tmp_path: Path) -> None:
    with proxying(user="anna:right") as there:
        host, port = there.address.split(":")
        peer = PeerConfig(site="0" * 32, address="hospital.invalid:7400")
        check = check_peer(peer, 5.0, Proxy(host=host, port=int(port)))
    assert check.level is Level.WARN and "see proxy_auth_file" in check.found
    assert "`chaosd help behind-a-proxy`" in check.remedy and "firewall" not in check.remedy


def test_a_peer_from_which_only_small_packets_arrive_is_a_failure_with_the_remedy(tmp_path: Path) -> None:
    peer = Identity.create(tmp_path / "peer")
    with answering(server_context(peer), large=False) as address:
        check = check_peer(PeerConfig(site=peer.site, address=address), 0.3)
    assert check.level is Level.FAIL and "large ones from it do not arrive here (MTU blackhole)" in check.found
    assert "mtu 1280" in check.remedy


def test_a_resolver_that_does_not_answer_takes_no_longer_than_a_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: ended.wait(30))
    try:
        check = check_peer(PeerConfig(site="0" * 32, address="silent.example:7400"), 0.1)
    finally:
        ended.set()
    assert check.level is Level.WARN and "the resolver says nothing of silent.example within 0.1 s" in check.found


def test_another_program_at_the_peers_address_is_a_failure() -> None:
    with answering(b"SSH-2.0-OpenSSH\r\n") as address:
        check = check_peer(PeerConfig(site="0" * 32, address=address), 5.0)
    assert (check.level, "not as a chaosd" in check.found) == (Level.FAIL, True)


def test_silence_of_all_peers_is_a_failure_only_for_a_site_that_must_join(tmp_path: Path) -> None:
    peers = [{"site": f"{number:032x}", "address": f"127.0.0.1:{free_port()}"} for number in range(2)]

    def levels(*, bootstrap: bool) -> list[Level]:
        return [check.level for check in check_peers(site(tmp_path, peers=peers, bootstrap=bootstrap), 1.0)]

    assert levels(bootstrap=True) == [Level.WARN, Level.WARN]
    assert levels(bootstrap=False) == [Level.WARN, Level.WARN, Level.FAIL]


def test_a_site_without_peers_that_does_not_found_is_warned(tmp_path: Path) -> None:
    assert [check.level for check in check_peers(site(tmp_path), 1.0)] == [Level.WARN]


def test_a_running_daemon_is_seen_and_an_older_one_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = site(tmp_path)
    assert "none running" in doctor.check_daemon(config).found
    with served(config.api_socket, FakeControl()):
        assert "pid 4711" in doctor.check_daemon(config).found
        monkeypatch.setattr(doctor, "_version", lambda _: "9.9.9")
        assert doctor.check_daemon(config).level is Level.WARN


def test_the_command_ends_with_1_on_a_failure_and_prints_remedies(tmp_path: Path) -> None:
    from chaosd.cli.app import app

    result = CliRunner().invoke(app, ["doctor", "--data-dir", str(tmp_path)])
    assert result.exit_code == 1
    assert "fail key" in result.stdout
    assert "-> " in result.stdout
    as_json = CliRunner().invoke(app, ["doctor", "--data-dir", str(tmp_path), "--json"]).stdout
    assert '"level":"fail"' in as_json


def test_a_finding_is_frozen() -> None:
    check = Check(name="x", level=Level.OK, found="y")
    with pytest.raises(AttributeError):
        check.name = "z"  # type: ignore[misc]
