"""What a script may ask of its own training."""

from __future__ import annotations

from chaos.frameworks import Array, Framework, NumpyFramework
from chaos.state import State
from chaos.sync import SyncSession


class Looking:
    """A part of the Coordinator."""

    def __init__(self) -> None:
        self._framework: Framework | None = None
        self._session: SyncSession | None = None

    def _registered(self) -> SyncSession:
        if self._session is None:
            raise ValueError("nothing is registered yet; call coordinator.register(model=..., optimizer=...) first")
        return self._session

    def state_digest(self) -> str:
        """BLAKE3 of the whole training state (64 hexadecimal characters): equal on all sites at the end of the same
        round."""
        return State(self._registered().items).digest()

    @property
    def gradients(self) -> dict[str, Array]:
        """numpy training: the arrays to fill before each `step()`."""
        self._registered()
        if not isinstance(self._framework, NumpyFramework):
            raise ValueError("torch keeps gradients in the parameters; only numpy training has coordinator.gradients")
        return self._framework.gradients
