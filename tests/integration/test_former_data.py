"""A data directory that release 0.1.0 has left behind (former_data/README.md) still starts: who the site is, how it
voted, what the sites agreed, what they trained, is all still there, and training goes on."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
from tests.integration.small_training import VARIABLES, WORKER
from tests.rigs.site import Cluster, Site, cluster_of, wait_for

from chaos_protocols.agreement.commands import decode_command, decode_roster
from chaos_protocols.agreement.key_ring import NoKeys
from chaos_protocols.agreement.raft import Persist
from chaos_protocols.agreement.raft.messages import LogEntry
from chaos_protocols.membership.facts import last_known_roster
from chaos_protocols.names import SiteId
from chaos_protocols.wire.versions import BEFORE, NEWEST, SPOKEN
from chaosd.identity import Identity
from chaosd.storage.checkpoint_file import read_head
from chaosd.storage.history import History
from chaosd.storage.journal.journal import Journal
from chaosd.storage.vector_file import read_vector

FORMER = Path(__file__).parent / "former_data"
CLEVELAND, HUNGARY = SiteId("1a052f58131055744c0b9b6d9025ba0d"), SiteId("b995798e795eae15c4d70e7994ffd26d")
CHECKPOINT_ROUND = 96
NUMBERS = 200
"""As the former training had."""


def lay_down(name: str, folder: Path) -> Path:
    """A copy that a daemon may write to, as private as it was."""
    shutil.copytree(FORMER / name, folder, dirs_exist_ok=True)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return folder


@pytest.mark.parametrize(("name", "vote"), [("cleveland", CLEVELAND), ("hungary", None)])
def test_the_journal_keeps_the_term_the_vote_and_every_command(name: str, vote: SiteId | None, tmp_path: Path) -> None:
    with Journal.open(lay_down(name, tmp_path), incarnation_floor=1) as journal:
        recovered = journal.recovered
    assert not recovered.note
    assert recovered.hard_state is not None and (recovered.hard_state.term, recovered.hard_state.vote) == (2, vote)
    assert recovered.snapshot is not None
    first = decode_roster(recovered.snapshot.state)
    assert len([decode_command(entry.command) for entry in recovered.entries if entry.command]) == 10
    roster = last_known_roster(first, recovered.entries, NoKeys())
    assert roster.member_ids() == (CLEVELAND, HUNGARY) and roster.neighbours(CLEVELAND) == (HUNGARY,)
    assert (roster.epoch, roster.resolved_round, roster.resolving, roster.run) == (11, 85, False, "test")
    assert [gone.cause for gone in roster.departed] == ["failed"]
    assert {record.versions for record in roster.sites} == {BEFORE} and roster.version() == BEFORE.newest
    assert roster.needs == 0 and roster.version_problem(SPOKEN) == ""


def test_the_key_the_history_the_checkpoint_and_the_vector_are_read(tmp_path: Path) -> None:
    folder = lay_down("cleveland", tmp_path)
    assert Identity.load(folder).site == CLEVELAND
    with History.open(folder / "history.sqlite") as history:
        kinds = {record.kind for record in history.latest(100)}
    assert {"adopt", "scale-out", "settle", "checkpoint"} <= kinds
    (path,) = (folder / "checkpoints").iterdir()
    with path.open("rb") as file:
        assert read_head(file).facts.round == CHECKPOINT_ROUND
    vector = read_vector(folder / "vector.msgpack")
    assert vector is not None and vector.size_bytes == 8 * NUMBERS


def site_of_before(cluster: Cluster, name: str) -> Site:
    """A site of the cluster that has what its former self left."""
    site = cluster.add(name)
    (site.folder / "site.key").unlink()
    lay_down(name, site.folder)
    site.identity = Identity.load(site.folder)
    return site


def test_two_sites_go_on_where_the_former_release_stopped(tmp_path: Path) -> None:
    with cluster_of(tmp_path, {}, min_sites=2) as cluster:
        sites = [site_of_before(cluster, name) for name in ("cleveland", "hungary")]
        cluster.wire(
            min_sites=2, extra='checkpoint = "fixed"\ncheckpoint_every_rounds = 5\nmemory_checkpoint_every_rounds = 2'
        )
        for number, site in enumerate(sites, start=1):
            site.start()
            command = [*site.python(), str(WORKER), "--site", str(number), "--socket", str(site.worker_socket)]
            command += ["--folder", str(site.folder), "--numbers", str(NUMBERS), "--pace", "0.02"]
            site.spawn_worker(command, variables=VARIABLES)
        wait_for(lambda: all(site.is_member() for site in sites), "both are members again")
        wait_for(lambda: all(site.round() > CHECKPOINT_ROUND for site in sites), "rounds go on")
        status = sites[0].client.status()
        assert [one.site for one in status.sites] == [CLEVELAND, HUNGARY]
        assert status.epoch > 11 and status.term > 2, "the agreement goes on from the former log"
        kinds = {event.kind for event in sites[0].events()}
        assert "restore-point" in kinds and not any("Traceback" in site.daemon_log.read_text() for site in sites)
        went_on = [event.reason for event in sites[0].events("restore-point") if event.epoch > 3]
        assert any("checkpoint" in reason and str(CHECKPOINT_ROUND) in reason for reason in went_on), went_on


def test_a_journal_that_only_a_newer_release_can_apply_stops_the_daemon_with_the_remedy(tmp_path: Path) -> None:
    with cluster_of(tmp_path, {}, min_sites=1) as cluster:
        site = site_of_before(cluster, "cleveland")
        cluster.wire(min_sites=1)
        newer = msgspec.msgpack.encode({"type": "SetVoters", "needs": NEWEST + 1, "quorum": "flexible"})
        entry = LogEntry(index=13, term=2, command=newer)
        with Journal.open(site.folder, incarnation_floor=1) as journal:
            journal.persist(Persist(hard_state=None, truncate_from=None, entries=(entry,), snapshot=None))
        site.spawn_daemon(site.daemon_command(), folder=site.folder, variables=VARIABLES)
        wait_for(lambda: not site.daemon_runs(), "the daemon ends")
        assert site.daemon is not None and site.daemon.returncode not in (0, None)
        told = site.daemon_log.read_text()
        assert f"needs protocol {NEWEST + 1}, and this chaos-train speaks up to {NEWEST}" in told.replace("\n", " ")
        assert "Install the newer chaos-train" in told.replace("\n", " ") and "Traceback" not in told
