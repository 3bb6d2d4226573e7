"""The documentation site: it is built, every page is in it, a link that leads nowhere fails, nothing is fetched."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from tests.tidy import doc_site
from tests.tidy.tree import ROOT
from typer.testing import CliRunner

from chaosd.cli.app import app
from chaosd.cli.pages import pages
from chaosd.config.model import SiteConfig

CONFIG = "mkdocs.yml"


def built(folder: Path) -> subprocess.CompletedProcess[str]:
    """The site of the pages in `folder`/build/docs."""
    shutil.copyfile(ROOT / CONFIG, folder / CONFIG)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(folder / CONFIG)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)


@pytest.fixture(scope="module")
def gathered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    doc_site.gather()
    shutil.copytree(doc_site.GATHERED, folder / "build" / "docs")
    return folder


def test_the_site_is_built_whole_and_loads_nothing_from_elsewhere(gathered: Path) -> None:
    done = built(gathered)
    assert done.returncode == 0, done.stderr
    html = [path.read_text(encoding="utf-8") for path in (gathered / "build" / "site").rglob("*.html")]
    assert len(html) > 30
    loaded = {
        found for text in html for found in re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"(https?:[^\"]+)", text)
    }
    assert loaded == set()


@pytest.mark.parametrize("link", ["[x](nowhere.md)", "[x](operating.md#no-such-heading)"])
def test_a_link_that_leads_nowhere_fails_the_build(gathered: Path, link: str) -> None:
    page = gathered / "build" / "docs" / "docs" / "concepts.md"
    before = page.read_text(encoding="utf-8")
    page.write_text(f"{before}\n{link}\n", encoding="utf-8")
    try:
        done = built(gathered)
    finally:
        page.write_text(before, encoding="utf-8")
    assert done.returncode != 0 and "concepts.md" in done.stderr


def test_every_page_is_in_the_navigation_but_decisions() -> None:
    named = re.findall(r"[\w/.\-]+\.md$", (ROOT / CONFIG).read_text(encoding="utf-8"), re.MULTILINE)
    ours = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")}
    assert ours - set(named) == {one for one in ours if one.startswith("docs/decisions/")}
    made = {f"docs/reference/{name}.md" for name in doc_site.reference()}
    assert [name for name in named if name not in made and not (ROOT / name).exists()] == []
    assert isinstance(yaml.safe_load((ROOT / CONFIG).read_text(encoding="utf-8")), dict)


def test_the_reference_has_every_command_option_and_field() -> None:
    made = doc_site.reference()
    for command in ("up", "accept", "peer add", "service install", "doctor", "checkpoint list", "lab run"):
        assert f"## chaosd {command}\n" in made["commands"]
    assert "--peer" in made["commands"] and "chaosd checkpoints" not in made["commands"]
    assert [name for name in SiteConfig.model_fields if f"| `{name}` |" not in made["configuration"]] == []
    assert "### Coordinator.step" in made["python"] and "POST /v1/leave" in made["local-api"]


def test_help_shows_the_same_pages_in_the_terminal() -> None:
    known = pages()
    assert {"quick-start", "tutorial", "behind-nat", "operating", "security"} <= known.keys()
    listed = CliRunner().invoke(app, ["help"])
    assert listed.exit_code == 0 and "quick-start" in listed.output and "Quick start" in listed.output
    assert CliRunner().invoke(app, ["help", "quick"]).output == known["quick-start"].read_text() + "\n"
    heart = CliRunner().invoke(app, ["help", "example-heart"]).output
    assert heart == (ROOT / "examples" / "heart" / "README.md").read_text() + "\n"
    wrong = CliRunner().invoke(app, ["help", "no-such-page"])
    assert wrong.exit_code == 2 and "quick-start" in wrong.output


def test_the_page_of_every_example_is_among_the_pages_of_checkout_and_wheel() -> None:
    folders = sorted(path.parent.name for path in (ROOT / "examples").glob("*/README.md"))
    known = pages()
    assert [known[f"example-{name.replace('_', '-')}"].parent.name for name in folders] == folders
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    wanted = {f"examples/{name}/README.md": f"chaosd/chaosd/pages/examples/{name}.md" for name in folders}
    assert wanted.items() <= wheel["force-include"].items()
