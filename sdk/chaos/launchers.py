"""Launchers that start a script several times on one machine: the processes of a site find each other by `chaosd run`
alone, so each of them would train a model of its own, and none would say so."""

from __future__ import annotations

from collections.abc import Mapping

from chaos_protocols.worker_group.launchers import LAUNCHERS, processes


def check_started_once(environment: Mapping[str, str], *, alone: bool) -> None:
    """Raises ValueError in one of several processes that a launcher has started. `alone`: without a daemon, so that
    those on other machines are strangers as well; beside daemons they are sites of one run."""
    for launcher, here, in_all in LAUNCHERS:
        for name, where in ((here, "on this machine"), *(((in_all, "in all"),) if alone else ())):
            if (count := processes(environment, name)) > 1:
                raise ValueError(
                    f"{launcher} (or what does as it) has started {count} processes of this script {where} "
                    f"({name}={environment[name]}), and each would train a model of its own: the workers of a site are "
                    "started by one command on its machine, chaosd run --nproc N train.py, which goes on when one of "
                    "them dies; give that to the launcher as one task, or leave the launcher out"
                )
