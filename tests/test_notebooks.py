"""The notebooks of examples/ run, each in a process and a folder of its own, and what they link to exists."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from consortium import installed

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
NOTEBOOKS = sorted(path.name for path in EXAMPLES.glob("*.ipynb"))
SECONDS = 110
WRITES_A_FILE = "%%writefile "
"""First line of a cell that Jupyter writes to a file instead of running it."""


def cells(name, kind):
    """The sources of a notebook's cells of a kind."""
    content = json.loads((EXAMPLES / name).read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == kind]


def script_of(name):
    """The code cells as one script."""
    parts = []
    for source in cells(name, "code"):
        if source.startswith(WRITES_A_FILE):
            head, _, body = source.partition("\n")
            file = head.removeprefix(WRITES_A_FILE).strip()
            source = f"import pathlib\npathlib.Path({file!r}).write_text({body!r}, encoding='utf-8')"
        parts.append(source)
    return "\n\n".join(parts)


def run(name, folder):
    """What a notebook prints. Its processes are gone afterwards."""
    script = folder / "notebook.py"
    script.write_text(script_of(name), encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, str(script)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said, failed = process.communicate(timeout=SECONDS)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # and the processes that it started
            process.communicate()
    assert process.returncode == 0, failed
    return said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "printed"),
    [
        pytest.param("hospitals.ipynb", "the same model as in one process: True", marks=pytest.mark.long),
        ("insurance_claims.ipynb", "XGBoost predicts the same: "),
        pytest.param(
            "bank_and_telephone.ipynb",
            "predicted together == predicted by the whole model: True",
            marks=[
                pytest.mark.long,
                pytest.mark.skipif(not installed("paillier"), reason="needs the extra paillier"),
            ],
        ),
        pytest.param(
            "noise.ipynb", "(epsilon 1.2 at delta 1e-06) has only 0.613 left", marks=pytest.mark.long
        ),
        pytest.param("custom_program.ipynb", "looks_closer: party ", marks=pytest.mark.long),
    ],
)
def test_a_notebook_runs(name, printed, tmp_path):
    assert printed in run(name, tmp_path)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_has_no_outputs_and_links_to_what_exists(name):
    content = json.loads((EXAMPLES / name).read_text(encoding="utf-8"))
    for cell in content["cells"]:
        assert not cell.get("outputs"), name
        assert cell.get("execution_count") is None, name
    for text in cells(name, "markdown"):
        for path in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
            assert (EXAMPLES / path).exists(), path


def test_the_pages_on_examples_and_on_python_have_every_notebook():
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    python = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    for name in NOTEBOOKS:
        assert f"]({name})" in page, name
        assert f"](../examples/{name})" in python, name
