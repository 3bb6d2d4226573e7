"""Makes docs/protocols/negotiations.md from the code: state diagrams of the negotiations, who handles which message.

`python -m tests.tidy.diagrams` writes the file, `test_diagrams.py` checks that it is up to date. The tables are read
from `Negotiation.TABLE`; the state after an event and what is ordered then are found by running the handlers, each with
every combination of flags that the handlers look at, so that a diagram cannot say what the code does not do. Which
module handles a message is read from the `match` statements of the sources.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, get_args

from tests.tidy.tree import ROOT

from chaos_protocols.agreement.roster import ModelFacts
from chaos_protocols.names import SiteId
from chaos_protocols.scheduler.negotiation import (
    Committed,
    Conclude,
    ConnectLink,
    DeadlinePassed,
    DisconnectLink,
    EverybodyDone,
    LearnerCaughtUp,
    LinkAnswered,
    Negotiation,
    Order,
    ProposalLost,
    Propose,
    Resolution,
    RoundNeverDone,
    ScaleIn,
    ScaleOut,
    SubjectGone,
    Tell,
)
from chaos_protocols.scheduler.negotiation.base import NegotiationEvent
from chaos_protocols.scheduler.negotiation.scale_out import ScaleOutState
from chaos_protocols.wire import control as messages
from chaos_protocols.wire.control import JoinRequest

PAGE = ROOT / "docs" / "protocols" / "negotiations.md"
PROTOCOLS = ROOT / "protocols" / "chaos_protocols"
KINDS: tuple[type[Negotiation], ...] = (ScaleOut, ScaleIn, ConnectLink, DisconnectLink)
EVENTS: tuple[type, ...] = get_args(NegotiationEvent)
SUBJECT, ONE, OTHER = SiteId("5" * 32), SiteId("a" * 32), SiteId("b" * 32)
STEPS_MAX = 8
"""No negotiation has a longer way from its beginning to its end."""


@dataclass(frozen=True, slots=True, order=True)
class Step:
    """One arrow of a diagram."""

    before: str
    event: str
    orders: str
    after: str


def main() -> None:
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")


def page() -> str:
    """The whole document."""
    parts = [HEAD]
    for kind in KINDS:
        parts += [_section(kind)]
    parts += [MESSAGES_HEAD, _message_table()]
    return "\n".join(parts)


HEAD = """\
# Negotiations and messages

Generated from the code by `python -m tests.tidy.diagrams`; do not edit. The four negotiations are the machines of
`chaos_protocols/scheduler/negotiation/`, driven by `chaos_protocols/scheduler/running.py`. An arrow carries the event
and, after the slash, what the negotiation orders then; "propose" names the command that it makes when its turn comes.
Events that change nothing in a state are in the table below each diagram as a dot, those that only add to what is known
as "noted"; an empty cell is a pair that never comes: if it does, that is a defect and raises `LocalProtocolError`.
"""

MESSAGES_HEAD = """\
## Messages between sites

All control messages are declared in `chaos_protocols/wire/control.py`. A message to the scheduler is dropped by a site
that does not lead. The machine named is the function that the `match` statements of `chaos_protocols/inbound.py` and,
for the scheduler, of `chaos_protocols/scheduler/machine.py` hand the message to.
"""


# ---- diagrams


def _section(kind: type[Negotiation]) -> str:
    states = _states(kind)
    found = sorted(steps(kind), key=lambda step: (states.index(step.before), states.index(step.after), step))
    lines = [f"## {kind.KIND}", "", f"`{kind.__module__}.{kind.__name__}`", "", "```mermaid", "stateDiagram-v2"]
    lines += [f"    [*] --> {first}: {orders}" for first, orders in sorted(_beginnings(kind))]
    lines += [f"    {step.before} --> {step.after}: {step.event} / {step.orders}" for step in found]
    ends = {step.after for step in found if step.orders.endswith(("done", "failed", "refused"))}
    lines += [f"    {end} --> [*]" for end in sorted(ends)]
    lines += ["```", "", *_table(kind, found), ""]
    return "\n".join(lines)


def _states(kind: type[Negotiation]) -> list[str]:
    """The states in the order in which the enumeration has them."""
    some = next(state for state, _ in kind.TABLE)
    return [state.value for state in type(some)]


def _table(kind: type[Negotiation], found: list[Step]) -> list[str]:
    """Rows: events; columns: states that a negotiation of this kind can wait in."""
    waited_in = {step.before for step in found}
    states = [state for state in _states(kind) if state in waited_in]
    rows = {(state.value, event.__name__): name for (state, event), name in kind.TABLE.items()}
    lines = ["| event | " + " | ".join(states) + " |", "| --- " * (len(states) + 1) + "|"]
    for event in EVENTS:
        cells = []
        for state in states:
            key = (state, event.__name__)
            after = sorted({step.after for step in found if (step.before, step.event) == key})
            cells.append(" or ".join(after) or ("noted" if rows.get(key) else "·" if key in rows else ""))
        lines.append(f"| `{event.__name__}` | " + " | ".join(cells) + " |")
    return lines


def steps(kind: type[Negotiation]) -> set[Step]:
    """Every arrow that the handlers can take, found by breadth-first play from every beginning."""
    found: set[Step] = set()
    for make in _makers(kind):
        _play(make, (), found)
    return found


def _play(make: Callable[[], Negotiation], path: tuple[NegotiationEvent, ...], found: set[Step]) -> None:
    """Play `path` on a fresh negotiation, then try every event once more."""
    if len(path) >= STEPS_MAX:
        return
    for event in _events():
        negotiation = make()
        for earlier in path:
            negotiation.handle(earlier)
        before = negotiation.state
        if negotiation.TABLE.get((before, type(event))) is None:
            continue
        orders = negotiation.handle(event)
        step = Step(before.value, type(event).__name__, _shown(orders), negotiation.state.value)
        moved = negotiation.state is not before or _counts(negotiation, event)
        if orders or negotiation.state is not before:
            found.add(step)
        if moved and not negotiation.concluded:
            _play(make, (*path, event), found)


def _counts(negotiation: Negotiation, event: NegotiationEvent) -> bool:
    """The first answer of a link's two ends changes no state, but must be played before the second."""
    return isinstance(negotiation, ConnectLink) and isinstance(event, LinkAnswered) and event.site == ONE


def _shown(orders: Iterable[Order]) -> str:
    words = []
    for order in orders:
        match order:
            case Tell(message=message):
                words.append(f"tell {type(message).__name__}")
            case Propose(command=command):
                words.append(f"propose {command.__name__}")
            case Conclude(outcome=outcome):
                words.append(outcome)
    return ", ".join(dict.fromkeys(words)) or "nothing"


def _beginnings(kind: type[Negotiation]) -> set[tuple[str, str]]:
    found = set()
    for make in _makers(kind, begin=False):
        negotiation: Any = make()
        taken_over = isinstance(negotiation, ScaleOut) and negotiation.state is not ScaleOutState.CONNECTING
        orders = [] if taken_over else _begin(negotiation)
        found.add((negotiation.state.value, "taken over" if taken_over else _shown(orders)))
    return found


def _begin(negotiation: Negotiation) -> list[Order]:
    match negotiation:
        case ScaleOut():
            return negotiation.begin(deadline_s=1.0)
        case ConnectLink():
            return negotiation.begin({ONE: "", OTHER: ""}, deadline_s=1.0)
        case ScaleIn() | DisconnectLink():
            return negotiation.begin()
    raise AssertionError(f"how does {negotiation.KIND} begin?")


def _makers(kind: type[Negotiation], *, begin: bool = True) -> Iterator[Callable[[], Negotiation]]:
    """One maker for each way in which the scheduler starts a negotiation of this kind."""
    common: dict[str, Any] = {"cause": "", "now_s": 0.0}

    def maker(**fields: Any) -> Callable[[], Negotiation]:
        def make() -> Negotiation:
            negotiation: Any = kind("example", **common, **fields)
            if begin and fields.get("state") is not ScaleOutState.REPLICATING:
                _begin(negotiation)
            return negotiation  # type: ignore[no-any-return]

        return make

    if kind is ScaleOut:
        yield maker(joiner=SUBJECT, request=_join_request())
        yield maker(joiner=SUBJECT, request=None)
        yield maker(joiner=SUBJECT, request=None, state=ScaleOutState.REPLICATING)
    elif kind is ScaleIn:
        for graceful, resolve in itertools.product((True, False), repeat=2):
            yield maker(site=SUBJECT, incarnation=1, graceful=graceful, resolve=resolve)
    elif kind is ConnectLink:
        yield maker(one=ONE, other=OTHER, request=(ONE, "request"))
    else:
        for resolve in (True, False):
            yield maker(one=ONE, other=OTHER, request=(ONE, "request"), resolve=resolve)


def _join_request() -> JoinRequest:
    model = ModelFacts(spec_digest="", state_bytes=1, shard_bytes=1)
    return JoinRequest(
        name="joiner", address="", public_key=b"", incarnation=1, neighbours=(ONE,), model=model, worker_round=0
    )


def _events() -> Iterator[NegotiationEvent]:
    """Every event, in every form that a handler can tell apart."""
    good = LinkAnswered(site=ONE, other=OTHER, ready=True, rtt_s=0.0, rate_bytes_per_s=0.0, reason="")
    for site, other in ((ONE, OTHER), (OTHER, ONE), (ONE, SUBJECT)):
        for ready in (True, False):
            yield replace(good, site=site, other=other, ready=ready)
    yield from (Committed(), LearnerCaughtUp(), Resolution(), EverybodyDone(), DeadlinePassed(), SubjectGone(reason=""))
    yield RoundNeverDone(round=1)
    yield from (ProposalLost(reason="", final=final) for final in (True, False))


# ---- messages


def _message_table() -> str:
    handlers = message_handlers()
    lines = ["| message | handled by | what it is |", "| --- | --- | --- |"]
    for name in message_names():
        text = _first_sentence(getattr(messages, name))
        lines.append(f"| `{name}` | {handlers[name]} | {text} |")
    return "\n".join(lines) + "\n"


def message_names() -> list[str]:
    """The members of `messages.Message`, in the order of the union."""
    return [member.__name__ for member in get_args(messages.Message)]


def message_handlers() -> dict[str, str]:
    """For every message the first call in its `case` that receives it, as `module.py: function`."""
    found: dict[str, str] = {}
    for path, name in RECEIVERS:
        tree = ast.parse((PROTOCOLS / path).read_text(encoding="utf-8"))
        (receiver,) = (one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef) and one.name == name)
        for case in (node for node in ast.walk(receiver) if isinstance(node, ast.match_case)):
            for message in _matched(case.pattern):
                found[message] = _handler(case.body)
    return found


RECEIVERS = (("inbound.py", "deliver"), ("scheduler/machine.py", "receive"))
"""The functions whose `match` gives each message to its part."""


OWNERS = {
    "self._replica.raft.receive": "`raft/machine.py`: `receive`",
    "self._network.heard_beat": "`links/liveness.py`, `membership/participation.py`: `heard`",
    "self._network.links": "`links/liveness.py`",
    "self._network.overlay_changed": "`links/link_state.py`, `site.py`: `_look_for_the_leader`",
    "participation.session_end": "`membership/session_end.py`",
    "participation.leaving": "`membership/leaving.py`",
    "participation.links": "`links/desired.py`",
    "participation.pause": "`membership/pause.py`",
    "participation.recovering": "`membership/recovering.py`",
    "participation.waits": "`membership/waits.py`",
    "participation.warnings": "`membership/warnings.py`",
    "participation.reporting": "`membership/reporting.py`",
    "self._keys": "`links/keys.py`",
    "self._orders": "`links/orders.py`",
    "admission": "`scheduler/admission.py`",
    "self._reported": "`scheduler/machine.py`: `receive`, `scheduler/reports.py`: `take`",
    "self.term.resolution": "`scheduler/round_resolution.py`",
}
"""Where the object at the beginning of a call lives."""


def _handler(body: list[ast.stmt]) -> str:
    calls = [ast.unparse(node.func) for part in body for node in ast.walk(part) if isinstance(node, ast.Call)]
    for begin, owner in OWNERS.items():
        for call in calls:
            if call == begin or call.startswith(f"{begin}."):
                function = call.rpartition(".")[2]
                return owner if ":" in owner else f"{owner}: `{function}`"
    raise AssertionError(f"no known owner among {calls}; name it in OWNERS")


def _matched(pattern: ast.pattern) -> Iterator[str]:
    for node in ast.walk(pattern):
        if isinstance(node, ast.MatchClass) and isinstance(node.cls, ast.Attribute | ast.Name):
            yield ast.unparse(node.cls).removeprefix("messages.")


def _first_sentence(thing: type) -> str:
    text = " ".join((thing.__doc__ or "").split())
    if text.startswith(f"{thing.__name__}("):
        return ""  # msgspec's own signature: the class has no docstring
    return text.partition(". ")[0].rstrip(".").replace("|", "\\|")


if __name__ == "__main__":
    main()
