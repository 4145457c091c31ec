"""`fedboost report` of results, `--report` of the commands that make them, and the pages in a browser."""

import asyncio
import copy
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from browser import DARK, LIGHT, paper, sheets
from pyarrow import csv
from sites import bundles_of, consortium, fedboost, in_time, rows, shared_out, terms

import fedboost as fb
from fedboost import evaluation
from fedboost.errors import ConfigError
from fedboost.runtime.local.simulation import run_session
from fedboost.runtime.result_files import result_of
from fedboost.runtime.results import drift_terms, evaluation_terms
from fedboost.runtime.signed_model import signed_model_of
from fedboost.runtime.terms_file import terms_to_toml
from fedboost.terms.tasks import terms_to_describe

TABLE = rows(900, seed=4)
MOVED = TABLE.set_column(TABLE.schema.get_field_index("age"), "age", pa.array(TABLE["age"].to_numpy() + 12))


@pytest.fixture(scope="module")
def trained():
    return fb.simulate(terms(max_bin=64, reference=True, rounds=4), shared_out(3, TABLE))


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """What `fedboost compare --json --report` prints, and the page."""
    folder = tmp_path_factory.mktemp("compared")
    site = np.repeat(["north", "south", "few"], [500, 390, 10])
    csv.write_csv(TABLE.append_column("hospital", pa.array(site)), folder / "all.csv")
    (folder / "terms.toml").write_text(terms_to_toml(terms(rounds=2, eval_metric=["logloss", "auc"])))
    options = "--data", folder / "all.csv", "--site", "hospital", "--seeds", "1", "--json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "SAMPLES", 50)
        end = fedboost("compare", folder / "terms.toml", *options, "--report", folder / "r.html")
    assert (end.code, end.err) == (0, "")
    return end.out, (folder / "r.html").read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path, monkeypatch, trained, compared):
    """A folder with the results of each command as JSON, as `--json` prints them, and rows.csv."""
    monkeypatch.chdir(tmp_path)
    model, sites = trained.model, shared_out(3, TABLE)
    model.save("model.json")
    csv.write_csv(TABLE, "rows.csv")
    description = fb.describe(terms(), sites)
    for name, summary in (
        ("evaluate", fb.evaluate(model, sites, by=["ward"], by_site=True).summary),
        ("drift", fb.drift(model, shared_out(3, MOVED)).summary),
        ("describe", description.summary | {"advice": [*description.advice]}),
    ):
        Path(f"{name}.json").write_text(json.dumps(summary))
    Path("compare.json").write_text(compared[0])
    return tmp_path


def test_a_result_is_told_by_its_file(folder, compared):
    for name, title in (
        ("evaluate", "Evaluation of a model"),
        ("drift", "Drift of the rows"),
        ("describe", "Description of the rows"),
        ("compare", "Comparison of models"),
        ("model", "Report of a model"),
    ):
        end = fedboost("report", f"{name}.json", "--out", f"{name}.html")
        assert (end.code, end.out, end.err) == (0, "", "")
        assert f"<h1>{title}</h1>" in Path(f"{name}.html").read_text(encoding="utf-8")
    assert Path("compare.html").read_text(encoding="utf-8") == compared[1]


def test_a_result_that_was_reformatted_is_the_same(folder):
    text = json.dumps(json.loads(Path("evaluate.json").read_text()), indent=1)
    Path("indented.json").write_text(text)
    assert result_of(Path("indented.json")) == result_of(Path("evaluate.json"))


def test_a_result_in_a_model_file_is_no_model(folder, trained):
    """As an analyst has it who asks for a session by its terms in Python, and saves what comes back."""
    sites = shared_out(3, TABLE)
    for command, agreed, title in (
        ("describe", terms_to_describe(terms()), "Description of the rows"),
        ("evaluate", evaluation_terms(trained.model), "Evaluation of a model"),
    ):
        session, _, _ = run_session(agreed.changed(parties=()), sites)
        signed_model_of(session).save(f"{command}-model.json")
        end = fedboost("report", f"{command}-model.json", "--out", f"{command}.html")
        assert (end.code, end.err) == (0, "")
        page = Path(f"{command}.html").read_text(encoding="utf-8")
        assert f"<h1>{title}</h1>" in page
        assert "The signatures were not checked for this page" in page
        end = fedboost("report", f"{command}-model.json", "--data", "rows.csv", "--out", "r.html")
        assert end.code == 2
        assert "--data and --keys are for models" in end.err
    session, _, _ = run_session(drift_terms(trained.model)[0].changed(parties=()), sites)
    signed_model_of(session).save("drift-model.json")
    end = fedboost("report", "drift-model.json", "--out", "r.html")
    assert end.code == 2
    assert end.err == (
        "fedboost: drift-model.json: the result of a session to drift, of which there is no report\n"
    )


NEITHER = "neither a model nor the result of compare, describe, evaluate or drift --json"
REFUSED = {
    "other JSON": ("{}", NEITHER),
    "a result that was cut": ('{"rows": 900, "min_count": 10, "metrics": {"logloss": 0.4', "not a fedboost"),
    "half a comparison": ('{"event": "site", "site": "north"}', NEITHER),
    "many results": ('{"rows": 1}\n{"rows": 2}', NEITHER),
    "a list": ("[1, 2]", "not a"),
    "nothing": ("", "not a"),
    "deep": ("[" * 100_000, "not a"),
}


@pytest.mark.parametrize(("text", "said"), REFUSED.values(), ids=REFUSED)
def test_a_file_of_another_kind_is_refused_in_a_line(tmp_path, text, said):
    file, page = tmp_path / "f.json", tmp_path / "r.html"
    file.write_text(text)
    end = fedboost("report", file, "--out", page)
    assert (end.code, end.out) == (2, "")
    assert end.err.startswith(f"fedboost: {file}: ")
    assert said in end.err
    assert end.err.count("\n") == 1
    assert not page.exists()


def test_rows_and_keys_are_for_models(folder):
    end = fedboost("report", "drift.json", "--data", "rows.csv", "--out", "r.html")
    assert end.code == 2
    assert (
        end.err == "fedboost: --data and --keys are for models; drift.json is the result of fedboost drift\n"
    )


def test_a_page_is_no_other_output(folder):
    Path("terms.toml").write_text(terms_to_toml(terms(["north"])))
    where = "--aggregator", "localhost:1", "--insecure-loopback"
    Path("old.html").write_text("old")
    for words, said in (
        (("train", "terms.toml", "--out", "m.json", "--report", "m.json"), "is another output"),
        (("train", "terms.toml", "--out", "m.json", "--report", "old.html"), "exists already"),
        (("describe", "terms.toml", "--report", "terms.toml", "--force"), "is read by this very command"),
        (("drift", "model.json", "--report", "model.json", "--force"), "is read by this very command"),
        (("evaluate", "model.json", "--report", "old.html"), "exists already"),
        (("evaluate", "model.json", "--save-terms", "e.toml", "--report", "e.toml"), "is another output"),
        (("evaluate", "model.json", "--report", "no/r.html"), "does not exist"),
    ):
        end = fedboost(*words, *where)
        assert end.code == 2
        assert said in end.err
        assert end.err.count("\n") == 1
    assert not {"m.json", "e.toml"} & {file.name for file in folder.iterdir()}


def test_a_model_in_parts_has_no_page(tmp_path):
    apart = {"label_holder": "north", "rows": "in_order", "protection": "paillier", "model": "parties"}
    columns = {"label": "y", "numeric": ["age", "dose"], "held": {"south": ["dose"]}}
    agreed = terms(["north", "south"], columns=columns, **apart)
    (tmp_path / "terms.toml").write_text(terms_to_toml(agreed))
    where = "--aggregator", "localhost:1", "--insecure-loopback", "--out", tmp_path / "m.json"
    end = fedboost("train", tmp_path / "terms.toml", *where, "--report", tmp_path / "r.html")
    assert end.code == 2
    said = "--report is of a whole model, and under these terms each party keeps its part"
    assert end.err == f"fedboost: {said}\n"


def test_a_page_without_a_session_is_refused(folder):
    end = fedboost("evaluate", "model.json", "--save-terms", "e.toml", "--report", "r.html")
    assert (end.code, end.err) == (2, "fedboost: --report is of a result: give --aggregator\n")


def places(value, path=()):
    """The place of each value in JSON; of a list those of its first two."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in [*inner][: 2 if isinstance(value, list) else None]:
        yield from places(each, (*path, key))


def page_or_refusal(file):
    """The page of a result; '' where it is refused, or may be a model."""
    try:
        found = result_of(file)
    except ConfigError:
        return ""
    return "" if found is None else found[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["evaluate", "drift", "describe", "compare"])
def test_a_changed_result_is_a_page_or_refused(folder, name):
    """Whatever stands in the place of a value, nothing but a page or one line comes of it."""
    file = Path(f"{name}.json")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    refused = 0
    for path in [*places(lines)][1:]:
        for value in (None, -1, 1e999, 10**400, "x", {}):
            changed = copy.deepcopy(lines)
            inner = changed
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = value
            file.write_text("\n".join(map(json.dumps, changed)))
            page = page_or_refusal(file)
            refused += page == ""
            assert page == "" or page.startswith("<!DOCTYPE html>")
    assert refused > 50


@pytest.mark.slow
def test_a_session_is_followed_into_a_page(tmp_path):
    tables = shared_out(3, TABLE)
    agreed = terms(tables, protection="masked", reference=True, rounds=3)
    bundles = bundles_of(tmp_path / "keys", agreed.parties)
    (tmp_path / "terms.toml").write_text(terms_to_toml(agreed))

    async def scenario():
        async with consortium(tmp_path / "c", {}, bundles=bundles) as one:
            for name, table in tables.items():
                one.start_party(name, table, audit=tmp_path / f"{name}.jsonl")
            where = "--aggregator", one.address, "--keys", tmp_path / "keys" / "analyst"
            for words in (
                ("train", "terms.toml", "--out", tmp_path / "model.json"),
                ("describe", "terms.toml"),
                ("evaluate", "model.json", "--by-site"),
                ("drift", "model.json"),
            ):
                command, file, *options = words
                page = tmp_path / f"{command}.html"
                end = await asyncio.to_thread(
                    fedboost, command, tmp_path / file, *options, *where, "--report", page
                )
                assert end.code == 0, end.err

    in_time(scenario())
    pages = {
        name: (tmp_path / f"{name}.html").read_text() for name in ("train", "describe", "evaluate", "drift")
    }
    assert "3 of 3 parties signed" not in pages["describe"]
    assert "The signatures hold: 3 of 3 parties signed these trees" in pages["train"]
    assert "Traffic of each party" in pages["train"]
    assert "3 rounds in" in pages["train"]
    assert "not in a model file" not in pages["train"]
    for name in ("describe", "evaluate", "drift"):
        assert pages[name].count("<td>what it answered</td>") == 3
        assert "Nobody signed" not in pages[name]
        assert "never the numbers of a single party" in pages[name]
        assert "Traffic of each party" in pages[name]


# ---- in a browser -----------------------------------------------------------------------------------


PAGES = "trained", "evaluate", "drift", "describe", "compare"


@pytest.fixture(scope="module")
def pages(tmp_path_factory, trained, compared):
    """A folder with a page of each kind."""
    folder, model, sites = tmp_path_factory.mktemp("pages"), trained.model, shared_out(3, TABLE)
    trained.report(folder / "trained.html", TABLE)
    fb.evaluate(model, sites, by=["ward"], by_site=True).report(folder / "evaluate.html")
    fb.drift(model, shared_out(3, MOVED)).report(folder / "drift.html")
    fb.describe(terms(), sites).report(folder / "describe.html")
    (folder / "compare.html").write_text(compared[1], encoding="utf-8")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_light_dark_narrow_and_printed_and_asks_for_nothing(name, pages, browser):
    page = pages / f"{name}.html"
    for width, scheme in ((1100, LIGHT), (1100, DARK), (360, LIGHT)):
        with browser.tab(page, width, scheme=scheme) as tab:
            tab.keep(f"{name}-{width}-{scheme}-whole")
            shown = paper(tab.screenshot(f"{name}-{width}-{scheme}"))
            assert shown == ((0x12, 0x17, 0x1D) if scheme == DARK else (255, 255, 255))
            tab.open_all()
            wide, window = tab.widths()
            assert wide <= window
            assert tab.foreign == tab.errors == []
            if width > 360 and (scheme == LIGHT or name == "drift"):
                assert tab.faults() == []
            if width > 360 and scheme == LIGHT:
                assert 1 <= sheets(tab.printed(name)) <= 12


@pytest.mark.slow
def test_200_rounds_and_186_sites_fit_a_narrow_window(trained, folder, browser):
    known = json.loads(Path("evaluate.json").read_text())
    ((_, first), *_) = known["sites"]["sets"].items()
    known["sites"]["sets"] = {f"a hospital with a long name, number {n}": first for n in range(186)}
    Path("many.json").write_text(json.dumps(known))
    assert fedboost("report", "many.json", "--out", "many.html").code == 0
    history = [{"round": n, "seconds": 1.5, "bytes": 1e6 + n} for n in range(200)]
    traffic = {f"a hospital with a long name, number {n}": (10**9 + n, 10**6) for n in range(186)}
    fb.Result(trained.model, history, traffic).report("session.html")
    for name in ("many", "session"):
        with browser.tab(folder / f"{name}.html", 360) as tab:
            height = tab.run("document.documentElement.scrollHeight")
            tab.screenshot(f"{name}-186")
            assert height < 16_000
            tab.open_all()
            wide, window = tab.widths()
            assert wide <= window
