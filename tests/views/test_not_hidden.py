"""What a training is said not to hide, by what its terms hide of whom."""

import pytest

from fedboost.views.approval import NOT_HIDDEN, not_hidden, summary
from tests.helpers.columns_apart import LAYOUTS, matched, terms_of

TWO = LAYOUTS["two holders"]
LEFT = "; feature holders learn which rows go left, but no gradients"
ALONE = "which show a single row's gradient only if the row is alone in a bin"
FLOOR = "over groups of bins, each with at least 10 rows or none"


def test_parties_with_all_columns_are_told_of_the_aggregator_alone():
    assert not_hidden(terms_of()) == NOT_HIDDEN


@pytest.mark.parametrize(
    ("settings", "sums"),
    [
        ({}, f"sums of gradients by bin, {ALONE}"),
        ({"min_rows_per_bin": 10}, f"sums of gradients {FLOOR}"),
        (
            {"objective": "reg:absoluteerror"},
            f"sums of gradients by bin, {ALONE}, and for each leaf the number of rows by size of the "
            "residual",
        ),
    ],
)
def test_encrypted_gradients(settings, sums):
    assert not_hidden(terms_of(TWO, protection="paillier", **settings)) == f"the aggregator sees {sums}{LEFT}"


@pytest.mark.parametrize(
    ("agreed", "loud", "sums"),
    [
        (
            terms_of(TWO),
            "EVERY PARTY LEARNS ALL LABELS; ",
            "which show a single row's gradient if the row is alone in a bin",
        ),
        (terms_of(TWO, min_rows_per_bin=10), "EVERY PARTY LEARNS ALL LABELS; ", FLOOR),
        (terms_of(LAYOUTS["blocks"]), "EVERY PARTY LEARNS ALL LABELS OF ITS ROWS; ", "alone in a bin"),
        (
            matched(TWO, label_epsilon=2.0),
            "EVERY PARTY LEARNS ALL LABELS WITH NOISE ADDED; ",
            "by bin",
        ),
    ],
)
def test_labels_that_every_party_learns_come_first(agreed, loud, sums):
    text = not_hidden(agreed)
    assert text.startswith(loud + "the aggregator sees how many rows lie in each interval of every column, ")
    assert sums in text


@pytest.mark.parametrize(("model", "gets"), [("whole", "the"), ("parties", "the structure of the")])
def test_the_analyst_of_a_model_in_parts_gets_its_structure(model, gets):
    text = " ".join(summary(matched(TWO, model=model), ["marie"]).split())
    assert f"analyst marie: gets {gets} model and the metrics" in text
