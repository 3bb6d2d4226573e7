"""Who may connect: what was configured, what the operator lets in while the daemon runs, and who knocked in vain."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.daemon.api.local_api import FakeControl, served
from tests.unit.sdk.line import ShortFolder
from typer.testing import CliRunner

from chaos_protocols.names import SiteId
from chaosd import trust as module
from chaosd.api.client import LocalClient, RequestRefusedError
from chaosd.cli.app import app
from chaosd.trust import PENDING_MAX, TrustList

A, B = SiteId("a" * 32), SiteId("b" * 32)


def test_only_what_was_configured_is_trusted_at_first(tmp_path: Path) -> None:
    trust = TrustList(tmp_path, frozenset({A}))
    assert A in trust and B not in trust and trust.pending() == []


def test_who_knocked_is_shown_until_it_is_let_in_for_good(tmp_path: Path) -> None:
    now_s = [100.0]
    trust = TrustList(tmp_path, frozenset(), lambda: now_s[0])
    assert trust.knocked(A)
    now_s[0] = 105.0
    assert not trust.knocked(A)
    (one,) = trust.pending()
    assert (one.site, one.first_unix_s, one.last_unix_s, one.times) == (A, 100.0, 105.0, 2)
    assert trust.grant(A[:8]).done and A in trust and trust.pending() == []
    assert A in TrustList(tmp_path, frozenset())
    assert (tmp_path / "trusted").stat().st_mode & 0o777 == 0o600


def test_only_a_whole_id_is_let_in_that_has_not_knocked(tmp_path: Path) -> None:
    trust = TrustList(tmp_path, frozenset())
    refused = trust.grant("aaaa")
    assert not refused.done and "no site that knocked" in refused.reason and A not in trust
    assert trust.grant(A).done and A in trust
    assert "already" in trust.grant(A).reason


def test_a_beginning_that_two_share_lets_neither_in(tmp_path: Path) -> None:
    trust = TrustList(tmp_path, frozenset())
    other = SiteId("a" * 31 + "b")
    trust.knocked(A)
    trust.knocked(other)
    assert "more than one" in trust.grant("aaaa").reason
    assert A not in trust and other not in trust


def test_a_list_that_cannot_be_written_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trust = TrustList(tmp_path / "gone", frozenset())
    with pytest.raises(OSError, match="gone"):
        trust.grant(A)
    assert A not in trust


def test_a_torn_or_foreign_file_lets_nobody_in(tmp_path: Path) -> None:
    (tmp_path / "trusted").write_bytes(f"{A}\n{B[:20]}\n../../x\n\xff\n".encode("latin-1"))
    trust = TrustList(tmp_path, frozenset())
    assert A in trust and B not in trust and B[:20] not in trust


def test_ids_that_cost_nothing_fill_neither_memory_nor_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REFUSALS_TOLD_MAX", 100)
    trust = TrustList(tmp_path, frozenset())
    told = [trust.knocked(SiteId(f"{number:032x}")) for number in range(300)]
    assert sum(told) == 100 and all(told[:100])
    assert [one.site for one in trust.pending()] == [f"{number:032x}" for number in range(300 - PENDING_MAX, 300)]


def test_the_commands_show_who_knocks_and_let_it_in() -> None:
    with ShortFolder() as name:
        folder = Path(name)
        trust = TrustList(folder, frozenset())
        trust.knocked(A)
        with served(folder / "api.sock", FakeControl(), further=trust.local_routes()):

            def run(*words: str) -> tuple[int, str]:
                done = CliRunner().invoke(app, [*words, "--data-dir", name], catch_exceptions=False)
                return done.exit_code, done.output

            code, text = run("pending")
            assert code == 0 and A in text and "knocked 1 times" in text
            assert run("trust", "bbbb")[0] == 1
            assert run("trust", A[:4]) == (0, f"trust aaaa: done after 0.000 s: {A} may connect from now on; "
                                              "it tries again by itself\n")  # fmt: skip
            assert run("pending") == (0, "nobody knocks that is not trusted\n")
            assert run("pending", "--json") == (0, "[]\n")
            with pytest.raises(RequestRefusedError, match="TrustBody"):
                LocalClient(folder / "api.sock").trust("../x")
            (folder / "trusted").unlink()
            (folder / "trusted.new").mkdir()
            code, text = run("trust", B)
            assert code == 1 and "cannot write" in text and B not in trust
