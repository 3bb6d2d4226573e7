"""Which network a lab runs on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Literal

from chaos_lab.errors import NetworkUnavailableError
from chaos_lab.namespaces import NamespaceNetwork
from chaos_lab.network import LabNetwork
from chaos_lab.scenario import Scenario
from chaos_lab.shaped import ShapedNetwork

Choice = Literal["auto", "namespaces", "shaped"]


@contextmanager
def open_network(scenario: Scenario, choice: Choice, *, scale: float) -> Iterator[LabNetwork]:
    """The network of a scenario, ready for its sites. `auto`: namespaces where this machine can have them. Raises
    NetworkUnavailableError where namespaces were asked for and cannot be had."""
    with ExitStack() as stack:
        network: LabNetwork
        if choice == "shaped":
            network = ShapedNetwork.of(scenario, scale=scale)
        else:
            try:
                network = stack.enter_context(_namespaces(scenario, scale))
            except NetworkUnavailableError as error:
                if choice == "namespaces":
                    raise
                network = ShapedNetwork.of(scenario, scale=scale, because=str(error))
        yield network


def _namespaces(scenario: Scenario, scale: float) -> NamespaceNetwork:
    return NamespaceNetwork(
        [site.name for site in scenario.sites],
        scenario.links,
        scale=scale,
        seed=scenario.redraw.seed if scenario.redraw is not None else 0,
        routed=scenario.routed,
        uplinks_mbit={site.name: site.uplink_mbit for site in scenario.sites if site.uplink_mbit is not None},
    )
