"""What a site accepts as its configuration, and how it says what is wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from chaos_protocols.wire.bounds import Bounds
from chaosd.addresses import split_address
from chaosd.config.file import FIELD_TEXTS, flag_name
from chaosd.config.model import ConfigError, SiteConfig, load_config

ONE, OTHER = "0" * 32, "f" * 32


def write(folder: Path, text: str) -> Path:
    path = folder / "chaosd.toml"
    path.write_text(text, encoding="utf-8")
    return path


def problems_of(folder: Path, text: str, **overrides: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(write(folder, text), overrides)
    return str(caught.value)


def test_defaults_open_no_port_to_other_machines() -> None:
    assert load_config(None).listen == "127.0.0.1:7400"


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    text = f"""
        name = "Cleveland"
        run = "heart"
        data_dir = "data"
        listen = "0.0.0.0:7401"
        advertise = "cleveland.example:7401"
        bootstrap = true
        trust = ["{OTHER}"]
        min_sites = 3
        failure_timeout_s = 2
        probe = "off"
        [[peers]]
        site = "{ONE}"
        address = "[::1]:7400"
    """
    config = load_config(write(tmp_path, text))
    assert (config.name, config.run, config.bootstrap, config.min_sites, config.probe) == (
        "Cleveland",
        "heart",
        True,
        3,
        "off",
    )
    assert config.start_sites == 3, "as many as rounds wait for"
    assert load_config(write(tmp_path, "start_sites = 2")).min_sites == 1
    assert [(peer.site, peer.address) for peer in config.peers] == [(ONE, "[::1]:7400")]
    assert config.settings.beat_s == config.heartbeat_interval_s == 0.5
    assert config.settings.failure_timeout_s == 2.0


def test_paths_of_the_file_are_relative_to_the_file_and_sockets_lie_in_the_data_directory(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, 'data_dir = "data"'))
    assert config.data_dir == tmp_path / "data"
    assert (config.worker_socket, config.api_socket) == (tmp_path / "data/worker.sock", tmp_path / "data/api.sock")


def test_an_override_wins_over_the_file_and_moves_what_is_derived_from_it(tmp_path: Path) -> None:
    path = write(tmp_path, 'listen = "127.0.0.1:1"\nfailure_timeout_s = 1.0\ntrust = ["' + ONE + '"]')
    config = load_config(path, {"listen": "127.0.0.1:2", "failure_timeout_s": 4.0, "trust": [OTHER]})
    assert (config.listen, config.advertise, config.heartbeat_interval_s) == ("127.0.0.1:2", "127.0.0.1:2", 1.0)
    assert config.trust == (OTHER,)


def test_no_environment_variable_changes_a_field(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = load_config(None, {"data_dir": tmp_path})
    for field in SiteConfig.model_fields:
        for prefix in ("", "CHAOS_", "CHAOSD_"):
            monkeypatch.setenv((prefix + field).upper(), "1")
            if os.name == "posix":
                monkeypatch.setenv(prefix.lower() + field, "1")
    assert load_config(None, {"data_dir": tmp_path}) == before


def test_all_problems_are_told_in_one_text_with_file_field_value_and_what_is_allowed(tmp_path: Path) -> None:
    text = problems_of(
        tmp_path,
        'name = ""\nfailure_timeout_s = 0.05\nlisten = "nowhere"\nprobe = "iperf"\nbootstrap = "yes"\n'
        'trust = ["ABC"]\non_hang = "kill\\u0000"\n[[peers]]\nsite = "zz"\naddr = "1"\n',
    )
    lines = text.splitlines()
    assert all(line.startswith(f"{tmp_path / 'chaosd.toml'}: ") for line in lines)
    for expected in (
        'name = "": must be 1 to 64 printable characters',
        "failure_timeout_s = 0.05: must be greater than or equal to 0.2",
        'listen = "nowhere": must be host:port',
        "probe = \"iperf\": must be 'builtin', 'iperf3' or 'off'",
        'bootstrap = "yes": must be true or false',
        'trust[0] = "ABC": must be a site id',
        'on_hang = "kill\\u0000": must be a command of the shell',
        'peers[0].site = "zz": must be a site id',
        "peers[0].address: is missing",
        "peers[0].addr: there is no such field; did you mean address?",
    ):
        assert expected in text
    assert len(lines) == 10


@pytest.mark.parametrize(
    ("wrong", "near"), [("listn", "listen"), ("failure_timeout", "failure_timeout_s"), ("peer", "peers")]
)
def test_an_unknown_field_is_refused_with_the_nearest_known_one(tmp_path: Path, wrong: str, near: str) -> None:
    assert f"{wrong}: there is no such field; did you mean {near}?" in problems_of(tmp_path, f"{wrong} = 1")


def test_a_field_of_the_site_that_was_written_below_a_peer_is_told_where_it_belongs(tmp_path: Path) -> None:
    text = f'[[peers]]\nsite = "{"b" * 32}"\naddress = "127.0.0.1:7400"\nsend_limit_mbit = 20'
    told = problems_of(tmp_path, text)
    assert (
        "peers[0].send_limit_mbit: there is no such field; it is one of the site: write it above the first [[" in told
    )


@pytest.mark.parametrize(
    ("former", "field", "value"),
    [("found", "bootstrap", True), ("mirror_every_rounds", "memory_checkpoint_every_rounds", 7)],
)
def test_a_former_name_of_a_field_is_read_and_beside_the_present_one_refused(
    tmp_path: Path, former: str, field: str, value: object
) -> None:
    path = tmp_path / "chaosd.toml"
    path.write_text(f"{former} = {json.dumps(value)}", encoding="utf-8")
    assert getattr(load_config(path), field) == value
    assert getattr(load_config(None, {former: value}), field) == value
    both = problems_of(tmp_path, f"{former} = {json.dumps(value)}\n{field} = {json.dumps(value)}\nmin_sites = 0")
    assert f"{field} and {former} are both given" in both and "min_sites" in both
    with pytest.raises(ConfigError) as caught:
        load_config(None, {former: value, field: value})
    assert f"--{field.replace('_', '-')} and --{former.replace('_', '-')} are both given" in str(caught.value)


def test_a_flag_by_a_former_name_wins_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "chaosd.toml"
    path.write_text("bootstrap = true", encoding="utf-8")
    assert not load_config(path, {"found": False}).bootstrap


def test_an_unknown_field_that_resembles_none_gets_the_list(tmp_path: Path) -> None:
    assert "allowed are name, run, data_dir" in problems_of(tmp_path, "zzzzzzz = 1")


@pytest.mark.parametrize(
    ("toml", "expected"),
    [
        ("min_sites = true", "min_sites = true: must be a whole number"),
        ("min_sites = 0", "min_sites = 0: must be greater than or equal to 1"),
        ("failure_timeout_s = nan", "failure_timeout_s = NaN"),
        ("failure_timeout_s = 61", "failure_timeout_s = 61: must be less than or equal to 60"),
        ("bulk_streams = 17", "bulk_streams = 17: must be less than or equal to 16"),
        ("run = 3", "run = 3: must be a text in quotes"),
        ("peers = 3", "peers = 3: must be a list"),
        ("peers = [3]", "peers[0] = 3: must be a table of fields"),
        ("name = 'a\tb'", "must be 1 to 64 printable characters"),
        ("lab = true", "lab: there is no such field"),
    ],
)
def test_a_value_outside_its_range_or_type_is_refused(tmp_path: Path, toml: str, expected: str) -> None:
    assert expected in problems_of(tmp_path, toml)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"heartbeat_interval_s": 0.6}, "--heartbeat-interval-s (command line): must be at most half"),
        ({"listen": "0.0.0.0:7400"}, "advertise: 0.0.0.0 is no address that others can dial"),
        ({"listen": "[::]:7400"}, "advertise: :: is no address that others can dial"),
        ({"trust": [ONE, ONE]}, f"--trust (command line): site {ONE} is named twice"),
        ({"aggregate": "clipped"}, 'clip_radius: aggregate = "clipped" needs a clip_radius above 0'),
        ({"clip_radius": 2.0}, '--clip-radius (command line): counts with aggregate = "clipped" only'),
        ({"aggregate": "clipped", "clip_radius": 1e-9}, "clip_radius is 1e-09; allowed: 0 (off), or 1e-06"),
        ({"api_socket": "/x", "worker_socket": "/x"}, "--worker-socket (command line): must differ from api_socket"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(
    tmp_path: Path, overrides: dict[str, object], expected: str
) -> None:
    assert expected in problems_of(tmp_path, "", **overrides)


def test_a_founder_says_what_a_site_may_give(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, "norm_max = 4.0")).bounds == Bounds(norm_max=4.0)
    path = write(tmp_path, 'aggregate = "clipped"\nclip_radius = 0.5\nweight_max = 3.0')
    assert load_config(path).bounds == Bounds(weight_max=3.0, clip_radius=0.5)


def test_a_flag_is_named_where_the_flag_is_wrong(tmp_path: Path) -> None:
    assert "--min-sites (command line) = 0: must be" in problems_of(tmp_path, "min_sites = 2", min_sites=0)


def test_a_path_that_no_configuration_file_can_name_is_refused(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/h\xf4pital"))
    with pytest.raises(ConfigError, match=r"--data-dir.*h\\udcf4pital' is no UTF-8.*choose a path of plain letters"):
        load_config(None, {"data_dir": folder})


def test_a_socket_path_longer_than_the_system_allows_is_refused_with_its_length(tmp_path: Path) -> None:
    text = problems_of(tmp_path, "", data_dir="/tmp/" + "x" * 100)
    assert "api_socket: the path has 114 bytes and a unix socket's at most" in text
    assert "choose a shorter api_socket or data_dir" in text


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"name = ", "is not valid TOML"),
        (
            b'run = "a"\nname = St. Mary # of Basel',
            r"at line 2, .*: `name = St. Mary # of Basel`. Texts stand in quotes;",
        ),
        (b"send_limit_mbit = 20 Mbit", r": `send_limit_mbit = 20 Mbit`. Texts .* numbers do not, and have no unit"),
        (b"name = 'a'\nname = 'b'\n", r"overwrite a value .*: `name = 'b'`$"),
        (b"\xff\xfe", "is not UTF-8"),
        (b"#" * (1 << 20) + b"#", "is longer than"),
    ],
)
def test_a_file_that_is_no_toml_is_refused_by_name(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "chaosd.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=expected) as caught:
        load_config(path)
    assert str(path) in str(caught.value)


def test_a_file_of_an_editor_of_windows_is_read(tmp_path: Path) -> None:
    path = tmp_path / "chaosd.toml"
    path.write_bytes("\ufeffname = 'Ward'\r\nrun = 'heart'\r\n".encode())
    assert (load_config(path).name, load_config(path).run) == ("Ward", "heart")


def test_a_missing_file_points_to_init(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such file; `chaosd init` writes one"):
        load_config(tmp_path / "none.toml")


def test_a_directory_in_place_of_the_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path)


def test_a_configuration_cannot_be_changed_later() -> None:
    config = load_config(None)
    with pytest.raises(ValidationError):
        config.name = "other"  # type: ignore[misc]


def test_every_field_has_a_text_and_a_flag_of_its_own() -> None:
    assert set(FIELD_TEXTS) == set(SiteConfig.model_fields)
    assert len({flag_name(field) for field in FIELD_TEXTS}) == len(FIELD_TEXTS)


@pytest.mark.parametrize(
    "text", ["", ":1", "host", "host:", "host:0", "host:65536", "::1:80", "a b:1", "a/b:1", "h:१", "h:+1"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        split_address(text)


@given(st.from_regex(r"[abcxyz019-]{1,9}(\.[abcxyz019-]{1,9}){0,3}\.?", fullmatch=True), st.integers(1, 65535))
def test_every_host_and_port_is_read_back(host: str, port: int) -> None:
    assert split_address(f"{host}:{port}") == (host, port)


@given(
    st.dictionaries(
        st.sampled_from(list(SiteConfig.model_fields)),
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.text(), max_size=3)),
        max_size=4,
    )
)
def test_any_values_are_accepted_or_refused_with_a_text_that_names_the_field(values: dict[str, object]) -> None:
    try:
        load_config(None, values)
    except ConfigError as error:
        mentioned = [field for field in FIELD_TEXTS if field in str(error) or flag_name(field) in str(error)]
        assert mentioned
