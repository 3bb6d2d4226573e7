"""Rounds that begin during the backward pass, with real daemons: a script that is gone in the middle of its pass, and a
gradient that is no number. The state is the same at both sites after every round."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from tests.rigs.site import Site, cluster_of

from chaos import Coordinator, EveryStep

PAIR = {"cleveland": "Cleveland", "hungary": "Hungary"}
WIDTH, LAYERS = 256, 5
"""A layer is a piece."""
STEPS, ODD_STEP = 6, 3
LIMIT_S = 180.0


class GoneError(Exception):
    """The script ends as if it had been killed."""


def model_of() -> torch.nn.Sequential:
    drawn = torch.Generator().manual_seed(7)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)), torch.nn.BatchNorm1d(WIDTH))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=drawn) / WIDTH)
    return model


def train(site: Site, number: int, over: Callable[[int], bool], spoil: Callable[[int], str]) -> dict[int, str]:
    """Digests of the state after each round. `over`: after so many steps of its own. `spoil`: what happens in the
    backward pass of a step, if anything: `odd`, or `gone`."""
    model, generator, steps = model_of(), torch.Generator(), 0
    found: dict[int, str] = {}
    with Coordinator(
        site.worker_socket, handle_signals=False, connect_s=60.0, verbose=False, sync=EveryStep(overlap=True)
    ) as coordinator:

        def spoilt(gradient: torch.Tensor) -> torch.Tensor:
            if (what := spoil(steps)) == "gone":
                assert coordinator._conversation is not None
                coordinator._conversation._disconnect()
                raise GoneError
            return gradient * float("nan") if what == "odd" else gradient

        coordinator.register(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        next(iter(model.parameters())).register_hook(spoilt)  # type: ignore[no-untyped-call]
        try:
            while not over(steps):
                steps += 1
                generator.manual_seed(1_000 * number + steps)
                batch = torch.randn(4, WIDTH, generator=generator)
                with coordinator.overlap(samples=3 + number):
                    model(batch).square().mean().backward()
                coordinator.step()
                found[coordinator.round] = coordinator.state_digest()
        except GoneError:
            pass
    return found


def test_pieces_that_break_off_make_a_round_void_and_the_states_stay_equal(tmp_path: Path) -> None:
    done = threading.Event()

    def first_site(site: Site) -> dict[int, str]:
        return train(site, 1, lambda _: done.is_set(), lambda _: "")

    def second_site(site: Site) -> tuple[dict[int, str], dict[int, str]]:
        """Its first script goes in its last backward pass; a step of the second one is no number."""
        try:
            before = train(site, 2, lambda _: False, lambda steps: "gone" if steps == STEPS else "")
            return before, train(
                site, 3, lambda steps: steps == STEPS, lambda steps: "odd" if steps == ODD_STEP else ""
            )
        finally:
            done.set()

    with cluster_of(tmp_path, PAIR, min_sites=1, exit_with_worker=False) as cluster:
        one, two = cluster.sites
        for site in cluster.sites:
            site.start()
        with ThreadPoolExecutor(2) as pool:
            of_one, of_two = pool.submit(first_site, one), pool.submit(second_site, two)
            (before, after), digests = of_two.result(LIMIT_S), of_one.result(LIMIT_S)
        told = [line for line in two.daemon_log.read_text().splitlines() if "broke off" in line]
        assert any(f"round {max(before) + 1} " in cause and "its script ended" in cause for cause in told), told
        odd = next(cause for cause in told if "'model.0.weight' is not finite" in cause)
        number = int(odd.split("its part of round ")[1].split()[0])
        for first, second in ((digests, before), (digests, after)):
            assert all(first[one] == second[one] for one in set(first) & set(second)) and set(first) & set(second)
        seen = {**digests, **before, **after}
        assert seen[number] == seen[number - 1] != seen[number - 2], "void"
