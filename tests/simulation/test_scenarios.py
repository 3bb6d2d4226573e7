"""Stories as files: commands, `----`, and what the sites recorded. `CHAOS_REWRITE=1` writes the second half anew.

sites a b:a c:a,b      a founds; b knows a; c knows a and b (all start with a worker)
run 3                  three seconds pass
members a b c          now the members are exactly these, and rounds go on
kill|daemon|worker|stop|go|start|leave SITE, cut|heal|oneway|link|unlink|reset ONE OTHER, crash SITE
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from tests.simulator.faults import begin
from tests.simulator.world import World

from chaos_protocols import events

FOLDER = Path(__file__).parent / "scenarios"
REWRITE = os.environ.get("CHAOS_REWRITE") == "1"
SEED = 1


def play(commands: list[str]) -> list[str]:
    """The recorded events, without times."""
    world = World(SEED)
    trace: list[str] = []
    for line in commands:
        words = line.split()
        told = len(world.story)
        _command(world, words)
        trace += [f"> {line}", *(_timeless(one) for one in world.story[told:])]
    return trace


def _timeless(line: str) -> str:
    text = re.sub(r" in \d+ ms", "", line[10:])
    return re.sub(r"\d+\.\d\d s", "N s", text)


def _command(world: World, words: list[str]) -> None:
    verb, names = words[0], words[1:]
    if verb == "sites":
        for number, name in enumerate(names):
            own, _, known = name.partition(":")
            peers = tuple(known.split(",")) if known else ()
            world.add(own, founder=number == 0, peers=peers, min_sites=1)
        for node in world.nodes.values():
            begin(node)
        return
    if verb == "run":
        world.run(world.now_s + float(names[0]))
        return
    if verb == "members":
        _check_members(world, names)
        return
    node = world.node(names[0])
    other = world.node(names[1]) if len(names) > 1 else node
    ways = ((node.site, other.site), (other.site, node.site))
    match verb:
        case "kill":
            node.kill()
        case "daemon":
            node.kill(worker_too=False)
        case "worker":
            node.kill_worker()
        case "stop":
            node.stop()
        case "go":
            node.go_on()
        case "start":
            begin(node)
            if node.worker is None:
                node.start_worker()
        case "crash":
            node.crash_at_persist(durable=True, restart=lambda: None)
        case "leave":
            node.handle(events.LeaveRequested(request="leave", reason="its user left"))
        case "cut" | "oneway":
            for way in ways[: 2 if verb == "cut" else 1]:
                world.network.cut(*way)
        case "heal":
            for way in ways:
                world.network.heal(*way)
        case "reset":
            world.reset(node.site, other.site)
        case "link" | "unlink":
            request = f"{verb}-{node.name}-{other.name}"
            add = verb == "link"
            changed = events.LinkChangeRequested(request=request, other=other.site, add=add)  # type: ignore[arg-type]
            node.handle(changed)
        case _:
            raise ValueError(f"unknown command '{verb}'")


def _check_members(world: World, names: list[str]) -> None:
    wanted = tuple(sorted(world.site(name) for name in names))
    before = world.oracles.rounds_done
    world.run(world.now_s + 1.0)
    for site in wanted:
        machine = world.nodes[site].machine
        assert machine is not None, f"{site} is dead"
        assert machine.roster.member_ids() == wanted, f"{site} knows the members {machine.roster.member_ids()}"
    assert world.oracles.rounds_done > before, "no round was completed within a second"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_the_story_goes_as_written(path: Path) -> None:
    written = path.read_text(encoding="utf-8")
    head, _, expected = written.partition("----\n")
    commands = [line for line in head.splitlines() if line and not line.startswith("#")]
    trace = "\n".join(play(commands)) + "\n"
    if REWRITE:
        path.write_text(f"{head}----\n{trace}", encoding="utf-8")
    assert trace == expected or REWRITE, f"{path.name} goes another way; see CHAOS_REWRITE in {Path(__file__).name}"


def test_there_are_enough_stories() -> None:
    assert len(list(FOLDER.glob("*.txt"))) >= 15
