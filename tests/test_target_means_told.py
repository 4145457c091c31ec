"""Target means: what is told of rows, by whom it may be asked, and what it costs with noise."""

import dataclasses
import json
import math

import numpy as np
import pytest
from encoded import BUCKETS, COLUMNS, TABLE, agreed, among, level_rows, trained
from hypothesis import given
from hypothesis import strategies as st
from inprocess import session_of, sites_of
from raised import raised

import fedboost as fb
from fedboost.boosting.programs import boosting, private
from fedboost.boosting.programs.initialisation import _of_groups, _told
from fedboost.boosting.queries.columns import QuantileQuery
from fedboost.boosting.queries.labels import START_BITS, LevelSumsQuery, StartQuery
from fedboost.boosting.state import INITIAL_STATE, BoostingState
from fedboost.errors import ConfigError, PeerError, Refused
from fedboost.fixedpoint import Scale
from fedboost.gbdt.cut_points import CutPoints, Grids
from fedboost.holders.whole_rows import HorizontalHolder
from fedboost.privacy import noise as accounting
from fedboost.protocol import run
from fedboost.protocol.run import Opened
from fedboost.runtime.data.shard import to_shard
from fedboost.runtime.site.policy import Policy
from fedboost.terms.hiding import LEVELS
from fedboost.views.approval import summary

ROWS = TABLE.num_rows
PAIR = Scale(0, START_BITS), Scale(-1, START_BITS)
SLOTS = 6 * (BUCKETS + 1)
ASKED = LevelSumsQuery(ROWS, (SLOTS,), *PAIR)
CUTS = CutPoints.of([np.zeros(1, np.float32)] * 2, (True, True)).with_categories((3,))
MEANS = np.zeros((BUCKETS, 6), np.float32)
START = StartQuery(ROWS, CUTS, *PAIR, (MEANS,))


def holder(terms=None, table=TABLE):
    terms = terms or agreed()
    return HorizontalHolder(lambda: to_shard(table, terms, "p0"), terms)


# ---- queries ----------------------------------------------------------------------------------------


def with_means(*means):
    return dataclasses.replace(START, means=means)


def told(value, place=(3, 2)):
    means = MEANS.copy()
    means[place] = value
    return with_means(means)


@pytest.mark.parametrize(
    ("query", "says"),
    [
        (with_means(), "the target means do not match target_means in the terms"),
        (with_means(MEANS[1:]), "the target means do not match target_means in the terms"),
        (with_means(MEANS[:, 1:]), "the target means do not match target_means in the terms"),
        (with_means(MEANS, MEANS), "the target means do not match target_means in the terms"),
        (told(math.nan), "a target mean is not a finite number"),
        (told(math.inf), "a target mean is not a finite number"),
        (told(-math.inf, (0, 5)), "a target mean is not a finite number"),
        (dataclasses.replace(ASKED, slots=()), "the slots of the query do not match"),
        (dataclasses.replace(ASKED, slots=(SLOTS - 6,)), "the slots of the query do not match"),
        (dataclasses.replace(ASKED, slots=(SLOTS, SLOTS)), "the slots of the query do not match"),
        (dataclasses.replace(ASKED, counted=False), "does not count or weight rows"),
        (dataclasses.replace(ASKED, weight=Scale(0, 16)), "does not count or weight rows"),
        (dataclasses.replace(ASKED, gradient=Scale(0, 32)), "must use 31-bit gradients"),
    ],
)
def test_queries_that_the_terms_do_not_allow(query, says):
    for sound in (START, ASKED):
        sound.check(agreed())
    with pytest.raises(Refused, match=says):
        query.check(agreed())


def test_terms_without_such_columns_allow_none_of_it():
    without = agreed({"target_means": {}})
    cuts = CutPoints.of([CUTS.cuts[0]], (True,)).with_categories((3,))
    dataclasses.replace(START, cut_points=cuts, means=()).check(without)
    for query in (
        ASKED,
        dataclasses.replace(ASKED, slots=()),
        dataclasses.replace(START, cut_points=cuts),
    ):
        with raised(Refused, "query-levels", "query-means"):
            query.check(without)


@pytest.mark.parametrize(
    ("before", "query", "says"),
    [
        ((ASKED,), ASKED, "labels may be summed by level only once"),
        ((ASKED,), dataclasses.replace(ASKED, gradient=Scale(1, START_BITS)), "summed by level only once"),
        ((ASKED, START), ASKED, "before the cut points"),
        ((), START, "before the cut points are sent if, and only if"),
        ((ASKED,), QuantileQuery(ROWS, Grids.first(1)), "before the cut points"),
    ],
)
def test_queries_out_of_order(before, query, says):
    party = holder()
    for each in before:
        party.answer(each)
    with pytest.raises(PeerError, match=says):
        party.answer(query)


def test_states_that_cannot_be():
    with_levels = INITIAL_STATE.after(ASKED).after(START)
    with_levels.check(agreed())
    for grids in (6, 5, 12):
        state = dataclasses.replace(with_levels, grids=grids)
        if grids == 12:
            with raised(Refused, "state-invalid"):
                state.check(agreed())
        else:
            state.check(agreed())
    with raised(Refused, "state-invalid"):
        BoostingState(6).check(agreed({"target_means": {}}))
    with raised(Refused, "query-means"):
        dataclasses.replace(with_levels, start=told(math.nan)).check(agreed())


def test_sums_that_contradict_each_other_are_no_means():
    terms = agreed({"target_means": {"shop": BUCKETS, "ward": 8}, "categorical": {}})
    party = holder(terms)

    def sums_of(change):
        program = boosting.train(terms, [])
        query = next(program)
        while not isinstance(query, LevelSumsQuery):
            query = program.send(party.answer(query))
        sums = party.answer(query)
        change(sums)
        program.send(sums)

    slots = 6 * (BUCKETS + 9 + 1)
    sums_of(lambda sums: None)
    party = holder(terms)
    with raised(PeerError, "sums-inconsistent"):
        sums_of(lambda sums: sums.__setitem__(0, sums[0] + 1))
    party = holder(terms)
    with raised(PeerError, "sums-inconsistent", naming=[ROWS]):
        sums_of(lambda sums: sums.__setitem__(2 * slots, sums[2 * slots] + 1))


# ---- which rows are told of -------------------------------------------------------------------------


BUCKETS_OF_FOLDS = st.lists(st.lists(st.integers(0, 7), min_size=5, max_size=5), min_size=2, max_size=6)


@given(BUCKETS_OF_FOLDS, st.integers(1, 9))
def test_no_sum_over_fewer_rows_follows_from_the_means(counts, floor):
    """What means tell are sums over groups of folds and over whole buckets, and the overall mean is one over
    all rows. Slots that are in the same of these sums can only be told together."""
    rows = np.array(counts)
    told = _told(rows.sum(axis=1), floor)
    of_slots = [slot for slot in np.ndindex(rows.shape) if slot[0] not in told]
    sets = [of_slots]
    for bucket in told:
        ones = np.zeros((5, 5, 2), np.int64)
        ones[range(5), range(5)] = 1
        own = np.repeat(rows[bucket][np.newaxis], 5, axis=0)
        members = _of_groups(ones, own, floor)[:, :, 0]  # [fold that counts, fold that is told]
        sets += [[(bucket, fold) for fold in np.flatnonzero(of)] for of in members.T]
        assert len(sets[-5]) >= 1
    assert {slot for each in sets for slot in each} == {*np.ndindex(rows.shape)}
    for each in sets:
        assert sum(rows[slot] for slot in each) == 0 or sum(rows[slot] for slot in each) >= min(
            floor, rows.sum()
        )
    together = {slot: [slot in each for each in sets] for slot in np.ndindex(rows.shape)}
    assert all(sum(of) >= 1 for of in together.values())


def test_a_level_of_few_rows_has_the_overall_mean():
    table = level_rows(count=600, levels=200)
    model = trained({"all": table}, min_count=10)
    told = model.booster.target_means["shop"].values
    overall = np.float32(table["y"].to_numpy().mean())
    assert 0 < (told != overall).sum() <= BUCKETS
    assert (
        trained({"all": table}, min_count=300).booster.target_means["shop"].values.tolist()
        == [overall] * BUCKETS
    )
    one = trained({"all": table}, min_count=1).booster.target_means["shop"].values
    assert (one != overall).sum() > (told != overall).sum()


# ---- sessions ---------------------------------------------------------------------------------------


def sites_with(terms, parts):
    return sites_of(terms, {name: to_shard(table, terms, name) for name, table in parts.items()})


def test_an_aggregator_that_is_killed_in_any_turn_changes_nothing():
    """Each process writes one record and dies; the sites remember."""
    parts = among(3)
    terms = agreed(rounds=2, protection="masked").with_parties(parts)
    due = fb.simulate(terms, parts).model.booster
    past, sites = [], sites_with(terms, parts)

    class Killed(Exception):
        pass

    for _ in range(50):

        def record(one):
            past.append(run.decode(run.encode(one)))
            if isinstance(one, Opened):
                raise Killed

        try:
            session = session_of(terms, sites, past=tuple(past), record=record)
            break
        except Killed:
            continue
    assert session.phase == "done", session.error
    assert session.booster == due
    assert sum(isinstance(one, Opened) for one in past) > 3


def test_an_aggregator_that_tells_other_means_is_found_out_by_the_signatures():
    parts = among(3)
    model = fb.simulate(agreed(protection="masked").with_parties(parts), parts).model
    means = model.booster.target_means["shop"]
    other = dataclasses.replace(means, packed=means.packed[4:] + means.packed[:4])
    changed = dataclasses.replace(
        model, booster=dataclasses.replace(model.booster, target_means={"shop": other})
    )
    assert model._structure("p0") != changed._structure("p0")
    assert model.fingerprint != changed.fingerprint


def test_other_means_in_a_file_are_refused(tmp_path):
    trained().save(tmp_path / "m.json")
    document = json.loads((tmp_path / "m.json").read_text())
    attributes = document["learner"]["attributes"]
    whole = json.loads(attributes["fedboost.target_means"])
    for means, says in (
        ({"shop": whole["shop"][1:]}, "its trees do not match its terms"),
        ({}, "its trees do not match its terms"),
        ({"shop": ["a", "b"]}, "not in the format that fedboost writes"),
        ({"ward": whole["shop"]}, "not one of its numeric features"),
        ([1], "not in the format that fedboost writes"),
    ):
        attributes["fedboost.target_means"] = json.dumps(means, separators=(",", ":"))
        (tmp_path / "odd.json").write_text(json.dumps(document))
        with pytest.raises(ConfigError, match=f"{says}|not as fedboost wrote it"):
            fb.Model.load(tmp_path / "odd.json")


# ---- with noise -------------------------------------------------------------------------------------

NOISY = {"ranges": {"x": [-4, 4]}}


def noisy(epsilon=1.0, placement="local", columns=(), **settings):
    noise = {"epsilon": epsilon, "delta": 1e-6, "placement": placement}
    bare = {"rounds": 4, "max_depth": 2}
    return fb.Terms.read(
        {"columns": {**COLUMNS, **NOISY, **dict(columns)}, "noise": noise, **bare, "protection": "plain"}
        | settings
    )


@pytest.mark.parametrize("placement", ["local", "distributed"])
def test_what_is_charged_is_what_was_planned_and_within_epsilon(placement):
    parts = among(3)
    protection = "plain" if placement == "local" else "masked"
    terms = noisy(placement=placement, protection=protection).with_parties(parts)
    sites = sites_with(terms, parts)
    session = session_of(terms, sites, private.train)
    assert session.phase == "done", session.error
    for site in sites.values():
        charged = site.memory.charged
        assert math.fsum(charged.values()) == pytest.approx(terms.plan.cost, rel=1e-12)
        assert len(charged) == 1 + 1 + 1 + terms.trees.rounds
    epsilon = accounting.epsilon_of(math.sqrt(terms.plan.cost), 1e-6)
    assert 0.995 < epsilon <= 1.0  # noise is a whole number
    assert terms.plan.releases[LEVELS].cost == pytest.approx(0.5 * terms.plan.cost, rel=0.01)
    assert session.booster.buckets == {"shop": BUCKETS}


def test_one_row_moves_a_sum_by_no_more_than_its_bound():
    """Of two columns a row is in one slot each: the bound is met to a few hundredths."""
    terms = noisy(columns={"target_means": {"shop": BUCKETS, "ward": 8}, "categorical": {}})
    query = LevelSumsQuery(1 << 40, (BUCKETS + 1, 9), Scale(0, 21), Scale(0, 21), False)
    query.check(terms)
    most, all_rows = 0.0, holder(terms).answer(query)
    for row in range(0, 60, 7):
        rest = TABLE.filter(np.arange(ROWS) != row)
        most = max(most, math.dist(all_rows, holder(terms, rest).answer(query)))
    bound = terms.plan.releases[LEVELS].sensitivity
    assert 0.7 * bound < most <= bound


def test_noise_weighs_less_with_more_epsilon():
    """With much noise all levels have about the overall mean; with little the means are those without."""
    exact = trained(min_count=1, rounds=1).booster.target_means["shop"].values
    used = exact != np.float32(TABLE["y"].to_numpy().mean())
    spread = {}
    for epsilon in (0.1, 16.0):
        terms = noisy(epsilon, base_score=0.5).with_parties(["all"])
        means = fb.simulate(terms, {"all": TABLE}).model.booster.target_means["shop"].values
        spread[epsilon] = np.corrcoef(means[used], exact[used])[0, 1]
    assert spread[16.0] > 0.85
    assert spread[0.1] < spread[16.0]


# ---- what is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "settings", "says"),
    [
        (
            {},
            {"objective": "multi:softprob", "num_class": 3},
            "columns.target_means with objective multi:softprob: its labels have no mean; use "
            "binary:logistic",
        ),
        (
            {},
            {"objective": "reg:absoluteerror"},
            "columns.target_means with objective reg:absoluteerror: its labels have no mean",
        ),
        (
            {"group": "id", "row_id": None},
            {"objective": "rank:ndcg"},
            "columns.target_means with objective rank:ndcg: its labels have no mean; use binary:logistic",
        ),
        ({}, {"program": "describe"}, "program describe"),
        (
            {},
            {"program": "tune", "validation_fraction": 0.2, "candidates": [{"gamma": 0}, {"gamma": 1}]},
            "program tune: they need fixed settings",
        ),
        (
            {},
            {"label_holder": "p0", "parties": ["p0", "p1"], "rows": "in_order"},
            "different parties have labels and levels",
        ),
        (
            {"target_means": {"shop": 1}},
            {},
            "columns: target_means: 'shop' has 1 buckets, but needs at least 2",
        ),
        ({"target_means": {"shop": 1 << 17, "ward": (1 << 17) + 1}, "categorical": {}}, {}, "at most 262144"),
        ({"target_means": {"x": 8}}, {}, "'x' is named more than once"),
        (
            {"target_means": {"shop": 20000}},
            {"protection": "paillier", "keyholder": "p0", "parties": ["p0", "p1", "p2"]},
            "20000 buckets under protection paillier: at most 16384",
        ),
    ],
)
def test_terms_that_cannot_be_are_one_line(columns, settings, says):
    with pytest.raises(ConfigError, match=says) as caught:
        agreed(columns, **settings)
    assert "\n" not in str(caught.value)


def test_a_model_with_means_is_not_continued(tmp_path):
    trained().save(tmp_path / "m.json")
    from fedboost.runtime.model import text_of

    with pytest.raises(
        ConfigError, match="target_means with xgb_model: the model's target means are from other rows"
    ):
        agreed(xgb_model=text_of(fb.Model.load(tmp_path / "m.json")))


def test_a_site_refuses_by_its_policy():
    def broken(terms, **keys):
        policy = Policy(parties="any", analysts="any", columns="any", min_rows_per_leaf=1, **keys)
        return [breach.key for breach in policy.breaches(terms)]

    masked = agreed(protection="masked").with_parties(["a", "b", "c"])
    assert broken(masked) == ["target_means"]
    assert broken(masked, target_means=True) == []
    assert broken(masked.changed(min_count=5), target_means=True) == ["min_count"]
    hidden = noisy(placement="distributed", protection="masked").with_parties(["a", "b", "c"])
    assert broken(hidden, epsilon=2.0, delta=1e-5) == []
    assert broken(hidden) == ["target_means"]


def test_an_approval_says_who_sees_what():
    said = " ".join(summary(agreed(protection="masked").with_parties(["a", "b", "c"])).split())
    assert "shop in 64 buckets: the aggregator sees sums of labels by level and fold" in said
    assert "of 10 rows or more" in said
