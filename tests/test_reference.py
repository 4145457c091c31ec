"""Pages and pictures that are made from the code say what the code says."""

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.main import get_command

import fedboost as fb
from fedboost.cli.main import whole
from fedboost.runtime.config import AggregatorConfig
from fedboost.runtime.site.config import PartyConfig

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


@pytest.mark.slow
def test_pages_and_pictures_are_fresh(tmp_path):
    """Made into a copy: what is made in the working tree stays as it is."""
    code = (
        f"import sys, pathlib; sys.path[:0] = [{str(DOCS / 'make')!r}]; import reference\n"
        "for path, make in reference.PAGES.items():\n"
        "    target = pathlib.Path(path); target.parent.mkdir(exist_ok=True); target.write_text(make())\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=100)
    made = [file.relative_to(tmp_path) for file in tmp_path.rglob("*") if file.is_file()]
    assert len(made) >= 10
    for file in made:
        assert (tmp_path / file).read_text() == (DOCS / file).read_text(), f"run make reference: {file}"


def test_every_command_is_on_its_page():
    sections = {*re.findall(r"^## `fedboost (.*)`$", (DOCS / "commands.md").read_text(), re.MULTILINE)}
    commands = get_command(whole()).commands
    groups = {name: getattr(command, "commands", None) for name, command in commands.items()}
    names = {name for name, inner in groups.items() if inner is None}
    names |= {f"{name} {each}" for name, inner in groups.items() if inner for each in inner}
    assert sections == names


def test_every_key_of_the_files_is_on_its_page():
    page = (DOCS / "configuration.md").read_text()
    for model in (PartyConfig, AggregatorConfig):
        for key, field in model.model_fields.items():
            assert f"| `{key}` |" in page
            assert field.description.endswith("."), key


def test_every_name_is_on_its_page():
    page = (DOCS / "python-reference.md").read_text()
    assert {*re.findall(r"^### `fb\.(\w+)`$", page, re.MULTILINE)} == {*fb.__all__}


@pytest.mark.parametrize("name", ["parties", "turn", "protections", "modes"])
def test_a_picture_has_a_text_alternative(name):
    root = ElementTree.fromstring((DOCS / "pictures" / f"{name}.svg").read_text())
    space = "{http://www.w3.org/2000/svg}"
    title, description = root.find(f"{space}title"), root.find(f"{space}desc")
    assert title.text
    assert len(description.text) > 60
    assert root.get("role") == "img"
    pages = "\n".join(page.read_text() for page in DOCS.glob("*.md"))
    alternatives = re.findall(rf"!\[([^\]]+)\]\(pictures/{name}\.svg\)", pages)
    assert alternatives
    assert all(len(text) > 30 for text in alternatives)
