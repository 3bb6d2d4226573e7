"""A scenario file: what is refused, in which words; the shipped scenarios can be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos_lab.scenario import ScenarioError, load_scenario

HEART = Path(__file__).resolve().parents[3] / "examples" / "heart"
GOOD = """
name = "small"
[worker]
script = "train.py"
arguments = ["--socket", "{socket}"]
[[sites]]
name = "a"
[[sites]]
name = "b"
start = false
[[links]]
between = ["a", "b"]
"""


def refusal(folder: Path, text: str) -> str:
    (folder / "train.py").touch()
    path = folder / "small.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_a_good_scenario_is_read_and_its_script_found(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "small.toml").write_text(GOOD, encoding="utf-8")
    scenario = load_scenario(tmp_path / "small.toml")
    assert [site.name for site in scenario.sites] == ["a", "b"]
    assert scenario.worker.script == (tmp_path / "train.py").resolve()


@pytest.mark.parametrize("name", ["demo", "steady", "churn"])
def test_the_shipped_scenarios_can_be_used(name: str) -> None:
    scenario = load_scenario(HEART / f"{name}.toml")
    assert scenario.name == name and len(scenario.sites) == 4
    assert bool(scenario.actions) == (name != "steady")


def test_the_churn_scenario_has_every_kind_of_trouble() -> None:
    kinds = {action.do for action in load_scenario(HEART / "churn.toml").actions}
    assert kinds >= {
        "join", "kill", "leave", "link add", "link remove", "partition", "heal", "stop", "continue", "shape"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("added", "words"),
    [
        ('[[actions]]\ndo = "explode"\nsite = "a"', ["actions.0.do", "'explode'", "'partition'"]),
        ('[[actions]]\ndo = "kill"\nsite = "c"', ["no site 'c'", "a, b"]),
        ('[[actions]]\ndo = "kill"', ["'kill' needs site"]),
        ('[[actions]]\ndo = "link add"\nsites = ["a"]', ["'link add' needs sites"]),
        ('[[actions]]\ndo = "partition"', ["'partition' needs sites"]),
        ('[[sites]]\nname = "a"', ["same name"]),
        ('[[sites]]\nname = "c d"', ["sites.2.name", "'c d'"]),
        ('[[links]]\nbetween = ["a", "b"]\nrate_mbit = -1', ["links.1.rate_mbit", "-1"]),
        ('[[links]]\nbetween = ["a", "b"]\nloss = 0.6', ["links.1.loss", "0.6"]),
        ('[[links]]\nbetween = ["b", "a"]', ["two links between b and a"]),
        ('[[links]]\nbetween = ["b", "b"]', ["a link needs two sites, not b twice"]),
        ('[[actions]]\ndo = "cut"\nsites = ["a"]', ["'cut' needs sites"]),
        ('[[actions]]\ndo = "heal"\nsites = ["a"]', ["'heal' needs sites", "or none"]),
        ('[[actions]]\ndo = "partition"\nsites = ["a"]\none_way = true', ["one_way is for 'cut' and 'shape'"]),
        ('[[actions]]\ndo = "cut"\nsites = ["a", "a"]', ["'cut' needs two sites, not a twice"]),
        ('[[actions]]\ndo = "link add"\nsites = ["b", "b"]', ["'link add' needs two sites, not b twice"]),
        ("[redraw]\nlatency_ms = [0, 20000]", ["redraw", "from 0 to 5000"]),
        ("[redraw]\nrate_mbit = [5, 4]", ["redraw", "rate_mbit = [least, most]"]),
        ("[redraw]\nevery_s = 0", ["redraw.every_s", "= 0"]),
        ("[checks]\nrounds = 3", ["checks.rounds: there is no such field"]),
        ("[[links]]\nrate_mbit = 5", ["links.1.between: is missing"]),
        ("[checks]\nrounds_at_least = 0", ["checks.rounds_at_least", "= 0"]),
    ],
)
def test_a_wrong_field_is_named_with_its_value(tmp_path: Path, added: str, words: list[str]) -> None:
    text = refusal(tmp_path, GOOD + added)
    for word in words:
        assert word in text


def test_a_placeholder_without_a_value_is_refused_before_anything_starts(tmp_path: Path) -> None:
    text = refusal(tmp_path, GOOD.replace("{socket}", "{hospital}"))
    assert "site 'a' has no value 'hospital'" in text and "socket" in text


def test_an_argument_with_an_open_brace_is_refused(tmp_path: Path) -> None:
    assert "worker.arguments" in refusal(tmp_path, GOOD.replace("{socket}", "{socket"))


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("{name:{width}}", "site 'a': 'width'"),
        ("{name:d}", "site 'a': Unknown format code 'd'"),
        ("{name!x}", "Unknown conversion specifier"),
        ("x\\u0000y", "no argument holds a zero character"),
    ],
)
def test_an_argument_that_cannot_be_filled_in_is_refused(tmp_path: Path, argument: str, words: str) -> None:
    text = refusal(tmp_path, GOOD.replace("{socket}", argument))
    assert "worker.arguments = " in text and words in text


def test_a_run_for_whose_beginning_too_few_sites_start_is_refused(tmp_path: Path) -> None:
    """Others join when it has begun."""
    assert "start_sites = 3: the run would not begin, 1 have" in refusal(tmp_path, "start_sites = 3\n" + GOOD)


def test_a_founder_that_does_not_start_is_refused(tmp_path: Path) -> None:
    assert "a needs start = true" in refusal(tmp_path, GOOD.replace('name = "a"', 'name = "a"\nstart = false'))


def test_a_missing_script_is_named(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(GOOD, encoding="utf-8")
    with pytest.raises(ScenarioError, match=r"train\.py"):
        load_scenario(path)


def test_broken_toml_and_a_missing_file_are_told(tmp_path: Path) -> None:
    refusal(tmp_path, "name = ")
    with pytest.raises(ScenarioError, match="no file"):
        load_scenario(tmp_path / "other.toml")
