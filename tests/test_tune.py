"""`tune`: candidates that train side by side are those that train alone, and the worst are dropped."""

import asyncio
import json

import numpy as np
import optuna
import pyarrow as pa
import pytest
from raised import raised
from sites import NAMES, bundles_of, consortium, rows, shared_out, terms, until

import fedboost as fb
from fedboost.boosting.programs.boosting import stages
from fedboost.boosting.queries.trees import HistogramQuery
from fedboost.errors import ConfigError, PeerError, Refused, SessionFailed
from fedboost.runtime import tasks as samplers
from fedboost.runtime.aggregator.server import AggregatorServer
from fedboost.runtime.config import AggregatorConfig
from fedboost.runtime.local.simulation import run_session
from fedboost.runtime.site.policy import Policy
from fedboost.runtime.tasks import SPACE, draw, terms_to_tune
from fedboost.terms import columns as columns_of_terms
from fedboost.terms.terms import MAX_COLUMNS_TRIED

CANDIDATES = [
    {"learning_rate": 0.3, "max_depth": 3},
    {"learning_rate": 0.1, "max_depth": 2, "reg_alpha": 0.5},
    {"learning_rate": 0.5, "max_depth": 3, "reg_lambda": 5.0, "colsample_bynode": 0.5},
    {"learning_rate": 0.3, "max_depth": 3, "gamma": 1.0, "min_child_weight": 4.0},
    {"max_depth": 1},
]


def tuned(**settings):
    """Terms with these candidates."""
    own = {"program": "tune", "candidates": CANDIDATES, "validation_fraction": 0.3, "rounds": 9}
    return terms(**{**own, "eval_metric": "auc", **settings})


def curves(agreed, tables, seed=0):
    """The watched metric of each candidate in each round, and the result of the session."""
    session, meter, _ = run_session(agreed, tables, seed=seed)
    if session.error is not None:
        raise session.error
    numbers = range(len(agreed.objective.candidates))
    of = agreed.evaluation.eval_metric[-1]
    return [[row[f"validation-{n}/{of}"] for row in meter.history] for n in numbers], session


@pytest.mark.parametrize(
    ("parties", "settings"),
    [
        (1, {}),
        (3, {"protection": "masked"}),
        (5, {"eval_metric": ["logloss", "auc"], "subsample": 0.7, "seed": 4}),
        (3, {"grow_policy": "lossguide", "max_leaves": 6, "base_score": 0.4}),
        (2, {"columns": {"label": "y", "numeric": ["age", "dose"], "row_id": "id"}}),
    ],
)
def test_a_candidate_is_what_it_is_alone(parties, settings):
    table = rows(600)
    if "columns" in settings:
        table = table.append_column("id", [list(range(600))])
    agreed, tables = tuned(**settings), shared_out(parties, table)
    together, session = curves(agreed, tables)
    trials = session.run.outcome.summary["trials"]
    assert sorted(trial["rounds"] for trial in trials) == [1, 3, 5, 9, 9]
    for number, trial in enumerate(trials):
        alone = fb.simulate(agreed.candidate(number), tables).history
        expected = [row["validation-auc"] for row in alone[: trial["rounds"]]]
        assert together[number][: trial["rounds"]] == expected
        assert trial["best_round"] == 1 + max(range(len(expected)), key=lambda n: (expected[n], -n))


def test_losses_without_bounds_are_tried_too():
    columns = {"label": "age", "numeric": ["dose"], "categorical": {"ward": ["a", "b", "c"]}}
    agreed = tuned(columns=columns, objective="reg:squarederror", eval_metric="rmse", rounds=6)
    tables = shared_out(3, rows(300))
    together, session = curves(agreed, tables)
    assert session.run.outcome.summary["metric"] == "rmse"
    for number in range(len(CANDIDATES)):
        alone = fb.simulate(agreed.candidate(number), tables).history
        trained = session.run.outcome.summary["trials"][number]["rounds"]
        expected = [row["validation-rmse"] for row in alone[:trained]]
        assert together[number][:trained] == pytest.approx(expected, rel=1e-3)


def test_the_result_does_not_depend_on_the_order_of_messages_or_on_who_has_which_rows():
    agreed, table = tuned(), rows(400).append_column("id", [list(range(400))])
    agreed = agreed.changed(columns={**agreed.model_dump(mode="json")["columns"], "row_id": "id"})
    results = [
        json.dumps(curves(agreed, shared_out(parties, table), seed)[1].run.outcome.summary)
        for parties, seed in ((1, 0), (3, 1), (3, 2), (5, 3))
    ]
    assert len({*results}) == 1


def test_turns_are_those_of_the_deepest_candidate():
    agreed, tables = tuned(), shared_out(3, rows(600))
    _, session = curves(agreed, tables)
    apart = sum(
        run_session(agreed.candidate(number), tables)[0].turn
        for number in range(len(agreed.objective.candidates))
    )
    assert session.turn <= apart / 2
    assert session.turn <= 10 + (agreed.trees.max_depth + 1) * agreed.trees.rounds


@pytest.mark.slow
async def test_a_session_goes_on_from_its_journal(tmp_path):
    tables = shared_out(3, rows(600))
    agreed, state = tuned(protection="masked").with_parties(tables), tmp_path / "state"
    bundles = bundles_of(tmp_path / "keys", agreed.parties)
    async with consortium(tmp_path / "c", tables, bundles=bundles, state=state) as one:
        tuning = asyncio.create_task(asyncio.to_thread(one.analyst.tune, agreed))
        for turn in (8, 16, 24):
            await until(lambda turn=turn: turn_of(one) > turn or tuning.done())
            await one.server.stop()
            config = AggregatorConfig(listen=one.address, state=state)
            one.server = AggregatorServer(config, one.log, bundles["aggregator"])
            await one.server.start()
        outcome = await tuning
    found, due = outcome, fb.tune(agreed, tables)
    assert (found.trials, found.best, found.metric) == (due.trials, due.best, due.metric)
    assert found.terms.session.program == "boosting"
    assert found.terms.trees.rounds == found.trials[found.best].best_round


def turn_of(one):
    """The turn of the session under way at the aggregator, 0 without one."""
    active = one.server.sessions.active
    return active.session.turn if active else 0


def test_a_third_is_dropped_at_a_time():
    many = [{"max_depth": 1 + number % 3, "gamma": float(number)} for number in range(27)]
    assert stages(tuned(candidates=many, rounds=100)) == {10: 18, 20: 12, 40: 8, 60: 6}
    assert stages(tuned(candidates=many[:3], rounds=5)) == {1: 2, 2: 2, 3: 2}


def test_candidates_are_drawn_from_all_parts_of_a_space():
    points = draw(SPACE, 26, 7)
    assert points == draw(SPACE, 26, 7) != draw(SPACE, 26, 8)
    for name, (low, high) in SPACE.items():
        values = [point[name] for point in points]
        assert low <= min(values) <= max(values) <= high
        assert len({*values}) > (5 if name == "max_depth" else 20)
    agreed = terms_to_tune(terms(learning_rate=0.25, min_child_weight=2.5), trials=9)
    first, *others = agreed.objective.candidates
    assert first["learning_rate"] == 0.25
    assert len(others) == 8
    assert agreed.trees.min_child_weight == 2.5
    assert agreed.trees.max_depth == max(each["max_depth"] for each in agreed.objective.candidates)
    chosen = terms_to_tune(terms(), {"max_depth": [2, 4, 9], "reg_alpha": [0, 1]}, 30)
    assert {each["max_depth"] for each in chosen.objective.candidates} == {2, 3, 4, 9}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"candidates": []}, 'candidates and program = "tune" must be set together: set both or neither'),
        (
            {"program": "boosting"},
            'candidates and program = "tune" must be set together: set both or neither',
        ),
        ({"candidates": CANDIDATES[:1]}, "program tune with one candidate: list at least two"),
        ({"candidates": [{"eta": 1}, {}]}, "unknown candidates[0] 'eta'"),
        ({"candidates": [{"max_bin": 4}, {}]}, "unknown candidates[0] 'max_bin'"),
        (
            {"candidates": [{"max_depth": 4}, {}]},
            "candidates[0] exceeds max_depth or max_leaves of the terms",
        ),
        ({"candidates": [{"learning_rate": -1}, {}]}, "candidates[0]: learning_rate"),
        ({"candidates": [{}, {"min_child_weight": 0.5}]}, "candidates[1] has a lower min_child_weight"),
        ({"candidates": [{"gamma": True}, {}]}, "candidates"),
        ({"candidates": [{"gamma": "1"}, {}]}, "candidates"),
        ({"candidates": [{"gamma": float("nan")}, {}]}, "candidates"),
        ({"validation_fraction": 0.0}, "no validation rows: set validation_fraction"),
        ({"vote_top_k": 1}, "program tune with vote_top_k"),
        ({"num_parallel_tree": 2}, "program tune with num_parallel_tree"),
        ({"objective": "multi:softprob", "num_class": 2, "eval_metric": "merror"}, "multi:softprob"),
        ({"objective": "reg:absoluteerror", "eval_metric": "mae"}, "reg:absoluteerror"),
        ({"early_stopping_rounds": 3}, "early_stopping_rounds: remove it"),
        ({"on_loss": "shrink"}, "on_loss"),
        (
            {"columns": {"label": "y", "numeric": ["age"], "base_margin": "dose"}},
            "columns.base_margin has only one number per row, but binary:logistic needs one per candidate: "
            "remove it",
        ),
    ],
)
def test_bad_terms(settings, says):
    with pytest.raises(ConfigError) as error:
        tuned(**settings)
    assert says in str(error.value)


def test_few_validation_rows_or_those_of_one_label_decide_nothing():
    table, agreed = rows(200).append_column("held", [[0] * 195 + [1] * 5]), tuned(rounds=2)
    columns = {"label": "y", "numeric": ["age", "dose"], "validation": "held"}
    few = tuned(rounds=2, validation_fraction=0.0, columns=columns)
    with pytest.raises(SessionFailed, match="comparing candidates requires at least 10 validation rows"):
        fb.tune(few, shared_out(2, table))
    held = table["y"].to_numpy() * (np.arange(200) < 100)
    alike = table.set_column(table.schema.get_field_index("held"), "held", pa.array(held))
    with pytest.raises(
        SessionFailed, match="auc is undefined, because all validation rows have the same label"
    ):
        fb.tune(few, shared_out(2, alike))
    for trial in fb.tune(agreed, shared_out(2, table)).summary["trials"]:
        assert trial["auc"] == float(f"{trial['auc']:.4g}")


@pytest.mark.parametrize(
    ("space", "trials", "says"),
    [
        ({"eta": [0, 1]}, None, "unknown space 'eta'"),
        ({"gamma": [1, 0]}, None, "the first value must be less than the second"),
        ({"gamma": 3}, None, "gamma must be [low, high]"),
        ({"gamma": [1]}, None, "gamma must be [low, high], or a list of at least three values"),
        ({"max_depth": [True, 2, 3]}, None, "max_depth must be [low, high]"),
        ({"gamma": [0, float("inf")]}, None, "gamma must be [low, high]"),
        ({"gamma": [float("nan"), 1, 2]}, None, "gamma must be [low, high]"),
        ({"gamma": [0, 10**400]}, None, "gamma must be [low, high]"),
        ({}, None, "the search space has no settings"),
        (None, 1, "trials is 1, but must be from 2 to 128"),
    ],
)
def test_bad_spaces(space, trials, says):
    with pytest.raises(ConfigError) as error:
        terms_to_tune(terms(), space, trials)
    assert says in str(error.value)


def test_terms_of_a_training_by_site_that_stops_early_are_tuned_without_either():
    agreed = terms(party_metrics=True, early_stopping_rounds=2, validation_fraction=0.3, eval_metric="auc")
    found = fb.tune(agreed, shared_out(2, rows(400)), trials=2)
    for best in (found.session.terms, found.terms):
        assert not best.evaluation.party_metrics
        assert best.evaluation.early_stopping_rounds is None


def test_terms_that_name_candidates_take_no_space():
    with raised(ConfigError, "tune-candidates-fixed"):
        fb.tune(tuned(), shared_out(2), trials=4)
    with raised(ConfigError, "terms-not-training"):
        fb.simulate(tuned(), shared_out(2))


def test_columns_are_checked_once_however_many_candidates_there_are(monkeypatch):
    """The attack: 128 candidates and the ranges of many columns, a megabyte, which were read 128 times."""
    looked_at = []

    class Counted:
        def search(self, name):
            looked_at.append(name)

    monkeypatch.setattr(columns_of_terms, "NOT_IN_FEATURES", Counted())
    columns = {"label": "y", "numeric": [f"c{number}" for number in range(100)]}
    counts = []
    for many in (2, 128):
        looked_at.clear()
        agreed = tuned(columns=columns, candidates=[{"gamma": float(number)} for number in range(many)])
        assert agreed.candidate(1).columns is agreed.columns
        counts.append(len(looked_at))
    assert counts == [100, 100]


@pytest.mark.parametrize("number", range(len(CANDIDATES)))
def test_a_candidate_has_the_terms_that_were_written_for_it_alone(number):
    own = {"validation_fraction": 0.3, "rounds": 9, "eval_metric": "auc"}
    alone = terms(**own, **CANDIDATES[number])
    assert tuned().candidate(number).canonical() == alone.canonical()
    assert tuned().candidate(number).changed(rounds=4) == alone.changed(rounds=4)


def test_candidates_times_columns_are_bounded():
    names = [f"c{number}" for number in range(MAX_COLUMNS_TRIED // 64)]
    many = [{"gamma": float(number)} for number in range(64)]
    tuned(columns={"label": "y", "numeric": names}, candidates=many)
    with pytest.raises(
        ConfigError, match=r"with 1048640 columns of all candidates: .* use fewer candidates or features"
    ):
        tuned(columns={"label": "y", "numeric": [*names, "more"]}, candidates=many)


def test_a_site_counts_candidates():
    policy = {"parties": "any", "analysts": "any", "columns": "any", "validation": True}
    policy |= {"protections": ["plain"], "min_parties": 1, "min_rows_per_leaf": 1, "colluding": 0}
    agreed = tuned(min_child_weight=1.0).with_parties(NAMES[:3])
    assert not [*Policy(**policy).breaches(agreed)]
    (breach,) = Policy(**policy, max_trials=4).breaches(agreed)
    assert breach.key == "max_trials"


def test_roots_of_candidates_are_asked_for_first_and_once():
    agreed = tuned(rounds=3)
    seen = []
    original = HistogramQuery.check_order

    def noted(self, own, state):
        original(self, own, state)
        if state.levels == 0 and not seen:
            seen.append((self, state))

    HistogramQuery.check_order = noted
    try:
        curves(agreed, shared_out(2, rows(200)))
    finally:
        HistogramQuery.check_order = original
    root, state = seen[0]
    again = state.after(root)
    with raised(PeerError, "query-order"):
        root.check_order(agreed, again)
    with pytest.raises(Refused):
        HistogramQuery(**{**vars_of(root), "nodes": ()}).check(agreed)


def vars_of(query):
    """The members of a query."""
    return {name: getattr(query, name) for name in query.__dataclass_fields__}


@pytest.mark.parametrize("sampler", ["random", "qmc", "tpe", optuna.samplers.RandomSampler(seed=3)])
def test_a_sampler_of_optuna_draws_candidates(sampler):
    space = {"learning_rate": [0.01, 0.3], "max_depth": [2, 5], "colsample_bytree": [0.5, 0.75, 1.0]}
    agreed = terms_to_tune(terms(), space, 20, sampler)
    first, *others = agreed.objective.candidates
    assert first["learning_rate"] == 0.3
    assert {each["max_depth"] for each in others} <= {2, 3, 4, 5}
    assert {each["colsample_bytree"] for each in others} == {0.5, 0.75, 1.0}
    assert all(0.01 <= each["learning_rate"] <= 0.3 for each in others)
    assert sum(each["learning_rate"] < 0.05 for each in others) >= 5
    if isinstance(sampler, str):
        assert agreed == terms_to_tune(terms(), space, 20, sampler)


@pytest.mark.parametrize(
    ("sampler", "says"),
    [
        ("grid", "unknown sampler 'grid'; use random, qmc, tpe"),
        (3, "must be an Optuna sampler or a name, not a int"),
    ],
)
def test_what_is_no_sampler_is_refused(sampler, says):
    with pytest.raises(ConfigError, match=says):
        terms_to_tune(terms(), None, 5, sampler)


def test_without_optuna_a_sampler_says_what_to_install(monkeypatch):
    monkeypatch.setattr(samplers, "find_spec", lambda name: None)
    with raised(ConfigError, "extra-missing"):
        terms_to_tune(terms(), None, 5, "qmc")
