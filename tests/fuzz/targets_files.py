"""Fuzz targets: what a daemon or a command reads from disk or from a helper: configuration, scenario, journal, key,
remembered vector, report of iperf3."""

from __future__ import annotations

import base64
import functools
import logging
import random
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from chaos_lab.scenario import ScenarioError, load_scenario
from chaos_protocols.wire.keys import KeyChain, KeyChange
from chaos_protocols.wire.state_spec import contribution_spec
from chaosd.config.file import FIELD_TEXTS, ConfigError
from chaosd.config.model import load_config
from chaosd.identity import CHAIN_BEGINS, CHAIN_ENDS, KEY_FILE, Identity, IdentityError
from chaosd.monitor.iperf import parse
from chaosd.monitor.probe import ProbeError
from chaosd.storage.journal.journal import FILE, Journal, JournalDamagedError
from chaosd.storage.journal.records import FILE_HEADER_BYTES, file_header, frame, scan
from chaosd.storage.vector_file import read_vector
from tests.fuzz.engine import Target
from tests.fuzz.mutate import Form
from tests.unit.daemon.storage.journal_faults import FaultyFolder
from tests.unit.daemon.storage.journal_model import Model, lawful

ROOT = Path(__file__).resolve().parents[2]
SITE = "0123456789abcdef" * 2
SALT = bytes(range(32))


@functools.cache
def folder() -> Path:
    """One folder for all inputs of this process; it goes when the process does."""
    place = tempfile.TemporaryDirectory(prefix="chaos-fuzz-")
    _kept.append(place)
    (Path(place.name) / "train.py").touch()
    return Path(place.name)


_kept: list[tempfile.TemporaryDirectory[str]] = []


def _written(name: str, data: bytes) -> Path:
    path = folder() / name
    path.write_bytes(data)
    return path


@contextmanager
def _naming(name: str, data: bytes, refusal: type[Exception]) -> Iterator[Path]:
    """A file with this content; whoever refuses it must say which file it was."""
    path = _written(name, data)
    try:
        yield path
    except refusal as error:
        if str(path) not in str(error):
            raise AssertionError(f"a refusal that does not name the file: {error}") from error
        raise


# ---- configuration


def _config_seeds() -> Iterable[bytes]:
    yield f"""\
name = "cleveland"
run = "heart"
data_dir = "data"
listen = "127.0.0.1:7400"
advertise = "[::1]:7400"
bootstrap = true
trust = ["{SITE}"]
admission = "open"
min_sites = 3
failure_timeout_s = 1.5
heartbeat_interval_s = 0.25
bulk_streams = 4
probe = "off"
worker_socket = "w.sock"
api_socket = "/tmp/a.sock"
log_level = "debug"
[[peers]]
site = "{SITE}"
address = "hungary.example:7400"
""".encode()
    yield b""
    yield b'listen = "0.0.0.0:7400"\npeers = 3\nmin_site = 2\n'


def _config(data: bytes) -> str:
    """Settings that can be used, or one text that names the file and every problem."""
    with _naming("chaosd.toml", data, ConfigError) as path:
        config = load_config(path)
    assert config.settings.beat_s > 0
    return config.admission


# ---- scenario


def _scenario_seeds() -> Iterable[bytes]:
    for name in ("demo", "steady", "churn"):
        text = (ROOT / "examples" / "heart" / f"{name}.toml").read_text(encoding="utf-8")
        lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
        yield "\n".join(lines[:120]).encode()


def _scenario(data: bytes) -> str:
    """A scenario that can be run, or a text that names file, field and what is allowed."""
    with _naming("scenario.toml", data, ScenarioError) as path:
        scenario = load_scenario(path)
    return f"{len(scenario.sites)} sites"


# ---- journal


@functools.cache
def _history() -> bytes:
    rng = random.Random(40)
    disk = FaultyFolder()
    journal = Journal.open("data", folder=disk)
    model = Model()
    for _ in range(5):
        change = lawful(rng, model)
        if change.snapshot is None:
            journal.persist(change)
            model = model.after(change)
    return bytes(disk.names[FILE].current)


def _journal_seeds() -> Iterable[bytes]:
    """The bodies of a real journal's frames; a whole file; the same with its end torn off."""
    bodies = scan(_history()).bodies
    yield b"\x00" + msgspec.msgpack.encode([msgspec.msgpack.decode(body) for body in bodies[:4]])
    yield b"\x00" + msgspec.msgpack.encode([msgspec.msgpack.decode(body) for body in bodies])
    yield b"\x01" + _salted(_history())
    yield b"\x01" + _salted(_history())[:-30]


def _salted(data: bytes) -> bytes:
    """The same records under a salt that does not change from run to run."""
    return file_header(SALT) + b"".join(frame(body, number, SALT) for number, body in enumerate(scan(data).bodies, 1))


def _journal(data: bytes) -> str:
    """A file of frames whose checks are right and whose bodies are the input's, or the input as a file: what was
    recovered can be written again, or the daemon says that it cannot be trusted."""
    file = data[1:]
    if data[:1] == b"\x00":
        try:
            bodies = msgspec.msgpack.decode(data[1:], type=list[msgspec.Raw])
        except (msgspec.MsgspecError, RecursionError):
            return "no list"
        file = file_header(SALT) + b"".join(frame(bytes(one), at, SALT) for at, one in enumerate(bodies, 1))
    disk = FaultyFolder({FILE: file})
    with Journal.open("data", folder=disk) as journal:
        recovered = journal.recovered
    with Journal.open("data", folder=FaultyFolder({FILE: bytes(disk.names[FILE].current)})) as again:
        same = again.recovered
        assert (same.hard_state, same.snapshot, same.entries) == (
            recovered.hard_state,
            recovered.snapshot,
            recovered.entries,
        )
    assert len(file) >= FILE_HEADER_BYTES
    return "torn" if recovered.note else "whole"


# ---- small files


def _vector_seeds() -> Iterable[bytes]:
    yield msgspec.msgpack.encode(contribution_spec(2, 8))
    yield msgspec.msgpack.encode(contribution_spec(0, 1 << 30))


def _vector(data: bytes) -> str:
    """The spec that was remembered, or nothing: never a reason not to start."""
    path = _written("vector", data)
    logging.disable(logging.WARNING)  # it says so each time, as it should
    try:
        spec = read_vector(path)
    finally:
        logging.disable(logging.NOTSET)
    if spec is None:
        return "nothing"
    assert spec.size_bytes >= 0
    return "a spec"


def _key_seeds() -> Iterable[bytes]:
    """A key that nobody uses, in the form of RFC 8410 (its example), and what only looks like one."""
    body = b"MC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC"
    pem = b"-----BEGIN PRIVATE KEY-----\n" + body + b"\n-----END PRIVATE KEY-----\n"
    change = KeyChange(bytes(32), bytes(64), bytes(64))
    chain = msgspec.msgpack.encode(KeyChain(first=bytes(32), run_id="ab" * 16, changes=(change,)))
    changed = pem + CHAIN_BEGINS + base64.encodebytes(chain) + CHAIN_ENDS
    spoilt = [pem.replace(b"PRIVATE", b"RSA PRIVATE"), pem.replace(b"VwBC", b"VuBC")]
    return [pem, *spoilt, changed, changed.replace(CHAIN_ENDS, b""), b"", b"-" * 5000]


def _key(data: bytes) -> str:
    """A key, or a text that names the file."""
    with _naming(KEY_FILE, data, IdentityError) as path:
        path.chmod(0o600)
        return f"site {len(Identity.load(folder()).site)}"


def _iperf_seeds() -> Iterable[bytes]:
    report = {
        "end": {
            "sum_received": {"bits_per_second": 9.4e8, "bytes": 117_500_000, "seconds": 1.0},
            "streams": [{"sender": {"mean_rtt": 420}}],
        }
    }
    yield msgspec.json.encode(report)
    yield b'{"error": "unable to connect"}'


def _iperf(data: bytes) -> str:
    """Figures that can be, or a word why not."""
    found = parse(data)
    assert 0 < found.rate_bytes_per_s < 1e15 and 0 <= found.rtt_s < 1e3 and found.seconds > 0
    return "figures"


TARGETS = (
    Target(
        name="config",
        run=_config,
        refusals=(ConfigError,),
        seeds=_config_seeds,
        worded=False,
        form=Form.TEXT,
        tokens=(*(name.encode() + b" = 1" for name in FIELD_TEXTS), b"[[peers]]", b"[peers]", b'"~x"', SITE.encode()),
    ),
    Target(
        name="scenario",
        run=_scenario,
        refusals=(ScenarioError,),
        seeds=_scenario_seeds,
        worded=False,
        form=Form.TEXT,
        tokens=(b"[[actions]]", b'do = "kill"', b'site = "x"', b"[worker]", b'arguments = ["{x!r:{y}}"]', b"[[links]]"),
    ),
    Target(
        name="journal",
        run=_journal,
        refusals=(JournalDamagedError,),
        seeds=_journal_seeds,
        form=Form.MSGPACK,
        prefix=1,
        tokens=(b"opened", b"persisted", b"CJF\xa5", b"CHAOSJNL"),
    ),
    Target(name="vector", run=_vector, refusals=(), seeds=_vector_seeds, form=Form.MSGPACK, tokens=(b"float64",)),
    Target(name="key", run=_key, refusals=(IdentityError,), seeds=_key_seeds, form=Form.TEXT),
    Target(
        name="iperf",
        run=_iperf,
        refusals=(ProbeError,),
        seeds=_iperf_seeds,
        worded=False,
        tokens=(b"1e999", b"-1", b"null", b"[]", b'"9"', b"NaN", b"9" * 400),
    ),
)
