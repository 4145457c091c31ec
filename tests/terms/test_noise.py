"""Terms with noise: defaults, and what noise cannot go with."""

import pytest
from all_terms import RANGES, noisy, refusal_of, terms, with_columns

from fedboost.errors import ConfigError
from fedboost.terms.terms import Terms


def test_noise_has_its_own_defaults():
    one = noisy()
    assert (one.trees.rounds, one.trees.max_depth) == (4 * 3 + 2 * 3, 7)
    assert (one.metrics, one.sets, one.needs_exponent_counts) == ((), (), False)
    assert noisy(rounds=7, max_depth=5).trees.rounds == 7
    assert noisy(rounds=18, max_depth=7).digest == one.digest
    assert Terms.from_canonical(one.canonical()).digest == one.digest
    without = with_columns(ranges=RANGES)
    assert without.changed(noise={"epsilon": 1.0, "delta": 1e-6}).digest == one.digest
    assert one.changed(noise=None).digest == without.digest


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"noise": {"epsilon": 1.0}}, "'noise.delta' is missing"),
        ({"noise": {"epsilon": True, "delta": 1e-6}}, "noise.epsilon: expected a number, got True"),
        ({"noise": 1.0}, r"noise: expected a table, \{ key = value \}, got 1.0"),
        (
            {"noise": {"epsilon": 1.0, "delta": 1e-6}, "monotone_constraints": {"a": 1}},
            "monotone_constraints with noise: it would have no effect; remove it",
        ),
        ({"noise": {"epsilon": 0.0, "delta": 1e-6}}, "noise.epsilon"),
        ({"noise": {"epsilon": 100.0, "delta": 1e-6}}, "noise.epsilon"),
        ({"noise": {"epsilon": 1.0, "delta": 0.01}}, "noise.delta"),
        ({"noise": {"epsilon": 1.0, "delta": 1e-6, "placment": "local"}}, "did you mean placement"),
        (
            {"columns": {"ranges": {"a": [0, 1]}}},
            "noise needs the range of every numeric column, but 'b' has none: set e.g. columns.ranges",
        ),
        (
            {"columns": {"ranges": {"a": [0, 1], "b": [1, 1]}}},
            "columns: ranges: the range of 'b' must be two numbers, with the lower one first",
        ),
        (
            {"columns": {"ranges": {"a": [0, 1], "bb": [0, 1]}}},
            "columns: ranges names 'bb', which is not a numeric column",
        ),
        ({"columns": {"weight": "w"}}, "columns.weight with noise"),
        ({"columns": {"base_margin": "m"}}, "columns.base_margin with noise"),
        ({"objective": "reg:gamma"}, "reg:gamma does not limit"),
        ({"objective": "reg:squarederror"}, "columns.label_range = "),
        (
            {"objective": "reg:squarederror", "columns": {"label_range": [0, 5e-324]}},
            "label_range is too narrow to scale gradients; widen it",
        ),
        (
            {"objective": "count:poisson", "columns": {"label_range": [0, 1e-300]}},
            "label_range is too narrow to scale gradients; widen it",
        ),
        (
            {"objective": "count:poisson", "columns": {"label_range": [-1, 9]}},
            "label_range starts at -1, but labels of count:poisson cannot be negative",
        ),
        ({"eval_metric": "auc"}, "eval_metric with noise: metrics would need"),
        ({"validation_fraction": 0.2}, "validation_fraction with noise"),
        ({"subsample": 0.5}, "subsample with noise"),
        ({"vote_top_k": 1}, "vote_top_k with noise"),
        ({"max_leaves": 5}, "max_leaves with noise"),
        (
            {"grow_policy": "symmetric"},
            "grow_policy with noise: it would have no effect; remove it",
        ),
        ({"on_loss": "shrink"}, "an additional release"),
        ({"protection": "plain"}, "share of the noise"),
    ],
)
def test_what_noise_cannot_go_with_says_why(settings, said):
    with pytest.raises(ConfigError, match=said) as raised:
        noisy(**settings)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("parties", "colluding", "honest"), [(3, None, 2), (4, None, 3), (6, 3, 3)])
def test_one_party_always_may_subtract_its_own_noise(parties, colluding, honest):
    names = [f"p{number}" for number in range(parties)]
    assert noisy(parties=names, colluding=colluding).honest == honest


@pytest.mark.parametrize(("parties", "colluding", "honest"), [(3, None, 2), (4, None, 3), (6, 3, 3)])
def test_a_key_holder_without_rows_draws_no_share_of_noise(parties, colluding, honest):
    """Beside so many parties with rows, the plan is as without it: as many shares, as many of them honest."""
    names = [f"p{number}" for number in range(parties)]
    encrypted = {"protection": "paillier", "colluding": colluding, "keyholder": "keys"}
    without = noisy(parties=[*names, "keys"], keyholder_rows=False, **encrypted)
    assert without.holders == tuple(names)
    assert without.honest == honest
    assert without.plan == noisy(parties=names, colluding=colluding).plan
    assert noisy(parties=[*names, "keys"], **encrypted).honest == honest + 1


FOUR = ["north", "south", "east", "keys"]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"parties": ["north", "south", "keys"], "keyholder_rows": False},
            "needs 3 parties with rows, but the terms name only 2 in addition to key holder keys (each of",
        ),
        ({"parties": ["north", "keys"]}, "needs 3 parties with rows, but the terms name only 2 (each of two"),
        (
            {"parties": ["north", "keys"], "keyholder_rows": False, "allow_two_parties": True},
            "needs 2 parties with rows, but the terms name only 1 in addition to key holder keys; add",
        ),
        (
            {"parties": FOUR, "keyholder_rows": False, "colluding": 2},
            "hides no one if 2 of 3 parties with rows collude (including the key holder): at "
            "least two must not collude, so set colluding to at most 1",
        ),
        (
            {"parties": FOUR, "colluding": 3},
            "hides no one if 3 of 4 parties with rows collude (including the key holder)",
        ),
        ({"parties": [*(f"p{n}" for n in range(100)), "keys"]}, "allows at most 100 parties"),
    ],
)
def test_parties_without_rows_hide_nobody(settings, says):
    refused = refusal_of(protection="paillier", keyholder="keys", **settings)
    assert f"protection paillier {says}" in refused
    assert "\n" not in refused
    assert "masked" not in refused


def test_encrypted_sums_take_three_parties_with_rows_or_two_that_are_allowed():
    encrypted = {"protection": "paillier", "keyholder": "keys"}
    assert terms(**encrypted, parties=["north", "south", "keys"]).holders == ("north", "south", "keys")
    without = {**encrypted, "keyholder_rows": False}
    assert terms(**without, parties=FOUR, colluding=1).holders == ("north", "south", "east")
    two = terms(**without, parties=["north", "south", "keys"], allow_two_parties=True)
    assert two.holders == ("north", "south")


@pytest.mark.parametrize("protection", ["masked", "plain"])
def test_whether_a_key_holder_has_rows_is_for_encrypted_sums(protection):
    assert f"keyholder_rows is only for protection paillier, not {protection}" in refusal_of(
        protection=protection, keyholder_rows=False
    )
