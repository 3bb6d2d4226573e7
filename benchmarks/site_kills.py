"""Workers of a site killed in every phase, under every answer, in every shape: are the bits those of one process?

Phases: before a step, forward, backward, while sums are closed, when they were told, in the update, while groups are
built after another loss, while state moves. Answers: reroute, other pipelines (dynamic), a spare. Shapes: 2 x 4, 4 x 2,
2 x 2, 3 x 3 and 8 x 1 pipelines x stages. Each case is a training of its own (`tests.integration.site_training`, six
layers with dropout 0.1, processes forked from one that has torch), in which the victim strikes itself at the place; the
states of all layers after every step are compared with those of the same training in one process.

The whole takes about half an hour. What is done is kept in `results/site_kills-*.jsonl`: the same command, started
again after Ctrl+C, goes on with the rest; a change of the sources begins anew.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from blake3 import blake3
from tests.integration.site_training import LAYERS, STEPS
from tests.rigs.worker_group import Ran, alone, train

from benchmarks.measure import Figures, percentile, spread
from chaos_planner.pipelines.plans.layout import Policy

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("protocols", "chaosd/chaosd/worker_group", "chaosd/chaos_planner/pipelines", "sdk/chaos/worker_group")
SHAPES = ((2, 4), (4, 2), (2, 2), (3, 3), (8, 1))
ANSWERS: Mapping[str, tuple[Policy, ...]] = {
    "reroute": (Policy.REROUTE,),
    "dynamic": (Policy.DYNAMIC,),
    "spare": tuple(Policy),
}
PHASES = ("outside", "forward", "backward", "reduce", "reduced", "update", "building", "moving")
SHARDED_PHASES = ("forward", "backward", "reduce", "reduced", "commit", "refresh", "building", "moving")
SHARDED_SHAPES = ((4, 2), (3, 3), (8, 1))
COPIES = 2
"""Of a sharded optimizer's states; where two workers die at once one more, since two copies survive one death."""
AFTER_ANOTHER = frozenset({"building", "moving"})
TURNS = 2
FAULT_STEP = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One training. `faults`: as `site_training` takes them."""

    phase: str
    answer: str
    dp: int
    pp: int
    faults: str
    copies: int = 0
    """Of the optimizer's state of each layer; 0: every holder has it."""

    @property
    def kills(self) -> int:
        return self.faults.count(";") + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a case. `repeated`: steps done again, at most, for a kill. Seconds run from the signal."""

    case: str
    kills: int
    equal: bool
    repeated: int
    policies: list[str]
    failed: str
    seen_s: list[float]
    ready_s: list[float]
    stepped_s: list[float]


def cases(*, short: bool, seed: int) -> Iterator[Case]:
    """All that there are, `TURNS` times with other victims, and once with sharded optimizers; short: each phase once,
    answers and shapes in turn."""
    draw = random.Random(seed)
    if short:
        for index, phase in enumerate(PHASES):
            answer = "spare" if phase == "moving" else tuple(ANSWERS)[index % 3]
            yield _case(draw, phase, answer, *SHAPES[index % len(SHAPES)])
        yield _case(draw, "refresh", "reroute", 3, 3, COPIES)
        return
    for dp, pp in SHARDED_SHAPES:
        for answer in ANSWERS:
            for phase in SHARDED_PHASES:
                yield _case(draw, phase, answer, dp, pp, COPIES + (phase in AFTER_ANOTHER))
    for _ in range(TURNS):
        for dp, pp in SHAPES:
            for answer in ANSWERS:
                for phase in PHASES:
                    if phase != "moving" or answer != "reroute":  # no state moves for that
                        yield _case(draw, phase, answer, dp, pp)


def _case(draw: random.Random, phase: str, answer: str, dp: int, pp: int, copies: int = 0) -> Case:
    edges = [LAYERS * s // pp for s in range(pp + 1)]
    stages = [s for s in range(pp) if phase != "update" or any(i % 3 == 1 for i in range(edges[s], edges[s + 1]))]
    pipeline, stage = draw.randrange(dp), draw.choice(stages)
    victim = pipeline * pp + stage  # in the update it strikes itself before the second layer of each three
    if phase in AFTER_ANOTHER:  # the second one of another pipeline and stage, so that each layer keeps a holder
        other = (pipeline + 1) % dp * pp + (stage + 1) % pp
        faults = f"{victim}:1:forward;{other}:2:{phase}"  # of generation 2
    else:
        faults = f"{victim}:{FAULT_STEP}:{phase}"
    return Case(phase=phase, answer=answer, dp=dp, pp=pp, faults=faults, copies=copies)


def _play(case: Case) -> Outcome:
    spares = case.kills if case.answer == "spare" else 0
    with tempfile.TemporaryDirectory() as folder:
        ran = asyncio.run(
            train(
                Path(folder),
                dp=case.dp,
                pp=case.pp,
                faults=case.faults,
                spares=spares,
                policies=ANSWERS[case.answer],
                environment={"TRAINING": json.dumps({"copies": case.copies})},
            )
        )
    told = {int(str(each.fields["step"])): each.fields["digests"] for each in ran.of("step")}
    whole = not ran.failed and STEPS in told and len(told) >= STEPS - case.kills and len(ran.struck) == case.kills
    expected = alone()
    equal = whole and all(tuple(map(str, _listed(d))) == expected[step - 1] for step, d in told.items())
    return Outcome(
        case=_name(case),
        kills=len(ran.struck),
        equal=equal,
        repeated=_repeated(case, ran),
        policies=ran.policies[1:],
        failed=ran.failed,
        **_seconds(ran),
    )


def _repeated(case: Case, ran: Ran) -> int:
    """The step that a kill struck, less the one that was gone on from."""
    step = 1 if case.phase in AFTER_ANOTHER else FAULT_STEP
    return max((step + 1 - int(str(each.fields["step"])) for each in ran.of("plan")[1:]), default=0)


def _seconds(ran: Ran) -> dict[str, list[float]]:
    """From each strike on: until the death was seen; of the last one of a recovery, until ready and the next step."""
    found: dict[str, list[float]] = {"seen_s": [], "ready_s": [], "stepped_s": []}
    for worker, _, at_s in ran.struck:
        seen = [each.at_s - at_s for each in ran.of("worker-lost") if each.fields["worker"] == worker]
        found["seen_s"] += seen[:1]
    if ran.struck:
        last_s = max(at_s for _, _, at_s in ran.struck)
        ready = [each.at_s for each in ran.of("training") if each.at_s > last_s]
        found["ready_s"] += [at_s - last_s for at_s in ready[:1]]
        found["stepped_s"] += [each.at_s - last_s for each in ran.of("step") if ready and each.at_s > ready[0]][:1]
    return found


def _listed(value: object) -> list[object]:
    assert isinstance(value, list | tuple)
    return list(value)


def _name(case: Case) -> str:
    sharded = f" sharded x{case.copies}" if case.copies else ""
    return f"{case.phase} {case.answer} {case.dp}x{case.pp} {case.faults}{sharded}"


def _sources() -> str:
    hasher = blake3()
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            hasher.update(path.read_bytes())
    return hasher.hexdigest()


def _kept(path: Path, sources: str) -> dict[str, Outcome]:
    """What was done already with these sources; else the file begins anew."""
    if path.exists():
        first, *lines = path.read_text(encoding="utf-8").splitlines() or ["{}"]
        if json.loads(first).get("sources") == sources:
            outcomes = [Outcome(**json.loads(line)) for line in lines]
            return {each.case: each for each in outcomes}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"sources": sources}) + "\n", encoding="utf-8")
    return {}


def run(*, short: bool, seed: int) -> Figures:
    """`equal`: all kills were survived with the bits of one process; `different`: the cases that were not."""
    torch.set_num_threads(1)
    path = ROOT / "benchmarks" / "results" / f"site_kills-{'short' if short else 'whole'}-{seed}.jsonl"
    kept = _kept(path, _sources())
    listed = list(cases(short=short, seed=seed))
    outcomes: list[Outcome] = []
    for index, case in enumerate(listed):
        outcome = kept.get(_name(case))
        if outcome is None:
            outcome = kept[_name(case)] = _play(case)
            with path.open("a", encoding="utf-8") as out:
                out.write(json.dumps(asdict(outcome)) + "\n")
            state = "equal" if outcome.equal else f"DIFFERENT OR LOST: {outcome.failed}"
            print(f"{index + 1:4d}/{len(listed)} {outcome.case}: {state}", flush=True)
        outcomes.append(outcome)
    seen = [each for one in outcomes for each in one.seen_s]
    return {
        "kills": sum(each.kills for each in outcomes),
        "trainings": len(outcomes),
        "equal": all(each.equal for each in outcomes),
        "different": "; ".join(each.case for each in outcomes if not each.equal) or "none",
        "steps_repeated_max": max(each.repeated for each in outcomes),
        "seconds_to_see": spread(seen),
        "seconds_to_see_p99": percentile(seen, 99),
        "seconds_to_ready": spread([each for one in outcomes for each in one.ready_s]),
        "seconds_to_next_step": spread([each for one in outcomes for each in one.stepped_s]),
    }
