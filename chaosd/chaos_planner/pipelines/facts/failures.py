"""A site's failure history, and from it the mean time between failures that objective 8 needs.

For whoever plans with figures of its own: `mtbf_s` goes into `ClusterFacts` before the planner is asked. Nothing in the
daemon keeps such a history yet.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from chaos_planner.pipelines.facts.checks import refuse, require_int, require_list, require_number, require_object
from chaos_planner.pipelines.facts.site import WORKER_ID_MAX

FAILURES_MAX = 100_000
"""A failure a minute for two months; older ones are dropped by the monitor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A worker was lost at this time (seconds on the monitor's clock)."""

    worker: int
    at_s: float

    def __post_init__(self) -> None:
        require_int("failure.worker", self.worker, minimum=0, maximum=WORKER_ID_MAX)
        require_number("failure.at_s", self.at_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureHistory:
    """Failures of a site within the time that it was watched."""

    observed_since_s: float
    observed_until_s: float
    failures: tuple[Failure, ...] = ()

    def __post_init__(self) -> None:
        require_number("history.observed_since_s", self.observed_since_s)
        require_number("history.observed_until_s", self.observed_until_s, minimum=self.observed_since_s)
        for failure in self.failures:
            if not self.observed_since_s <= failure.at_s <= self.observed_until_s:
                allowed = f"{self.observed_since_s} to {self.observed_until_s}, the time observed"
                raise refuse(f"failure of worker {failure.worker}.at_s", failure.at_s, allowed)

    def mtbf_s(self) -> float:
        """Time watched over failures seen (the maximum-likelihood estimate); infinite if none was seen."""
        if not self.failures:
            return math.inf
        watched_s = self.observed_until_s - self.observed_since_s
        return max(watched_s / len(self.failures), math.ulp(1.0))

    def to_json(self) -> dict[str, object]:
        """A JSON object that `from_json` takes back."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: object) -> FailureHistory:
        """From a JSON object (mapping or text); `ValueError` naming the field that is wrong."""
        required = frozenset({"observed_since_s", "observed_until_s"})
        known = dict(require_object("history", data, required=required, optional=frozenset({"failures"})))
        failures = []
        for entry in require_list("history.failures", known.pop("failures", []), length_max=FAILURES_MAX):
            fields = require_object("failure", entry, required=frozenset({"worker", "at_s"}), optional=frozenset())
            failures.append(Failure(**fields))  # type: ignore[arg-type]  # __post_init__ checks the types
        return cls(failures=tuple(failures), **known)  # type: ignore[arg-type]
