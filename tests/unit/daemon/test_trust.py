"""Who may connect and who is dialled: the configuration, what the operator changed by command, who knocked in vain."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.daemon.api.local_api import FakeControl, served
from tests.unit.protocols.one_site import A, B, Bench, C, D, roster_of
from tests.unit.sdk.line import ShortFolder
from typer.testing import CliRunner

from chaos_protocols import events
from chaos_protocols.agreement.roster import Departure
from chaos_protocols.causes import Cause
from chaos_protocols.effects import Record
from chaos_protocols.fingerprint import words_of
from chaos_protocols.links.refusals import REFUSALS_KEPT
from chaos_protocols.names import SiteId
from chaos_protocols.wishes import BansChanged
from chaosd.addresses import join_address
from chaosd.api.client import LocalClient, RequestRefusedError
from chaosd.api.status import Outcome
from chaosd.cli.app import app
from chaosd.conduct import Conduct
from chaosd.config import contexts
from chaosd.config.changes import CHANGES_NAME, DialledPeer, read_changes
from chaosd.config.file import ConfigError
from chaosd.config.model import PeerConfig, SiteConfig
from chaosd.site_names import SiteNames
from chaosd.trust import BlockBody, TrustList

OTHER = SiteId("b" * 31 + "c")


class OneDriver:
    """What a driver has that the list asks: a machine, a clock, the door for events, the history."""

    def __init__(self, bench: Bench) -> None:
        self._bench, self.machine = bench, bench.machine
        self.fed: list[events.Event] = []
        self.conduct, self.transport = Conduct(bench.machine.is_trusted), self
        self.closed: list[SiteId] = []
        self.records: list[Record] = []
        self.names = SiteNames(bench.machine)

    def now_s(self) -> float:
        return self._bench.now_s

    def feed(self, event: events.Event) -> None:
        self.fed.append(event)

    def close_link(self, site: SiteId, reason: str) -> None:
        self.closed.append(site)

    def record(self, record: Record) -> None:
        self.records.append(record)


class Rig:
    """A list of trusted sites of site A."""

    def __init__(self, folder: Path, **config: Any) -> None:
        self.bench = Bench(A)
        self.driver = OneDriver(self.bench)
        self.config = SiteConfig(name="a", data_dir=folder, **config)
        self.again()

    def again(self) -> TrustList:
        """As after a restart."""
        self.trust = TrustList(self.config, self.driver, lambda: 1000.0 + self.bench.now_s)  # type: ignore[arg-type]
        return self.trust

    def knocks(self, site: SiteId) -> None:
        why = Cause.UNTRUSTED.told(other=site, words=words_of(site))
        self.bench.handle(events.SiteRefused(site=site, why=why))

    def pending(self) -> list[str]:
        return [one.site for one in self.trust.pending()]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def peer(site: SiteId, *, name: str = "") -> DialledPeer:
    return DialledPeer(site=site, address="b.example:7400", name=name)


def test_only_what_was_configured_is_trusted_at_first(tmp_path: Path) -> None:
    rig = Rig(tmp_path, trust=(C,), peers=(PeerConfig(site=B, address="b:1"),))
    assert B in rig.trust and C in rig.trust and D not in rig.trust and rig.pending() == []


def test_who_knocked_is_shown_with_words_until_it_is_let_in_for_good(rig: Rig) -> None:
    rig.knocks(B)
    begun_s = rig.bench.now_s
    rig.bench.now_s += 5.0
    rig.knocks(B)
    (one,) = rig.trust.pending()
    assert (one.site, one.times, one.words) == (B, 2, words_of(B))
    assert (one.first_unix_s, one.last_unix_s) == (1000.0 + begun_s, 1000.0 + begun_s + 5.0)
    assert rig.trust.trust(B[:8], pending_only=True).done and B in rig.trust and rig.pending() == []
    again = rig.trust.trust(B[:8], pending_only=True)
    assert again.done and "may connect already" in again.reason
    assert B in rig.again()
    assert (rig.config.data_dir / CHANGES_NAME).stat().st_mode & 0o777 == 0o600
    assert [one.reason for one in rig.driver.records] == [f"{B[:8]} is trusted"]


def test_a_site_refused_for_another_cause_is_not_pending(rig: Rig) -> None:
    rig.bench.handle(events.SiteRefused(site=B, why=Cause.REFUSED_VERSION.told(reason="2 and 3")))
    assert rig.pending() == []


def test_only_a_whole_id_is_let_in_that_has_not_knocked(rig: Rig) -> None:
    refused = rig.trust.trust("bbbb")
    assert not refused.done and "none of the sites that have knocked" in refused.reason and B not in rig.trust
    assert not rig.trust.trust(B, pending_only=True).done
    assert rig.trust.trust(B).done and B in rig.trust
    assert "already" in rig.trust.trust(B).reason


def test_a_beginning_that_two_share_lets_neither_in(rig: Rig) -> None:
    rig.knocks(B)
    rig.knocks(OTHER)
    assert "more than one" in rig.trust.trust("bbbb").reason
    assert B not in rig.trust and OTHER not in rig.trust


def test_a_list_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "gone")
    with pytest.raises(OSError, match="gone"):
        rig.trust.trust(B)
    assert B not in rig.trust and rig.driver.records == []


def test_ids_that_cost_nothing_fill_no_memory(rig: Rig) -> None:
    sites = [SiteId(f"{number:032x}") for number in range(300)]
    for site in sites:
        rig.knocks(site)
    assert rig.pending() == sites[-REFUSALS_KEPT:]


def test_a_configured_site_can_be_struck_out_and_named_again(tmp_path: Path) -> None:
    rig = Rig(tmp_path, trust=(B,))
    assert rig.trust.distrust("bbbb").done and B not in rig.trust and B not in rig.again()
    assert rig.trust.trust(B).done and B in rig.trust and B in rig.again()
    assert rig.trust.distrust(B).done and B not in rig.trust
    rig.config = rig.config.model_copy(update={"trust": (C,)})
    assert B not in rig.again() and rig.trust.trust(D).done
    assert rig.trust.distrust(C).done and read_changes(rig.config.data_dir).trust_removed == (C,)


def test_a_member_stays_trusted_and_the_answer_says_so(tmp_path: Path) -> None:
    rig = Rig(tmp_path, trust=(B,))
    rig.bench = Bench(A, roster_of(A, B))
    rig.driver = OneDriver(rig.bench)
    rig.again()
    outcome = rig.trust.distrust(B)
    assert outcome.done and "site of the run" in outcome.reason
    assert [(one.called, one.by) for one in rig.trust.trusted()] == [("site b (bbbbbbbb)", "site of the run")]


def test_a_peer_is_dialled_at_once_and_after_a_restart_and_may_connect(rig: Rig) -> None:
    assert rig.trust.add_peer(peer(B, name="Hungary")).done
    assert rig.driver.fed == [events.PeersChanged(peers=((B, "b.example:7400"),))]
    assert B in rig.trust and rig.again().told().peers == ((B, "b.example:7400"),)
    assert rig.trust.called(B) == "Hungary (bbbbbbbb)" and rig.trust.called(C) == C[:8]
    assert "already" in rig.trust.add_peer(peer(B, name="Hungary")).reason
    assert rig.trust.remove_peer("Hungary").done and rig.again().told().peers == () and B not in rig.trust
    assert not rig.trust.remove_peer(B).done


@pytest.mark.parametrize(
    "host", ["zürich.example", "\N{GRINNING FACE}.example", "xn--zrich-kva.example", "fe80::1%eth0"]
)
def test_a_peer_whose_address_has_any_letters_is_written_down_and_read_back(rig: Rig, host: str) -> None:
    one = DialledPeer(site=B, address=join_address(host, 7400), name="\N{GRINNING FACE}")
    assert rig.trust.add_peer(one).done
    assert read_changes(rig.trust.config.data_dir).peers == (one,)


def test_a_configured_peer_gets_another_address_and_can_be_removed(tmp_path: Path) -> None:
    rig = Rig(tmp_path, peers=(PeerConfig(site=B, address="old:1"), PeerConfig(site=C, address="c:1")))
    assert rig.trust.add_peer(peer(B)).done
    assert rig.again().told().peers == ((C, "c:1"), (B, "b.example:7400"))
    assert rig.trust.remove_peer("bbbb").done and rig.trust.remove_peer("cccc").done
    assert rig.again().told().peers == ()
    assert rig.trust.add_peer(DialledPeer(site=C, address="c:1")).done and rig.again().told().peers == ((C, "c:1"),)


@pytest.fixture
def commands() -> Iterator[tuple[Rig, Any]]:
    with ShortFolder() as name:
        rig = Rig(Path(name))
        with served(Path(name) / "api.sock", FakeControl(), further=rig.trust.local_routes()):

            def run(*words: str) -> tuple[int, str]:
                done = CliRunner().invoke(app, [*words, "--data-dir", name], catch_exceptions=False)
                return done.exit_code, done.output

            yield rig, run


def test_the_commands_show_who_knocks_and_let_it_in(commands: tuple[Rig, Any]) -> None:
    rig, run = commands
    rig.knocks(B)
    code, text = run("pending")
    assert code == 0 and B in text and "knocked 1 times" in text and words_of(B) in text
    assert run("accept", "cccc")[0] == 1 and run("accept", C)[0] == 1
    assert run("accept", B[:4]) == (0, f"accept bbbb: done after 0.000 s: {B} may connect from now on; "
                                       "it tries again by itself\n")  # fmt: skip
    assert run("pending") == (0, "nobody knocks that is not trusted\n")
    assert run("pending", "--json") == (0, "[]\n")


def test_who_asks_the_wrong_one_of_several_sites_is_told_where_somebody_knocks(
    commands: tuple[Rig, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, _ = commands
    rig.knocks(B)
    monkeypatch.delenv("CHAOS_CONFIG", raising=False)
    monkeypatch.setattr(contexts, "sites_file", lambda: tmp_path / "sites")
    monkeypatch.chdir(tmp_path)
    with ShortFolder() as name:
        quiet = Rig(Path(name))
        for one in (rig, quiet):
            one.config.data_dir.joinpath("chaosd.toml").write_text(f'data_dir = "{one.config.data_dir}"\n')
            contexts.remember(one.config.data_dir / "chaosd.toml")
        with served(Path(name) / "api.sock", FakeControl(), further=quiet.trust.local_routes()):
            told = CliRunner().invoke(app, ["pending"], catch_exceptions=False)
    assert told.exit_code == 0 and "nobody knocks" in told.output
    there = rig.config.data_dir / "chaosd.toml"
    assert f"at another site of this machine one does: chaosd pending --config {there}" in told.output


def test_the_commands_show_who_is_trusted_and_take_one_off(commands: tuple[Rig, Any]) -> None:
    rig, run = commands
    rig.knocks(B)
    assert run("accept", B[:4])[0] == 0
    assert run("trust", C)[0] == 0 and C in rig.trust, "the former form of `trust add`"
    code, text = run("trust", "list")
    assert code == 0 and "by command" in text and words_of(B) in text
    assert run("trust", "remove", "cccc")[0] == 0 and C not in rig.trust
    assert run("trust", "remove", "cccc")[0] == 1
    with pytest.raises(RequestRefusedError, match="by its id"):
        LocalClient(rig.config.data_dir / "api.sock").trust("../x")
    (rig.config.data_dir / (CHANGES_NAME + ".new")).mkdir()
    code, text = run("trust", "add", D)
    assert code == 1 and "cannot write" in text and D not in rig.trust


def test_who_is_on_the_list_and_was_in_the_run_is_taken_off_by_name(commands: tuple[Rig, Any]) -> None:
    rig, run = commands
    rig.trust.trust(C)
    rig.bench.machine.replica.last_known = roster_of(A, C)
    assert run("trust", "remove", "Nobody") == (
        1,
        "trust remove Nobody: not done after 0.000 s: none of the sites on the list is 'Nobody'; there are: "
        "site c (cccccccc)\n",
    )
    assert "site c (cccccccc), by command" in run("trust", "list")[1]
    assert run("trust", "remove", "site c")[0] == 0 and C not in rig.trust


def test_an_id_with_a_character_too_few_is_told_how_many_it_has(commands: tuple[Rig, Any]) -> None:
    rig, run = commands
    code, text = run("trust", "add", OTHER[:-1])
    assert code == 1 and "by its whole id, of 32 characters: this has 31" in text and not rig.trust.trusted()


def test_the_commands_change_peers_and_refuse_what_is_none(commands: tuple[Rig, Any]) -> None:
    rig, run = commands
    assert run("peer", "add", f"Hungary={B}@b.example:7400")[0] == 0
    assert run("peer", "list") == (0, f"{B}@b.example:7400  Hungary (bbbbbbbb), by command, no link\n")
    for wrong, why in (
        (B, "SITE@HOST:PORT"),
        ("bbbb@b:1", "whole id"),
        (f"{B}@b", "host:port"),
        (f"{A}@a:1", "this site itself"),
        (f"H\x07={B}@b:1", "printable"),
    ):
        code, text = run("peer", "add", wrong)
        assert code in (1, 2) and why in text, text
    assert run("peer", "remove", "Hungary")[0] == 0 and rig.trust.peers() == []
    assert run("peer", "list") == (0, "no peers: this site waits until others dial it\n")


def test_a_blocked_site_loses_its_link_at_once_and_stays_out_after_a_restart(rig: Rig) -> None:
    rig.bench.pretend(roster_of(A, B, C))
    assert "stays in the run" in rig.trust.block("site b", "key stolen").reason
    assert rig.driver.closed == [B] and "operator" in rig.driver.conduct.why_not(B)
    assert "key stolen" in rig.driver.records[-1].reason
    assert "already" in rig.trust.block(B, "").reason and not rig.trust.block("eeee", "").done
    assert not rig.trust.block(A, "").done, "nobody blocks himself"
    rig.driver.conduct.block([])
    rig.again()
    assert rig.driver.conduct.why_not(B) and not rig.driver.conduct.why_not(C)
    assert rig.trust.unblock("site b").done and not rig.driver.conduct.why_not(B)
    assert not rig.trust.unblock("bbbb").done
    rig.driver.conduct.block([])
    rig.again()
    assert not rig.driver.conduct.why_not(B)


def test_a_ban_blocks_here_and_is_told_to_the_run_again_after_a_restart(commands: tuple[Rig, Any]) -> None:
    rig, run = commands
    assert run("ban", C)[0] == 2, "a ban says why"
    code, text = run("ban", C, "--reason", "key stolen")
    assert code == 0 and "more than half of the other members" in text
    assert rig.driver.fed[-1] == BansChanged(sites=(C,)) and rig.driver.conduct.why_not(C)
    assert "already" in run("ban", C, "--reason", "x")[1]
    rig.again().started()
    assert rig.driver.fed[-1] == BansChanged(sites=(C,)) and rig.driver.conduct.why_not(C)
    assert rig.trust.unblock("cccc").done and rig.driver.fed[-1] == BansChanged(sites=())


def test_who_has_failed_since_it_was_blocked_elsewhere_is_banned_by_its_name(rig: Rig) -> None:
    """The first operator's ban closes the link, and its site fails out of the run before the second one says it."""
    gone = Departure(site=D, incarnation=1, last_round=9, cause="failed", reason="all its links are down", name="Delta")
    rig.bench.pretend(roster_of(A, B, C, departed=(gone,)))
    assert rig.trust.block("Delta", "key stolen", ban=True).done
    assert rig.driver.fed[-1] == BansChanged(sites=(D,))
    assert not rig.trust.block("Epsilon", "key stolen", ban=True).done


def test_nobody_is_told_that_a_banned_site_may_connect(rig: Rig) -> None:
    assert rig.trust.block(C, "key stolen", ban=True).done
    rig.bench.pretend(roster_of(A, B, banned=(C,)))
    for refused in (rig.trust.trust(C), rig.trust.accept("cccc"), rig.trust.add_peer(peer(C))):
        assert not refused.done and "for good" in refused.reason
    taken_back = rig.trust.unblock("cccc")
    assert taken_back.done and "for good" in taken_back.reason and "may connect" not in taken_back.reason


def test_who_lets_a_blocked_site_in_is_told_that_it_is_blocked(rig: Rig) -> None:
    assert rig.trust.block(C, "").done
    assert "chaosd unblock" in rig.trust.accept("cccc").reason
    for listed in (rig.trust.trust(C), rig.trust.add_peer(peer(C))):
        assert listed.done and f"once `chaosd unblock {C[:8]}`" in listed.reason


def test_no_site_is_put_on_its_own_list(rig: Rig) -> None:
    assert rig.trust.trust(A) == Outcome(done=False, reason=f"{A} is this site itself", duration_s=0.0)


def test_the_commands_block_a_site_and_show_it(commands: tuple[Rig, Any]) -> None:
    _, run = commands
    assert run("block") == (0, "nobody is blocked\n")
    code, text = run("block", C, "--reason", "left the consortium")
    assert code == 0 and "no link with this site" in text
    assert run("block") == (0, f"{C}  {C[:8]}\n")
    assert run("block", "--json")[1].startswith('[{"site":')
    assert run("unblock", "cccc")[0] == 0 and run("unblock", "cccc")[0] == 1
    assert run("block", "x\x07y")[0] == 1


@pytest.mark.parametrize(
    "text", ["trust = [1]", 'trust = ["abc"]', "x = 1", "[[peers]]\nsite = 1", "\x00", "peers = 3"]
)
def test_a_file_of_changes_that_cannot_be_used_stops_the_start_with_its_name(tmp_path: Path, text: str) -> None:
    (tmp_path / CHANGES_NAME).write_text(text)
    with pytest.raises(ConfigError, match=CHANGES_NAME):
        Rig(tmp_path)


def test_the_file_of_an_earlier_release_counts_until_the_first_change(tmp_path: Path) -> None:
    former = tmp_path / "trusted"
    former.write_bytes(f"{B}\n{C[:20]}\n../../x\n\xff\n".encode("latin-1"))
    rig = Rig(tmp_path)
    assert B in rig.trust and C not in rig.trust
    assert rig.trust.trust(D).done and not former.exists()
    assert B in rig.again() and D in rig.trust


def test_a_stranger_that_is_blocked_by_the_beginning_of_its_id_waits_no_more_until_it_is_unblocked(rig: Rig) -> None:
    rig.knocks(B)
    assert rig.trust.change_block(BlockBody(site=B[:8])).done and rig.pending() == []
    assert rig.driver.conduct.blocked == {B}
    assert rig.trust.change_block(BlockBody(site=B[:8], add=False)).done and rig.pending() == [B]
    (rig.config.data_dir / CHANGES_NAME).unlink()
    (rig.config.data_dir / CHANGES_NAME).mkdir()
    refused = rig.trust.change_block(BlockBody(site=B))
    assert not refused.done and "nothing has changed" in refused.reason and rig.driver.conduct.blocked == set()
