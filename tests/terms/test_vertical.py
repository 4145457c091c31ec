"""Terms of parties that hold different columns of the same rows."""

import pytest

import fedboost as fb
from fedboost.errors import ConfigError

COLUMNS = {"label": "y", "numeric": ["a", "b", "c"], "categorical": {"d": ["x", "y"]}}
PARTIES = ["bank", "telco", "shop"]
HELD = {"telco": ["b"], "shop": ["c", "d"]}


def terms(held=HELD, **settings):
    """Terms of one block."""
    columns = {**COLUMNS, "held": held, **settings.pop("columns", {})}
    basis = {"protection": "plain", "parties": PARTIES, "label_holder": "bank", "rows": "in_order"}
    return fb.Terms.read({"columns": columns, "rounds": 2, **basis, **settings})


def refusal(*arguments, **settings):
    with pytest.raises(ConfigError) as caught:
        terms(*arguments, **settings)
    return str(caught.value)


def block(*parties):
    return {"parties": list(parties), "label_holder": parties[0]}


def test_each_party_has_its_columns():
    agreed = terms()
    assert agreed.blocks.columns_of("bank").features == ("a",)
    assert agreed.blocks.columns_of("bank").others == ("y",)
    assert agreed.blocks.columns_of("telco").features == ("b",)
    assert agreed.blocks.columns_of("shop").features == ("c", "d")
    assert agreed.blocks.columns_of("shop").others == ()
    assert [agreed.blocks.has_labels(party) for party in PARTIES] == [True, False, False]


def test_columns_of_each_block_are_apart():
    parties = ["bank", "telco", "bank2", "telco2"]
    agreed = terms(
        {"telco": ["b", "c"], "telco2": ["a"]},
        parties=parties,
        label_holder=None,
        blocks=[block("bank", "telco"), block("bank2", "telco2")],
    )
    own = [agreed.blocks.columns_of(party).features for party in parties]
    assert own == [("a", "d"), ("b", "c"), ("b", "c", "d"), ("a",)]


def test_a_label_holder_may_have_no_columns():
    agreed = terms({"telco": ["a", "b"], "shop": ["c", "d"]})
    assert agreed.blocks.columns_of("bank").features == ()


def test_the_digest_depends_on_who_holds_what():
    digests = {
        terms().digest,
        terms({"telco": ["c"], "shop": ["b", "d"]}).digest,
        terms({"telco": ["b"], "shop": ["c"]}).digest,
        terms(label_holder="telco", held={"bank": ["b"], "shop": ["c", "d"]}).digest,
        terms(label_holder=None, blocks=[block("bank", "telco", "shop")]).digest,
    }
    assert len(digests) == 5


def test_canonical_terms_are_read_back():
    agreed = terms(label_holder=None, blocks=[block("bank", "telco", "shop")])
    assert fb.Terms.from_canonical(agreed.canonical()) == agreed


def test_terms_with_all_columns_at_each_party_say_nothing_of_it():
    text = terms({}, label_holder=None, rows=None).canonical()
    assert not any(key in text for key in ("held", "label_holder", "blocks"))


def test_parties_of_a_simulation_may_be_named_later():
    agreed = terms(parties=[])
    assert agreed.with_parties(PARTIES).blocks.columns_of("telco").features == ("b",)


@pytest.mark.parametrize(
    ("held", "settings", "words"),
    [
        (
            HELD,
            {"label_holder": "bonk"},
            "label_holder 'bonk' is not one of the parties (did you mean bank?)",
        ),
        ({"telco": ["b"]}, {}, "columns.held lists no columns for party 'shop': list at least one"),
        ({**HELD, "shop": ["b"]}, {}, "column 'b' is held by telco and by shop: list it once"),
        ({**HELD, "bank": ["a"]}, {}, "columns.held names the label holder 'bank'"),
        (
            {**HELD, "tolco": ["a"]},
            {},
            "columns.held names 'tolco', which is not one of the parties (did you",
        ),
        (
            {**HELD, "shop": ["e"]},
            {},
            "columns: held lists column 'e' of party 'shop', which is not a feature",
        ),
        (
            {**HELD, "shop": ["y"]},
            {},
            "columns: held lists column 'y' of party 'shop', which is the label: the label holder has it",
        ),
        ({**HELD, "shop": ["c", "c"]}, {}, "columns: held lists a column of party 'shop' more than once"),
        (
            HELD,
            {"label_holder": None},
            "columns.held is only for parties that hold different columns: set label_holder, or remove it",
        ),
        (
            HELD,
            {"blocks": [block(*PARTIES)]},
            "blocks with label_holder: set it only in each of [[blocks]]",
        ),
        (HELD, {"parties": ["bank"]}, "columns.held names"),
        ({}, {"parties": ["bank"]}, "label_holder 'bank' is the only party of its block: add"),
        (
            HELD,
            {"label_holder": None, "blocks": [block("bank", "telco")]},
            "party 'shop' is in no block: put each party into exactly one block",
        ),
        (
            HELD,
            {"label_holder": None, "blocks": [block(*PARTIES), block("shop", "telco")]},
            "party 'telco' is in more than one block: put each party into exactly one block",
        ),
        (
            HELD,
            {"label_holder": None, "blocks": [block(*PARTIES, "east")]},
            "blocks names 'east', which is not one of the parties",
        ),
        (
            HELD,
            {"protection": "masked"},
            "label_holder with protection masked: it hides a party only among others",
        ),
        (
            HELD,
            {"grow_policy": "symmetric", "min_rows_per_bin": 10},
            "grow_policy symmetric with min_rows_per_bin: each node has its own groups of bins",
        ),
        (HELD, {"vote_top_k": 2}, "label_holder with vote_top_k: no party has all features to vote on"),
        (HELD, {"on_loss": "shrink"}, 'label_holder with on_loss = "shrink": no other party has the columns'),
        (HELD, {"party_metrics": True}, "label_holder with party_metrics: only the label holder has labels"),
        (
            HELD,
            {"sampling_method": "gradient_based", "subsample": 0.5},
            "label_holder with sampling_method gradient_based: only the label holder has gradients; set "
            "uniform",
        ),
        (HELD, {"program": "mine"}, "label_holder with program 'mine': set boosting"),
        (
            HELD,
            {"alone_rounds": 11, "rounds": 10},
            "label_holder with alone_rounds = 11: the terms have only rounds = 10",
        ),
        (HELD, {"alone_rounds": -1}, "alone_rounds"),
        (
            HELD,
            {"label_holder": None, "blocks": [block(*PARTIES)], "alone_rounds": 1},
            "blocks with alone_rounds: label holders have different columns; set label_holder",
        ),
        (
            {"telco": ["a", "b"], "shop": ["c", "d"]},
            {"alone_rounds": 1},
            "alone_rounds: label holder 'bank' has no features that these rounds could use",
        ),
        (
            {},
            {"label_holder": None, "rows": None, "alone_rounds": 1},
            "alone_rounds is only for parties that hold different columns: set label_holder, or remove it",
        ),
        (HELD, {"min_rows_per_bin": 0}, "min_rows_per_bin"),
        (
            HELD,
            {"min_rows_per_bin": 5, "num_parallel_tree": 2},
            "label_holder with min_rows_per_bin and 2 trees a round: their sums are over nearly",
        ),
        (
            HELD,
            {"label_holder": None, "blocks": [block(*PARTIES)], "min_rows_per_bin": 5},
            "blocks with min_rows_per_bin: each block would have its own groups of bins; set label_holder",
        ),
        (
            {},
            {"label_holder": None, "rows": None, "min_rows_per_bin": 5},
            "min_rows_per_bin is only for parties that hold different columns: set label_holder",
        ),
        (
            HELD,
            {"predict_with": "0" * 64},
            "predict_with and predict_rows must be set together: set both or neither",
        ),
        (
            HELD,
            {"predict_rows": 5},
            "predict_with and predict_rows must be set together: set both or neither",
        ),
        (
            HELD,
            {"predict_with": "0" * 64, "predict_rows": 5},
            'predict_rows: rows are matched by their ids, so remove rows = "in_order"',
        ),
        (HELD, {"predict_with": "model.json", "predict_rows": 5}, "predict_with"),
        (
            {"telco": ["b"], "shop": ["c", "d"]},
            {"label_holder": None, "blocks": [block(*PARTIES)], "model": "parties"},
            'blocks with model = "parties": each split must have a single holder; set label_holder',
        ),
    ],
)
def test_what_cannot_be_is_refused_with_one_line(held, settings, words):
    line = refusal(held, **settings)
    assert words in line
    assert "\n" not in line


def test_terms_of_a_prediction_train_nothing():
    """Without labels, and without what stands beside them but the margins to begin from."""
    columns = {"row_id": "id", "weight": "w", "base_margin": "m"}
    trained = terms(columns=columns, rows=None, protection="paillier")
    predicts = trained.changed(predict_with="0" * 64, predict_rows=7)
    assert predicts.blocks.columns_of("bank").others == ("m", "id")
    assert predicts.blocks.columns_of("bank").features == ("a",)
    assert predicts.protection.name == "plain"
    assert trained.hides_columns
    assert not predicts.hides_columns
    assert len({trained.digest, predicts.digest, predicts.changed(predict_rows=8).digest}) == 3


def test_parts_of_a_model_stay_with_the_parties_unless_labels_are_no_secret():
    assert terms(protection="paillier").keeps_parts
    assert not terms(protection="paillier", model="whole").keeps_parts
    assert not terms().keeps_parts
    assert terms(model="parties").keeps_parts
    assert terms(model="parties").digest != terms().digest


def test_first_rounds_alone_are_another_digest():
    agreed = terms(alone_rounds=2)
    assert agreed.digest != terms().digest == terms(alone_rounds=0).digest
    assert fb.Terms.from_canonical(agreed.canonical()) == agreed
    assert [agreed.vertical.grows_alone(tree) for tree in range(4)] == [True, True, False, False]
    assert "alone_rounds" not in terms().canonical()


def test_a_floor_under_bins_is_another_digest():
    agreed = terms(min_rows_per_bin=10)
    assert agreed.digest != terms().digest == terms(min_rows_per_bin=1).digest
    assert fb.Terms.from_canonical(agreed.canonical()) == agreed
    assert "min_rows_per_bin" not in terms(min_rows_per_bin=1).canonical()
