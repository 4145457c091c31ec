"""The page of what was measured: every benchmark has a section there, and results reach it word for word."""

import io
import json
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


def typed(folder: Path, page: Path) -> list[str]:
    """The generator's command line."""
    return [str(BENCHMARKS / "report.py"), str(folder), "--page", str(page)]


def write(folder: Path, page: Path) -> SimpleNamespace:
    """Run the generator, in this process."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with patch.object(sys, "argv", typed(folder, page)), redirect_stdout(out), redirect_stderr(err):
        try:
            code = report.main()
        except SystemExit as ended:
            code = ended.code
    return SimpleNamespace(returncode=code, stdout=out.getvalue(), stderr=err.getvalue())


def test_every_script_has_a_section_and_every_section_a_script():
    assert SCRIPTS - set(report.ELSEWHERE) == set(report.SECTIONS)
    assert [*report.sections(report.PAGE.read_text())] == [*report.SECTIONS]


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
    page, results = tmp_path / "page.md", tmp_path / "results"
    page.write_text(report.PAGE.read_text())
    before = report.sections(page.read_text())
    left(results, "speed", SPREAD, words=("--data", "/somewhere/private", "--json=x", "--repeats", "3"))
    done = subprocess.run(
        [sys.executable, *typed(results, page)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    after = report.sections(page.read_text())
    assert {name: text for name, text in after.items() if name != "speed"} == {
        name: text for name, text in before.items() if name != "speed"
    }
    assert "    python benchmarks/speed/speed.py --data FOLDER --repeats 3\n" in after["speed"]
    table = "| side | a tree | holds |\n|---|--:|---|\n| fedboost \\| one | 0.12 | yes |\n| b | 1 |  |\n"
    assert f"\n\nCPU seconds:\n\n{table}\nA note\\*.\n" in after["speed"]
    assert page.read_text().startswith("# What was measured\n")
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
    done = write(tmp_path / "results", tmp_path / "page.md")
    assert done.returncode == 1
    assert "does not hold: memory: " in done.stdout
    assert "## Memory" in (tmp_path / "page.md").read_text()
