"""What an encoding loses, over the sites that say it."""

from __future__ import annotations

import pytest

from chaos_protocols.names import SiteId
from chaosd.monitor.encoding_errors import errors_over_sites

A, B, C = (SiteId(letter * 32) for letter in "abc")


def test_mean_and_worst_are_of_those_that_say_theirs() -> None:
    found = errors_over_sites({B: 0.01, A: 0.03, C: 0.02})
    assert found is not None and found.sites == 3 and found.mean == pytest.approx(0.02)
    assert (found.worst, found.worst_site) == (0.03, A)


def test_of_equals_the_lowest_id_is_named_and_without_any_there_is_no_figure() -> None:
    found = errors_over_sites({C: 0.5, B: 0.5})
    assert found is not None and found.worst_site == B
    assert errors_over_sites({}) is None
