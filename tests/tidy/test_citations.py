"""Every citation leads somewhere: rules of the spec, invariants, decisions, pages, files, and names of the code.

Looked at: comments and docstrings of all code, the heads of the stories, all pages. How to cite a rule of
docs/protocols/spec.md: `spec 9.4`, or `spec 9` for a chapter.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from tests.tidy import names
from tests.tidy.tree import CODE_FOLDERS, PACKAGES, ROOT, python_files, shown

from chaosd.cli.metrics import shipped
from chaosd.metrics import Metrics
from chaosd.monitor.gauges import KINDS

SPEC = ROOT / "docs" / "protocols" / "spec.md"
DECISIONS = ROOT / "docs" / "decisions"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
STORIES = sorted((ROOT / "tests" / "simulation" / "scenarios").glob("*.txt"))

FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
CHAPTER = re.compile(r"^## (\d+)\. ", re.MULTILINE)
RULE = re.compile(r"^- \*\*(\d+\.\d+)\*\*", re.MULTILINE)
NUMBERS = r"(\d+(?:\.\d+)*(?:(?:,|,? and| to)\s+\d+(?:\.\d+)*)*)"
SPEC_CITED = re.compile(rf"\b[Ss]pec\s+{NUMBERS}")
INVARIANT_CITED = re.compile(rf"\b[Ii]nvariants?\s+{NUMBERS}")
DECISION_CITED = re.compile(r"\b[Dd]ecisions?\s+\[?(\d{4})")
SECTION_CITED = re.compile(r"\b[Ss]ections?\s+\d")
ELSEWHERE = re.compile(
    r"RFC|FlexiTrain|FlashRecovery|Chaos|Chameleon|Odyssey|Ongaro|thesis|et al|paper|[Ss]ection 2\.1"
)
"""Whose sections those are, in the words before."""

PAGE_CITED = re.compile(r"(?<![\w/.\-*:])([\w./\-]+\.md)\b")
MODULE_CITED = re.compile(r"(?<![\w/.\-*])([\w./\-]+\.py)\b")
SHOWN = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"[\w.\-*]*(?:/[\w.\-*]*)+|[\w\-*]+\.(?:py|md|toml|txt|csv)")
DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+(?:\(\))?")
OURS = re.compile(r"(?:[A-Z][a-z]\w*|chaos\w*)(?:\.\w+)+(?:\(\))?")
"""A member of a class, or something of our packages: what begins with a small letter is often a variable."""

SINGLE = re.compile(r"[A-Z][a-z]+(?:[A-Z]\w*)?|[A-Z]+_[A-Z_]+|[a-z]+_\w+(?:\(\))?")

NOT_OURS = {
    "torch.compile": "of torch",
    "optimizer.step()": "of a training script",
    "scheduler.step()": "of a training script",
    "build/simulator-compiled/KEY": "made when the simulator is compiled",
    "Ciphersuites": "a setting of OpenSSL",
    "docker.io": "a package of Debian",
    "hungary/chaosd.toml": "made by the reader of the first run",
    "NNN-what-happens.txt": "a pattern",
    "net.core": "settings of the kernel",
    "va/chaosd.toml": "made by the reader of the first run",
    "start_tls": "of the event loops",
    "uvloop_loop_held_bytes_lost": "a figure of a prototype",
    "fragment_update_alpha": "of torchft",
    "manager.should_commit()": "of torchft",
    "manager.current_step()": "of torchft",
    "OptimizerWrapper": "of torchft",
    "min_replica_size": "of torchft",
    "g_s": "a formula",
    "w_s": "a formula",
}
"""Shown in a page, and nothing of this repository."""


@cache
def rules() -> frozenset[str]:
    text = SPEC.read_text(encoding="utf-8")
    return frozenset([*CHAPTER.findall(text), *RULE.findall(text)])


@cache
def texts() -> tuple[tuple[str, str], ...]:
    return tuple(_texts())


def _texts() -> Iterator[tuple[str, str]]:
    """Where, and what is said there: pages without their fenced blocks, heads of stories, comments and docstrings."""
    for page in PAGES:
        yield shown(page), FENCE.sub("", page.read_text(encoding="utf-8"))
    for story in STORIES:
        head = story.read_text(encoding="utf-8").partition("----\n")[0]
        yield shown(story), "\n".join(line[1:] for line in head.splitlines() if line.startswith("#"))
    for path in python_files(CODE_FOLDERS):
        for line, text in names.remarks(path):
            yield f"{shown(path)}:{line}", text


def numbers(cited: str) -> list[str]:
    return re.findall(r"\d+(?:\.\d+)*", cited)


def test_there_are_citations_of_each_kind() -> None:
    everything = " ".join(text for _, text in texts())
    for pattern, least in ((SPEC_CITED, 100), (INVARIANT_CITED, 50), (DECISION_CITED, 10), (MODULE_CITED, 50)):
        assert len(pattern.findall(everything)) >= least


def test_the_rules_are_numbered_without_a_gap() -> None:
    text = SPEC.read_text(encoding="utf-8")
    chapters = CHAPTER.findall(text)
    assert chapters == [str(number) for number in range(1, len(chapters) + 1)]
    for chapter in chapters:
        there = [rule for rule in RULE.findall(text) if rule.partition(".")[0] == chapter]
        assert there == [f"{chapter}.{number}" for number in range(1, len(there) + 1)]


def test_every_rule_that_is_cited_exists() -> None:
    wrong = [
        f"{where}: spec {number}"
        for where, text in texts()
        for cited in SPEC_CITED.findall(text)
        for number in numbers(cited)
        if number not in rules()
    ]
    assert wrong == []


def test_every_rule_that_the_spec_refers_to_exists() -> None:
    text = FENCE.sub("", SPEC.read_text(encoding="utf-8"))
    text = re.sub(r"^\| `[A-Z_a-z]+` \| [\d.,]+[^|]*\|", "|", text, flags=re.MULTILINE)  # values, not rules
    found = re.findall(r"(?<!TLS )(?<!thesis )(?<![\w.*])([1-9]\d?\.\d{1,2})(?![\d.]|,\d{3}|\*\*)", text)
    assert len(found) > 150
    assert [number for number in found if number not in rules()] == []


def test_every_invariant_that_is_cited_exists() -> None:
    count = sum(rule.startswith("18.") for rule in rules())
    wrong = [
        f"{where}: invariant {number}"
        for where, text in texts()
        for cited in INVARIANT_CITED.findall(text)
        for number in numbers(cited)
        if not 1 <= float(number) <= count
    ]
    assert wrong == []


def test_every_decision_that_is_cited_exists() -> None:
    there = {page.name[:4] for page in DECISIONS.glob("*.md")}
    assert [(where, n) for where, text in texts() for n in DECISION_CITED.findall(text) if n not in there] == []


def test_no_section_of_a_page_of_ours_is_cited_by_number() -> None:
    """Rules of the spec have numbers; other pages have headings. Papers and standards are named before the number."""
    wrong = [
        f"{where}: {' '.join(text[max(0, found.start() - 30) : found.end() + 10].split())}"
        for where, text in texts()
        for found in SECTION_CITED.finditer(text)
        if not ELSEWHERE.search(text[max(0, found.start() - 60) : found.end() + 2])
    ]
    assert wrong == []


def test_every_page_that_is_cited_exists() -> None:
    wrong = [
        f"{where}: {page}"
        for where, text in texts()
        for page in PAGE_CITED.findall(text)
        if not names.is_place(page, beside=(ROOT / where.partition(":")[0]).parent)
    ]
    assert wrong == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_that_the_product_cites_exists(package: str) -> None:
    wrong = [
        f"{shown(path)}:{line}: {module}"
        for path in python_files((package,))
        for line, text in names.remarks(path)
        for module in MODULE_CITED.findall(text)
        if not names.is_place(module) and module not in ("train.py",)
    ]
    assert wrong == []


@pytest.mark.parametrize("folder", CODE_FOLDERS)
def test_every_name_of_ours_that_comments_and_docstrings_show_exists(folder: str) -> None:
    wrong = [
        f"{shown(path)}:{line}: {name}"
        for path in python_files((folder,))
        for line, text in names.remarks(path)
        for name in SHOWN.findall(text)
        if OURS.fullmatch(name) and not names.is_known(name)
    ]
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_every_name_and_file_that_a_page_shows_exists(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    assert [name for name in SHOWN.findall(text) if not is_there(name, page)] == []


def is_there(name: str, page: Path) -> bool:
    """Whether what stands between backticks is a name or a file that exists, or neither kind."""
    if name in NOT_OURS or name in metrics():
        return True
    if PATH.fullmatch(name):
        return names.is_place(name, beside=page.parent) or name.rstrip("/") in names.literals()
    if DOTTED.fullmatch(name):
        return names.is_known(name) or of_python(name)
    return not SINGLE.fullmatch(name) or names.is_known(name)


@cache
def metrics() -> frozenset[str]:
    """Names of the daemon's metrics, as they are told, and of the alarms that watch them."""
    told = {"counter": "_total"}
    counted = {one.name + told.get(one.type, "") for one in Metrics().registry.collect()}
    looked_up = {f"chaosd_{name}{'_total' if kind.counter else ''}" for name, kind in KINDS.items()}
    return frozenset(counted | looked_up | set(re.findall(r"- alert: (\w+)", shipped("alarms.yml"))))


def of_python(name: str) -> bool:
    """Something of the standard library."""
    module, _, rest = name.rpartition(".")
    if module.partition(".")[0] not in sys.stdlib_module_names:
        return False
    return hasattr(importlib.import_module(module), rest)


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("Nobody.heartbeat", False),
        ("liveness.no_such_function", False),
        ("NoSuchClass", False),
        ("Nosuchclass", False),
        ("Propose", True),
        ("NO_SUCH_LIMIT", False),
        ("docs/no-such-page.md", False),
        ("no_such_module.py", False),
        ("random.Random", True),
        ("ssl.NoSuchThing", False),
        ("Coordinator.step", True),
        ("tests/tidy/test_citations.py", True),
        ("a plain word", True),
    ],
)
def test_what_is_not_there_is_found_out(name: str, there: bool) -> None:
    assert is_there(name, SPEC) is there
