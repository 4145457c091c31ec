"""`fedboost estimate`: its bytes are those of a training over the network."""

import json
from dataclasses import replace

import pytest
from dask_rows import on_workers, shared_out
from masked_consortia import masked
from pyarrow import parquet
from refusals import refusal
from sites import bundles_of, consortium, fedboost, rows, terms

from fedboost.privacy.protections import PROTECTIONS
from fedboost.runtime.data.draft import split_by_weights
from fedboost.runtime.local import estimate
from fedboost.runtime.local.estimate import table_for
from fedboost.runtime.local.simulation import simulate
from fedboost.runtime.tasks import terms_to_toml
from fedboost.runtime.workers.hold import Link

NAMES = ("north", "south", "east")
ROUNDS = 8


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(estimate, "MAX_SECONDS", 1.0)
    hidden = {name: row for name, row in PROTECTIONS.items() if not row.uses_key_holder}  # keys take seconds
    monkeypatch.setattr(estimate, "PROTECTIONS", hidden)


def estimated(folder, agreed, *options):
    """Protection -> its estimate."""
    (folder / "terms.toml").write_text(terms_to_toml(agreed))
    end = fedboost("estimate", folder / "terms.toml", *options, "--json")
    assert end.code == 0, end.err
    return {line["protection"]: line for line in map(json.loads, end.out.splitlines())}


@pytest.mark.slow
@pytest.mark.parametrize("depth", [3, 8])
@pytest.mark.parametrize("protection", ["plain", "masked"])
async def test_the_bytes_are_those_of_a_training(tmp_path, depth, protection):
    table = rows(900)
    parquet.write_table(table, tmp_path / "rows.parquet")
    agreed = masked(NAMES, max_depth=depth, rounds=ROUNDS).changed(protection=protection)
    tables = split_by_weights(table, NAMES, [1.0] * 3, 0)
    bundles = bundles_of(tmp_path / "keys", NAMES)
    async with consortium(tmp_path / "c", tables, bundles=bundles) as one:
        found = await one.train(agreed)
    sent = sum(sent for sent, _ in found.traffic.values()) / 3 / ROUNDS / 1e6
    facts = estimated(tmp_path, agreed, "--data", tmp_path / "rows.parquet")[protection]
    assert facts["megabytes"] == pytest.approx(sent, rel=0.2)
    assert facts["seconds"] > facts["seconds_a_round"] > 0
    assert facts["rows"] == 900


def test_generated_rows_and_fewer_of_them_give_bytes_of_the_same_size(tmp_path, monkeypatch):
    agreed = masked(NAMES, max_depth=4, rounds=ROUNDS)
    whole = estimated(tmp_path, agreed, "--rows", 9000)
    monkeypatch.setattr(estimate, "MAX_VALUES", 3 * 3000)
    part = estimated(tmp_path, agreed, "--rows", 9000)
    for name in ("plain", "masked"):
        assert part[name]["megabytes"] == pytest.approx(whole[name]["megabytes"], rel=0.35)
    # A round asks once a level, and its end shares a turn with the next root; masks take no more.
    assert whole["masked"]["round_trips"] == pytest.approx(whole["plain"]["round_trips"])
    assert 4 <= whole["plain"]["round_trips"] < 5


@pytest.mark.slow
def test_workers_of_a_site_have_a_share_of_its_rows(tmp_path):
    (tmp_path / "terms.toml").write_text(terms_to_toml(terms(NAMES, rounds=ROUNDS)))
    end = fedboost("estimate", tmp_path / "terms.toml", "--rows", 3_000_000, "--workers", 4, "--json")
    facts = json.loads(end.out.splitlines()[-1])
    assert facts["rows"] == 250_000
    assert facts["loading_bytes"] == int(250_000 * (6.6 * 3 + 48)) + (280 << 20)
    assert facts["growing_bytes"] == int(250_000 * (2.3 * 3 + 32)) + (305 << 20)
    assert facts["seconds_a_round"] > 0
    text = fedboost("estimate", tmp_path / "terms.toml", "--rows", 9000, "--workers", 2).out
    assert "does not leave the site" in " ".join(text.split())


def test_the_bytes_inside_a_site_are_those_of_a_training(tmp_path, monkeypatch):
    frame = rows(900).to_pandas()
    parquet.write_table(rows(900), tmp_path / "rows.parquet")
    agreed = terms(["north"], max_depth=5, rounds=ROUNDS)
    (tmp_path / "terms.toml").write_text(terms_to_toml(agreed))
    told = fedboost(
        *("estimate", tmp_path / "terms.toml", "--data", tmp_path / "rows.parquet", "--workers", 2, "--json")
    )
    receive, sizes = Link.receive, []

    def counted(link):
        sizes.append(len(answer := receive(link)))
        return answer

    monkeypatch.setattr(Link, "receive", counted)
    on_workers(agreed, {"north": shared_out(frame, [450])}, 2)
    facts = json.loads(told.out.splitlines()[-1])
    assert facts["bytes_a_round"] == pytest.approx(sum(sizes) / ROUNDS, rel=0.1)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"vote_top_k": 1}, "cannot be combined with vote_top_k"),
        ({"label_holder": "north"}, "requires parties with the same columns"),
    ],
)
def test_workers_are_not_estimated_where_they_do_something_else(tmp_path, settings, says):
    held = {"south": ["dose"]} if "label_holder" in settings else {}
    columns = {"label": "y", "numeric": ["age", "dose"], **({"held": held} if held else {})}
    more = {"rows": "in_order"} if held else {}
    agreed = terms(NAMES[:2], columns=columns, **settings, **more)
    (tmp_path / "terms.toml").write_text(terms_to_toml(agreed))
    assert refusal("estimate", tmp_path / "terms.toml", "--rows", 9000, "--workers", 2).startswith(
        f"fedboost: --workers {says}"
    )


WORKLOADS = {
    "few rows, far apart": (8, 900, ("--rtt", 200), "histograms", "one place"),
    "a wide table, a thin link": (300, 300_000, ("--rtt", 5, "--bandwidth", 0.2), "votes", "votes"),
    "many rows": (50, 20_000_000, ("--rtt", 150, "--bandwidth", 10), "histograms", "histograms"),
}
"""Features, rows, link; the fastest layout of those that hide rows, and of all. Links decide, not the
seconds of this machine."""
PER_ROW = 1e-7
"""Seconds of a round that a row takes, in place of those of this machine, which others keep busy as well."""


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKLOADS)
def test_the_layout_to_choose(tmp_path, monkeypatch, name):
    features, rows, link, hidden, fastest = WORKLOADS[name]
    monkeypatch.setattr(estimate, "MAX_VALUES", min(20_000 * features, 1_000_000))
    measured = estimate.grow

    def grow(agreed, table, *others):
        known = {"a_round": PER_ROW * table.num_rows, "deciding": 0.0, "a_row": PER_ROW, "start": 1.0}
        return replace(measured(agreed, table, *others), **known)

    monkeypatch.setattr(estimate, "grow", grow)
    columns = {"label": "y", "numeric": [f"f{number}" for number in range(features)]}
    agreed = masked(NAMES, max_depth=4, rounds=100, columns=columns)
    (tmp_path / "terms.toml").write_text(terms_to_toml(agreed))
    options = "--rows", rows, *link
    end = fedboost("estimate", tmp_path / "terms.toml", *options, "--json")
    assert end.code == 0, end.err
    lines = [line for line in map(json.loads, end.out.splitlines()) if "layout" in line]
    assert len(lines) == 5 if features > 40 else 3
    seconds = {(line["layout"], line["protection"]): line["seconds"] for line in lines}
    of_masked = {layout: seconds[layout, own] for layout, own in seconds if own == "masked"}
    assert min(of_masked, key=of_masked.get) == hidden
    assert min(seconds, key=seconds.get)[0] == fastest


@pytest.mark.slow
def test_layouts_in_words_fit_a_terminal(tmp_path):
    (tmp_path / "terms.toml").write_text(terms_to_toml(masked(NAMES, rounds=100)))
    end = fedboost("estimate", tmp_path / "terms.toml", "--rows", 900, "--rtt", 20, "--bandwidth", 12.5)
    assert max(map(len, end.out.splitlines())) <= 80
    assert "Over links of 20 ms and 12.5 Mbit/s" in end.out
    assert "votes: this layout saves bytes only with more than 40 features" in end.out
    assert "with fedboost, no row leaves its site" in " ".join(end.out.split())


@pytest.mark.slow
def test_more_parties_than_masks_take_have_an_estimate_of_plain_alone(tmp_path, monkeypatch):
    few = replace(PROTECTIONS["masked"], max_parties=5)
    for table in (PROTECTIONS, estimate.PROTECTIONS):
        monkeypatch.setitem(table, "masked", few)
    (tmp_path / "terms.toml").write_text(terms_to_toml(terms(rounds=2)))
    end = fedboost("estimate", tmp_path / "terms.toml", "--rows", 2500, "--parties", 6)
    assert end.code == 0, end.err
    assert "masked: allows at most 5 parties" in end.out
    assert set(estimated(tmp_path, terms(rounds=2), "--rows", 2500, "--parties", 6)) == {"plain"}


OBJECTIVES = {
    "multi:softprob": {"num_class": 3},
    "reg:gamma": {},
    "count:poisson": {},
    "reg:quantileerror": {"quantile_alpha": 0.5},
    "rank:ndcg": {"columns": {"label": "y", "group": "q", "numeric": ["a"], "weight": "w"}},
    "survival:aft": {"columns": {"label": "y", "label_upper_bound": "u", "numeric": ["a"]}},
    "binary:logistic": {"columns": {"label": "y", "positive": "ill", "categorical": {"c": ["x", "y"]}}},
}


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_generated_rows_fit_any_terms(objective):
    agreed = terms(objective=objective, rounds=2, **OBJECTIVES[objective])
    assert len(simulate(agreed, [table_for(agreed, 200)]).model.rounds) == 2
