"""Random faults over many seeds: Raft's safety claims (thesis figure 3.2) after every step, then liveness after the
network heals.

A failure names its seed: `run_with_faults(SEED, ...)` replays it.
"""

from __future__ import annotations

import pytest
from tests.unit.protocols.agreement.raft.cluster import Cluster, Node

from chaos_protocols.agreement.raft import Configuration, Persist, Role
from chaos_protocols.names import SiteId

SEEDS = 60
STEPS = 60
NAMES = "abcdefg"


def random_partition(cluster: Cluster) -> None:
    names = list(cluster.nodes)
    cluster.rng.shuffle(names)
    cut = cluster.rng.randint(0, len(names))
    if cluster.rng.random() < 0.3:
        one_way = [(one, other) for one in names for other in names if one != other]
        cluster.cut = set(cluster.rng.sample(one_way, k=len(one_way) // 4))
    else:
        cluster.part("".join(names[:cut]), "".join(names[cut:]))


def random_configuration(cluster: Cluster, now: Configuration) -> Configuration:
    """One voter more or less, a learner more or less, or a learner promoted."""
    voters, learners = list(now.voters), list(now.learners)
    name = SiteId(cluster.rng.choice(NAMES))
    if name in voters:
        if len(voters) > 1:
            voters.remove(name)
            if cluster.rng.random() < 0.3:
                learners.append(name)
    elif name in learners:
        learners.remove(name)
        if cluster.rng.random() < 0.7:
            voters.append(name)
    else:
        learners.append(name)
    return Configuration(voters=tuple(voters), learners=tuple(learners))


def crash_in_the_middle(cluster: Cluster, node: Node) -> None:
    """Between two effects of a list, so that what was to be sent or applied after the `Persist` is lost."""
    machine = node.machine
    if machine is None or machine.deadline_s is None:
        return
    cluster.now_s = max(cluster.now_s, machine.deadline_s)
    effects = machine.tick(now_s=cluster.now_s)
    cluster.execute(node, effects, stop_after=cluster.rng.randint(0, max(0, len(effects) - 1)))
    node.machine = None


def fault(cluster: Cluster) -> None:
    rng = cluster.rng
    node = cluster.nodes[rng.choice(list(cluster.nodes))]
    match rng.randrange(9):
        case 0:
            random_partition(cluster)
        case 1:
            cluster.cut = set()
        case 2:
            cluster.loss, cluster.duplication = rng.choice([0.0, 0.1, 0.4]), rng.choice([0.0, 0.2])
        case 3:
            cluster.delay_s = rng.choice([(0.001, 0.01), (0.001, 0.2), (0.01, 0.8)])
        case 4:
            crash_in_the_middle(cluster, node)
        case 5 if node.machine is not None:
            cluster.crash(node.machine.site)
        case 6 if node.machine is not None:
            cluster.act(node.machine.site, node.machine.leader_lost(now_s=cluster.now_s))
        case 7 if node.machine is not None:
            cluster.compact(node.machine.site)
        case _:
            restart_all(cluster, share=0.7)


def restart_all(cluster: Cluster, share: float = 1.0) -> None:
    for name, node in cluster.nodes.items():
        if node.machine is None and cluster.rng.random() < share:
            cluster.start(name)


def work(cluster: Cluster, changes: bool) -> None:
    """Whoever believes to lead gets proposals: an old leader too."""
    for machine in cluster.up:
        if machine.role is not Role.LEADER:
            continue
        cluster.propose(machine.site)
        if changes and cluster.rng.random() < 0.4:
            new = random_configuration(cluster, machine.configuration)
            cluster.propose(machine.site, new)
        if cluster.rng.random() < 0.05:
            cluster.act(machine.site, machine.transfer_leadership(None, now_s=cluster.now_s))


def run_with_faults(seed: int, voters: str, learners: str, *, changes: bool, proofs: bool = False) -> Cluster:
    cluster = Cluster(seed, proofs=proofs)
    cluster.form(voters, learners)
    for name in NAMES:
        if changes and name not in voters + learners:
            cluster.add(name)
    for _ in range(STEPS):
        if cluster.rng.random() < 0.5:
            fault(cluster)
        work(cluster, changes)
        cluster.run(cluster.rng.uniform(0.01, 0.5))
        cluster.check_logs()
    heal_and_agree(cluster)
    return cluster


def heal_and_agree(cluster: Cluster) -> None:
    """Once faults stop, there is a leader that commits, and every member has the same state, within a bounded time."""
    cluster.heal()
    restart_all(cluster)
    cluster.run_until(lambda: commits(cluster), 15.0)
    leader = cluster.leader()
    assert leader is not None
    members = {*leader.configuration.voters, *leader.configuration.learners}
    applied_index = cluster.nodes[leader.site].applied_index

    def level() -> bool:
        return all(cluster.nodes[site].applied_index >= applied_index for site in members)

    cluster.run_until(level, 15.0)
    cluster.check_logs()
    shared = min(len(cluster.applied(site)) for site in members)
    states = {tuple(cluster.applied(site)[:shared]) for site in members}
    assert len(states) == 1, f"seed {cluster.seed}: the state machines differ"


def commits(cluster: Cluster) -> bool:
    leader = cluster.leader()
    if leader is None:
        return False
    before = leader.last_index
    if leader.can_propose and leader.commit_index == before:
        cluster.propose(leader.site, command=b"after the faults")
    return b"after the faults" in cluster.applied(leader.site)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_faults_break_no_safety_claim_and_the_cluster_recovers(seed: int) -> None:
    voters, learners = [("abc", "d"), ("abcde", ""), ("ab", ""), ("abcd", "e")][seed % 4]
    cluster = run_with_faults(seed, voters, learners, changes=False)
    assert cluster.history, "nothing was committed: the test exercised nothing"


@pytest.mark.parametrize("seed", range(1000, 1000 + SEEDS))
def test_membership_changes_under_faults_break_no_safety_claim(seed: int) -> None:
    voters = ["a", "ab", "abc", "abcde"][seed % 4]
    cluster = run_with_faults(seed, voters, "", changes=True)
    assert cluster.history, "nothing was committed: the test exercised nothing"


@pytest.mark.parametrize("seed", range(2000, 2000 + SEEDS))
def test_where_leaders_show_their_votes_nobody_is_left_behind_by_faults_and_changes(seed: int) -> None:
    """Whoever was away while the voters were changed believes those who lead since, by what they show."""
    voters = ["a", "ab", "abc", "abcde"][seed % 4]
    cluster = run_with_faults(seed, voters, "", changes=True, proofs=True)
    assert cluster.history, "nothing was committed: the test exercised nothing"


def test_equal_seeds_give_equal_histories() -> None:
    one = run_with_faults(7, "abc", "d", changes=True)
    other = run_with_faults(7, "abc", "d", changes=True)
    assert one.history == other.history
    assert one.describe() == other.describe()


def test_a_torn_effect_list_leaves_the_persist_whole() -> None:
    cluster = Cluster(3)
    cluster.form("a")
    node = cluster.nodes[SiteId("a")]
    effects = cluster["a"].tick(now_s=cluster.now_s)
    assert isinstance(effects[0], Persist)
    cluster.execute(node, effects, stop_after=1)
    assert node.disk.last_index == 2
    assert node.applied_index == 1
    cluster.start("a")
    cluster.run_until(lambda: cluster.nodes[SiteId("a")].applied_index == 3)
    assert cluster["a"].term == 3
