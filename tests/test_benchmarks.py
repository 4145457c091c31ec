"""The pages of measurements: every benchmark has a section, and results reach it word for word."""

import io
import json
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import common
import report

BENCHMARKS = report.HERE
SCRIPTS = {path.stem for path in BENCHMARKS.glob("*/*.py") if "__main__" in path.read_text()}
SPREAD = common.Table(
    "CPU seconds",
    ("side", "a tree", "holds"),
    [("fedboost | one", "0.12", "yes"), ("b", "1", "")],
    ["A note*."],
)


def left(folder: Path, benchmark: str, *tables: common.Table, words: tuple[str, ...] = ()) -> None:
    """What a benchmark leaves in the folder."""
    folder.mkdir(exist_ok=True)
    (folder / f"{benchmark}.json").write_text(json.dumps(common.record(benchmark, words, tables, {})))


def typed(folder: Path, docs: Path) -> list[str]:
    """The generator's command line."""
    return [str(BENCHMARKS / "report.py"), str(folder), "--docs", str(docs)]


def write(folder: Path, docs: Path) -> SimpleNamespace:
    """Run the generator, in this process."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with patch.object(sys, "argv", typed(folder, docs)), redirect_stdout(out), redirect_stderr(err):
        try:
            code = report.main()
        except SystemExit as ended:
            code = ended.code
    return SimpleNamespace(returncode=code, stdout=out.getvalue(), stderr=err.getvalue())


def test_every_script_has_a_section_and_every_section_a_script():
    assert SCRIPTS - set(report.ELSEWHERE) == set(report.SECTIONS)
    assert report.read_sections(report.DOCS).keys() == report.SECTIONS.keys()


def test_the_pages_are_what_their_sections_give():
    kept = report.read_sections(report.DOCS)
    pages = report.pages(report.written(kept, {}))
    folders = {path.parent.name for path in BENCHMARKS.glob("*/*.py") if path.stem in SCRIPTS}
    assert {*pages} == {"benchmarks.md", *(f"benchmarks/{area}.md" for area in folders)}
    assert {name: (report.DOCS / name).read_text() for name in pages} == pages
    assert all(report.headline(name, text) for name, text in kept.items())


def test_a_headline_without_its_figures_is_empty():
    assert report.headline("predict", "## Prediction\n\nNot measured yet.\n") == ""


def test_every_script_is_described_and_run_by_make():
    readme = (BENCHMARKS / "README.md").read_text()
    make = (BENCHMARKS.parent / "Makefile").read_text()
    for name in report.SECTIONS:
        path = f"{common.script(name).parent.name}/{name}.py"
        assert f"| `benchmarks/{path}` |" in readme
        assert f"python benchmarks/{path}" in readme
        assert f"$(call measure,{name}" in make


@pytest.mark.slow
def test_a_section_is_what_was_printed_and_the_others_stay(tmp_path):
    docs, results = tmp_path / "docs", tmp_path / "results"
    shutil.copytree(report.DOCS / "benchmarks", docs / "benchmarks")
    before = report.read_sections(docs)
    left(results, "speed", SPREAD, words=("--data", "/somewhere/private", "--json=x", "--repeats", "3"))
    done = subprocess.run(
        [sys.executable, *typed(results, docs)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    after = report.read_sections(docs)
    assert {name: text for name, text in after.items() if name != "speed"} == {
        name: text for name, text in before.items() if name != "speed"
    }
    assert "    python benchmarks/speed/speed.py --data FOLDER --repeats 3\n" in after["speed"]
    table = "| side | a tree | holds |\n|---|--:|---|\n| fedboost \\| one | 0.12 | yes |\n| b | 1 |  |\n"
    assert f"\n\nCPU seconds:\n\n{table}\nA note\\*.\n" in after["speed"]
    assert (docs / "benchmarks.md").read_text().startswith("# Benchmarks\n")
    assert common.machine()["processor"] in after["speed"]
    assert f"numpy {common.versions()['numpy']}" in after["speed"]


@pytest.mark.parametrize(
    "table",
    [
        common.Table("t", ("side", "holds"), [("fedboost", "NO")]),
        common.Table("t", ("side",), [("fedboost",)], ["Claimed at most 3: NO."]),
        common.Table("the same models: NO", ("side",), []),
    ],
)
def test_a_claim_that_does_not_hold_is_named(tmp_path, table):
    left(tmp_path / "results", "memory", table)
    done = write(tmp_path / "results", tmp_path)
    assert done.returncode == 1
    assert "does not hold: memory: " in done.stdout
    assert "## Memory" in (tmp_path / "benchmarks" / "speed.md").read_text()
    assert "| [Memory](benchmarks/speed.md#memory) |  | 1 |" in (tmp_path / "benchmarks.md").read_text()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_small_swarm_trains_the_pooled_model_in_spite_of_losses(tmp_path):
    command = [sys.executable, str(common.script("swarm")), "--parties", "5", "--rounds", "3", "--losses"]
    done = subprocess.run(
        [*command, "--json", str(tmp_path / "swarm.json")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    runs = json.loads((tmp_path / "swarm.json").read_text())["values"]["runs"]
    assert [run["protection"] for run in runs] == ["plain", "masked"]
    assert all(run["holds"] and run["files"] > 5 and run["cpu"] > 0 for run in runs)
    assert runs[0]["model"] == runs[1]["model"]
    assert all(run["events"]["losses"][0] > 1 for run in runs), "a lost party is away for two seconds"
