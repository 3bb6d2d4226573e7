"""A reload: what can be taken over is, the rest is named, and a file that cannot be used changes nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chaos_protocols.effects import Record
from chaos_protocols.events import PeersChanged
from chaos_protocols.names import SiteId
from chaos_protocols.wishes import SendLimitSet
from chaosd.config.model import SiteConfig, load_config
from chaosd.reloading import RELOADED, reloaded
from chaosd.transport.send_limit import SendLimit

ONE, OTHER = "1" * 32, "2" * 32


class FakeDriver:
    """What the machine would hear, and what the history would have."""

    def __init__(self) -> None:
        self.fed: list[Any] = []
        self.records: list[Record] = []
        self.transport = SimpleNamespace(send_limit=SendLimit())

    def feed(self, event: Any) -> None:
        self.fed.append(event)

    def record(self, record: Record) -> None:
        self.records.append(record)


@pytest.fixture(autouse=True)
def level_as_before() -> Iterator[None]:
    before = logging.getLogger().level
    yield
    logging.getLogger().setLevel(before)


def configured(config: SiteConfig) -> PeersChanged:
    """Nothing was changed by command."""
    return PeersChanged(peers=tuple((SiteId(peer.site), peer.address) for peer in config.peers))


def again(tmp_path: Path, before: str, after: str) -> tuple[SiteConfig, FakeDriver]:
    path, driver = tmp_path / "chaosd.toml", FakeDriver()
    path.write_text(before)
    config = load_config(path)
    path.write_text(after)
    after_it, outcome = reloaded(config, lambda: load_config(path), driver, configured)  # type: ignore[arg-type]
    (record,) = driver.records
    assert (outcome.done, outcome.reason) == (record.outcome == "done", record.reason)
    return after_it, driver


def test_peers_trust_and_the_level_of_the_log_are_taken_over(tmp_path: Path) -> None:
    after = f'log_level = "debug"\ntrust = ["{ONE}"]\n[[peers]]\nsite = "{OTHER}"\naddress = "b:1"\n'
    config, driver = again(tmp_path, 'name = "a"\n', 'name = "a"\n' + after)
    assert config.trust == (ONE,) and logging.getLogger().level == logging.DEBUG
    assert driver.fed == [PeersChanged(peers=((OTHER, "b:1"),))]  # type: ignore[arg-type]
    (record,) = driver.records
    assert (record.kind, record.outcome) == ("reload", "done")
    assert record.reason == "taken over: peers, trust, log_level"


async def test_what_the_site_sends_at_most_is_taken_over_and_the_run_hears_of_it(tmp_path: Path) -> None:
    config, driver = again(tmp_path, 'name = "a"\n', 'name = "a"\nsend_limit_mbit = 20\n')
    assert driver.transport.send_limit.rate_bytes_per_s == config.send_bytes_per_s == 2.5e6
    assert driver.fed == [SendLimitSet(bytes_per_s=2.5e6)]


def test_what_is_read_at_the_start_alone_is_named_and_stays(tmp_path: Path) -> None:
    config, driver = again(tmp_path, 'listen = "127.0.0.1:1"\n', 'listen = "127.0.0.1:2"\nmin_sites = 3\n')
    assert config.listen == "127.0.0.1:1" and config.min_sites == 1 and not driver.fed
    assert driver.records[0].reason.startswith("taken over: nothing; only at the next start: listen, ")
    assert "min_sites" in driver.records[0].reason


def test_a_file_that_cannot_be_used_changes_nothing(tmp_path: Path) -> None:
    config, driver = again(tmp_path, 'log_level = "info"\n', 'log_level = "debug"\ntrust = [\n')
    assert config.log_level == "info" and not driver.fed
    assert driver.records[0].outcome == "failed" and "is not valid TOML" in driver.records[0].reason


def test_a_daemon_without_a_file_goes_on(tmp_path: Path) -> None:
    driver, config = FakeDriver(), SiteConfig(data_dir=tmp_path)
    after, outcome = reloaded(config, None, driver, configured, cause="chaosd reload")  # type: ignore[arg-type]
    assert after is config and not driver.fed
    assert not outcome.done and "no configuration file" in outcome.reason
    assert [(one.cause, one.outcome) for one in driver.records] == [("chaosd reload", "failed")]


def test_what_is_reloaded_are_fields() -> None:
    assert set(RELOADED) <= set(SiteConfig.model_fields)


@pytest.mark.parametrize(
    ("text", "told"), [("def f(:", "SyntaxError"), ("raise RuntimeError('no')", "no"), ("raise SystemExit(3)", "3")]
)
def test_a_policy_whose_module_cannot_be_read_is_a_mistake_of_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, told: str
) -> None:
    """And no defect of a daemon that starts, nor the end of one that is told to read it again."""
    module = f"policy_of_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{module}.py").write_text(text)
    (tmp_path / "chaosd.toml").write_text(f'averaging = "{module}:f"\n')
    monkeypatch.syspath_prepend(tmp_path)
    config, driver = SiteConfig(name="a", data_dir=tmp_path), FakeDriver()
    read = lambda: load_config(tmp_path / "chaosd.toml")  # noqa: E731
    after, outcome = reloaded(config, read, driver, configured)  # type: ignore[arg-type]
    assert after is config and not outcome.done
    assert "averaging" in outcome.reason and told in outcome.reason and "correct it" in outcome.reason
