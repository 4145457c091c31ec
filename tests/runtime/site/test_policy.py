"""A site's policy: every rule refuses and accepts, before a row is read, with a sentence for the analyst."""

import numpy as np
import pytest
from policies import THREE, accepted, answer, offered, policy, refused
from sites import terms

from fedboost.errors import ConfigError, Refused
from fedboost.fixedpoint import Scale
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.kernels.objectives import logistic_gradients
from fedboost.runtime.local.simulation import simulate
from fedboost.terms import continuation
from fedboost.views.approval import summary


def weighted(**settings):
    """Terms with a column of row weights, and one of base margins."""
    columns = {"label": "y", "weight": "w", "base_margin": "m", "numeric": ["age", "dose"]}
    return offered(columns=columns, **settings)


# ---- rules ------------------------------------------------------------------------------------------


def test_a_site_that_names_parties_and_columns_takes_part_where_masks_protect_it_and_nowhere_else():
    assert accepted(policy(), offered())
    assert refused(policy(), offered(protection="plain")) == (
        'protections = ["masked"], but the terms have protection = "plain"'
    )
    assert refused(policy(), offered(THREE[:2], allow_two_parties=True)) == (
        "min_parties = 3, but the terms name 2"
    )


def test_protections():
    assert accepted(policy(protections=["plain"]), offered(protection="plain"))
    assert accepted(policy(protections=["plain", "masked"]), offered())
    assert refused(policy(protections="plain"), offered()).startswith('protections = ["plain"], but')


def test_a_roster_that_changes_is_taken_part_in_where_the_site_says_so():
    """The difference of sums over two rosters is a sum over fewer parties than any of them."""
    five = ("north", "south", "east", "west", "centre")
    assert refused(policy(), offered(five, on_loss="shrink")) == (
        'on_loss = ["wait", "stop"], but the terms have on_loss = "shrink"'
    )
    assert accepted(policy(), offered(five, on_loss="stop"))
    assert accepted(policy(on_loss=["wait", "shrink"]), offered(five, on_loss="shrink"))
    assert accepted(policy(on_loss="shrink"), offered(five, on_loss="shrink"))
    assert "on_loss" in refused(policy(on_loss="shrink"), offered(five))
    text = " ".join(summary(offered(five, on_loss="shrink")).split())
    assert (
        "5: north, south, east, west, centre; if some are lost, the session continues with at least 4" in text
    )
    # Without masks the aggregator sees each party's own numbers anyway.
    assert accepted(policy(protections=["plain"]), offered(five, protection="plain", on_loss="shrink"))


def test_min_parties():
    assert accepted(policy(min_parties=2), offered(THREE[:2], allow_two_parties=True))
    assert refused(policy(min_parties=4), offered()) == "min_parties = 4, but the terms name 3"


SIX = ("north", "south", "east", "west", "centre", "far")


def lacking(**absent):
    columns = {"label": "y", "numeric": ["age", "dose"], "absent": absent}
    return offered(SIX, columns=columns)


def test_min_parties_counts_those_that_absent_columns_set_apart():
    """Rows that lack a column can be told from others by it, so sums over them are over few parties."""
    rules = {"columns": "any", "parties": "any"}
    others = {name: ["dose"] for name in ("south", "east")}
    assert accepted(policy(**rules), lacking(**others))
    assert accepted(policy(**rules), lacking(north=["dose"], **others))
    sums = "some sums are over only {} of 6 parties, this one included"
    why = f"min_parties = 3, but with dose in columns.absent, {sums}"
    assert refused(policy(**rules), lacking(north=["dose"])) == why.format(1)
    assert refused(policy(**rules), lacking(north=["dose"], east=["dose"])) == why.format(2)
    crossed = lacking(north=["dose"], south=["dose"], east=["dose", "age"], west=["age"])
    assert refused(policy(**rules), crossed) == why.format(2)
    assert accepted(policy(**rules, min_parties=2), crossed)
    plain = policy(**rules, protections=["plain"])  # nothing is hidden anyway
    assert accepted(plain, lacking(north=["dose"]).changed(protection="plain"))
    counts = lacking(north=["dose"]).changed(program="describe")  # no tree joins columns
    assert accepted(policy(**rules), counts)


def test_bins_of_time_have_as_many_events_as_other_counts():
    columns = {"label": "t", "label_upper_bound": "u", "numeric": ["age"]}
    asked, rules = offered(columns=columns, objective="survival:cox"), policy(columns="any", risk_sums=True)
    assert accepted(rules, asked)
    assert refused(rules, asked.changed(min_count=9)) == "min_count = 10, but the terms have min_count = 9"


def test_results_by_levels_of_an_absent_column_set_apart_those_that_lack_it():
    """Their rows are those without a declared level."""
    columns = {"label": "y", "numeric": ["age"], "categorical": {"sex": ["F", "M"]}}
    columns["absent"] = {"north": ["sex"]}
    known = offered(SIX, columns=columns)
    one = Booster(known.objective.loss, 0.5, known.columns.features, (), 1, ("sex",))
    model = continuation.written(one, known.columns)
    asked = known.changed(program="evaluate", subgroups=["sex"], xgb_model=model)
    opened = policy(columns="any", parties="any", evaluate="any", subgroups=True)
    assert refused(opened, asked).startswith(
        "min_parties = 3, but with sex in columns.absent, some sums are over only 1"
    )
    assert accepted(opened, asked.changed(subgroups=[]))


def test_subsample():
    """Sums over sets of rows that are known add up to single rows, masks or not."""
    assert refused(policy(), offered(subsample=0.9)) == "subsample = 1, but the terms have subsample = 0.9"
    assert accepted(policy(subsample=0.5), offered(subsample=0.5))
    assert refused(policy(subsample=0.5), offered(subsample=0.4)).startswith("subsample = 0.5")
    plain = policy(subsample=1, protections=["plain"])
    assert accepted(plain, offered(subsample=0.4, protection="plain"))
    by_gradients = {"subsample": 0.4, "sampling_method": "gradient_based"}
    assert refused(policy(subsample=0.5), offered(**by_gradients)).startswith("subsample = 0.5")
    assert accepted(policy(subsample=0.4), offered(**by_gradients))


def test_a_bootstrap_draws_rows_whatever_its_share():
    """Whoever knows how often each row counts has equations as many as trees."""
    terms = offered(sampling_method="bootstrap")
    assert refused(policy(), terms) == (
        "subsample = 1, but the terms have subsample = 1 with bootstrap sampling, which draws 0.63 of the "
        "rows"
    )
    assert accepted(policy(subsample=0.6), terms)
    assert refused(policy(subsample=0.6), offered(sampling_method="bootstrap", subsample=0.8))
    assert accepted(policy(protections=["plain"]), offered(sampling_method="bootstrap", protection="plain"))


@pytest.mark.parametrize("method", ["gradient_based", "bootstrap"])
def test_rows_that_weigh_more_than_one_promise_no_number_of_them(method):
    rules = policy(min_rows_per_leaf=5, subsample=0.1)
    terms = {"subsample": 0.5, "min_child_weight": 5.0, "objective": "reg:squarederror"}
    assert accepted(rules, offered(**terms))
    assert refused(rules, offered(sampling_method=method, **terms)) == (
        f"min_rows_per_leaf = 5, but no minimum is guaranteed: rows drawn by sampling_method = "
        f'"{method}" have weights above 1'
    )


def test_party_metrics():
    """A sum over the rows of one site is open, masks or not."""
    open_ones = offered(party_metrics=True)
    assert refused(policy(), open_ones) == "party_metrics = false, but the terms have party_metrics = true"
    assert accepted(policy(party_metrics=True), open_ones)
    assert accepted(policy(protections=["plain"]), offered(party_metrics=True, protection="plain"))
    assert "never the numbers of a single one, except the metrics of any one site other sites" in " ".join(
        summary(open_ones).split()
    )
    assert "but for" not in summary(offered())


def test_max_rounds():
    assert accepted(policy(max_rounds=50), offered(rounds=50))
    assert refused(policy(max_rounds=50), offered(rounds=51)) == (
        "max_rounds = 50, but the terms have rounds = 51"
    )


OF_ROLE = {
    "label": ["y", "other"],
    "features": ["age", "dose", "secret"],
    "weight": ["w", "other"],
    "base_margin": ["m", "other"],
}


@pytest.mark.parametrize(
    ("role", "forbidden"),
    [("label", "y"), ("weight", "w"), ("base_margin", "m"), ("features", "age"), ("features", "dose")],
)
def test_columns_are_allowed_by_role(role, forbidden):
    assert accepted(policy(columns=OF_ROLE, base_margin=True), weighted())
    fewer = {**OF_ROLE, role: [name for name in OF_ROLE[role] if name != forbidden]}
    assert refused(policy(columns=fewer, base_margin=True), weighted()) == (
        f"columns.{role} = [...], but the terms name '{forbidden}', which is not among them"
    )
    without = {name: names for name, names in OF_ROLE.items() if name != role}
    assert refused(policy(columns=without, base_margin=True), weighted()).startswith(f"columns.{role} = [], ")


def test_a_column_for_one_role_is_not_one_for_another():
    rules = policy(columns={"label": "age", "features": ["y", "dose", "ward", "age"]})
    assert refused(rules, offered()).startswith("columns.label = [...], but the terms name 'y'")


def test_the_columns_a_site_allows_are_not_told_to_the_analyst():
    rules = policy(columns={"label": "y", "features": "secret"})
    assert "secret" not in refused(rules, offered())
    with pytest.raises(Refused, match="the policy allows secret"):  # the site's own log says it
        rules.permit(offered(), "north")
    assert "..." in refused(policy(parties=["north", "quiet"]), offered())
    assert "quiet" not in refused(policy(parties=["north", "quiet"]), offered())


@pytest.mark.parametrize(
    ("objective", "least", "enough"),
    [("binary:logistic", 7, 1.75), ("reg:squarederror", 7, 7.0), ("binary:logistic", 2, 0.5)],
)
def test_min_rows_per_leaf_wants_the_min_child_weight_that_guarantees_it(objective, least, enough):
    rules = policy(min_rows_per_leaf=least)
    assert accepted(rules, offered(objective=objective, min_child_weight=enough))
    rows = enough / least
    too_little = (least - 1) * rows  # guarantees one row less
    assert accepted(rules, offered(objective=objective, min_child_weight=np.nextafter(too_little, enough)))
    assert refused(rules, offered(objective=objective, min_child_weight=too_little)) == (
        f"min_rows_per_leaf = {least}, but the terms have min_child_weight = {too_little:g}, which with "
        f"{objective} guarantees {least - 1} row{'s' * (least > 2)} in a leaf"
    )
    assert f"; set min_child_weight = {enough:g}, or run" in answer(
        rules, offered(objective=objective, min_child_weight=too_little)
    )


def test_min_rows_per_leaf_is_refused_where_the_terms_guarantee_nothing():
    rules = policy(min_rows_per_leaf=2)
    columns = offered().columns
    first = Booster(offered().objective.loss, 0.5, columns.features, (), 1, tuple(columns.categorical))
    again = offered(min_child_weight=9, xgb_model=continuation.written(first, columns))
    assert accepted(policy(continue_models=True), again)
    assert refused(rules, again) == (
        "continue_models = false, but the terms continue a model (xgb_model), whose trees may isolate "
        "individual rows"
    )
    rules = policy(min_rows_per_leaf=2, base_margin=True)
    assert refused(rules, weighted(min_child_weight=1e300)) == (
        "min_rows_per_leaf = 2, but no minimum is guaranteed with the row weights of column 'w'"
    )
    assert refused(rules, offered(scale_pos_weight=2.0, min_child_weight=1e300)) == (
        "min_rows_per_leaf = 2, but no minimum is guaranteed with scale_pos_weight"
    )
    assert refused(rules, offered(program="sites:other", min_child_weight=1e300)) == (
        "min_rows_per_leaf = 2, but no minimum is guaranteed with the program 'sites:other'"
    )
    assert accepted(policy(base_margin=True), weighted(program="sites:other", min_child_weight=0))


@pytest.mark.parametrize(("objective", "per_row"), [("binary:logistic", 0.25), ("reg:squarederror", 1.0)])
def test_the_guaranteed_rows_are_what_training_keeps_to(objective, per_row):
    def splits(rows_on_one_side):
        side = np.arange(40) < rows_on_one_side
        setting = terms(
            objective=objective,
            columns={"label": "y", "numeric": ["x"]},
            rounds=1,
            base_score=0.5,
            min_child_weight=7 * per_row,
        )
        table = {"x": side.astype(np.float64), "y": side.astype(np.int64)}
        return len(simulate(setting, [table]).model.booster.trees[0].leaves) == 2

    assert accepted(policy(min_rows_per_leaf=7), offered(objective=objective, min_child_weight=7 * per_row))
    assert splits(7)
    assert not splits(6)


@pytest.mark.parametrize("bits", [8, 16, 24])
def test_no_rounded_hessian_is_above_its_bound_whatever_the_scale(bits):
    label = np.array([0.0, 1.0] * 500, np.float32)
    margin = np.concatenate([np.linspace(-9, 9, 500), np.linspace(-1e-7, 1e-7, 500)])
    _, hessian = logistic_gradients(margin, label, np.ones(1000, np.float32))
    assert hessian.max() == 0.25
    for exponent in range(-8, 40):
        scale = Scale(exponent, bits)
        assert scale.encode(hessian).max() / scale.factor <= 0.25
        assert scale.encode(np.ones(1))[0] / scale.factor <= 1.0


# ---- the file ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "fault"),
    [
        ({"min_partys": 3}, "unknown key 'min_partys' (did you mean min_parties?)"),
        ({"protections": []}, "protections: "),
        ({"protections": ["msked"]}, "protections.0: "),
        ({"min_parties": 0}, "min_parties: "),
        ({"min_rows_per_leaf": 0}, "min_rows_per_leaf: "),
        ({"max_rounds": 0}, "max_rounds: "),
        ({"approval": "never"}, 'approval: specify "auto" or "ask"'),
        ({"approval": ["a" * 64]}, "to approve particular terms, run `fedboost approve"),
        ({"parties": [""]}, "parties"),
        ({"max_depth": 0}, "max_depth: "),
        ({"columns": ["y", "age"]}, 'columns: specify columns by role, e.g. { label = ["y"], features = '),
        ({"columns": "y"}, "columns: specify columns by role"),
        ({"columns": {"labels": ["y"]}}, "unknown key"),
        ({"columns": {"label": [""]}}, "columns"),
    ],
)
def test_a_policy_that_cannot_be_is_one_line(rules, fault):
    with pytest.raises(ConfigError) as error:
        policy(**rules)
    assert fault in str(error.value)
    assert len(str(error.value).splitlines()) == 1


MATCHED = {
    "rounds": 10,
    "columns": {"label": "y", "numeric": ["age", "dose"], "row_id": "id", "held": {"south": ["age"]}},
    "label_holder": "north",
    "protection": "plain",
    "parties": ["north", "south"],
}
MATCHES = {
    "by_columns": True,
    "protections": ["plain"],
    "columns": {"features": ["age"], "row_id": ["id"]},
    "label_holders": ["north"],
    "min_parties": 2,
    "parties": ["north", "south"],
}


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({}, None),
        ({"parties": ["north", "south", "mole"], "columns.held.mole": ["dose"]}, "parties"),
        ({"label_holder": "south", "columns.held": {"north": ["age"]}}, "label_holders"),
        ({"min_common_rows": 999}, "min_common_rows"),
        ({"max_ids": 10_000_001}, "max_foreign_ids"),
        ({"columns.row_id": "iban"}, "columns.row_id"),
        ({"rounds": 50, "max_depth": 5}, None),
        ({"rounds": 65, "max_depth": 5}, "max_splits"),
        ({"rounds": 65, "max_depth": 5, "alone_rounds": 1}, None),
        ({"subsample": 0.8, "max_depth": 1}, None),
        (
            {"subsample": 0.8, "max_depth": 1, "protection": "paillier", "min_rows_per_bin": 10},
            "subsample",
        ),
        ({"max_depth": 1, "protection": "paillier"}, "min_rows_per_bin"),
    ],
)
def test_terms_that_match_rows_are_held_to_who_and_how_many(changed, rule):
    columns = {**MATCHED["columns"], "held": dict(MATCHED["columns"]["held"])}
    settings = {**MATCHED, **{key: value for key, value in changed.items() if "." not in key}}
    if rule == "parties":
        columns |= {"numeric": ["age", "dose"], "held": {"south": ["age"], "mole": ["dose"]}}
    columns |= {key.removeprefix("columns."): v for key, v in changed.items() if key.count(".") == 1}
    apart = offered(**settings | {"columns": columns})
    party = "north" if rule == "label_holders" else "south"
    own = {**MATCHES, "protections": ["plain", "paillier"]}
    assert [breach.key for breach in policy(**own).breaches(apart, party=party)] == ([rule] if rule else [])


@pytest.mark.parametrize(
    ("rounds", "depth", "remedy"),
    [(100, 6, "set rounds = 31, or"), (100, 12, "set a lower max_depth, or")],
)
def test_a_refusal_for_splits_says_how_many_would_do(rounds, depth, remedy):
    terms = offered(**{**MATCHED, "rounds": rounds, "max_depth": depth})
    (breach,) = policy(**MATCHES, max_depth=20).breaches(terms, party="south")
    splits = rounds * ((1 << depth) - 1)
    assert f"max_splits = 2000, but the terms allow {splits:,} splits on its columns; {remedy}" in str(
        breach.refusal("south").public
    )


def test_columns_that_are_held_apart_are_allowed_by_name():
    """Other parties learn which rows go left; the columns of others are no concern of this site."""
    columns = {"label": "y", "numeric": ["age", "dose"], "held": {"south": ["age"], "east": ["dose"]}}
    apart = offered(columns=columns, label_holder="north", rows="in_order", protection="plain")
    rules = {"protections": ["plain"], "columns": {"features": ["age"]}, "label_holders": ["north"]}
    south = [breach.key for breach in policy(**rules).breaches(apart, party="south")]
    assert south == ["by_columns"]
    assert not [*policy(**rules, by_columns=True).breaches(apart, party="south")]
    assert [breach.key for breach in policy(**rules, by_columns=True).breaches(apart, party="north")] == [
        "columns.label"
    ]
    (breach,) = policy(**rules).breaches(apart, party="south")
    assert (
        "by_columns = false, but the terms have label_holder; give every party all columns, or set "
        "by_columns = true under [policy] in that site's file, or run"
    ) in breach.refusal("south").public
    text = " ".join(summary(apart).split())
    assert "label holder north has the labels; for the same rows, south has age; east has dose" in text
    assert (
        "SENDS EVERY ROW'S GRADIENT, WHICH REVEALS ITS LABEL, to the other parties that hold its rows" in text
    )
