"""`fedboost compare`: the figures are those of the rows held out, and the conclusion is what they say."""

import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv
from refusals import refusal
from sites import fedboost
from sklearn.metrics import log_loss, roc_auc_score

from fedboost import evaluation
from fedboost.evaluation import GROUPS, HeldOut, Trial, percentiles, score, unprotected
from fedboost.runtime.data.shard import to_shard
from fedboost.runtime.local.simulation import simulate
from fedboost.runtime.tasks import read_terms, terms_to_toml
from fedboost.terms.terms import Terms

SMALL = {"rounds": 30, "max_depth": 2, "max_bin": 16}
SITES = {"like-1": 100, "like-2": 1500, "other": 40, "one-label": 30, "tiny": 10}
"""Rows of sites with one rule, of one with the opposite rule, one of a single label, and one of few rows."""


def table(sites=SITES, kind="binary"):
    draw = np.random.default_rng(1)
    site = np.repeat(list(sites), list(sites.values()))
    x = draw.normal(size=(site.size, 6))
    signal = x.sum(axis=1) * np.where(site == "other", -1, 1) * 2
    noisy = signal + draw.normal(size=site.size)
    y = {
        "binary": np.where(site == "one-label", 1, (noisy > 0).astype(int)),
        "number": np.where(site == "one-label", 7, 1000 * noisy),
        "classes": np.array(["low", "mid", "top"])[np.digitize(noisy, [-1, 1])],
    }[kind]
    return pa.table({**{f"x{i}": column for i, column in enumerate(x.T)}, "site": site, "y": y})


COLUMNS = {"label": "y", "numeric": [f"x{i}" for i in range(6)]}
OBJECTIVES = {
    "binary": {},
    "number": {"objective": "reg:squarederror"},
    "classes": {"objective": "multi:softprob", "columns": {**COLUMNS, "classes": ["low", "mid", "top"]}},
}


def agreed(kind="binary", **settings):
    return Terms.read({"columns": COLUMNS, **SMALL, **OBJECTIVES[kind], **settings})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(evaluation, "SAMPLES", 200)
    csv.write_csv(table(), "all.csv")
    (tmp_path / "terms.toml").write_text(terms_to_toml(agreed()))
    return tmp_path


MOST = ("--seeds", "1", "--held-out", "0.7")
ASKED = ("compare", "terms.toml", "--data", "all.csv", "--site", "site")


def compared(*options):
    end = fedboost(*ASKED, *options, "--json")
    assert end.code == 0, end.err
    *sites, last = [json.loads(line) for line in end.out.splitlines()]
    assert last.pop("event") == "done"
    return {one["site"]: one for one in sites}, last


@pytest.fixture(scope="module")
def twice(tmp_path_factory):
    """What two splits come to, as JSON and for people."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("twice"))
        patch.setattr(evaluation, "SAMPLES", 200)
        csv.write_csv(table(), "all.csv")
        Path("terms.toml").write_text(terms_to_toml(agreed()))
        options = (*MOST, "--seeds", "2")
        sites, last = compared(*options)
        return sites, last, fedboost(*ASKED, *options)


@pytest.mark.slow
def test_it_says_for_whom_joining_is_worth_it_and_for_whom_not(twice):
    sites, last, _ = twice
    assert list(sites) == sorted(SITES)
    assert {name: one["verdict"] for name, one in sites.items()} == {
        "like-1": "worth it",
        "like-2": "not worth it",  # the others are few, and some of them have another rule
        "one-label": "cannot train alone",
        "other": "not worth it",
        "tiny": "too few rows",
    }
    for verdict, names in last["verdicts"].items():
        assert names == [name for name, one in sites.items() if one["verdict"] == verdict]
    assert (last["equal"], last["splits"], last["held_out"]) == (True, 2, 0.7)
    for name, one in sites.items():
        assert (one["rows"], one["held_out"]) == (SITES[name], SITES[name] * 7 // 10)
        assert one["held_out"] < one["different_held_out"] <= one["rows"]
        assert one["models"]["federated"] == one["models"]["pooled"]
        assert ("alone" in one["models"]) == bool(one["better_by"])
    for one in (sites["like-1"], sites["other"]):
        assert one["decided_by"] == "logloss"
        for metric, sign in {"logloss": -1, "auc": 1, "error": -1}.items():
            gain = one["models"]["federated"][metric]["value"] - one["models"]["alone"][metric]["value"]
            assert one["better_by"][metric]["value"] == pytest.approx(sign * gain, abs=1e-12)
            assert one["better_by"][metric]["low"] <= one["better_by"][metric]["value"]
            assert one["better_by"][metric]["value"] <= one["better_by"][metric]["high"]
    assert sites["like-1"]["better_by"]["logloss"]["low"] > 0
    assert sites["like-1"]["better_by"]["auc"]["value"] > 0
    assert sites["other"]["better_by"]["logloss"]["high"] < 0


def test_people_read_the_verdict_then_all_sites_then_each(twice):
    sites, last, end = twice
    assert end.code == 0, end.err
    lines = end.out.splitlines()
    assert max(map(len, lines)) <= 80
    joined = " ".join(end.out.split())
    of_all = last["together"]["better_by"]["logloss"]
    assert last["together"]["verdict"] == "not worth it"
    assert joined.startswith("Joining is NOT worth it for all sites: logloss ")
    assert (
        f"worse by {-of_all['value']:.4f} ({-of_all['high']:.4f} to {-of_all['low']:.4f}). Of 5 sites,"
        in joined
    )
    assert (
        "it is worth it for 1 (like-1); it is NOT worth it for 2 (like-2, other); there is no site-alone "
        "model for 1 (one-label); there are too few rows to decide for 1 (tiny)." in joined
    )
    assert "The 3 sites that can train alone: means per row over 1,640 rows, 1,148 of them held out" in joined
    assert "one-label has no site-alone model (the label is 1 in every row of every party" in joined
    assert "more rounds, or column 'site' among the features of the terms, may change that." in joined
    assert "The federated model equals the pooled model, byte for byte." in joined
    start = next(n for n, line in enumerate(lines) if line.split()[:2] == ["site", "rows"])
    assert lines[start].endswith("federated  better by  at least  at most  worth it?")
    shown = {line.split()[0]: line.rstrip().split()[1:] for line in lines[start + 1 : start + 6]}
    assert {*shown} == {*sites}
    assert [*shown][:3] == sorted(
        [*shown][:3], key=lambda name: -sites[name]["better_by"]["logloss"]["value"]
    )
    assert [shown[name][-1] for name in ("like-1", "other")] == ["yes", "NO"]
    figures = [sites["other"]["models"][model]["logloss"]["value"] for model in ("alone", "federated")]
    figures += [sites["other"]["better_by"]["logloss"][end] for end in ("value", "low", "high")]
    assert shown["other"][0] == "40"
    assert [float(figure) for figure in shown["other"][1:-1]] == pytest.approx(figures, abs=1e-4)
    assert end.err.startswith("training 1/14: split 1, federated\n")


def test_all_sites_together_are_the_mean_by_row(twice):
    sites, last, _ = twice
    able = [one for one in sites.values() if one["better_by"]]
    rows = [one["held_out"] for one in able]
    for metric in ("logloss", "error"):
        for model in ("alone", "federated", "pooled"):
            values = [one["models"][model][metric]["value"] for one in able]
            expected = np.average(values, weights=rows)
            assert last["together"]["models"][model][metric]["value"] == pytest.approx(expected, abs=1e-12)
    assert last["together"]["rows"] == sum(one["rows"] for one in able)


@pytest.mark.slow
def test_of_many_sites_those_that_gain_most_come_first(folder):
    names = {f"s{number:02d}": 40 for number in range(24)}
    csv.write_csv(table(names), "all.csv")
    (folder / "terms.toml").write_text(terms_to_toml(agreed(rounds=2, min_child_weight=0.1)))
    asked = (*ASKED, "--seeds", "1", "--held-out", "0.5")
    end = fedboost(*asked)
    assert end.code == 0, end.err
    lines = end.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) < 60
    *each, _ = map(json.loads, fedboost(*asked, "--json").out.splitlines())
    assert [one["site"] for one in each] == [*names]
    own = {one["site"]: one["better_by"].get("logloss", {}).get("value") for one in each}
    best = max(names, key=lambda name: own[name] or -np.inf)
    assert lines[lines.index("Each site, by logloss, highest gain first") + 2].startswith(best)


@pytest.mark.slow
def test_the_site_column_may_be_a_feature(folder):
    """Terms that were drafted with the site column among the features are compared by that very column."""
    assert fedboost("terms", "all.csv", "--label", "y", "--out", "with.toml").code == 0
    drafted = read_terms(Path("with.toml"))
    assert "site" in drafted.columns.features
    Path("with.toml").write_text(terms_to_toml(drafted.changed(rounds=3)))
    end = fedboost("compare", "with.toml", *ASKED[2:], "--seeds", "1", "--json")
    assert end.code == 0, end.err
    assert {json.loads(line).get("site") for line in end.out.splitlines()} >= set(SITES)
    assert "among the features" not in fedboost("compare", "with.toml", *ASKED[2:], "--seeds", "1").out
    assert fedboost("simulate", "with.toml", "--data", "all.csv", "--site", "site").code == 0


@pytest.mark.slow
def test_the_same_question_has_the_same_answer_and_another_split_another(folder):
    csv.write_csv(table({"north": 60, "south": 60}), "all.csv")
    sites, _ = compared("--seeds", "1")
    assert compared("--seeds", "1")[0] == sites
    other, _ = compared("--seeds", "1", "--held-out", "0.4")
    assert other["south"]["held_out"] == 24
    assert other["south"]["models"] != sites["south"]["models"]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "names"), [("number", ["rmse"]), ("classes", ["mlogloss", "merror"])])
def test_numbers_and_classes(folder, kind, names):
    csv.write_csv(table(kind=kind), "all.csv")
    (folder / "terms.toml").write_text(terms_to_toml(agreed(kind)))
    sites, last = compared(*MOST)
    assert last["equal"] is True
    for one in sites.values():
        assert list(one["models"]["pooled"]) == names
    assert sites["like-1"]["models"]["federated"][names[0]]["value"] > 0
    assert sites["other"]["verdict"] == "not worth it"


@pytest.mark.slow
def test_the_metrics_are_those_of_the_terms(folder):
    (folder / "terms.toml").write_text(terms_to_toml(agreed(eval_metric=["auc"])))
    sites, _ = compared(*MOST)
    assert sites["other"]["decided_by"] == "auc"
    assert list(sites["other"]["better_by"]) == ["auc"]
    assert sites["other"]["verdict"] == "not worth it"  # more is better


@pytest.mark.slow
def test_base_margins_count_and_names_of_metrics_are_whole(folder):
    rows = table({"north": 60, "south": 60}).append_column("known", pa.array(np.linspace(-1, 1, 120)))
    csv.write_csv(rows, "all.csv")
    metric = "tweedie-nloglik@1.5"
    given = {"objective": "count:poisson", "eval_metric": [metric, "rmse", "poisson-nloglik", "mae"]}
    (folder / "terms.toml").write_text(
        terms_to_toml(agreed(**given, columns={**COLUMNS, "base_margin": "known"}))
    )
    assert compared("--seeds", "1")[1]["equal"] is True
    lines = fedboost(*ASKED, "--seeds", "1").out.splitlines()
    assert max(map(len, lines)) <= 80
    block = lines[lines.index("Means per row over 120 rows, 24 of them held out each time") :]
    assert [line.split()[0] for line in block[2:6]] == [metric, "rmse", "poisson-nloglik", "mae"]
    # The model of a split that holds nearly nothing out, on rows it has seen.
    trial = Trial("north", rows.num_rows, 0.5, 0)
    _, held = trial.split(0)
    wanted = unprotected(agreed(**given, columns={**COLUMNS, "base_margin": "known"}))
    model = simulate(wanted, [rows]).model
    trial.score(
        dict.fromkeys(("alone", "federated", "pooled"), model), seen(rows, wanted, held), held, ("mae",)
    )
    label, share = rows["y"].to_numpy()[held], model.predict(rows.take(held))
    found = trial.compared(("mae",)).models["pooled"]["mae"].value
    assert found == pytest.approx(np.abs(label - share).mean(), abs=1e-6)


@pytest.mark.slow
def test_terms_of_a_network_are_compared_without_it(folder):
    names = ["east", "north", "south", "west", "centre"]
    csv.write_csv(table(dict.fromkeys(names, 40)), "all.csv")
    (folder / "terms.toml").write_text(
        terms_to_toml(agreed(parties=names, on_loss="shrink", quorum=4, vote_top_k=1))
    )
    sites, last = compared("--seeds", "1")
    assert set(sites) == set(names)
    assert last["equal"] is False  # votes depend on who has which rows
    assert "The federated model differs from the pooled model." in fedboost(*ASKED, "--seeds", "1").out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--held-out", "0"), "--held-out must be between 0 and 1 (e.g. 0.2), not 0"),
        (("--held-out", "1"), "--held-out must be between 0 and 1 (e.g. 0.2), not 1"),
        (("--site", "sites"), "column 'sites' is missing: did you mean site?"),
        (
            ("--data", "one.csv"),
            "column 'site' of one.csv contains only one site; at least two are needed",
        ),
        (("--data", "bad.csv"), "it is 5 in row 3"),
        (("--data", "bad.libsvm"), "bad.libsvm is a sparse table, which cannot have a column"),
        (
            ("named.toml",),
            "named.toml names the parties 'north', 'south', but column 'site' of all.csv contains 'like-1'",
        ),
    ],
)
def test_what_is_refused(folder, options, said):
    csv.write_csv(table({"north": 30}), "one.csv")
    bad = table({"north": 30, "south": 30})
    labels = [5 if row == 2 else label for row, label in enumerate(bad["y"].to_pylist())]
    (folder / "bad.libsvm").write_text("1 0:1\n0 1:1\n")
    csv.write_csv(bad.set_column(7, "y", pa.array(labels)), "bad.csv")
    (folder / "named.toml").write_text(terms_to_toml(agreed(parties=["north", "south"], protection="plain")))
    asked = ("compare", *options[:1], *ASKED[2:]) if len(options) == 1 else (*ASKED, *options)
    assert said in refusal(*asked)


# ---- what the figures are ---------------------------------------------------------------------------


def seen(rows, wanted, held):
    """The held-out rows, as models see them."""
    return HeldOut.from_shard(to_shard(rows.take(held), wanted, "x"))


def two_models():
    """Two models of unlike quality, and rows neither has seen."""
    rows = table({"north": 1300})
    train, rest = rows.slice(0, 200), rows.slice(200)
    wanted = unprotected(agreed())
    models = {
        "alone": simulate(wanted.changed(rounds=1), [train]).model,
        "federated": simulate(wanted, [train]).model,
    }
    return models, rest, wanted


@pytest.mark.parametrize("count", [400, 1100])
def test_the_interval_is_that_of_the_paired_differences_of_rows(count):
    """Beside the mean of the differences and its standard error, for single rows and for groups of them."""
    models, rows, wanted = two_models()
    assert 400 < GROUPS < 1100
    trial = Trial("north", count, 0.9, 0)
    _, held = trial.split(0)
    assert held.size == round(count * 0.9)
    trial.score({**models, "pooled": models["federated"]}, seen(rows, wanted, held), held, ("logloss", "auc"))
    found = trial.compared(("logloss", "auc"))
    label = rows["y"].to_numpy()[held]
    shares = {name: model.predict(rows.take(held)) for name, model in models.items()}
    for name, share in shares.items():
        assert found.models[name]["logloss"].value == pytest.approx(log_loss(label, share), abs=1e-5)
        assert found.models[name]["auc"].value == pytest.approx(roc_auc_score(label, share), abs=5e-3)
    lost = {name: -np.log(np.where(label == 1, share, 1 - share)) for name, share in shares.items()}
    differences = lost["alone"] - lost["federated"]
    error = differences.std() / math.sqrt(held.size)
    gain = found.better_by["logloss"]
    assert gain.value == pytest.approx(differences.mean(), abs=1e-5)
    assert gain.high - gain.low == pytest.approx(2 * 1.96 * error, rel=0.12)
    assert (gain.high + gain.low) / 2 == pytest.approx(gain.value, abs=error / 2)
    unpaired = found.models["alone"]["logloss"]
    assert unpaired.high - unpaired.low == pytest.approx(
        2 * 1.96 * lost["alone"].std() / math.sqrt(held.size), rel=0.12
    )


def test_splits_are_averaged_and_a_row_that_is_held_out_twice_is_one_row():
    models, rows, wanted = two_models()
    once, twice = (Trial("north", 300, 0.5, 0) for _ in range(2))
    _, held = once.split(0)
    scored = {**models, "pooled": models["federated"]}
    once.score(scored, seen(rows, wanted, held), held, ("logloss",))
    for _ in range(2):
        twice.score(scored, seen(rows, wanted, held), held, ("logloss",))
    assert once.compared(("logloss",)) == twice.compared(("logloss",))
    _, others = once.split(1)
    assert set(others) != set(held)
    mixed = Trial("north", 300, 0.5, 0)
    for some in (held, others):
        mixed.score(scored, seen(rows, wanted, some), some, ("logloss",))
    alone = mixed.compared(("logloss",))
    parts = [score(models["alone"], seen(rows, wanted, some), ("logloss",)) for some in (held, others)]
    mean = sum(part["logloss"] for part in parts) / 2
    assert alone.models["alone"]["logloss"].value == pytest.approx(mean, abs=1e-12)
    assert alone.different_held_out == len({*held, *others})


def test_a_split_trains_on_the_rows_it_does_not_hold_out():
    rows = table({"north": 101}).append_column("row", pa.array(np.arange(101)))
    trial = Trial("north", rows.num_rows, 0.25, 3)
    train, held = trial.split(7)
    assert sorted([*rows.take(train)["row"].to_pylist(), *held]) == list(range(101))
    assert held.size == 25
    assert Trial("north", 2, 0.99, 0).held_out == 1
    assert Trial("north", 1, 0.9, 0).held_out == 0


def test_few_rows_have_wider_intervals():
    low, high = percentiles(100_000)
    assert (low, high) == (pytest.approx(2.5, abs=0.01), pytest.approx(97.5, abs=0.01))
    shares = [percentiles(rows)[0] for rows in range(1, 200)]
    assert shares == sorted(shares)
    assert shares[9] == pytest.approx(0.855, abs=0.02)  # Student's t of 9 degrees, by another library


def test_weights_count():
    _, rows, wanted = two_models()
    weighted = rows.append_column("w", pa.array(np.random.default_rng(0).integers(1, 4, rows.num_rows)))
    columns = {**COLUMNS, "weight": "w"}
    model = simulate(wanted.changed(columns=columns), [weighted]).model
    held = HeldOut.from_shard(to_shard(weighted, model.terms, "x"))
    repeated = weighted.take(np.repeat(np.arange(rows.num_rows), weighted["w"].to_numpy()))
    plain = HeldOut.from_shard(to_shard(repeated, wanted, "x"))
    for metric in ("logloss", "auc", "error"):
        of_weights = score(model, held, (metric,))[metric]
        assert of_weights == pytest.approx(score(model, plain, (metric,))[metric], abs=1e-6)
