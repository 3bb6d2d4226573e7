"""The page of the papers has every table and figure of them."""

from __future__ import annotations

import re

import pytest
from tests.tidy.tree import ROOT

PAGE = ROOT / "docs" / "papers.md"
ROMAN = {"I": 1, "II": 2, "III": 3}
FIGURES = {"Chaos": 16, "Chameleon, Odyssey": 13, "FlashRecovery": 10, "FlexiTrain": 5}
TABLES = {"Chaos": 1, "Chameleon, Odyssey": 1, "FlashRecovery": 3, "FlexiTrain": 3}
NUMBER = r"(?:III|II|I|\d+)"
LIST = rf"{NUMBER}(?:(?:, | to ){NUMBER})*"


def section(paper: str) -> str:
    """The rows of one paper: what stands under its heading."""
    return PAGE.read_text(encoding="utf-8").split(f"\n## {paper}\n")[1].split("\n## ")[0]


def numbers(text: str, word: str) -> set[int]:
    """Those that stand behind a word: `Fig. 3`, `Figs. 1, 2`, `Tables I to III`."""
    found: set[int] = set()
    for match in re.finditer(rf"{word}\.? ({LIST})\b", text):
        for part in match[1].split(", "):
            ends = [ROMAN.get(end) or int(end) for end in part.split(" to ")]
            found |= set(range(ends[0], ends[-1] + 1))
    return found


@pytest.mark.parametrize("paper", FIGURES)
def test_every_figure_and_table_of_a_paper_has_its_row(paper: str) -> None:
    rows = "\n".join(line.split("|")[1] for line in section(paper).splitlines() if line.startswith("| "))
    assert set(range(1, FIGURES[paper] + 1)) - numbers(rows, "Figs?") == set()
    assert set(range(1, TABLES[paper] + 1)) - numbers(rows, "Tables?") == set()


@pytest.mark.parametrize(
    ("text", "found"), [("(Figs. 7, 8; V-B)", {7, 8}), ("Tables I to III, Fig. 10", {1, 2, 3}), ("Table 12", {12})]
)
def test_lists_and_ranges_of_numbers_are_read(text: str, found: set[int]) -> None:
    assert numbers(text, "Tables?") | (numbers(text, "Figs?") - {10}) == found


def test_every_row_has_theirs_ours_means_a_verdict_and_a_command() -> None:
    rows = [line for paper in FIGURES for line in section(paper).splitlines() if line.startswith("| ")]
    assert rows
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split(" | ")]
        assert len(cells) == 6 and all(cells), row
