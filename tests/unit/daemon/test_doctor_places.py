"""`chaosd doctor` on what a configuration names besides the data folder: what a start would refuse is found before."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from chaos_lab.children import free_port
from chaosd.cli.app import app
from chaosd.config.model import SiteConfig, load_config
from chaosd.doctor.check import Check, Level
from chaosd.doctor.places import check_checkpoints, check_page, check_sockets, check_token
from chaosd.doctor.site import examine


def site(folder: Path, **fields: object) -> SiteConfig:
    return load_config(None, {"data_dir": folder / "data", **fields})


def test_a_site_as_it_was_made_is_well(tmp_path: Path) -> None:
    made = site(tmp_path)
    found = [check_sockets(made), check_checkpoints(made), check_page(made, None), check_token(made)]
    assert {check.level for check in found} == {Level.OK}


@pytest.mark.parametrize("field", ["worker_socket", "api_socket"])
def test_a_socket_that_could_not_be_made_is_a_failure(tmp_path: Path, field: str) -> None:
    (tmp_path / "file").write_text("")
    missing = check_sockets(site(tmp_path, **{field: tmp_path / "nowhere" / "x.sock"}))
    taken = check_sockets(site(tmp_path, **{field: tmp_path / "file"}))
    assert missing.level is Level.FAIL and f"mkdir -p -m 700 {tmp_path}/nowhere" in missing.remedy
    assert taken.level is Level.FAIL and "something else" in taken.found


def test_the_port_of_the_page_is_looked_at_as_the_one_for_others_is(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        held = site(tmp_path, page=f"127.0.0.1:{holder.getsockname()[1]}")
        assert check_page(held, None).level is Level.FAIL
        assert check_page(held, 4711).level is Level.OK, "the daemon itself may have it"
    assert check_page(held, None).level is Level.OK


def test_a_token_that_would_let_nobody_in_is_told(tmp_path: Path) -> None:
    file = tmp_path / "token"
    guarded = site(tmp_path, metrics_token_file=file)

    def level(text: str | None, mode: int = 0o600) -> Level:
        if text is not None:
            file.write_text(text)
            file.chmod(mode)
        return check_token(guarded).level

    assert level(None) is Level.WARN
    assert level(" \n") is Level.WARN
    assert level("secret", 0o644) is Level.WARN
    assert level("secret", 0o640) is Level.OK, "Prometheus may be of that group"


def test_checkpoints_that_could_not_be_written_are_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    check = check_checkpoints(site(tmp_path, checkpoint_dir=tmp_path / "file" / "here"))
    assert check.level is Level.WARN and "no folder" in check.found
    assert check_checkpoints(site(tmp_path, checkpoint_dir=tmp_path / "file", checkpoint="off")).level is Level.OK
    assert check_checkpoints(site(tmp_path, checkpoint_dir=tmp_path / "new" / "here")).level is Level.OK


def test_all_of_it_is_in_what_doctor_says(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        (tmp_path / "chaosd.toml").write_text(
            f"""data_dir = "data"
listen = "127.0.0.1:{free_port()}"
page = "127.0.0.1:{holder.getsockname()[1]}"
worker_socket = "nowhere/w.sock"
checkpoint_dir = "chaosd.toml/here"
metrics_token_file = "token"
"""
        )
        found: dict[str, Check] = {check.name: check for check in examine(tmp_path / "chaosd.toml")}
    assert [found[name].level for name in ("page", "sockets")] == [Level.FAIL] * 2
    assert [found[name].level for name in ("checkpoints", "metrics")] == [Level.WARN] * 2


@pytest.mark.parametrize("wish", ["", "1"])
def test_the_colours_of_a_terminal_are_left_out_where_its_user_wants_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wish: str
) -> None:
    monkeypatch.setenv("NO_COLOR", wish)
    (tmp_path / "chaosd.toml").write_text("unknown = 1\n")
    told = CliRunner().invoke(app, ["doctor", "--config", str(tmp_path)], color=True).output
    assert "fail" in told and ("\x1b[" in told) == (not wish)
