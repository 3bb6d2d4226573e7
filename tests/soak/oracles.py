"""What must hold at every moment, whatever is done to the sites; each sees facts of all sites and remembers them.

`look` is called some times a second; a text that comes back is the story of a violation. `at_the_end` compares the
states of all sites, round by round, over all lives of their workers.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

from chaosd.api.status import EventRecord, Status
from tests.soak.sites import Site

CRIES = ("Traceback (most recent call last)", "Task exception was never retrieved", "CRITICAL")
ERROR_LEFT_MAX = 0.5
"""Training completes: the distance to the true model, 1 at the start, is at most this at the end (about 0.01 then)."""
TEXT_SHOWN_CHARACTERS = 3000
LAST_ROUNDS = 20
"""Of all, after the fire."""


class Tail:
    """What a growing file has got since the last call, in whole lines."""

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0

    def lines(self) -> list[str]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                data = file.read()
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        return whole.decode("utf-8", "replace").splitlines()


class Oracles:
    """See the module."""

    def __init__(self, sites: dict[str, Site]) -> None:
        self._sites = sites
        self._rosters: dict[int, dict[str, tuple[object, frozenset[tuple[str, str]]]]] = {}
        self._elected: dict[str, str] = {}
        self._results: dict[tuple[int, int], tuple[str, tuple[str, list[tuple[str, float]]]]] = {}
        self._epochs: dict[str, dict[int, set[int]]] = {name: {} for name in sites}
        self._rounds = {name: Tail(site.data_dir / "rounds.jsonl") for name, site in sites.items()}
        self._logs = {(name, log.name): Tail(log) for name, site in sites.items() for log in site.logs}
        self.wrong_blocks = self.broken_records = self.elections = 0
        self.told = Counter[str]()
        """Events by kind, and refusals of a script."""
        self.states_compared = self.states_ambiguous = 0
        self.events: list[tuple[float, str, EventRecord]] = []
        """When it was heard (our monotonic clock: the sites' own may jump), from whom, what."""

    def look(self) -> str:
        """The first thing that does not hold, or an empty text."""
        for name, site in self._sites.items():
            if site.status is not None and (story := self._roster(name, site.status)):
                return story
            for line in self._rounds[name].lines():
                if story := self._result(name, line):
                    return story
            for log in site.logs:
                if story := self._log(name, self._logs[name, log.name].lines()):
                    return story
        return ""

    def heard(self, name: str, events: list[EventRecord]) -> str:
        """New events of a site; one term has one scheduler."""
        now_s = time.monotonic()
        self.events += [(now_s, name, event) for event in events]
        for event in events:
            self.told[event.kind] += 1
            self.told["other-model"] += event.kind == "worker" and event.outcome == "refused"
            if event.kind == "source" and "fail their hash" in event.cause:
                self.wrong_blocks += 1
            if event.kind == "election" and event.outcome == "done":
                self.elections += 1
                if self._elected.setdefault(event.reason, name) != name:
                    return f"both {self._elected[event.reason]} and {name} became {event.reason}"
        return ""

    def at_the_end(self) -> list[str]:
        """What does not hold of the states of all sites, at every round and at the last one."""
        self.look()
        found = self._states()
        reports = {name: site.report() for name, site in self._sites.items()}
        for name, report in reports.items():
            if report is None:
                found.append(f"{name} has written no report")
            elif not report["error"] <= ERROR_LEFT_MAX:
                found.append(f"the model of {name} has learnt nothing: its error is {report['error']:.3f}")
        ends = {name: (report["rounds"], report["state_digest"]) for name, report in reports.items() if report}
        found += self._uncounted()
        if len(set(ends.values())) > 1:
            told = "; ".join(f"{name} round {round} {digest[:16]}" for name, (round, digest) in ends.items())
            found.append(f"the sites did not end in one round with one state: {told}")
        return found

    def _uncounted(self) -> list[str]:
        """Every site counts in one of the last rounds: who is in the run with a worker is not left out for ever."""
        newest = max((number for number, _ in self._results), default=0)
        last = [result for (number, _), (_, result) in self._results.items() if number > newest - LAST_ROUNDS]
        counted = {site for _, weights in last for site, weight in weights if weight}
        return [
            f"{name} counts in none of the last {LAST_ROUNDS} rounds"
            for name, site in self._sites.items()
            if last and not {site.identity.site, site.identity.site[:8]} & counted
        ]

    # -- one fact each

    def _roster(self, name: str, status: Status) -> str:
        """One epoch, one roster. A site's status tells of connections of its own besides the agreed links: compared is
        what two sites say about links that are none of theirs. Who is outside shows what its journal has, with where
        it stands itself: that is not agreed."""
        if not any(site.site == status.site and site.state in ("learner", "member") for site in status.sites):
            return ""
        members = sorted((site.site[:8], site.state) for site in status.sites)  # voters go by the log, not by the epoch
        links = frozenset((link.one[:8], link.other[:8]) for link in status.links)
        known = self._rosters.setdefault(status.epoch, {})
        for other, (their_members, their_links) in known.items():
            own = {self._sites[one].identity.site[:8] for one in (name, other)}
            mine, theirs = ({link for link in one if not own & set(link)} for one in (links, their_links))
            if members != their_members or mine != theirs:
                return (
                    f"epoch {status.epoch}: {name} has the members {members} and links {sorted(mine)}, {other} has "
                    f"{their_members} and {sorted(theirs)}"
                )
        known[name] = (members, links)
        return ""

    def _result(self, name: str, line: str) -> str:
        """All that complete a round in one epoch complete it with the same result of the same members."""
        entry = _loaded(line)
        if entry is None:
            return ""
        key = (entry["round"], entry["epoch"])
        self._epochs[name].setdefault(entry["round"], set()).add(entry["epoch"])
        result = (entry["digest"], sorted(entry["weights"].items()))
        other, known = self._results.setdefault(key, (name, result))
        if known != result:
            return f"round {key[0]} of epoch {key[1]}: {other} has the result {known}, {name} has {result}"
        return ""

    def _log(self, name: str, lines: list[str]) -> str:
        for number, line in enumerate(lines):
            self.broken_records += "broke TLS: DECRYPTION" in line
            if not any(cry in line for cry in CRIES):
                continue
            follows = "\n".join(lines[number : number + 40])
            if "CRITICAL" in line and "journal" in line and "Traceback" not in follows.splitlines()[1:2]:
                continue  # the daemon's last word about its full disk; full_disk.py judges it
            return f"in the log of {name}:\n{follows[:TEXT_SHOWN_CHARACTERS]}"
        return ""

    def _states(self) -> list[str]:
        """Equal rounds, equal bits: the whole state, optimizer included, of every worker that ever lived.

        A round is that of an epoch: a site that was cut off or stopped may have completed, from parts that had reached
        it before, a round that the others meanwhile did again without it; it is removed for that and takes their state
        over. Where a site completed a round in two epochs its digest cannot be told apart, and is left out.
        """
        seen: dict[tuple[int, int], tuple[str, str]] = {}
        compared: set[tuple[int, int]] = set()
        for name, site in self._sites.items():
            for line in Tail(site.digests_path).lines():
                if re.fullmatch(r"[0-9]+ [0-9a-f]{64}", line) is None:
                    continue  # torn by a SIGKILL
                number, digest = line.split()
                epochs = self._epochs[name].get(int(number), set())
                if len(epochs) != 1:
                    self.states_ambiguous += 1
                    continue
                key = (int(number), next(iter(epochs)))
                other, known = seen.setdefault(key, (name, digest))
                if known != digest:
                    return [f"round {key[0]} of epoch {key[1]}: the states of {other} and {name} differ"]
                if other != name:
                    compared.add(key)
        self.states_compared = len(compared)
        return [] if compared else ["no round's state was reported by two sites: nothing was compared"]


def _loaded(line: str) -> dict[str, Any] | None:
    try:
        entry: dict[str, Any] = json.loads(line)
    except ValueError:
        return None  # torn by a SIGKILL or a full disk
    return entry
