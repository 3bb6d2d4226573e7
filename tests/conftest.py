"""What holds for all tests, whoever starts them: no command of theirs remembers or finds a site in the configuration of
this user, and SIGINT ends what they start."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest


def pytest_configure() -> None:
    """Undo what a shell does to jobs in its background: they ignore SIGINT, and so does everything they start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def no_site_of_this_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("configuration")))
        patch.delenv("CHAOS_CONFIG", raising=False)
        yield


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Torch computes with one thread, as its processes in these tests do: the same bits, and no fight for two cores."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
