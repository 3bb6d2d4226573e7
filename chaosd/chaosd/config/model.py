"""What one site is told at its start: the TOML file and the flags of `chaosd start`, checked once and frozen.

Driven by the command line and by tests; decides nothing at run time. A flag has the name of its field
(`--failure-timeout-s` is `failure_timeout_s`) and wins over the file; no environment variable does. Every problem of a
configuration is told in one text, each with the file (or flag), the field, the value and what is allowed, because a
user who must start the daemon five times to find five typing errors is served badly.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from chaos_protocols.names import SITES_MAX, WEIGHT_MAX
from chaos_protocols.settings import CheckpointSettings, SiteSettings
from chaos_protocols.state.result_log import RESULTS_QUEUED_MAX
from chaos_protocols.wire.bounds import NORM_MAX, Bounds, bounds_problem
from chaos_protocols.wire.handshake import STREAMS_MAX

__all__ = ["DEFAULT_LISTEN", "ConfigError", "PeerConfig", "SiteConfig", "load_config"]
from chaosd.addresses import split_address
from chaosd.config.fields import (
    SEND_LIMIT_MAX_MBIT,
    Address,
    AveragingPolicy,
    Direct,
    FilePath,
    Flag,
    Id,
    Label,
    Number,
    PagePlace,
    ProxyPlace,
    SendMbit,
    ShellCommand,
    Streams,
    Whole,
    default_name,
)
from chaosd.config.file import (
    API_SOCKET_NAME,
    CHECKPOINT_DIR_NAME,
    DEFAULT_LISTEN,
    DEFAULT_RUN,
    FIELD_TEXTS,
    FORMER_NAMES,
    WORKER_SOCKET_NAME,
    ConfigError,
    default_data_dir,
    flag_name,
    read_config_file,
)
from chaosd.os_errors import SOCKET_PATH_BYTES_MAX
from chaosd.proxy import Proxy

VALUE_CHARACTERS_SHOWN = 80
FAILURE_TIMEOUT_MIN_S, FAILURE_TIMEOUT_MAX_S = 0.2, 60.0
JOIN_HOLD_MAX_S = 86_400.0
CONGESTION_NAME_MAX = 15
DIRECT_MAX = 256
CHECKPOINTS_KEPT_MAX = 64
ON_HANG_CHARACTERS_MAX = 4096


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class PeerConfig(_Frozen):
    """A neighbour to connect to at the start."""

    site: Id = Field(description="id of the neighbour, as its `chaosd id` prints it")
    address: Address = Field(description="host:port where the neighbour listens")
    name: Label | Literal[""] = Field(default="", description="what the neighbour is called here, before people")


class SiteConfig(_Frozen):
    """One site's settings (texts: `file.FIELD_TEXTS`); the defaults work on one machine. Paths are absolute."""

    name: Label = Field(default_factory=default_name)
    run: Label = Field(default=DEFAULT_RUN)
    data_dir: FilePath = Field(default_factory=default_data_dir)
    listen: Address = Field(default=DEFAULT_LISTEN)
    advertise: Address = Field(default_factory=lambda data: str(data["listen"]))
    bootstrap: Flag = Field(default=False)
    peers: tuple[PeerConfig, ...] = Field(default=(), max_length=SITES_MAX)
    trust: tuple[Id, ...] = Field(default=(), max_length=SITES_MAX)
    admission: Literal["pinned", "open"] = Field(default="pinned")
    min_sites: Whole = Field(default=1, ge=1, le=SITES_MAX)
    start_sites: Whole = Field(default_factory=lambda data: int(data.get("min_sites", 1)), ge=1, le=SITES_MAX)
    failure_timeout_s: Number = Field(default=1.0, ge=FAILURE_TIMEOUT_MIN_S, le=FAILURE_TIMEOUT_MAX_S)
    heartbeat_interval_s: Number = Field(default_factory=lambda data: float(data["failure_timeout_s"]) / 4, gt=0)
    proxy: ProxyPlace = Field(default="")
    no_proxy: tuple[Direct, ...] = Field(default=(), max_length=DIRECT_MAX)
    proxy_auth_file: FilePath | None = Field(default=None)
    send_limit_mbit: SendMbit = Field(default=0.0, ge=0, le=SEND_LIMIT_MAX_MBIT)
    bulk_streams: Streams = Field(default=0, ge=0, le=STREAMS_MAX)
    congestion: Label = Field(default="auto", max_length=CONGESTION_NAME_MAX)
    verify: Literal["hash", "witness"] = Field(default="hash")
    probe: Literal["builtin", "iperf3", "off"] = Field(default="builtin")
    join_hold_s: Number = Field(default=60.0, ge=0, le=JOIN_HOLD_MAX_S)
    replication: Literal["chaos", "single", "equal", "round_robin", "multi_source"] = Field(default="chaos")
    averaging: AveragingPolicy = Field(default="trees", max_length=256)
    memory_checkpoint_every_rounds: Whole = Field(default=0, ge=0, le=RESULTS_QUEUED_MAX)
    checkpoint: Literal["off", "auto", "fixed", "optimum"] = Field(default="auto")
    checkpoint_every_rounds: Whole = Field(default=0, ge=0)
    checkpoint_every_s: Number = Field(default=600.0, ge=0)
    mean_time_between_failures_s: Number = Field(default=86_400.0, gt=0)
    checkpoint_dir: FilePath = Field(default_factory=lambda data: data["data_dir"] / CHECKPOINT_DIR_NAME)
    checkpoints_kept: Whole = Field(default=2, ge=1, le=CHECKPOINTS_KEPT_MAX)
    restore_wait_s: Number = Field(default=120.0, ge=0)
    worker_socket: FilePath = Field(default_factory=lambda data: data["data_dir"] / WORKER_SOCKET_NAME)
    api_socket: FilePath = Field(default_factory=lambda data: data["data_dir"] / API_SOCKET_NAME)
    page: PagePlace = Field(default="")
    metrics_token_file: FilePath | None = Field(default=None)
    straggler_timeout: Number = Field(default=10.0, ge=0, le=1e6)
    norm_max: Number = Field(default=0.0, ge=0, le=NORM_MAX)
    weight_max: Number = Field(default=0.0, ge=0, le=WEIGHT_MAX)
    aggregate: Literal["mean", "clipped"] = Field(default="mean")
    clip_radius: Number = Field(default=0.0, ge=0, le=NORM_MAX)
    on_hang: ShellCommand = Field(default="", max_length=ON_HANG_CHARACTERS_MAX)
    exit_with_worker: Flag = Field(default=False)
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info")
    log_format: Literal["text", "json"] = Field(default="text")

    @property
    def settings(self) -> SiteSettings:
        """The one timeout and the beat, from which the protocols derive all others."""
        keep = CheckpointSettings(
            memory_checkpoint_every_rounds=self.memory_checkpoint_every_rounds,
            checkpoint=self.checkpoint,
            checkpoint_every_rounds=self.checkpoint_every_rounds,
            checkpoint_every_s=self.checkpoint_every_s,
            mean_time_between_failures_s=self.mean_time_between_failures_s,
        )
        beat_s = self.heartbeat_interval_s
        return SiteSettings(
            failure_timeout_s=self.failure_timeout_s,
            heartbeat_interval_s=beat_s,
            join_hold_s=self.join_hold_s,
            straggler_timeout=self.straggler_timeout,
            restore_wait_s=self.restore_wait_s,
            keep=keep,
        )

    @property
    def send_bytes_per_s(self) -> float:
        """What this site sends in bulk at most; 0: no limit."""
        return self.send_limit_mbit * 1e6 / 8

    @property
    def way_out(self) -> Proxy | None:
        """The proxy, with whom it does not serve; None: this site dials all others straight."""
        if not self.proxy:
            return None
        host, port = split_address(self.proxy)
        return Proxy(host=host, port=port, direct=self.no_proxy, auth_file=self.proxy_auth_file)

    @property
    def bounds(self) -> Bounds:
        """What a site may give to a round, where this site founds the run."""
        return Bounds(norm_max=self.norm_max, weight_max=self.weight_max, clip_radius=self.clip_radius)

    @model_validator(mode="after")
    def _fields_agree(self) -> SiteConfig:
        problems = list(_disagreements(self))
        if problems:
            raise _Disagreement(problems)
        return self


ELEMENTS: dict[str, type[BaseModel]] = {"peers": PeerConfig}
PLAIN_WORDS = {
    "bool_type": "must be true or false",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "string_type": "must be a text in quotes",
    "path_type": "must be a path in quotes",
    "tuple_type": "must be a list",
    "model_type": "must be a table of fields",
}
"""Kinds of pydantic_core.ErrorDetails whose own text speaks of Python rather than TOML."""


def load_config(path: Path | None, overrides: Mapping[str, object] | None = None) -> SiteConfig:
    """The configuration of the file (none: defaults) with `overrides` (field name -> value) on top.

    A list of `overrides` replaces that of the file. Either may use a field's former name (`file.FORMER_NAMES`).
    Relative paths in the file are relative to the file, those in `overrides` to the working directory.
    Raises ConfigError, whose text names all problems at once.
    """
    values, problems = _under_current_names({} if path is None else read_config_file(path), f"{path}: ", str)
    flags, more = _under_current_names(overrides or {}, "", flag_name)
    problems += more
    try:
        config = SiteConfig.model_validate({**values, **flags})
    except ValidationError as error:
        problems.append(_explain(error, path, flags))
    if problems:
        raise ConfigError("\n".join(problems))
    return config


def _under_current_names(
    values: Mapping[str, object], place: str, shown: Callable[[str], str]
) -> tuple[dict[str, object], list[str]]:
    """What was given under a former name is that of the field; given under both, nobody can know what was meant."""
    renamed, problems = dict(values), []
    for former, field in FORMER_NAMES.items():
        if former not in renamed:
            continue
        value = renamed.pop(former)
        if field in renamed:
            problems.append(
                f"{place}{shown(field)} and {shown(former)} are both given: {shown(former)} is the former name of "
                f"{shown(field)}; leave it out"
            )
        else:
            renamed[field] = value
    return renamed, problems


class _Disagreement(ValueError):
    """Fields that are right alone and wrong together: (field, what is wrong) each."""

    def __init__(self, problems: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{field}: {text}" for field, text in problems))
        self.problems = problems


_HALF_CLIPPED = {
    "clipped": (
        "clip_radius",
        'aggregate = "clipped" needs a clip_radius above 0: see `chaosd help operating`',
    ),
    "mean": ("clip_radius", 'counts with aggregate = "clipped" only: set that too, or leave clip_radius out'),
}
"""By `aggregate`: one of two settings that need each other is missing."""


def _disagreements(config: SiteConfig) -> list[tuple[str, str]]:
    for field in ("data_dir", "checkpoint_dir", "worker_socket", "api_socket"):
        path = str(getattr(config, field))
        if any("\ud800" <= character <= "\udfff" for character in path):  # bytes of a name that are no UTF-8
            return [(field, f"{path!a} is no UTF-8, as a configuration file is: choose a path of plain letters")]
    problems: list[tuple[str, str]] = []
    if config.heartbeat_interval_s > config.failure_timeout_s / 2:
        problems.append(
            (
                "heartbeat_interval_s",
                f"must be at most half of failure_timeout_s ({config.failure_timeout_s:g} s), "
                "so that one lost heartbeat is no failure",
            )
        )
    host, _ = split_address(config.advertise)
    if _is_unspecified(host):
        problems.append(
            ("advertise", f"{host} is no address that others can dial; set advertise to this site's own host:port")
        )
    for field in ("worker_socket", "api_socket"):
        length = len(str(getattr(config, field)).encode())
        if length > SOCKET_PATH_BYTES_MAX:
            limit = f"the path has {length} bytes and a unix socket's at most {SOCKET_PATH_BYTES_MAX}"
            problems.append((field, f"{limit}; choose a shorter {field} or data_dir"))
    if problem := bounds_problem(config.bounds):
        problems.append((problem.split()[0], problem))
    if (config.aggregate == "clipped") != bool(config.clip_radius):
        problems.append(_HALF_CLIPPED[config.aggregate])
    if config.worker_socket == config.api_socket:
        problems.append(("worker_socket", "must differ from api_socket"))
    for field, ids in (("peers", [peer.site for peer in config.peers]), ("trust", list(config.trust))):
        problems += [(field, f"site {site} is named twice") for site in sorted({i for i in ids if ids.count(i) > 1})]
    if config.checkpoint == "fixed" and not config.checkpoint_every_rounds and not config.checkpoint_every_s:
        problems.append(("checkpoint", "fixed needs checkpoint_every_rounds or checkpoint_every_s"))
    return problems + _way_out_disagreements(config)


def _way_out_disagreements(config: SiteConfig) -> list[tuple[str, str]]:
    if config.proxy and config.probe == "iperf3":
        return [("probe", "iperf3 does not pass a proxy: choose builtin or off")]
    if config.send_limit_mbit and config.probe == "iperf3":
        return [("probe", "iperf3 knows no send_limit_mbit: choose builtin or off")]
    if config.no_proxy and not config.proxy:
        return [("no_proxy", "counts with proxy only: set that too, or leave it out")]
    return []


def _is_unspecified(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _explain(error: ValidationError, path: Path | None, flags: Mapping[str, object]) -> str:
    lines: list[str] = []
    for detail in error.errors():
        if detail["type"].startswith("default_factory"):
            continue  # the field that this default is made of has its own line
        cause = detail.get("ctx", {}).get("error")
        if isinstance(cause, _Disagreement):
            for field, text in cause.problems:
                lines.append(f"{_place(field, path, flags)}: {text}")
        else:
            lines.append(_explain_one(detail, path, flags))
    return "\n".join(lines)


def _place(field: str, path: Path | None, flags: Mapping[str, object], inner: str = "") -> str:
    if field in flags:
        return f"{flag_name(field)} (command line)"
    return f"{field} (default)" if path is None else f"{path}: {inner or field}"


def _explain_one(detail: ErrorDetails, path: Path | None, flags: Mapping[str, object]) -> str:
    location = detail["loc"]
    field = str(location[0])
    model: type[BaseModel] = SiteConfig
    inner = ""
    for part in location:
        inner += f"[{part}]" if isinstance(part, int) else f".{part}" if inner else part
        if isinstance(part, int):
            model = ELEMENTS.get(field, SiteConfig)
    place = _place(field, path, flags, inner)
    kind = detail["type"]
    if kind == "extra_forbidden":
        return f"{place}: there is no such field; {_suggest(str(location[-1]), model)}"
    element = model.model_fields.get(str(location[-1])) if model is not SiteConfig else None
    meaning = f" ({(element and element.description) or FIELD_TEXTS[field]})"
    if kind == "missing":
        return f"{place}: is missing{meaning}"
    cause = detail.get("ctx", {}).get("error")
    plain = PLAIN_WORDS.get(kind) or detail["msg"].replace("Input should be", "must be")
    allowed = str(cause) if isinstance(cause, ValueError) else plain
    given = detail["input"]
    if field == "proxy" and isinstance(given, str):
        given = re.sub(r"[^/@]*@", "...@", given)  # a password in the wrong place goes into no log
    return f"{place} = {_shown(given)}: {allowed}{meaning}"


def _suggest(unknown: str, model: type[BaseModel]) -> str:
    names = list(model.model_fields)
    if model is not SiteConfig and unknown in SiteConfig.model_fields:
        return "it is one of the site: write it above the first [[peers]], since what stands below belongs to that peer"
    near = difflib.get_close_matches(unknown, names, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"allowed are {', '.join(names)}"


def _shown(value: object) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= VALUE_CHARACTERS_SHOWN else text[:VALUE_CHARACTERS_SHOWN] + "..."
