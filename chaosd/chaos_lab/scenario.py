"""A scenario: sites, links and a script of actions, from a TOML file. Everything is checked before anything starts."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from string import Formatter
from typing import Annotated, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, model_validator

from chaosd.os_errors import explain

SITES_MAX = 32
"""More daemons and training processes than that on one machine measure the machine."""
ACTIONS_MAX = 500
LATENCY_MAX_MS = 5_000
Label = Annotated[str, Field(pattern="^[A-Za-z0-9_-]{1,32}$")]
GIVEN_VALUES = ("name", "socket", "report", "until")
"""What the lab itself fills into the worker's arguments; a site's `values` add to them."""
Kind = Literal[
    "join", "kill", "restart", "stop", "continue", "leave", "link add", "link remove", "partition", "cut", "heal",
    "shape",
]  # fmt: skip
PAIRS = ("link add", "link remove", "cut", "shape")


class ScenarioError(ValueError):
    """The scenario cannot be used; the text names file, field, value and what is allowed."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class WorkerSpec(_Strict):
    """The training script, beside the scenario file; `{name}` and the site's `values` are filled into the arguments."""

    script: Path
    arguments: tuple[str, ...] = ()


class SiteSpec(_Strict):
    """`uplink_mbit`: what the site sends over all its links together, on network namespaces only."""

    name: Label
    label: str = Field(default="", max_length=64)
    values: dict[str, str] = {}
    start: bool = True
    uplink_mbit: float | None = Field(default=None, gt=0, le=100_000)


class LinkSpec(_Strict):
    """A link that both ends are configured with; shaped in both directions. `loss`: the share of packets that is lost,
    on network namespaces only."""

    between: tuple[Label, Label]
    rate_mbit: float | None = Field(default=None, gt=0, le=100_000)
    latency_ms: float = Field(default=0.0, ge=0, le=LATENCY_MAX_MS)
    loss: float = Field(default=0.0, ge=0, le=0.5)


def doubtful_link(links: Iterable[LinkSpec]) -> str | None:
    """Why these links cannot be: one that leads nowhere, or two between the same sites. None if they can."""
    seen: set[frozenset[str]] = set()
    for link in links:
        ends = frozenset(link.between)
        if len(ends) == 1:
            return f"a link needs two sites, not {link.between[0]} twice"
        if ends in seen:
            return f"there are two links between {' and '.join(link.between)}"
        seen.add(ends)
    return None


class RedrawSpec(_Strict):
    """Rates (the same both ways) and latencies of all links are drawn anew when the lab begins and every so many
    seconds, each within its bounds."""

    every_s: float = Field(default=180.0, gt=0)
    rate_mbit: tuple[float, float] = (100.0, 1000.0)
    latency_ms: tuple[float, float] | None = None
    seed: int = 0

    @model_validator(mode="after")
    def _bounds(self) -> RedrawSpec:
        for name, bounds, least, most in (
            ("rate_mbit", self.rate_mbit, 0.001, 100_000),
            ("latency_ms", self.latency_ms, 0.0, LATENCY_MAX_MS),
        ):
            if bounds is not None and not least <= bounds[0] <= bounds[1] <= most:
                raise ValueError(f"{name} = [least, most], from {least:g} to {most}, not {list(bounds)}")
        return self


class ActionSpec(_Strict):
    """One thing that happens. When: at a round of the run, at a second since training began, or so long after the
    action before."""

    do: Kind
    site: Label | None = None
    sites: tuple[Label, ...] = ()
    what: Literal["daemon", "worker", "both"] = "both"
    at_round: int | None = Field(default=None, ge=0)
    at_s: float | None = Field(default=None, ge=0)
    after_s: float = Field(default=0.0, ge=0)
    back_after_s: float | None = Field(default=None, ge=0)
    rate_mbit: float | None = Field(default=None, gt=0, le=100_000)
    latency_ms: float = Field(default=0.0, ge=0, le=LATENCY_MAX_MS)
    loss: float = Field(default=0.0, ge=0, le=0.5)
    one_way: bool = False
    say: str = Field(default="", max_length=200)

    @model_validator(mode="after")
    def _whom(self) -> ActionSpec:
        if self.do in PAIRS and len(self.sites) != 2:
            raise ValueError(f"'{self.do}' needs sites = [one, other]")
        if self.do in ("join", "kill", "restart", "stop", "continue", "leave") and self.site is None:
            raise ValueError(f"'{self.do}' needs site = NAME")
        if self.do == "heal" and len(self.sites) not in (0, 2):
            raise ValueError("'heal' needs sites = [one, other], or none for every cut")
        if self.do != "partition" and len(set(self.sites)) != len(self.sites):
            raise ValueError(f"'{self.do}' needs two sites, not {self.sites[0]} twice")
        if self.one_way and self.do not in ("cut", "shape"):
            raise ValueError("one_way is for 'cut' and 'shape', from the first of the two sites to the second")
        if self.do == "partition" and not self.sites:
            raise ValueError("'partition' needs sites = [those to cut off from the others]")
        return self

    @property
    def subject(self) -> str:
        return self.site or " - ".join(self.sites) or "all links"


class ChecksSpec(_Strict):
    """What must hold at the end, besides equal digests of all sites in every common round, and no leave recorded as a
    failure."""

    rounds_at_least: int = Field(default=1, ge=1)
    join_sources_at_least: int = Field(default=1, ge=1)
    survivors_go_on_within_s: float | None = Field(default=None, gt=0)
    elections_at_most: int | None = Field(default=None, ge=0)
    mean_auc_at_least_alone_minus: float | None = Field(default=None, ge=0, le=1)


class Scenario(_Strict):
    """`limit_s`: the whole run is given up after so many seconds. It ends when every action has shown its effect and
    round `stop_at_round` is done; `last_rounds` later all members stop together. `routed`: sites forward what is for
    others, so that two sites without a link reach each other over several (network namespaces only)."""

    name: Label
    description: str = ""
    failure_timeout_s: float = Field(default=1.0, ge=0.2, le=60)
    limit_s: float = Field(default=300.0, gt=0, le=86_400)
    last_rounds: int = Field(default=30, ge=1)
    stop_at_round: int = Field(default=0, ge=0)
    start_sites: int | None = Field(default=None, ge=1, validation_alias=AliasChoices("start_sites", "min_sites"))
    worker: WorkerSpec
    sites: tuple[SiteSpec, ...] = Field(min_length=1, max_length=SITES_MAX)
    links: tuple[LinkSpec, ...] = ()
    redraw: RedrawSpec | None = None
    routed: bool = False
    actions: tuple[ActionSpec, ...] = Field(default=(), max_length=ACTIONS_MAX)
    checks: ChecksSpec = ChecksSpec()

    @model_validator(mode="after")
    def _names(self) -> Scenario:
        known = [site.name for site in self.sites]
        if len(set(known)) != len(known):
            raise ValueError("two sites have the same name")
        if not self.sites[0].start:
            raise ValueError(f"the first site founds the run: {known[0]} needs start = true")
        begin = sum(site.start for site in self.sites)
        if self.start_sites is not None and self.start_sites > begin:
            raise ValueError(f"start_sites = {self.start_sites}: the run would not begin, {begin} have start = true")
        used = [name for link in self.links for name in link.between]
        used += [name for action in self.actions for name in (*action.sites, *([action.site] if action.site else []))]
        for name in used:
            if name not in known:
                raise ValueError(f"there is no site '{name}'; there are {', '.join(known)}")
        if doubt := doubtful_link(self.links):
            raise ValueError(doubt)
        return self


def load_scenario(path: Path) -> Scenario:
    """Raises ScenarioError. Paths in the file are relative to the file."""
    try:
        with path.open("rb") as file:
            data = tomllib.load(file)
    except FileNotFoundError:
        raise ScenarioError(f"there is no file {path}") from None
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ScenarioError(f"{path}: {explain(error) if isinstance(error, OSError) else error}") from None
    try:
        scenario = Scenario.model_validate(data)
    except ValidationError as error:
        raise ScenarioError("\n".join(_explain(path, detail) for detail in error.errors())) from None
    _check_placeholders(path, scenario)
    if "\0" in str(scenario.worker.script):
        raise ScenarioError(f"{path}: worker.script: no path holds a zero character")
    script = (path.parent / scenario.worker.script).resolve()
    if not script.is_file():
        raise ScenarioError(f"{path}: worker.script: there is no file {script}")
    worker = WorkerSpec(script=script, arguments=scenario.worker.arguments)
    return scenario.model_copy(update={"worker": worker})


def _check_placeholders(path: Path, scenario: Scenario) -> None:
    """Every argument of the worker can be filled in at every site, before anything is started."""
    for argument in scenario.worker.arguments:
        where = f"{path}: worker.arguments = {argument!r}"
        try:
            words = {field for _, field, _, _ in Formatter().parse(argument) if field is not None}
        except ValueError as error:
            raise ScenarioError(f"{where}: {error}") from None
        for site in scenario.sites:
            known = {*GIVEN_VALUES, *site.values}
            for word in sorted(words - known):
                raise ScenarioError(
                    f"{where}: site '{site.name}' has no value '{word}'; there are {', '.join(sorted(known))}"
                )
            try:
                filled = argument.format(**{**dict.fromkeys(GIVEN_VALUES, ""), **site.values})
            except (ValueError, LookupError) as error:  # what stands behind a colon or an exclamation mark
                raise ScenarioError(f"{where}: site '{site.name}': {error}") from None
            if "\0" in filled:
                raise ScenarioError(f"{where}: site '{site.name}': no argument holds a zero character")


def _explain(path: Path, detail: object) -> str:
    assert isinstance(detail, dict)
    place = ".".join(str(part) for part in detail["loc"]) or "scenario"
    if detail["type"] == "missing":  # what is shown as given would be the table that lacks it
        return f"{path}: {place}: is missing"
    if detail["type"] == "extra_forbidden":
        return f"{path}: {place}: there is no such field"
    shown = repr(detail.get("input"))
    given = f" = {shown}" if len(shown) <= 60 else ""
    return f"{path}: {place}{given}: {detail['msg'].removeprefix('Value error, ')}"
