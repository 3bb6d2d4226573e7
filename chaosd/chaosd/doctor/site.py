"""Looks at everything that commonly keeps a site from working: each finding is ok, warn or fail, with the remedy.

Driven by `chaosd doctor` and by tests; reads and probes, changes nothing (a file that tries the data directory is
removed again). "fail" means that the daemon will not start or will not find the others; "warn" that it will, with a
drawback.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import importlib.util
import mmap
import os
import platform
import resource
import shutil
import ssl
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from chaos_protocols.wire.versions import SPOKEN
from chaosd.api.client import (
    LocalClient,
    NoDaemonError,
    RequestRefusedError,
    SilentDaemonError,
    SocketUnusableError,
)
from chaosd.api.status import Status
from chaosd.config.changes import read_changes, with_names
from chaosd.config.file import CHECKPOINT_DIR_NAME
from chaosd.config.model import ConfigError, PeerConfig, SiteConfig, load_config
from chaosd.doctor.check import SILENT_REMEDY, Check, fail, ok, warn
from chaosd.doctor.listening import why_not
from chaosd.doctor.peers import check_peers
from chaosd.doctor.places import check_checkpoints, check_page, check_sockets, check_token
from chaosd.identity import Identity, IdentityError
from chaosd.os_errors import brief, remedy_of
from chaosd.storage.folders import folder_bytes
from chaosd.transport.settings import STREAMS_AUTO
from chaosd.worker_group.selftest import FILE_NAMES
from chaosd.worker_group.selftest import read as read_selftest

DISK_FAIL_BYTES, DISK_WARN_BYTES = 100 << 20, 2 << 30
"""The journal and the event history stay below 100 MiB; 2 GiB leave room for an arena that spills or a checkpoint."""

MEMORY_WARN_BYTES = 1 << 30
"""The arena holds the state and one contribution; a model worth several sites takes more than this."""

FILES_FIXED, FILES_WARN = 128, 1024
"""A generous estimate for a daemon without peers, and the usual soft limit of Linux distributions."""

SHARED_MEMORY_TRIED_BYTES = 1 << 20
CLOCK_EARLIEST_UNIX_S = 1_735_689_600
"""2025-01-01: a clock before it was never set."""

TIME_ERROR = 5
"""adjtimex(2): the clock is not synchronised."""


def examine(path: Path | None, data_dir: Path | None = None, *, peer_timeout_s: float = 3.0) -> Iterator[Check]:
    """All findings for the configuration at `path` (None: defaults), as they come. Never raises for what it finds."""
    yield check_versions()
    try:
        config = load_config(path, {} if data_dir is None else {"data_dir": data_dir})
    except ConfigError as error:
        for line in str(error).splitlines():
            yield fail("configuration", line, "correct the field; the other checks need the configuration")
        return
    try:
        config = _with_changes(config)
    except ConfigError as error:
        yield fail("configuration", str(error), "the daemon does not start before that")
    else:
        yield ok("configuration", str(path) if path else "defaults (no file)")
    running = _status(config)
    pid = running.pid if running else None
    checks: list[Callable[[], Check]] = [
        lambda: check_key(config),
        lambda: check_data_dir(config.data_dir),
        lambda: check_disk(config.data_dir),
        lambda: check_daemon(config),
        lambda: check_sockets(config),
        lambda: check_port(config.listen, pid),
        lambda: check_page(config, pid),
        lambda: check_token(config),
        lambda: check_checkpoints(config),
        check_clock,
        check_shared_memory,
        lambda: check_file_limit(config),
        lambda: check_proxy(config),
        lambda: check_iperf3(config.probe),
        lambda: check_workers(config.data_dir),
    ]
    for check in checks:
        yield check()
    yield from check_peers(with_names(config, running.called if running else {}), peer_timeout_s)


def check_versions() -> Check:
    versions = [f"{name} {_version(name)}" for name in ("chaos-train", "msgspec", "aiohttp", "numpy")]
    text = f"{', '.join(versions)}, protocol {SPOKEN}, Python {platform.python_version()}, {ssl.OPENSSL_VERSION}"
    if not ssl.HAS_TLSv1_3:
        return fail("versions", text, "this Python's OpenSSL has no TLS 1.3; use another Python")
    if importlib.util.find_spec("uvloop") is None:
        return warn("versions", text, "uvloop is not installed: the daemon runs, slower; `pip install uvloop`")
    return ok("versions", text)


def check_key(config: SiteConfig) -> Check:
    try:
        site = Identity.load(config.data_dir).site
    except IdentityError as error:
        return fail("key", str(error), "see above; a missing key is made by `chaosd init`")
    if any(peer.site == site for peer in config.peers):
        return fail("key", f"this site, {site}, is listed among its own peers", "put the neighbour's id there")
    return ok("key", f"site {site}, readable by its owner only")


def check_data_dir(data_dir: Path) -> Check:
    folder = _nearest(data_dir)
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".doctor-") as file:
            file.write(b"durable?")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        remedy = remedy_of(error) or "make it yours, or choose another data_dir"
        return fail("data_dir", f"{folder} cannot be written: {brief(error)}", remedy)
    if folder != data_dir:
        return warn("data_dir", f"{data_dir} does not exist yet", "`chaosd init` or the first start makes it")
    size_bytes = folder_bytes(data_dir) + folder_bytes(data_dir / CHECKPOINT_DIR_NAME)
    return ok("data_dir", f"{data_dir} is writable, {size_bytes / 2**20:,.1f} MiB in it")


def check_disk(data_dir: Path) -> Check:
    try:
        free_bytes = shutil.disk_usage(_nearest(data_dir)).free
    except OSError as error:
        return fail("disk", f"cannot be asked: {error.strerror}", "choose another data_dir")
    text = f"{free_bytes / 2**30:.1f} GiB free"
    if free_bytes < DISK_FAIL_BYTES:
        return fail("disk", text, "the journal needs room: free some, or choose another data_dir")
    if free_bytes < DISK_WARN_BYTES:
        return warn("disk", text, "enough for the journal, not for checkpoints")
    return ok("disk", text)


def check_daemon(config: SiteConfig) -> Check:
    try:
        status = LocalClient(config.api_socket).status()
    except SocketUnusableError as error:
        return fail("daemon", str(error), "until then nobody can tell here whether one runs")
    except SilentDaemonError as error:
        return fail("daemon", str(error), SILENT_REMEDY)
    except NoDaemonError:
        return ok("daemon", f"none running at {config.api_socket}")
    except RequestRefusedError as error:
        return fail("daemon", str(error), "stop it and start the version that is installed")
    if status.version != _version("chaos-train"):
        text = f"running with version {status.version}, installed is {_version('chaos-train')}"
        return warn("daemon", text, "restart it when convenient: `chaosd leave`, then `chaosd start`")
    return ok("daemon", f"running, pid {status.pid}, {status.state}, round {status.round}")


def check_port(listen: str, running_pid: int | None) -> Check:
    if running_pid is not None:
        return ok("port", f"{listen} is held by the daemon, pid {running_pid}")
    if problem := why_not(listen):
        return fail("port", f"{listen}: {problem}", PORT_REMEDY)
    return ok("port", f"{listen} is free")


PORT_REMEDY = "`ss -ltnp` shows what holds it: end that, unless it is this site's daemon, or choose another listen"


def check_clock() -> Check:
    """Sites never compare clocks; a wrong one only spoils the times in the event history."""
    now_s = time.time()
    text = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(now_s))
    if now_s < CLOCK_EARLIEST_UNIX_S:
        return warn("clock", f"{text}: was never set", "set it: the event history will show wrong times")
    if clock_is_unsynchronised():
        return warn(
            "clock", f"{text}, not synchronised", "run an NTP client, so that the sites' histories can be compared"
        )
    return ok("clock", text)


def check_shared_memory() -> Check:
    if not hasattr(os, "memfd_create"):
        return warn("memory", f"no memfd on {sys.platform}", "for development only: a temporary file serves instead")
    try:
        with open(os.memfd_create("chaos-doctor"), "r+b") as file:
            file.truncate(SHARED_MEMORY_TRIED_BYTES)
            with mmap.mmap(file.fileno(), SHARED_MEMORY_TRIED_BYTES) as memory:
                memory[-1] = 1
    except OSError as error:
        return fail("memory", f"memfd: {error.strerror}", "allow memfd_create in the container's seccomp profile")
    from chaosd.worker.memory import available_bytes

    free_bytes = available_bytes()
    text = f"memfd works, {free_bytes / 2**30:.1f} GiB available"
    if free_bytes < MEMORY_WARN_BYTES:
        return warn("memory", text, "the arena takes the model's state and one contribution: close other programs")
    return ok("memory", text)


def check_file_limit(config: SiteConfig) -> Check:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return ok("open files", "no limit")
    needed = FILES_FIXED + (1 + 2 * (config.bulk_streams or STREAMS_AUTO)) * max(len(config.peers), 1)
    text = f"limit {soft}, needed about {needed}"
    if soft < needed:
        return fail("open files", text, f"raise it: `ulimit -n {max(needed, FILES_WARN)}` before the start")
    if soft < FILES_WARN:
        return warn("open files", text, f"enough for the peers named, few for more: `ulimit -n {FILES_WARN}`")
    return ok("open files", text)


def check_iperf3(probe: str) -> Check:
    program = shutil.which("iperf3")
    if program is not None:
        return ok("iperf3", program)
    if importlib.util.find_spec("iperf3") is not None:
        return ok("iperf3", "Python package")
    if probe == "iperf3":
        return warn(
            "iperf3", "not installed, but chosen as probe", "install iperf3; until then the built-in probe serves"
        )
    return ok("iperf3", f"not installed; not needed, the probe is {probe}")


def check_proxy(config: SiteConfig) -> Check:
    """The file with its password; whether it lets through shows at each peer."""
    if not config.proxy:
        return ok("proxy", "none: the others are dialled straight")
    file = config.proxy_auth_file
    found = f"{config.proxy}, but for {', '.join(('this machine', *config.no_proxy))}"
    try:
        shared = file is not None and file.stat().st_mode & 0o077
    except OSError as error:
        return fail("proxy", f"{file}: {error.strerror}", "proxy_auth_file must name a file with user:password")
    if shared:
        return warn("proxy", f"{found}; other users can read {file}", f"chmod 600 {file}")
    return ok("proxy", found)


def check_workers(data_dir: Path) -> Check:
    """What was executed of a site of several workers, on each kind of device."""
    results = {kind: read_selftest(data_dir, kind) for kind in FILE_NAMES}
    told, failed = [], []
    for kind, result in results.items():
        if result is None:
            continue
        when = time.strftime("%Y-%m-%d", time.localtime(result.at_s))
        where = f"on {kind} ({result.backend}, torch {result.torch}, {when})"
        bad = [verdict.trial for verdict in result.verdicts if not verdict.held]
        failed += [f"did not hold {where}: {', '.join(bad)}"] if bad else []
        held = [verdict.trial for verdict in result.verdicts if verdict.held]
        told += [f"executed {where}: {', '.join(held)}"] if held else []
    never = [kind for kind, result in results.items() if result is None]
    if len(never) == len(results):
        return ok("workers", "several workers (`chaosd run`) were not tried here; `chaosd workers selftest` tries them")
    here = sorted({name for result in results.values() if result is not None for name in result.unused})
    hint = f" ({', '.join(here)} would be here)" if here and never else ""
    last = [f"never executed here on {', '.join(never)}{hint}"] if never else []
    if failed:
        remedy = "`chaosd workers selftest` tries them again and says what was wrong; train with one worker meanwhile"
        return warn("workers", "; ".join([*failed, *told, *last]), remedy)
    return ok("workers", "; ".join([*told, *last, "a lost stage that comes back from other sites is not tried by it"]))


def _with_changes(config: SiteConfig) -> SiteConfig:
    """With the peers that were added and removed by command. Raises ConfigError."""
    named = read_changes(config.data_dir).neighbours(config)
    peers = tuple(PeerConfig(site=peer.site, address=peer.address, name=peer.name) for peer in named)
    return config.model_copy(update={"peers": peers})


def _status(config: SiteConfig) -> Status | None:
    with contextlib.suppress(NoDaemonError, RequestRefusedError):
        return LocalClient(config.api_socket).status()
    return None


def clock_is_unsynchronised() -> bool:
    """True only where the system says so (Linux: adjtimex(2) with modes = 0, which reads and sets nothing)."""
    if sys.platform != "linux":
        return False
    buffer = ctypes.create_string_buffer(512)  # struct timex has 208 bytes on 64-bit Linux
    try:
        return int(ctypes.CDLL(None).adjtimex(buffer)) == TIME_ERROR
    except (OSError, AttributeError):
        return False


def _nearest(folder: Path) -> Path:
    """The folder itself, or the nearest one above it that exists."""
    return next((place for place in (folder, *folder.parents) if place.is_dir()), Path("/"))


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
