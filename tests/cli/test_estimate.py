"""`fedboost estimate`: formulas that agree with trainings, and the layout that they choose."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from columns_apart import LAYOUTS, pooled, terms_of
from masked_consortia import masked
from raised import raised
from refusals import refusal
from sites import fedboost, terms

import fedboost as fb
from fedboost.boosting.programs.additive import MAX_SIDE
from fedboost.boosting.queries.columns import RangeQuery
from fedboost.boosting.queries.trees import SumsQuery
from fedboost.errors import ConfigError
from fedboost.gbdt.cut_points import FINE_PARTS
from fedboost.gbdt.tree import NO_SPLITS
from fedboost.holders.column_rows import PAIR_BYTES
from fedboost.privacy import packing, pairwise
from fedboost.privacy.protections import PROTECTIONS
from fedboost.protocol.contracts import MAX_CELLS
from fedboost.results import estimate as model
from fedboost.results.estimate import COLUMNS, ONE_PLACE, ROWS, VOTES, Case, predict
from fedboost.results.estimate import LAYOUTS as ALL
from fedboost.runtime.aggregator.limits import READ_AHEAD
from fedboost.runtime.tasks import terms_to_toml
from fedboost.terms import hiding

NAMES = ("north", "south", "east")
PAGE = Path(__file__).parents[2] / "docs" / "scaling.md"
WHAT_IF = ("--rows", 100_000, "--features", 50)


def estimated(*options, agreed=None, folder=None):
    """(layout, protection) -> its line; and the other lines by event."""
    file = ()
    if agreed is not None:
        (folder / "terms.toml").write_text(terms_to_toml(agreed))
        file = (folder / "terms.toml",)
    end = fedboost("estimate", *file, *options, "--json")
    assert end.code == 0, end.err
    lines = [json.loads(line) for line in end.out.splitlines()]
    return {line.get("event") or (line["layout"], line["protection"]): line for line in lines}


# ---- Bytes of real trainings ---------------------------------------------------------------------------


def generated(rows, features):
    draw = np.random.default_rng(7)
    values = draw.normal(size=(features, rows)).astype(np.float32)
    score = values[0] + values[1] * values[2] + draw.logistic(size=rows)
    return pa.table({**{f"f{number}": column for number, column in enumerate(values)}, "y": score > 0})


@pytest.mark.parametrize("parties", [3, 12])
@pytest.mark.parametrize(("protection", "votes"), [("plain", 0), ("masked", 0), ("plain", 3), ("masked", 3)])
def test_the_bytes_are_those_of_a_training(parties, protection, votes):
    table = generated(3000, 12)
    names = [f"p{number}" for number in range(parties)]
    columns = {"label": "y", "numeric": [f"f{number}" for number in range(12)]}
    settings = {"rounds": 12, "protection": protection, "vote_top_k": votes, "max_bin": 64}
    agreed = fb.Terms.read({"columns": columns, "parties": names, **settings})
    cut = 3000 // parties
    shards = {name: table.slice(number * cut, cut) for number, name in enumerate(names)}
    traffic = fb.simulate(agreed, shards).traffic
    found = predict(Case.of(agreed, 3000, parties), VOTES if votes else ROWS)
    sent = sum(sent for sent, _ in traffic.values()) / parties
    assert found.total_sent == pytest.approx(sent, rel=0.3)


@pytest.mark.parametrize("name", ["two holders", "three holders", "blocks"])
def test_the_bytes_of_columns_are_those_of_a_training(name):
    layout = LAYOUTS[name]
    names = [party for holder, others in layout.blocks for party in (holder, *others)]
    agreed = terms_of(layout, parties=names, rounds=8, max_depth=4)
    traffic = fb.simulate(agreed, layout.tables(pooled(3000))).traffic
    found = predict(Case.of(agreed, 3000, len(names)), COLUMNS if len(agreed.blocks) == 1 else model.BLOCKS)
    sent = sum(sent for sent, _ in traffic.values()) / len(names)
    assert found.total_sent == pytest.approx(sent, rel=0.3)


# ---- Properties of the formulas --------------------------------------------------------------------------

SIZES = [Case(rows, features, 4) for rows in (1e3, 1e6, 1e10) for features in (80, 20_000)]


@pytest.mark.parametrize("layout", ALL)
@pytest.mark.parametrize("case", SIZES, ids=lambda case: f"{case.rows:g} x {case.features}")
def test_more_of_anything_never_costs_less(case, layout):
    case = replace(case, adders=2 if layout == model.ADDERS else 0, groups=2 if layout == model.BLOCKS else 1)
    cost = predict(case, layout)
    parties = predict(replace(case, parties=40, adders=case.adders * 10), layout)
    assert parties.aggregator >= cost.aggregator
    for more in ({"rows": 10 * case.rows}, {"features": 2 * case.features}, {"max_depth": 8}):
        assert predict(replace(case, **more), layout).sent >= cost.sent
        assert predict(replace(case, **more), layout).seconds >= cost.seconds
    slower = replace(case, round_trip=0.1, bandwidth=1e6, aggregator_bandwidth=1e6)
    assert predict(slower, layout).seconds > cost.seconds
    assert predict(replace(case, nthread=8), layout).seconds <= cost.seconds


def test_bytes_are_proportional_to_bins_and_features():
    case = Case(1e8, 100, 5, protection=PROTECTIONS["masked"])
    sent = predict(case).sent
    assert predict(replace(case, max_bin=512)).sent == pytest.approx(2 * sent, rel=0.02)
    assert predict(replace(case, features=200, rounds=100)).sent == pytest.approx(2 * sent, rel=0.1)


def test_masks_cost_a_vector_per_neighbour_and_plain_leaves_out_empty_bins():
    case = Case(20_000, 50, 10)
    plain, hidden = predict(case), predict(replace(case, protection=PROTECTIONS["masked"]))
    assert plain.sent < hidden.sent
    assert plain.parts["masks"] == 0 < hidden.parts["masks"]
    more = predict(replace(case, protection=PROTECTIONS["masked"], parties=20)).parts["masks"]
    assert more == pytest.approx(19 / 9 * hidden.parts["masks"], rel=0.01)
    shrinking = predict(replace(case, protection=PROTECTIONS["masked"], shrinks=True))
    assert shrinking.round_trips == 2 * hidden.round_trips


def test_adders_divide_the_bytes_of_the_aggregator():
    flat = Case(1e8, 50, 1000, protection=PROTECTIONS["masked"], aggregator_bandwidth=125e6, bandwidth=125e6)
    with_adders = predict(replace(flat, adders=32), model.ADDERS)
    assert with_adders.aggregator == pytest.approx(predict(flat).aggregator * 32 / 1000)
    assert with_adders.seconds < predict(flat).seconds / 8


def test_a_session_of_one_machine_takes_all_cpu_seconds_of_its_cores():
    case = Case(1e6, 50, 10)
    assert predict(replace(case, cores=2)).seconds > predict(case).seconds
    assert predict(replace(case, cores=2)).seconds > 1.5 * predict(replace(case, cores=20)).seconds


def test_trees_are_no_larger_than_their_limits():
    nodes = [
        sum(level.weight * level.count for level in Case(*size).tree) for size in ((1e9, 9, 3), (60, 9, 3))
    ]
    assert 30 < nodes[0] <= 32
    assert nodes[1] < 8
    few = Case(1e9, 9, 3, max_leaves=4).tree
    assert sum(level.weight * level.splits for level in few) == pytest.approx(3)


def test_the_constants_are_those_of_the_modules():
    own = (
        model.CHUNK_CELLS,
        model.SPARSE,
        model.WORD_BITS,
        model.READ_AHEAD,
        model.MAX_CELLS,
        model.PAIR_BYTES,
    )
    assert own == (packing.CHUNK_CELLS, packing.SPARSE, packing.WORD_BITS, READ_AHEAD, MAX_CELLS, PAIR_BYTES)
    noisy = model.PARTS, model.ROUNDS_A_FEATURE, model.ROUNDS_A_PAIR, model.SIDE
    assert noisy == (FINE_PARTS, hiding.ROUNDS_A_FEATURE, hiding.ROUNDS_A_PAIR, MAX_SIDE)
    asked = RangeQuery(hiding.ROWS, 1, FINE_PARTS), SumsQuery(hiding.ROWS, 0, NO_SPLITS, (0,))
    assert [query.cell_bits for query in asked] == [model.COUNT_BITS, model.NOISY_PAIR_BITS / 2]
    case = Case(1e6, 9, 500, protection=PROTECTIONS["masked"])
    assert case.neighbours == pairwise.degree(500, 1)


def test_the_page_has_the_constants():
    text = PAGE.read_text().partition("<!-- constants -->")[2].partition("<!-- /constants -->")[0]
    found = dict(re.findall(r"^\| (\w+) (?:\(a share\) )?\| ([\d.,]+) \|$", text, re.MULTILINE))
    for name, value in model.CONSTANTS.items():
        shown = float(found[name].replace(",", "")) * (1 if name == "busy" else 1e-9)
        assert value == pytest.approx(shown, rel=0.01), name


# ---- The choice of a layout ------------------------------------------------------------------------------

TEXTBOOK = re.findall(r"^(fedboost estimate --rows .*)$", PAGE.read_text(), re.MULTILINE)


def test_the_page_has_the_textbook_workloads():
    text = PAGE.read_text().partition("<!-- textbook -->")[2].partition("<!-- /textbook -->")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.strip().splitlines()[2:]]
    assert [row[1] for row in rows] == [ROWS, COLUMNS, VOTES]
    assert len(rows) == len(TEXTBOOK)
    for command, row in zip(TEXTBOOK, rows, strict=True):
        lines = estimated(*command.split()[2:])
        least, shown = lines["least"], []
        for layout in (ROWS, VOTES, COLUMNS):
            line = lines[layout, "plain"]
            shown.append("not possible" if line["reason"] else f"{line['seconds']:.1f}")
        assert row[1:] == [least["layout"], *shown, least["most"]]


def test_without_links_a_table_of_few_features_is_summed_by_rows():
    lines = estimated(*WHAT_IF)
    assert lines["least"]["layout"] == ROWS
    assert lines["least"]["saved_bytes"] > 0 < lines["least"]["saved_seconds"]
    assert {(layout, "plain") for layout in (ROWS, VOTES, COLUMNS, model.BLOCKS)} < {*lines}


def test_one_place_is_never_the_choice():
    lines = estimated("--rows", 900, "--features", 8, "--rtt", 200)
    assert lines[ONE_PLACE, ""]["seconds"] < lines[ROWS, "plain"]["seconds"]
    assert lines["least"]["layout"] == ROWS
    assert lines["least"]["most"] == "round trips"


def test_fifty_thousand_features_are_as_quick_as_fifty():
    """Neither numba nor the terms are imported."""
    code = (
        "import sys; from fedboost.cli import estimate; from fedboost.results.estimate import Case, predict; "
        "predict(Case(5e5, 50_000, 16, max_bin=64), 'columns'); "
        "print({'numba', 'pyarrow', 'fedboost.terms.terms'} & {*sys.modules})"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "set()\n"


def test_terms_describe_the_training(tmp_path):
    agreed = masked(NAMES, max_depth=4, rounds=8)
    lines = estimated("--rows", 9000, agreed=agreed, folder=tmp_path)
    assert {*lines} == {
        *((ROWS, name) for name in ("masked", "plain", "paillier")),
        *((VOTES, "masked"), (ONE_PLACE, ""), "least"),
    }
    assert lines[ROWS, "masked"]["total_sent"] > 8 * lines[ROWS, "masked"]["sent"]
    assert lines[VOTES, "masked"]["reason"] == "votes save bytes only with more than 40 features"
    many = estimated("--rows", 9000, "--parties", 1001, "--adders", 9, agreed=terms(NAMES), folder=tmp_path)
    assert many[model.ADDERS, "masked"]["reason"] == "protection masked needs 3 to 1,000 parties"
    assert (model.ADDERS, "plain") in many


def test_terms_of_columns_are_compared_with_encryption(tmp_path):
    agreed = terms_of(LAYOUTS["three holders"], parties=["bank", "telco", "shop"])
    lines = estimated("--rows", 10_000, agreed=agreed, folder=tmp_path)
    assert lines["least"]["layout"] == COLUMNS
    assert lines[COLUMNS, "paillier"]["parts"]["masks"] > 100 * lines[COLUMNS, "plain"]["parts"]["rows"]
    ids = agreed.changed(
        columns={**agreed.columns.model_dump(exclude_unset=True), "row_id": "id"}, rows="common"
    )
    matched = estimated("--rows", 10_000, agreed=ids, folder=tmp_path)
    assert matched[COLUMNS, "plain"]["total"] > lines[COLUMNS, "plain"]["total"]


def test_workers_of_a_site_have_a_share_of_its_rows():
    facts = estimated("--rows", 3_000_000, "--features", 3, "--workers", 4)["workers"]
    assert facts["rows"] == 250_000
    assert facts["loading_bytes"] == int(250_000 * (6.6 * 3 + 48)) + (280 << 20)
    assert facts["growing_bytes"] == int(250_000 * (2.3 * 3 + 32)) + (305 << 20)
    assert facts["seconds_a_round"] > 0


def test_in_words_it_fits_a_terminal(tmp_path):
    (tmp_path / "terms.toml").write_text(terms_to_toml(masked(NAMES, rounds=100)))
    end = fedboost("estimate", tmp_path / "terms.toml", "--rows", 9000, "--rtt", 20, "--workers", 2)
    assert max(map(len, end.out.splitlines())) <= 80
    text = " ".join(end.out.split())
    assert "Least under masked: rows" in text
    assert "Most of it is waiting for round trips" in text
    assert "fedboost never does" in text
    assert "votes: votes save bytes only with more than 40 features" in text
    assert "does not leave the site" in text


# ---- Errors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "specify a terms file, or --features (the number of features)"),
        ((*WHAT_IF[2:], "--rtt", "-1"), "--rtt is -1; specify milliseconds from 0 to 60,000"),
        ((*WHAT_IF[2:], "--bandwidth", 0), "--bandwidth is 0; specify Mbit/s from 0.001 to 1,000,000"),
        ((*WHAT_IF[2:], "--aggregator-bandwidth", "nan"), "--aggregator-bandwidth is nan; specify"),
        (
            (*WHAT_IF[2:], "--protection", "mask"),
            "--protection is mask; choose one of: plain, masked, paillier",
        ),
        ((*WHAT_IF[2:], "--adders", 4), "--adders is 4, but there are 3 parties"),
        ((*WHAT_IF[2:], "--parties", 200), "--rows is 100, but 200 parties need at least one row each"),
    ],
)
def test_what_cannot_be_is_refused(options, words):
    assert words in refusal("estimate", "--rows", 100, *options)


def test_options_of_other_terms_are_refused(tmp_path):
    (tmp_path / "terms.toml").write_text(terms_to_toml(terms(NAMES)))
    told = refusal("estimate", tmp_path / "terms.toml", "--rows", 900, "--max-bin", 64)
    assert "--max-bin is for estimates without terms; change" in told
    (tmp_path / "apart.toml").write_text(
        terms_to_toml(terms_of(LAYOUTS["two holders"], parties=["bank", "telco"]))
    )
    told = refusal("estimate", tmp_path / "apart.toml", "--rows", 900, "--parties", 5)
    assert "--parties requires parties with the same columns" in told


def test_a_training_that_no_layout_allows_has_an_error():
    with raised(ConfigError, "estimate-no-layout"):
        model.least_of([predict(Case(1e6, 60_000, 3, max_depth=12), layout) for layout in (ROWS, ONE_PLACE)])
