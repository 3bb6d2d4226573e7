"""The processes of a device group find each other: their sockets, and the registered group in which they share tensors.

`chaosd run --group-size` starts them, with one worker's number and a lane each. They live and die together, so their
`torch.distributed` group is the ordinary one of each process, made once: no plan ends it.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

SIZE_VARIABLE, LANE_VARIABLE = "CHAOS_GROUP_SIZE", "CHAOS_LANE"
"""Set by `chaosd run`: how many processes a worker has, and which of them this one is."""

LOOK_INTERVAL_S = 0.02
"""Between two looks for the leader's socket. Who looks for nobody is ended by the controller."""

LANE_BYTES = 4


@dataclass(frozen=True, slots=True)
class Lanes:
    """The device group of this process. `connections`: of the leader (lane 0) to each follower, in order; of a follower
    to its leader. `mesh`: of all its devices, in one dimension."""

    lane: int
    size: int
    connections: Sequence[socket.socket]
    mesh: DeviceMesh


def group_size(environment: Mapping[str, str]) -> int:
    """How many processes this worker has."""
    return int(environment.get(SIZE_VARIABLE, "1"))


def assemble(environment: Mapping[str, str]) -> Lanes:
    """Meet the other processes of this device group. Raises ValueError where the script has a process group already."""
    if dist.is_initialized():
        raise ValueError(
            "torch.distributed has a process group already, which would be the one of the device group; leave out "
            "init_process_group()"
        )
    lane, size = int(environment[LANE_VARIABLE]), group_size(environment)
    at = f"{environment['CHAOS_WORKER_GROUP']}.{environment['CHAOS_WORKER']}"
    token = environment["CHAOS_WORKER_TOKEN"].encode()
    connections = _followers(at, token, size) if lane == 0 else [_leader(at, token, lane)]
    return Lanes(lane, size, connections, _mesh(f"{at}.store", lane, size))


def _mesh(store: str, lane: int, size: int) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # a machine's own name may lead nowhere
    file_store: Any = dist.FileStore  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=file_store(store, size), rank=lane, world_size=size)
    return init_device_mesh("cpu", (size,), mesh_dim_names=("lane",))


def _followers(at: str, token: bytes, size: int) -> list[socket.socket]:
    """All of them, in the order of their lanes."""
    found: dict[int, socket.socket] = {}
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(at)
        server.listen(size)
        while len(found) < size - 1:
            connection, _ = server.accept()
            said = _exactly(connection, len(token) + LANE_BYTES)
            if secrets.compare_digest(said[: len(token)], token):
                found[int.from_bytes(said[len(token) :], "big")] = connection
    os.unlink(at)
    return [found[lane] for lane in sorted(found)]


def _leader(at: str, token: bytes, lane: int) -> socket.socket:
    while True:
        connection = socket.socket(socket.AF_UNIX)
        with suppress(FileNotFoundError, ConnectionRefusedError):
            connection.connect(at)
            connection.sendall(token + lane.to_bytes(LANE_BYTES, "big"))
            return connection
        connection.close()
        time.sleep(LOOK_INTERVAL_S)


def _exactly(connection: socket.socket, size: int) -> bytes:
    said = b""
    while len(said) < size and (part := connection.recv(size - len(said))):
        said += part
    return said
