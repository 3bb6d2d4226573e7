"""What the documents show must exist: commands and their flags, files, settings, timeouts, kinds of events."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
from tests.tidy.tree import ROOT, python_files

from chaos import Coordinator
from chaos_lab.scenario import Kind, load_scenario
from chaos_protocols.scheduler.negotiation import ConnectLink, DisconnectLink, ScaleIn, ScaleOut
from chaos_protocols.settings import SiteSettings
from chaosd.cli.app import app
from chaosd.config.model import SiteConfig, load_config
from chaosd.metrics import RECORD_KINDS

README = ROOT / "README.md"
BY_HAND = ROOT / "docs" / "how-to" / "by-hand.md"
OPERATING = ROOT / "docs" / "operating.md"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
DECISION_LINES_MAX = 60
"""A page."""


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in FENCE.findall(page.read_text(encoding="utf-8")) if kind == language]


def shown(page: Path, with_text: str) -> list[str]:
    """The lines of the one shell block that has this text."""
    (block,) = (text for text in blocks(page, "") if with_text in text)
    return block.splitlines()


def shown_commands(page: Path) -> Iterator[list[str]]:
    """Command lines in fenced blocks without a language, and `chaosd ...` in the text; without variables set before."""
    text = page.read_text(encoding="utf-8")
    lines = [line for block in blocks(page, "") for line in block.splitlines()]
    lines += re.findall(r"`((?:chaosd|make|python) [^`]+)`", FENCE.sub("", text))
    for line in lines:
        words = shlex.split(line, comments=True) if re.match(r"\s*(\w+=\S+ )*(chaosd|make|python) ", line) else []
        while words and "=" in words[0]:
            words.pop(0)
        if words:
            yield words


TYPED = {
    "tests/integration/test_quick_start.py": ["README.md", "docs/quick-start.md", "docs/how-to/by-hand.md"],
    "tests/integration/test_lost_majority.py": ["docs/how-to/replace-a-lost-majority.md"],
    "tests/integration/test_pages.py": [
        "docs/tutorial.md",
        "docs/how-to/add-a-site.md",
        "docs/how-to/replace-a-dead-disk.md",
        "docs/how-to/upgrade.md",
        "docs/monitoring.md",
        "docs/operating.md",
    ],
}
"""Pages whose shell blocks a test types line by line, as a reader would."""

PARSED = {
    "CONTRIBUTING.md": "of developers",
    "docs/testing.md": "of developers",
    "docs/wan-lab.md": "what every site of a test is started with",
    "docs/site.md": "workers of one site: tests/integration/test_worker_group.py runs them from Python",
    "examples/site/README.md": "the same",
    "examples/heart/README.md": "its script in test_cluster.py, its scenarios in test_lab.py, shorter",
    "examples/images/README.md": "run by test_learning_examples.py with fewer rounds",
    "examples/dialogues/README.md": "the same",
    "examples/scikit_learn/README.md": "the same",
    "examples/integrations/README.md": "run by test_integrations.py with fewer rounds",
    "examples/text/README.md": "its script in tests/unit/sdk/test_text_example.py",
}
"""Pages of whose commands it is only seen that they exist with these flags, and why."""

GUIDES = [page for page in PAGES if page.name != "CHANGELOG.md" and ROOT / "examples" not in page.parents]
COMMANDS = [(page, words) for page in GUIDES for words in shown_commands(page)]


def test_the_commands_of_every_page_are_typed_by_a_test_or_it_is_said_why_not() -> None:
    command = re.compile(r"^(?:\w+=\S+ )*(?:chaosd|make|python|pytest) [-\w]", re.MULTILINE)
    pages = {str(page.relative_to(ROOT)) for page in PAGES if command.search("\n".join(blocks(page, "")))}
    typed = [page for pages in TYPED.values() for page in pages]
    assert sorted([*typed, *PARSED]) == sorted(pages)
    for test, named_pages in TYPED.items():
        text = (ROOT / test).read_text(encoding="utf-8")
        for page in named_pages:
            assert any(word in text for word in (Path(page).name, Path(page).stem.replace("-", "_").upper())), page


def named(case: object) -> str:
    return " ".join(case) if isinstance(case, list) else getattr(case, "name", str(case))


def test_the_first_commands_of_the_readme_are_demo_and_test() -> None:
    assert blocks(README, "")[0].splitlines() == ["make demo", "make test"]


def test_the_readme_and_the_page_by_hand_show_the_commands_of_a_first_run() -> None:
    shown = {" ".join(words[:2]) for page, words in COMMANDS if page in (README, BY_HAND)}
    wanted = "init start status events link leave doctor lab plan simulate"
    assert {f"chaosd {name}" for name in wanted.split()} <= shown


@pytest.mark.parametrize(("page", "words"), COMMANDS, ids=named)
def test_every_command_and_flag_that_is_shown_exists(page: Path, words: list[str]) -> None:
    match words[0]:
        case "chaosd":
            check_chaosd(words[1:])
        case "make":
            targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            assert set(words[1:]) <= set(targets)
        case "python":
            check_python(words[1:])
        case other:
            raise AssertionError(f"what is {other}?")


def check_chaosd(words: list[str]) -> None:
    """Walk down the groups, then parse as the program would, without running anything: raises on what it refuses."""
    command = program()
    while words and not words[0].startswith("-") and (group := getattr(command, "commands", None)):
        assert words[0] in group, f"there is no command {words[0]}"
        command, words = group[words[0]], words[1:]
    if not hasattr(command, "commands"):
        given = command.make_context(command.name, list(words)).params
        places = {field: given[field] for field in ("listen", "advertise") if given.get(field)}
        known = {field: re.sub(r"\$\{\w+\}", "site.example:7400", place) for field, place in places.items()}
        load_config(None, {field: place.replace("PORT", "7400") for field, place in known.items()})
        return
    flags = {name for parameter in command.params for name in parameter.opts}  # a group's own: some act when parsed
    assert set(words) <= flags, f"{command.name} has no {words}"


@cache
def program() -> Any:
    """The command line as typer builds it (a group of its own kind in some versions, so without a type here)."""
    return typer.main.get_command(app)


def check_python(words: list[str]) -> None:
    if words[:2] == ["-m", "pytest"]:
        assert all((ROOT / word).is_file() for word in words[2:] if not word.startswith("-"))
        return
    if words[0] == "-m":
        places = [folder / words[1].replace(".", "/") for folder in (ROOT, ROOT / "chaosd")]
        found = [one for one in places if (one / "__main__.py").exists() or one.with_suffix(".py").exists()]
        assert found
        place = found[0]
        source = (place / "__main__.py" if place.is_dir() else place.with_suffix(".py")).read_text(encoding="utf-8")
        words = words[1:]
    else:
        path = ROOT / words[0]
        source = path.read_text(encoding="utf-8") if path.exists() else readme_script(words[0])
    assert [word for word in words[1:] if word.startswith("--") and f'"{word}"' not in source] == []


def readme_script(name: str) -> str:
    """The script that the README shows whole, by the name in its first line."""
    return next(text for text in blocks(README, "python") if text.startswith(f"# {name}\n"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file(page: Path) -> None:
    targets = [target for target in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in target]
    files = [target.partition("#")[0] for target in targets]
    assert [name for name in files if name and not (page.parent / name).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_anchor_of_the_same_page_is_a_heading(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    headings = {
        re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-")
        for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    }
    assert {target[1:] for target in LINK.findall(text) if target.startswith("#")} <= headings


def test_every_configuration_file_of_the_run_by_hand_can_be_used(tmp_path: Path) -> None:
    shown = blocks(BY_HAND, "toml")
    assert len(shown) == 2
    configs = []
    for number, text in enumerate(shown):
        path = tmp_path / f"{number}.toml"
        path.write_text(text, encoding="utf-8")
        configs.append(load_config(path))
        assert set(tomllib.loads(text)) <= set(SiteConfig.model_fields)
    one, other = configs
    assert [peer.address for peer in one.peers] == [other.listen]
    assert [peer.address for peer in other.peers] == [one.listen]
    assert one.run == other.run
    assert [one.bootstrap, other.bootstrap] == [True, False]


def test_the_scenario_in_the_operating_page_can_be_used(tmp_path: Path) -> None:
    (text,) = blocks(OPERATING, "toml")
    (tmp_path / "scenario.toml").write_text(text, encoding="utf-8")
    (tmp_path / "train.py").touch()
    scenario = load_scenario(tmp_path / "scenario.toml")
    known = (ROOT / "examples" / "heart" / "train.py").read_text(encoding="utf-8")
    assert [word for word in scenario.worker.arguments if word.startswith("--") and f'"{word}"' not in known] == []


def test_the_operating_page_names_every_action_of_the_lab() -> None:
    assert sorted(rows(OPERATING, "`do`")) == sorted(get_args(Kind))


def test_the_script_in_the_readme_uses_only_what_a_coordinator_has() -> None:
    tree = ast.parse(readme_script("train.py"))
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "coordinator"
    }
    printed_in_the_paper = {"register", "step", "check_state_replication", "capture_exit_event", "request_node_exit"}
    assert printed_in_the_paper <= used
    assert {name for name in used if not hasattr(Coordinator, name)} == set()


def rows(page: Path, heading: str) -> list[str]:
    """Names in the first column of the table whose head begins with `heading`."""
    text = page.read_text(encoding="utf-8")
    table = text.partition(f"| {heading} |")[2].partition("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    return [name for cell in cells for name in re.findall(r"`([\w\-. ]+)`", cell)]


def test_the_operating_page_names_every_field_of_the_configuration() -> None:
    assert sorted(rows(OPERATING, "field")) == sorted(SiteConfig.model_fields)


def test_the_operating_page_names_every_kind_of_event() -> None:
    kinds = {kind.KIND for kind in (ScaleOut, ScaleIn, ConnectLink, DisconnectLink)} | {"resume"}
    for path in python_files(("protocols/chaos_protocols", "chaosd/chaosd")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and path.name != "probe.py":
                kinds.update(kind_of(node))
    assert sorted(rows(OPERATING, "kind")) == sorted(kinds)


def test_every_kind_of_event_is_counted_as_itself() -> None:
    """An alarm is set on a kind: what is counted as `other` raises none."""
    assert sorted(rows(OPERATING, "kind")) == sorted(RECORD_KINDS)


def kind_of(call: ast.Call) -> Iterator[str]:
    """The kind in `...record("kind", ...)`, `Record(kind="kind", ...)` or `Note(kind=...)`, where it is written out."""
    name = ast.unparse(call.func).rpartition(".")[2]
    given = [call.args[0]] if name == "record" and call.args else []
    given += [word.value for word in call.keywords if name in ("Record", "Note") and word.arg == "kind"]
    yield from (one.value for one in given if isinstance(one, ast.Constant) and isinstance(one.value, str))


def test_the_operating_page_has_every_derived_timeout_with_its_share() -> None:
    text = OPERATING.read_text(encoding="utf-8")
    table = text.partition("| time | share |")[2]
    shown = {name: float(share) for name, share in re.findall(r"^\| `(\w+_s)` \| ([\d.]+) \|", table, re.MULTILINE)}
    derived = [name for name, value in vars(SiteSettings).items() if isinstance(value, property)]
    settings = SiteSettings(failure_timeout_s=10.0)
    assert shown == {name: pytest.approx(getattr(settings, name) / 10.0) for name in derived}


def test_every_decision_has_a_number_of_its_own_and_fits_on_a_page() -> None:
    pages = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    numbers = [int(page.name[:4]) for page in pages]
    assert numbers == sorted({*numbers}) and all(page.name[4] == "-" for page in pages)
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert text.startswith(f"# {page.name[:4]}: ")
        assert len(text.splitlines()) <= DECISION_LINES_MAX


def test_the_distribution_is_called_by_its_own_name() -> None:
    wrong = re.compile(r"pip install (?:-\S+ )*chaos(?![\w-])")
    assert [page.name for page in PAGES if wrong.search(page.read_text(encoding="utf-8"))] == []


def test_each_thing_that_a_party_must_not_be_able_to_do_names_what_holds_it() -> None:
    table = (
        (ROOT / "docs" / "security.md")
        .read_text(encoding="utf-8")
        .partition("## The parties")[2]
        .partition("\n\nA site")[0]
    )
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")][2:]
    assert len(rows) > 25
    bare = [row for row in rows if not re.search(r"`test_\w+\.py`", row[-1])]
    assert not bare, f"no test is named: {bare}"
