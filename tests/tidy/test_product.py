"""What a site of an institution runs holds no means to slow, spoil or break its own links: those are the lab's."""

from __future__ import annotations

import re
import tomllib

import pytest
from tests.tidy.tree import ROOT, python_files, shown

PRODUCT = ("chaosd/chaosd", "sdk/chaos", "protocols/chaos_protocols")
INJECTION = re.compile(
    r"""
    \bspoil\w*\( | corrupt_(?:probability|random|stream) | break_record | forged_record | Link_?Shaper? | LabTransport
    | \bdef\s+shape\b | \bshaper\b | /v1/lab | \bimport\s+chaos_lab | \bfrom\s+chaos_lab""",
    re.VERBOSE | re.IGNORECASE,
)
"""Words of fault injection, as they stood in the daemon once, and of the package that they stand in now."""


def lines_that_inject() -> list[str]:
    found = []
    for path in python_files(PRODUCT):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if INJECTION.search(line):
                found.append(f"{shown(path)}:{number}: {line.strip()[:100]}")
    return found


def test_the_product_holds_no_fault_injection() -> None:
    assert lines_that_inject() == []


@pytest.mark.parametrize(
    "line",
    [
        "pieces = cut(header, self._link.spoil(stream, payload))",
        "corrupt_probability: Probability = 0.0",
        'web.post("/v1/lab/shape", self._shape),',
        "from chaos_lab.links.shape import LinkShape",
        "def shape(self, site: SiteId | None, shape: object) -> None:",
    ],
)
def test_the_words_of_fault_injection_are_recognised(line: str) -> None:
    assert INJECTION.search(line)


def test_no_setting_of_a_daemon_is_for_the_lab() -> None:
    from chaosd.config.model import SiteConfig

    assert {"lab", "shapes"} & set(SiteConfig.model_fields) == set()


def test_a_contract_keeps_the_lab_out_of_daemon_and_sdk() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert any(
        set(contract.get("source_modules", [])) == {"chaosd", "chaos"}
        and contract["forbidden_modules"] == ["chaos_lab"]
        and not contract.get("allow_indirect_imports")
        for contract in contracts
    )
