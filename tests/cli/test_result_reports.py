"""`--report` of the commands that make results, and the pages in a browser."""

import asyncio
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from browser import DARK, LIGHT, sheets
from html_pages import altered
from pyarrow import csv
from refusals import refusal
from sites import bundles_of, consortium, fedboost, in_time, rows, shared_out, terms

import fedboost as fb
from fedboost import evaluation
from fedboost.runtime.local.simulation import run_session
from fedboost.runtime.signed_model import signed_model_of
from fedboost.runtime.tasks import drift_terms, evaluation_terms, terms_to_toml
from fedboost.terms.tasks import terms_to_describe

TABLE = rows(900, seed=4)
MOVED = TABLE.set_column(TABLE.schema.get_field_index("age"), "age", pa.array(TABLE["age"].to_numpy() + 12))


@pytest.fixture(scope="module")
def trained():
    return fb.simulate(terms(max_bin=64, reference=True, rounds=4), shared_out(3, TABLE))


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """The page that `fedboost compare --report` writes."""
    folder = tmp_path_factory.mktemp("compared")
    site = np.repeat(["north", "south", "few"], [500, 390, 10])
    csv.write_csv(TABLE.append_column("hospital", pa.array(site)), folder / "all.csv")
    (folder / "terms.toml").write_text(terms_to_toml(terms(rounds=2, eval_metric=["logloss", "auc"])))
    options = "--data", folder / "all.csv", "--site", "hospital", "--seeds", "1", "--json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "SAMPLES", 50)
        end = fedboost("compare", folder / "terms.toml", *options, "--report", folder / "r.html")
    assert (end.code, end.err) == (0, "")
    return (folder / "r.html").read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path, monkeypatch, trained):
    """A folder with model.json."""
    monkeypatch.chdir(tmp_path)
    trained.model.save("model.json")
    return tmp_path


def test_a_result_in_a_model_file_is_no_model(folder, trained):
    """As an analyst has it who asks for a session by its terms in Python, and saves what comes back."""
    sites = shared_out(3, TABLE)
    for task, agreed in (
        ("describe", terms_to_describe(terms())),
        ("evaluate", evaluation_terms(trained.model)),
        ("drift", drift_terms(trained.model)[0]),
    ):
        session, _, _ = run_session(agreed.changed(parties=()), sites)
        signed_model_of(session).save(f"{task}.json")
        assert (
            refusal("report", f"{task}.json", "--out", "r.html")
            == f"fedboost: {task}.json is not a model but the result of a session with task {task}\n"
        )
        assert not (folder / "r.html").exists()


NO_MODEL = "not a fedboost model"
REFUSED = {
    "other JSON": ("{}", NO_MODEL),
    "a result that was cut": ('{"rows": 900, "min_count": 10, "metrics": {"logloss": 0.4', NO_MODEL),
    "half a comparison": ('{"event": "site", "site": "north"}', NO_MODEL),
    "many results": ('{"rows": 1}\n{"rows": 2}', NO_MODEL),
    "a list": ("[1, 2]", "not a"),
    "nothing": ("", "not a"),
    "deep": ("[" * 100_000, "not a"),
}


@pytest.mark.parametrize(("text", "said"), REFUSED.values(), ids=REFUSED)
def test_a_file_of_another_kind_is_refused_in_a_line(tmp_path, text, said):
    file, page = tmp_path / "f.json", tmp_path / "r.html"
    file.write_text(text)
    end = refusal("report", file, "--out", page)
    assert end.startswith(f"fedboost: {file}")
    assert said in end
    assert not page.exists()


def test_a_page_is_no_other_output(folder):
    Path("terms.toml").write_text(terms_to_toml(terms(["north"])))
    where = "--aggregator", "localhost:1", "--insecure-loopback"
    Path("old.html").write_text("old")
    for words, said in (
        (("train", "terms.toml", "--out", "m.json", "--report", "m.json"), "is already another output"),
        (("train", "terms.toml", "--out", "m.json", "--report", "old.html"), "already exists"),
        (("describe", "terms.toml", "--report", "terms.toml", "--force"), "is an input of this command"),
        (("drift", "model.json", "--report", "model.json", "--force"), "is an input of this command"),
        (("evaluate", "model.json", "--report", "old.html"), "already exists"),
        (
            ("evaluate", "model.json", "--save-terms", "e.toml", "--report", "e.toml"),
            "is already another output",
        ),
        (("evaluate", "model.json", "--report", "no/r.html"), "does not exist"),
    ):
        assert said in refusal(*words, *where)
    assert not {"m.json", "e.toml"} & {file.name for file in folder.iterdir()}


def test_a_model_in_parts_has_no_page(tmp_path):
    apart = {"label_holder": "north", "rows": "in_order", "protection": "paillier", "model": "parties"}
    columns = {"label": "y", "numeric": ["age", "dose"], "held": {"south": ["dose"]}}
    agreed = terms(["north", "south"], columns=columns, **apart)
    (tmp_path / "terms.toml").write_text(terms_to_toml(agreed))
    where = "--aggregator", "localhost:1", "--insecure-loopback", "--out", tmp_path / "m.json"
    end = fedboost("train", tmp_path / "terms.toml", *where, "--report", tmp_path / "r.html")
    assert end.code == 2
    said = "--report requires a whole model, but here each party keeps its own part"
    assert end.err == f"fedboost: {said}\n"


def test_a_page_without_a_session_is_refused(folder):
    end = fedboost("evaluate", "model.json", "--save-terms", "e.toml", "--report", "r.html")
    assert (end.code, end.err) == (
        2,
        "fedboost: --report shows the result of a session; specify --aggregator\n",
    )


@pytest.mark.slow
def test_a_session_is_followed_into_a_page(tmp_path):
    tables = shared_out(3, TABLE)
    agreed = terms(tables, protection="masked", reference=True, rounds=3)
    bundles = bundles_of(tmp_path / "keys", agreed.parties)
    (tmp_path / "terms.toml").write_text(terms_to_toml(agreed))

    async def scenario():
        async with consortium(tmp_path / "c", {}, bundles=bundles) as one:
            for name, table in tables.items():
                one.start_party(name, table)
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
    assert "The signatures are valid: 3 of 3 parties signed these trees" in pages["train"]
    assert "Traffic of each party" in pages["train"]
    assert "3 rounds in" in pages["train"]
    assert "Model files do not contain" not in pages["train"]
    for name in ("describe", "evaluate", "drift"):
        assert pages[name].count("<td>its answers</td>") == 3
        assert "No party signed" not in pages[name]
        assert "sees sums over the parties, never the numbers of a single one" in pages[name]
        assert "Traffic of each party" in pages[name]


# ---- in a browser -----------------------------------------------------------------------------------


PAGES = "trained", "evaluate", "drift", "describe", "compare"
LARGE = "trained", "drift"
"""Those that axe-core looks at in the dark, too."""
LIKE_OTHERS = ("evaluate",)
"""Pages whose parts that of a comparison has, too."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory, trained, compared):
    """A folder with a page of each kind."""
    folder, model, sites = tmp_path_factory.mktemp("pages"), trained.model, shared_out(3, TABLE)
    trained.report(folder / "trained.html", TABLE)
    fb.evaluate(model, sites, by=["ward"], by_site=True).report(folder / "evaluate.html")
    fb.drift(model, shared_out(3, MOVED)).report(folder / "drift.html")
    fb.describe(terms(), sites).report(folder / "describe.html")
    (folder / "compare.html").write_text(compared, encoding="utf-8")
    return folder


def test_a_page_is_titled_by_its_result(pages):
    for name, title in (
        ("evaluate", "Evaluation of a model"),
        ("drift", "Drift since the training"),
        ("describe", "Description of the rows"),
        ("compare", "Comparison of models"),
        ("trained", "Model of y"),
    ):
        assert f"<h1>{title}</h1>" in (pages / f"{name}.html").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in LIKE_OTHERS else []) for name in PAGES]
)
def test_a_page_is_light_dark_narrow_and_printed_and_asks_for_nothing(name, pages, browser):
    page = pages / f"{name}.html"
    for width, scheme in ((1100, LIGHT), (1100, DARK), (360, LIGHT), (320, LIGHT)):
        with browser.tab(page, width, scheme=scheme) as tab:
            tab.check(f"{name}-{width}-{scheme}", axe=width > 360 and (scheme == LIGHT or name in LARGE))
            assert tab.asked == [page.as_uri()]
            if width > 360 and scheme == LIGHT:
                assert 1 <= sheets(tab.printed(name)) <= 12


@pytest.mark.slow
def test_200_rounds_and_186_sites_fit_a_narrow_window(trained, folder, browser):
    known = fb.evaluate(trained.model, shared_out(3, TABLE), by=["ward"], by_site=True)
    (first, *_) = known.summary["sites"]["sets"].values()
    sets = {f"a hospital with a long name, number {n}": first for n in range(186)}
    altered(known, sites={**known.summary["sites"], "sets": sets}).report("many.html")
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
