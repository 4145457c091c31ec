"""The documentation is true: its commands and its Python run, the files and names it points at exist."""

import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import tomllib
from contextlib import chdir, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xgboost
from consortium import installed
from pages import write_command
from processes import free_port
from pyarrow import csv
from sites import fedboost

import fedboost as fb
from fedboost.cli.demo import demo_terms, hospitals, write_files
from fedboost.privacy.protections import PROTECTIONS
from fedboost.runtime.local.cluster import LocalCluster
from fedboost.runtime.tasks import read_terms

ROOT = Path(__file__).parents[1]
SITES = ("north", "south", "east")
PAGES = [ROOT / "README.md", *sorted({*ROOT.glob("*/README.md"), *(ROOT / "docs").glob("*.md")})]
PYTHON = ROOT / "docs" / "python.md"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
VERTICAL = ROOT / "docs" / "vertical.md"
WORKERS = ROOT / "docs" / "workers.md"


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of one language, in order, unindented."""
    found = re.findall(rf"^ *```{language}\n(.*?)^ *```", page.read_text(), re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(block) for block in found]


def commands(page: Path) -> list[list[str]]:
    """The words of every `fedboost ...` line in shell blocks."""
    lines = "\n".join(blocks(page, "sh")).splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.startswith("fedboost ")]


def write_sites(folder: Path) -> None:
    """north.csv, south.csv, east.csv and new.csv, as the page on models has them."""
    draw = np.random.default_rng(0)
    for name in (*SITES, "new"):
        x = draw.normal(size=(80, 2))
        rows = [f"{a!r},{b!r},{int(a + b > 0)}" for a, b in x.tolist()]
        lines = ["age,dose,diagnosis", *rows]
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")


@pytest.fixture
def demo_tables(tmp_path, monkeypatch):
    """A folder in which the demo was run."""
    sites = hospitals()
    write_files(tmp_path / "fedboost-demo", sites, demo_terms(sites, 3, None))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_as_typed(page: Path, folder: Path) -> str:
    """Run the page's shell blocks as one script, with another port, yes to each prompt, and without the
    blocks that install; return what the script printed. Every process it leaves is ended."""
    port = str(free_port())
    script = "".join(
        block for block in blocks(page, "sh") if "pip install" not in block and "make" not in block
    )
    script = script.replace("7070", port).replace("--analyst marie", "--analyst marie --yes")
    write_command(folder.resolve())
    path = os.pathsep.join([str(folder.resolve() / "commands"), os.environ["PATH"]])
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": path}
    with (folder / "output").open("w") as output:  # a pipe that nobody reads would hold everyone up
        process = subprocess.Popen(
            ["bash", "-c", f"set -e\n{script.replace('kill $(jobs -p)', '')}\ntouch finished"],
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            end = time.monotonic() + 280
            while not (folder / "finished").exists() and process.poll() is None and time.monotonic() < end:
                time.sleep(0.05)
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(20)
    text = (folder / "output").read_text()
    assert (folder / "finished").exists(), text
    return text


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_page_on_workers_as_typed(demo_tables):
    said = run_as_typed(WORKERS, demo_tables)
    assert fb.Model.load("model.json").parties == SITES
    assert "workers      read all rows and checked that they fit the terms" in said
    assert '"a worker was lost"' not in Path("north.log").read_text()


def test_the_python_of_the_page_on_workers(demo_tables):
    names: dict[str, Any] = {}
    (code,) = blocks(WORKERS, "python")
    try:
        exec(compile(code, WORKERS.name, "exec"), names)
    finally:
        if "client" in names:
            names["client"].cluster.close()
            names["client"].close()
    assert fb.Model.load("model.json").parties == ("north",)


def test_the_messages_of_the_page_on_workers_are_those_of_the_code():
    rows = WORKERS.read_text().split("## When something fails")[1].split("\n## ")[0].splitlines()
    cells = [row.split("|")[2] for row in rows if row.startswith("| ")]
    said = [text for cell in cells for text in re.findall(r"`([^`]{25,})`", cell)]
    code = [*(ROOT / "fedboost/runtime").rglob("*.py")]
    known = re.sub(r'"\s*\n\s*f?"|`', "", "".join(file.read_text() for file in code))
    assert len(said) > 12
    for text in said:
        words = max(
            re.split(r"tcp://\S+|\.\.\.|'[^']*'|[\d.,]+|tls://\S*|/?(?:rows|srv)/\S+|:", text), key=len
        )
        assert re.sub(r"\s+", " ", words).strip() in known, text


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_readme_as_typed(demo_tables):
    run_as_typed(ROOT / "README.md", demo_tables)
    assert fb.Model.load("model.json").parties == SITES


@pytest.mark.slow
def test_the_python_over_the_network(demo_tables):
    files = {name: Path("fedboost-demo") / f"{name}.csv" for name in SITES}
    terms = fb.Terms.draft(files["north"], label="benign", rounds=3, parties=list(SITES))
    with LocalCluster(demo_tables, files, approved=terms) as consortium:
        terms.save("terms.toml")
        code = blocks(PYTHON, "python")[-1].replace("localhost:7070", consortium.address)
        exec(compile(code.replace("keys/marie", str(consortium.keys / "analyst")), PYTHON.name, "exec"), {})
    assert fb.Model.load("model.json").parties == SITES


def test_extras_that_messages_and_pages_name_can_be_installed():
    extras = {*tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]}
    assert {name for name, row in PROTECTIONS.items() if row.uses_key_holder} <= extras
    for file in [*PAGES, *(ROOT / "fedboost").rglob("*.py")]:
        for names in re.findall(r"fedboost\[([^]]*)\]", file.read_text()):
            assert "{" in names or names == "…" or {*re.split(", ?", names)} <= extras, (file, names)


@pytest.mark.slow
def test_the_python_of_the_readme(demo_tables, capsys):
    (code,) = blocks(ROOT / "README.md", "python")
    exec(compile(code, "README.md", "exec"), {})
    assert "logloss" in capsys.readouterr().out
    assert fb.Model.load("simulated.json").parties == SITES


def test_the_python_in_one_process(demo_tables, capsys):
    exec(compile(blocks(PYTHON, "python")[0], PYTHON.name, "exec"), {})
    rounds, row = capsys.readouterr().out.split(" rounds ")
    assert int(rounds) < 20
    assert "logloss" in row


def test_the_host_loop_of_a_session(capsys):
    draw = np.random.default_rng(0)
    tables = {name: {"age": draw.normal(size=40), "dose": draw.normal(size=40)} for name in SITES}
    for table in tables.values():
        table["diagnosis"] = (table["age"] > table["dose"]).astype(float)
    (code,) = blocks(ARCHITECTURE, "python")
    exec(compile(code, ARCHITECTURE.name, "exec"), {"tables": tables})
    assert capsys.readouterr().out.startswith("done 3 {'logloss': 0.")
    lines = [line for line in code.splitlines() if line and not line.startswith(("import ", "from "))]
    assert len(lines) <= 20


HISTOGRAM = "How one histogram is computed"


@pytest.mark.parametrize(
    ("heading", "least"), [(HISTOGRAM, 15), ("How a relay works", 8), ("How an approval is processed", 8)]
)
def test_the_tables_of_the_page_on_architecture_name_functions_that_exist(heading, least):
    text = ARCHITECTURE.read_text().split(f"## {heading}")[1].split("\n## ")[0]
    steps = re.findall(r"^\|[^|]*\| `([^`]+)` \| ([^|]+) \|", text, re.MULTILINE)
    assert len(steps) >= least
    assert heading != HISTOGRAM or len({file for file, _ in steps}) == len(steps)  # never back
    for file, names in steps:
        source = (ROOT / "fedboost" / file).read_text()
        for name in re.findall(r"`(\w+)`", names):
            assert re.search(rf"\bdef {name}\(", source), (file, name)


@pytest.mark.parametrize("page", [str(page.relative_to(ROOT)) for page in PAGES])
def test_the_files_that_a_page_names_exist(page):
    text = (ROOT / page).read_text()
    for path in re.findall(r"`(\w+/[\w/]+\.(?:py|proto|toml))`", text):
        if not re.search("NAME|FAMILY", path):
            assert (ROOT / path).exists() or (ROOT / "fedboost" / path).exists(), path
    for path in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert ((ROOT / page).parent / path).exists(), path


def test_the_page_on_objectives_has_all_objectives_and_metrics():
    from fedboost.gbdt.metrics import metrics_for
    from fedboost.gbdt.objectives.registry import OBJECTIVES

    lines = (ROOT / "docs" / "objectives.md").read_text().splitlines()
    rows = [line.split("|") for line in lines if line.startswith("| `") and ":" in line.split("|")[1]]
    documented = {name: row[4] for row in rows for name in re.findall(r"`([^`]+)`", row[1])}
    assert set(documented) == set(OBJECTIVES)
    for name, objective in OBJECTIVES.items():
        metrics = re.findall(r"`([^`]+)`", documented[name])
        known = [
            metric.replace("tweedie-nloglik@t", "tweedie-nloglik@power") for metric in metrics_for(objective)
        ]
        assert set(metrics) == set(known), name
        assert metrics[0].partition("@")[0] == objective.metrics[0], name


def test_the_page_on_models(tmp_path, monkeypatch, capsys):
    write_sites(tmp_path)
    monkeypatch.chdir(tmp_path)
    terms = fb.Terms.draft("north.csv", label="diagnosis", rounds=3)
    fb.simulate(terms, {name: f"{name}.csv" for name in SITES}).model.save("model.json")
    page = ROOT / "docs" / "models.md"
    for code in blocks(page, "python"):
        exec(compile(code, page.name, "exec"), {})
    said = capsys.readouterr().out
    assert "0:[" in said
    assert said.endswith(f"{fb.Model.load('model.json').terms.digest}\n")
    assert (tmp_path / "tree.svg").read_text().startswith("<svg ")
    (tmp_path / "tree.svg").unlink()  # a command that follows draws it, too
    for words in commands(page):
        if words[1] == "verify":  # of a model that was trained over the network: tests/cli/test_verify.py
            continue
        end = fedboost(*words[1:])
        assert (end.code, end.err) == (0, ""), words
    assert len((tmp_path / "shap.csv").read_text().splitlines()) == 81


def test_the_python_of_the_page_on_what_comes_before_and_after(demo_tables, capsys):
    (code,) = blocks(ROOT / "docs" / "lifecycle.md", "python")
    exec(compile(code, "lifecycle.md", "exec"), {})
    assert capsys.readouterr().out.startswith("427 [13.25, 13.49")


@pytest.mark.slow
def test_the_page_for_users_of_other_programs(demo_tables):
    """Its job runs, XGBoost loads the model, and what the maps name is a key of terms or of a site's file."""
    page = ROOT / "docs" / "coming-from.md"
    (code,) = blocks(page, "python")
    names: dict[str, Any] = {}
    exec(compile(code, page.name, "exec"), names)
    assert read_terms(Path("terms.toml")).digest == names["terms"].digest
    rounds = xgboost.Booster(model_file="model.json").num_boosted_rounds()
    assert 0 < rounds == len(fb.Model.load("model.json").booster.trees) <= 20
    known = {*re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/terms.md").read_text(), re.MULTILINE)}
    known |= {"aggregator", "keys", "data"}
    maps = page.read_text().split("## XGBoost's plugin")[1].split("## What differs")[0]
    cells = [row.split("|")[2] for row in maps.splitlines() if row.startswith("| ")]
    told = {word for cell in cells for word in re.findall(r"`([a-z_]+)[`\s]", cell)} - {"fedboost", "masked"}
    assert len(told) > 25
    assert told <= known


@pytest.mark.slow
def test_the_python_of_the_estimators(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, in_xgboost, ranking = blocks(ROOT / "docs" / "estimators.md", "python")
    exec(compile(code, "estimators.md", "exec"), {})
    assert capsys.readouterr().out.startswith("[0 1 2] ")
    assert fb.Model.load("model.json").parties == ("east", "north", "south")
    names = {}
    exec(compile(in_xgboost, "estimators.md", "exec"), names)
    due = names["classifier"].predict_proba(names["X"])
    assert capsys.readouterr().out.startswith(f"[[{due[0, 0]:.6f}"[:8])
    exec(compile(ranking, "estimators.md", "exec"), {})
    assert 0.5 < float(capsys.readouterr().out.split(" ")[0]) <= 1


@pytest.fixture(scope="module")
def vertical_page(tmp_path_factory) -> tuple[Path, dict[str, Any]]:
    """A folder in which the Python of the page on vertical training was run, but for what needs an extra, and
    the names that it leaves; `said` is what it printed."""
    folder = tmp_path_factory.mktemp("vertical")
    names: dict[str, Any] = {}
    with chdir(folder), redirect_stdout(io.StringIO()) as said:
        for code in blocks(VERTICAL, "python"):
            if "paillier" in code:
                continue
            exec(compile(code, VERTICAL.name, "exec"), names)
    return folder, {**names, "said": said.getvalue()}


@pytest.fixture
def vertical_example(vertical_page, tmp_path, monkeypatch) -> dict[str, Any]:
    """Those names, in a copy of the folder."""
    folder, names = vertical_page
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return {**names}


@pytest.mark.slow
def test_the_page_on_vertical_training(vertical_example):
    names = vertical_example
    *first, whole, together, why, evaluated, described, longer = names["said"].splitlines(keepends=True)
    assert "".join(first) in VERTICAL.read_text()
    assert first[1] == "1948 True\n"
    for line in (whole, together, why, evaluated, described, longer):
        assert f"prints `{line.strip()}`" in VERTICAL.read_text()
    row = names["some"]["customer"][0], names["values"][0], *names["reasons"][0]
    assert f"\n{','.join(str(value) for value in row)}\n" in VERTICAL.read_text()
    (several,) = (fb.Terms.read(tomllib.loads(text)) for text in blocks(VERTICAL, "toml"))
    assert names["terms"].digest == read_terms(Path("terms.toml")).digest
    tables = {}
    for half, (bank, telco) in enumerate([("bank", "telco"), ("bank_2", "telco_2")]):
        tables[bank] = half_of(names["bank"], half)
        tables[telco] = half_of(names["telco"], half)
    tables["bank_2"]["plan"] = names["everyone"]["plan"][tables["bank_2"]["customer"] - 100_000]
    del tables["telco_2"]["plan"]
    assert fb.simulate(several, tables).model.booster == names["pooled"].model.booster


@pytest.mark.slow
def test_the_hidden_gradients_of_the_page_on_vertical_training(vertical_example, capsys):
    if not installed("paillier"):
        pytest.skip("needs the extra paillier")
    (code,) = (code for code in blocks(VERTICAL, "python") if "paillier" in code)
    exec(compile(code, VERTICAL.name, "exec"), vertical_example)
    assert capsys.readouterr().out == "True\n"


def half_of(table, half):
    """The rows of the customers of one half."""
    rows = (table["customer"] >= 101_300) == bool(half)
    return {name: values[rows] for name, values in table.items()}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_network_of_the_page_on_vertical_training(vertical_example):
    """From the tables and terms that the page writes to a model and predictions."""
    said = run_as_typed(VERTICAL, Path())
    assert "The signatures are valid: 2 of 2 parties signed these trees" in said
    models = [fb.Model.load(f"{name}.json") for name in ("model", "trained")]
    assert [model.booster for model in models] == [vertical_example["pooled"].model.booster] * 2
    together = csv.read_csv("scores.csv")
    assert together["customer"].to_pylist() == vertical_example["bank"]["customer"].tolist()
    unknown = dict.fromkeys(("minutes", "plan"))
    at_telco = {*vertical_example["telco"]["customer"].tolist()}
    rows = pa.Table.from_pydict(
        {name: values[vertical_example["at_bank"]] for name, values in vertical_example["everyone"].items()}
    ).to_pylist()
    rows = [row if row["customer"] in at_telco else {**row, **unknown} for row in rows]
    assert together["prediction"].to_pylist() == models[0].predict(pa.Table.from_pylist(rows)).tolist()
    told = csv.read_csv("predictions.csv")
    assert told["customer"].to_pylist() == list(range(100_000, 100_100))
    assert np.allclose(told["prediction"], models[0].predict(vertical_example["new"]))


def test_the_page_on_vertical_training_has_every_refusal():
    """The page names settings that do not go with a label holder, and they are refused."""
    rows = VERTICAL.read_text().split("## What is refused")[1].split("\n## ")[0].splitlines()
    named = " ".join(row.split("|")[1] for row in rows if row.startswith("| `"))
    numeric = ["age", "income", "minutes"]
    terms = {
        "parties": ["bank", "telco"],
        "label_holder": "bank",
        "protection": "plain",
        "min_child_weight": 2.5,
        "columns": {
            "label": "default",
            "row_id": "customer",
            "numeric": numeric,
            "ranges": {name: [0, 1000] for name in numeric},
            "held": {"telco": ["minutes"]},
        },
    }
    fb.Terms.read(terms)
    refused = {
        **{name: {"protection": name} for name in set(PROTECTIONS) - {"plain", "paillier"}},
        "noise": {"noise": {"epsilon": 1.0, "delta": 1e-6, "placement": "local"}, "min_child_weight": None},
        "vote_top_k": {"vote_top_k": 2},
        "gradient_based": {"sampling_method": "gradient_based", "subsample": 0.5},
        "shrink": {"on_loss": "shrink"},
        "party_metrics": {"party_metrics": True},
    }
    for word, settings in refused.items():
        assert word in named
        with pytest.raises(fb.FedboostError, match="label_holder with .*" + word):
            fb.Terms.read({name: value for name, value in {**terms, **settings}.items() if value is not None})


def test_every_command_of_every_page_exists():
    """Each command of each page parses, its paths and addresses apart."""
    from typer.main import get_command

    from fedboost.cli.main import whole

    known = get_command(whole()).commands
    seen = 0
    for page in PAGES:
        for words in commands(page):
            found = known[words[1]]
            if hasattr(found, "commands"):
                found = found.commands[words[2]]
            options = {name for parameter in found.params for name in parameter.opts}
            assert {word for word in words[2:] if word.startswith("--")} <= options, words
            seen += 1
    assert seen >= 8


def test_the_page_on_policies_has_every_key_and_a_policy_that_is_one():
    from fedboost.runtime.site.policy import Policy
    from fedboost.terms.reading import read_model

    page = ROOT / "docs" / "policy.md"
    cells = " ".join(line.split("|")[1] for line in page.read_text().splitlines() if line.startswith("|"))
    assert set(re.findall(r"`(\w+)`", cells)) == set(Policy.model_fields)
    for text in blocks(page, "toml"):
        read_model(Policy, tomllib.loads(text)["policy"], page.name)
    defaults = {
        line.split("|")[1].strip(): line.split("|")[2].strip()
        for line in page.read_text().splitlines()
        if line.startswith("| `")
    }
    for key, field in Policy.model_fields.items():
        if isinstance(field.default, int | float) and f"`{key}`" in defaults:
            assert str(field.default).lower().removesuffix(".0") == defaults[f"`{key}`"], key


def test_the_samples_are_sound():
    from fedboost.runtime.config import read_aggregator
    from fedboost.runtime.site.config import read_party

    party = ROOT / "party" / "party.toml"
    assert read_party(party).party == "north"
    assert read_aggregator(ROOT / "aggregator" / "aggregator.toml").listen == "127.0.0.1:7070"
    assert read_terms(ROOT / "examples" / "terms.toml").parties == ("north", "south", "east")
    assert len([line for line in party.read_text().splitlines() if not line.startswith("#")]) <= 6
    assert len((ROOT / "examples" / "terms.toml").read_text().splitlines()) <= 15


def test_the_notebook_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    cells = json.loads((ROOT / "examples" / "lifecycle.ipynb").read_text())["cells"]
    names: dict[str, Any] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), "lifecycle.ipynb", "exec"), names)
    said = capsys.readouterr().out
    assert "427 rows" in said
    assert "column mean_texture is missing in 61% of the rows" in said
    assert "column mean_radius has values up to about 22 and above about 1500" in said
    assert "\n()\n{'0': 160, '1': 270}\n" in said
    assert "'logloss': 0." in said
    moved, later = (line for line in said.splitlines()[-2:])
    assert moved == "()"
    assert "mean_area" in later


@pytest.mark.slow
@pytest.mark.parametrize("example", ["quickstart.py", "custom_program.py", "explain.py"])
def test_examples_run(example, tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / example)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert "False" not in done.stdout
