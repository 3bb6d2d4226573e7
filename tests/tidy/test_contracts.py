"""The dependency rule of docs/architecture.md, as import-linter's contracts in pyproject.toml state it."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest
from tests.tidy.tree import ROOT

LINT = "from importlinter.cli import lint_imports_command as lint; lint()"


def test_the_import_contracts_hold() -> None:
    pytest.importorskip("importlinter", reason="import-linter is of the extra `check`")
    command = [sys.executable, "-c", LINT, "--no-logo", "--no-cache"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stdout + result.stderr
    assert " 0 broken." in result.stdout


def test_the_contracts_keep_sdk_and_daemon_apart_and_torch_out_of_the_daemon() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert any(set(contract["modules"]) == {"chaos", "chaosd"} for contract in contracts if "modules" in contract)
    pure = [contract for contract in contracts if contract.get("source_modules") == ["chaos_protocols"]]
    assert pure and {"socket", "asyncio", "time", "torch"} <= set(pure[0]["forbidden_modules"])
    assert any(contract.get("forbidden_modules") == ["torch"] for contract in contracts)
