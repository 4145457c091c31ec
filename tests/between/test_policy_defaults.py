"""What the default policy permitted at ebe8635, and single rows could be seen by: each is refused now, even
where the site has named parties, analysts and columns, until it allows that very key."""

import dataclasses

import numpy as np
import pytest
from raised import raised

from fedboost.errors import Refused
from fedboost.gbdt.booster import Booster
from fedboost.protocol.site import Limits, SessionOffer, TransientMemory
from fedboost.runtime.local.simulation import simulate
from fedboost.runtime.site.policy import COMMAND, PROTECTS, Policy
from fedboost.runtime.tasks import drift_terms, evaluation_terms
from fedboost.terms import continuation
from fedboost.terms.reading import read_model
from fedboost.terms.terms import Terms
from fedboost.views.approval import columns_by_role, summary

THREE = ("north", "south", "east")
FOUR = (*THREE, "west")
COLUMNS = {"label": "y", "numeric": ["age"]}


def terms(**settings):
    """Terms that a policy with names allows, but for these settings."""
    small = {"rounds": 3, "min_child_weight": 20, "max_depth": 3}
    return Terms.read({"columns": COLUMNS, "parties": THREE, **small, **settings})


def named(agreement, **rules):
    """The default policy of a site that has named what the terms name."""
    columns = {role: list(names) for role, names in columns_by_role(agreement).items()}
    names = {"parties": list(agreement.parties), "columns": columns, "analysts": ["marie"]}
    return read_model(Policy, {**names, **rules}, "party.toml")


def refusal(rules, agreement, analyst="marie"):
    """The sentence by which north refuses."""
    with pytest.raises(Refused) as error:
        rules.permit(agreement, "north", analyst=analyst)
    assert len(error.value.public.splitlines()) == 1
    return error.value.public


def continued():
    """A model whose trees put a single row of whoever continues it into a leaf, to be continued."""
    columns = terms().columns
    first = Booster(terms().objective.loss, 0.5, columns.features, (), 1, ())
    return continuation.written(first, columns)


NOISE = {"epsilon": 0.01, "delta": 1e-6}
RANGED = {**COLUMNS, "ranges": {"age": [0, 100]}}
BASED = {**COLUMNS, "base_margin": "income"}
THRESHOLDS = [f"error@{i / 1000:.3f}" for i in range(1, 251)]
NAMES = {"label": "y", "categorical": {"name": [f"person {i}" for i in range(200)]}}
CASES = {
    # 2: the largest value of a column to seven digits, and its label, in three sessions
    "base_margin": ({"columns": BASED}, "'income'"),
    "max_metrics": ({"eval_metric": ["logloss"] * 9}, "9 metrics"),
    "metrics_at_thresholds": ({"eval_metric": ["logloss", "error@0.7311"]}, "error@0.7311"),
    # two fractions around a row's public hash: that row's label
    "validation": ({"validation_fraction": 0.2}, "validation_fraction = 0.2"),
    # 5: 108 leaves of one row; a model somebody crafted; a leaf that is a label
    "max_depth": ({"max_depth": 16}, "max_depth = 16"),
    "min_rows_per_leaf": ({"min_child_weight": 1}, "min_child_weight = 1"),
    "continue_models": ({"xgb_model": continued()}, "continue a model"),
    "quantile_leaves": ({"objective": "reg:quantileerror", "quantile_alpha": 0.5}, "label of one row"),
    "risk_sums": (
        {"objective": "survival:cox", "columns": {**COLUMNS, "label_upper_bound": "z"}},
        "sums risks by time",
    ),
    "max_category_levels": ({"columns": NAMES}, "200 categories of 'name'"),
    # 11: what had no key
    "max_rounds": ({"rounds": 1001}, "rounds = 1001"),
    "vote_top_k": ({"vote_top_k": 1}, "vote_top_k = 1"),
    "max_trees_per_round": ({"num_parallel_tree": 101}, "101 trees per round"),
    "min_key_bits": (
        {"protection": "paillier", "keyholder": "east", "key_bits": 2048},
        "key_bits = 2048",
    ),
    "colluding": ({"parties": FOUR, "colluding": 0}, "0 colluding parties"),
}
BESIDES = {"min_key_bits": {"protections": "paillier"}, "risk_sums": {"min_rows_per_leaf": 1}}
"""What else those terms need of a policy."""


@pytest.mark.parametrize("key", CASES)
def test_the_default_refuses_and_that_key_allows(key):
    settings, said = CASES[key]
    agreement, besides = terms(**settings), BESIDES.get(key, {})
    sentence = refusal(named(agreement, **besides), agreement)
    assert sentence.startswith(f"site north refuses: its policy has {key} = ")
    assert said in sentence
    assert sentence.endswith(f"run `{COMMAND}` at that site")
    (breach,) = named(agreement, **besides).breaches(agreement, "marie")
    allowing = named(agreement, **besides, **{key: breach.allow})
    assert allowing.permit(agreement, "north", analyst="marie") == Limits(20, False, min_difference=10)


def test_terms_that_no_rule_is_against_are_allowed():
    assert named(terms()).permit(terms(), "north", analyst="marie") == Limits(20, False, min_difference=10)
    own = named(terms(), max_sessions=3, similar_groups=True)
    assert own.permit(terms(), "north", analyst="marie") == Limits(3, True, min_difference=10)


def test_leaves_under_noise_are_small_enough_only_with_a_budget():
    agreement = terms(columns=RANGED, noise=NOISE, min_child_weight=1)
    assert "min_rows_per_leaf = 10" in refusal(named(agreement), agreement)
    assert named(agreement, epsilon=1.0, delta=1e-5).permit(agreement, "north", analyst="marie")


def test_all_of_250_metrics_at_thresholds_are_refused():
    """Metrics error@t at 250 thresholds, with any column as base margin, bisect for its largest value."""
    agreement = terms(columns=BASED, eval_metric=THRESHOLDS)
    keys = [breach.key for breach in named(agreement).breaches(agreement)]
    assert keys == ["base_margin", "max_metrics", "metrics_at_thresholds"]


@pytest.mark.parametrize(
    ("metrics", "objective"),
    [(["error@0.5"], "binary:logistic"), ([], "reg:tweedie"), (["tweedie-nloglik@1.5"], "reg:tweedie")],
)
def test_an_objectives_own_metric_is_nobodys_threshold(metrics, objective):
    agreement = terms(eval_metric=metrics, objective=objective)
    keys = {breach.key for breach in named(agreement).breaches(agreement)}
    assert "metrics_at_thresholds" not in keys
    other = terms(eval_metric=["tweedie-nloglik@1.4"], objective="reg:tweedie")
    assert "metrics_at_thresholds" in {breach.key for breach in named(other).breaches(other)}


def test_a_column_of_persons_is_no_feature_until_the_site_names_it():
    """With the one level "person 4" of a column of names, the histogram of the root has that row's label and
    presence."""
    agreement = terms(columns={"label": "y", "numeric": ["age"], "categorical": {"name": ["person 4"]}})
    assert "parties = []" in refusal(Policy(), agreement)
    rules = named(terms())
    assert "columns.features = [...], but the terms name 'name'" in refusal(rules, agreement)


def test_a_key_holder_without_rows_is_no_party_that_rows_hide_among():
    """Two sites and a key holder were three parties, and each site learned the other's sums."""
    settings = {"protection": "paillier", "keyholder": "east", "allow_two_parties": True}
    held, without = terms(**settings), terms(**settings, keyholder_rows=False)
    rules = {"protections": "paillier"}
    assert named(held, **rules).permit(held, "north", analyst="marie")
    sentence = refusal(named(without, **rules), without)
    assert "min_parties = 3, but the terms name 2 with rows" in sentence


def test_nobody_is_allowed_anything_by_a_policy_that_says_nothing():
    assert refusal(Policy(), terms()) == (
        "site north refuses: no one there has approved these terms, and its policy has parties = [], but "
        "the terms name 'north', 'south', 'east'; "
        f"run `{COMMAND}` at that site"
    )
    columns = read_model(Policy, {"parties": list(THREE)}, "party.toml")
    assert "columns.label = []" in refusal(columns, terms(), analyst="")


def test_analysts_count_where_requests_are_signed():
    rules = named(terms())
    assert "its policy has analysts = [...], but the analyst is mallory" in refusal(rules, terms(), "mallory")
    assert rules.permit(terms(), "north")  # nothing is signed without keys
    assert "analysts = []" in refusal(named(terms(), analysts=[]), terms())
    assert named(terms(), analysts="any").permit(terms(), "north", analyst="anybody")


def test_whoever_is_asked_sees_the_ninth_feature_the_validation_column_the_metrics_and_the_analyst():
    """The text of approval = "ask" showed eight features, no metrics and no validation column."""
    numeric = [f"feature_{number}" for number in range(1, 10)]
    columns = {"label": "y", "numeric": numeric, "validation": "is_person_4"}
    agreement = terms(columns=columns, eval_metric=["auc", "error@0.25"])
    text = summary(agreement, ["marie"])
    for word in (*numeric, "is_person_4", "auc", "error@0.25", "marie"):
        assert word in text
    asked = []
    rules = named(agreement, validation=True, metrics_at_thresholds=True, approval="ask")
    rules.permit(agreement, "north", lambda words: bool(asked.append(words)) or True, "marie")
    (question,) = asked
    assert question.startswith(text)
    assert question.removeprefix(text) == "\nAnalyst marie requests this session."


def test_the_same_parties_but_one_are_another_group():
    """Four parties and then three of them: the difference is the fourth's row count and positives, exactly.
    An approval is of one digest; a policy that names all four leaves it to what the site remembers."""
    rules = named(terms(parties=FOUR))
    memory = TransientMemory(lambda size: bytes(size), "north")
    for number, parties in enumerate((FOUR, THREE)):
        agreement = terms(parties=parties)
        limits = rules.permit(agreement, "north", analyst="marie")
        offer = SessionOffer(f"session {number}", agreement, 1, "marie", bytes([number]))
        if parties == FOUR:
            memory.begin(offer, limits).meet(1)
            continue
        with raised(Refused, "groups-reveal-parties"):
            memory.begin(offer, limits)
        allowed = named(terms(parties=FOUR), similar_groups=True)
        memory.begin(offer, allowed.permit(agreement, "north", analyst="marie"))


def test_every_key_of_the_policy_has_a_reason():
    assert set(PROTECTS) == set(Policy.model_fields)


def test_a_leaf_of_the_default_has_ten_rows():
    """Nine of 40 rows that are unlike the others were a leaf of their own."""

    def splits(rows):
        side = np.arange(40) < rows
        table = {"age": side.astype(float), "y": side.astype(int)}
        agreement = terms(min_child_weight=2.5, base_score=0.5, rounds=1)
        assert named(agreement).permit(agreement, "north")
        model = simulate(agreement.changed(protection="plain", parties=[]), [table]).model
        return len(model.booster.trees[0].leaves) == 2

    assert splits(10)
    assert not splits(9)


@pytest.mark.parametrize("make", [evaluation_terms, lambda model: drift_terms(model)[0]])
@pytest.mark.parametrize("claims", [{}, {"min_child_weight": 20}])
def test_no_model_is_measured_whose_leaves_have_single_rows(make, claims):
    """By the scores of such leaves an analyst read labels and features of single people."""
    table = {"age": np.arange(60.0), "y": np.arange(60) % 2}
    tables = {name: {key: each[place::3] for key, each in table.items()} for place, name in enumerate(THREE)}
    lax = {
        "min_child_weight": 1,
        "max_depth": 8,
        "max_bin": 256,
        "gamma": 0,
        "reg_lambda": 0,
        "reference": True,
    }
    model = simulate(terms(objective="reg:squarederror", learning_rate=1.0, **lax), tables).model
    assert (model.booster.trees[0].cover == 1.0).sum() >= 8
    crafted = dataclasses.replace(model, terms=model.terms.changed(**claims))
    sentence = refusal(named(make(crafted)), make(crafted))
    assert sentence.startswith('site north refuses: its policy has evaluate = "own", but ')
