"""The encoding that a script asks for: what is refused, what its state says of it, which daemons it talks to."""

from __future__ import annotations

import numpy as np
import pytest

from chaos import Coordinator, DiLoCo, EveryStep
from chaos.encoding import check_encoding, encoded, facts
from chaos.frameworks import NumpyFramework
from chaos.replica import Replica
from chaos_protocols.agreement import commands
from chaos_protocols.agreement.roster import ModelFacts, SiteRecord
from chaos_protocols.names import SiteId
from chaos_protocols.wire.state_spec import contribution_spec, first_difference, spec_problem
from chaos_protocols.wire.versions import NEWEST, OLDEST, Versions, agreed
from chaos_protocols.wire.worker import WorkerHello


def hello_in(encoding: str) -> WorkerHello:
    arrays, gradients = {"weights": np.zeros(10, np.float32)}, {"weights": np.zeros(10, np.float32)}
    framework = NumpyFramework(arrays, lambda averaged, round: None, gradients)
    replica = Replica(EveryStep().start(framework), encoding)
    replica.arena.close()
    return replica.hello()


def test_an_encoding_that_is_none_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="no encoding 'int7'; there are fp32, bf16, fp16, int8, int4"):
        Coordinator(standalone=True, encoding="int7")


def test_four_bits_of_a_gradient_are_asked_for_twice() -> None:
    with pytest.raises(ValueError, match="allow_lossy=True"):
        check_encoding("int4", EveryStep(), allow_lossy=False)
    check_encoding("int4", EveryStep(), allow_lossy=True)
    check_encoding("int4", DiLoCo(every=50), allow_lossy=False)
    check_encoding("int8", EveryStep(), allow_lossy=False)


def test_where_all_is_float64_nothing_would_be_encoded() -> None:
    with pytest.raises(ValueError, match="float64, which is never encoded"):
        encoded(contribution_spec(10, 0), "int8")
    assert encoded(contribution_spec(10, 0), "fp32") == contribution_spec(10, 0)


def test_the_exact_encoding_leaves_no_trace() -> None:
    assert not facts("fp32")
    hello = hello_in("fp32")
    assert hello.contribution == contribution_spec(0, 10, ((0, 40),)) and hello.oldest == OLDEST


def test_another_encoding_is_part_of_the_state_and_both_are_named() -> None:
    here, there = hello_in("int8"), hello_in("bf16")
    assert spec_problem(here.state, here.contribution) == ""
    assert here.state.digest != there.state.digest
    assert "different encodings, 'int8' here and 'bf16' there" in first_difference(here.state, there.state)
    exact = hello_in("fp32")
    assert "'fp32' here and 'bf16' there" in first_difference(exact.state, there.state)
    assert "int8, the state says bf16" in spec_problem(there.state, here.contribution)


def test_a_script_with_an_encoding_shares_no_version_with_a_daemon_that_knows_none() -> None:
    former = Versions(oldest=OLDEST, newest=5)
    assert agreed(former, hello_in("int8").versions) is None
    assert agreed(former, hello_in("fp32").versions) == 5
    assert agreed(Versions(oldest=OLDEST, newest=NEWEST), hello_in("int8").versions) == NEWEST


def test_a_run_with_an_encoding_is_founded_for_sites_that_know_them_alone() -> None:
    site = SiteId("a" * 32)
    record = SiteRecord(site=site, name="a", address="", public_key=b"", incarnation=1, state="member")
    for encoding, needed in (("fp32", 0), ("int8", 6)):
        model = ModelFacts(spec_digest="", state_bytes=0, shard_bytes=1, encoding=encoding)
        adopt = commands.SetRestorePoint(record=record, links=(), round=0, model=model, views=())
        assert commands.version_needed(adopt) == needed
