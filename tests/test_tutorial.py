"""The commands of the tutorial run as written, and print what it shows."""

import re
import shutil
from pathlib import Path

import pytest
from pages import ROOT, assert_says, blocks, run_as_written

import fedboost as fb
from fedboost.cli.demo import demo_terms, hospitals, write_files

DOCS = ROOT / "docs"
SITES = ("north", "south", "east")
LAPTOP, MACHINES = DOCS / "tutorial.md", DOCS / "tutorial-machines.md"
SETUP = re.compile(r"^(python3 -m venv|\. |pip install|mkdir|cd|fedboost demo).*\n", re.MULTILINE)
LISTENS = re.compile(
    r"aggregator listening on 127.0.0.1:\d+, for parties and analysts with keys\n", re.MULTILINE
)
TRAVELS = f"""for file in *.request.pem *.answer.pem terms.toml; do
  for name in {" ".join(SITES)}; do [ ! -e "$file" ] || [ -e "../$name/$file" ] || cp "$file" "../$name"; done
done
"""
"""Send what travels to all machines."""


def test_each_step_shows_what_it_prints():
    assert len([shown for page in (LAPTOP, MACHINES) for _, shown in blocks(page) if shown]) >= 14


@pytest.mark.parametrize(
    "shown", ["north yes\n", "...\nsouth no\n", "north yes\nsouth\n", "north yes\n...\nsouth yes 0.25\n"]
)
def test_what_is_shown_and_not_printed_is_found(shown):
    with pytest.raises(AssertionError, match="the page shows"):
        assert_says("north  yes\nwest   no\nsouth  yes 0.24\n", shown)


def test_what_varies_is_left_out():
    assert_says(
        "at 2026-01-02 03:04 UTC\n1.2 MB 0123456789abcdef\na\nb\nc\n", "at ... UTC\n7 MB ...\n...\nc\n"
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_on_one_laptop_as_written(tmp_path):
    write_tables(tmp_path)
    scripts = [(without_setup(script), shown) for script, shown in blocks(LAPTOP)]
    hold_to_page([(script, shown) for script, shown in scripts if script], tmp_path)
    assert fb.Model.load(tmp_path / "model.json").parties == SITES
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 143


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(300)
def test_on_three_machines_as_written(tmp_path):
    """With a folder for each machine, which has the table of its hospital alone."""
    write_tables(tmp_path)
    for name in SITES:
        (tmp_path / name / "fedboost-demo").mkdir(parents=True)
        shutil.copy(tmp_path / "fedboost-demo" / f"{name}.csv", tmp_path / name / "fedboost-demo")
    scripts = []
    for script, shown in blocks(MACHINES):
        machine = re.match(r"# (\w+)", script)[1].lower()
        scripts.append((f"cd {tmp_path}/{machine}\n{without_setup(script)}{TRAVELS}", shown))
    hold_to_page(scripts, tmp_path)
    model = fb.Model.load(tmp_path / "south" / "model.json")
    tables = {name: tmp_path / "fedboost-demo" / f"{name}.csv" for name in SITES}
    assert model.booster.trees == fb.simulate(model.terms, tables).model.booster.trees


def write_tables(folder: Path) -> None:
    """The tables that the demo leaves."""
    sites = hospitals()
    write_files(folder / "fedboost-demo", sites, demo_terms(sites, 3, None))


def without_setup(script: str) -> str:
    """Commands but for those that install, and the demo, which .ci/wheel.py runs."""
    return SETUP.sub("", script)


def hold_to_page(scripts: list[tuple[str, str]], folder: Path) -> None:
    """Run blocks of a page as written, and hold what they print against what the page shows. A check is typed
    again until all sites are there, as the page says."""
    texts = [
        re.sub(
            r"^(fedboost preflight .*)",
            r"until \1 > once 2> meanwhile; do sleep 0.3; done; cat once",
            text,
            flags=re.M,
        )
        for text, _ in scripts
    ]
    said = run_as_written(texts, folder)
    assert any(LISTENS.search(part) for part in said)
    for part, (_, shown) in zip(said, scripts, strict=True):
        if shown:
            assert_says(LISTENS.sub("", part), shown)
