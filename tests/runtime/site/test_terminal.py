"""A person at the site is asked: what the summary says, and who can answer."""

import io
import json
import os
import pty
import re
import sys
import threading

import pytest
from policies import accepted, offered, policy, refused
from raised import raised

from fedboost.errors import Refused
from fedboost.runtime.telemetry import terminal_ask
from fedboost.terms.terms import Terms
from fedboost.views.approval import IN_LINES, summary


def test_a_person_is_asked_about_terms_that_no_other_rule_refuses():
    asked = []

    def ask(text):
        asked.append(text)
        return len(asked) == 1

    rules = policy(approval="ask", max_rounds=3)
    assert accepted(rules, offered(), ask)
    assert asked == [summary(offered())]
    assert refused(rules, offered(), ask) == (
        f'site north refuses: its policy has approval = "ask", but the person who was asked declined the '
        f"terms with digest {offered().digest}"
    )
    assert refused(rules, offered(rounds=4), ask).startswith("max_rounds")
    assert len(asked) == 2
    assert refused(rules, offered()) == 'approval = "ask", but no one can be asked'


def test_the_summary_counts_classes():
    columns = {"label": "kind", "classes": ["u", "v", "w"], "numeric": ["x"]}
    of_three = offered(objective="multi:softprob", columns=columns)
    assert "label        kind, 3 classes" in summary(of_three).splitlines()
    assert "classes" not in summary(offered())


def test_the_summary_says_what_is_to_be_decided_on():
    numeric = [f"column_{i}" for i in range(11)]
    columns = {"label": "y", "weight": "w", "numeric": numeric, "validation": "v", "row_id": "id"}
    agreement = offered(columns=columns, rounds=17, max_depth=5, eval_metric=["auc", "error@0.3"])
    text = " ".join(summary(agreement, ["marie"]).split())
    for word in (
        f"terms {agreement.digest}",
        "analyst marie: ",
        "protection masked",
        "parties 3: north, south, east",
        "17 rounds of depth 5",
        "metrics auc, error@0.3; after each round",
        "label y",
        "weight w",
        "validation v: ",
        "row id id: ",
        "features 11: " + ", ".join(numeric),
    ):
        assert word in text
    assert "validation 0.2 of the rows" in " ".join(summary(offered(validation_fraction=0.2)).split())
    assert "categories   ward: a, b, c" in summary(offered()).splitlines()
    assert "subsample 0.5 (each tree is trained on this fraction of the rows)" in " ".join(
        summary(offered(subsample=0.5)).split()
    )
    assert "sites:other" in summary(offered(program="sites:other"))
    for one in (agreement, offered(), offered(protection="plain")):
        assert max(map(len, summary(one).splitlines())) < 80


RANGED = {"label": "y", "numeric": ["age"], "ranges": {"age": [0, 100]}}
NOISY = {"columns": RANGED, "noise": {"epsilon": 1.0, "delta": 1e-5}}
RANKED = {"objective": "rank:ndcg", "columns": {"label": "y", "numeric": ["age"], "group": "g"}}
TIMES = {"objective": "survival:aft", "columns": {"label": "y", "numeric": ["age"], "label_upper_bound": "u"}}
APART = {
    "parties": ["a", "b"],
    "label_holder": "a",
    "columns": {"label": "y", "numeric": ["age", "dose"], "held": {"b": ["dose"]}},
    "rows": "in_order",
    "protection": "plain",
}
MATCHED = {**APART, "columns": {**APART["columns"], "row_id": "id"}, "rows": "common"}
OTHERS = [
    ({}, {"learning_rate": 0.1}),
    ({}, {"max_cat_to_onehot": 9}),
    ({}, {"max_cat_threshold": 9}),
    ({}, {"reg_lambda": 0.0}),
    ({}, {"reg_alpha": 0.5}),
    ({}, {"gamma": 0.123456789}),
    ({}, {"grow_policy": "lossguide"}),
    ({}, {"max_leaves": 5}),
    ({}, {"num_parallel_tree": 2}),
    ({}, {"subsample": 0.123456}),
    ({"subsample": 0.5}, {"sampling_method": "gradient_based"}),
    ({}, {"colsample_bytree": 0.5}),
    ({}, {"colsample_bylevel": 0.5}),
    ({}, {"colsample_bynode": 0.5}),
    ({}, {"monotone_constraints": {"age": 1}}),
    ({}, {"interaction_constraints": [["age", "dose"]]}),
    ({}, {"seed": 7}),
    ({}, {"base_score": 0.25}),
    ({}, {"scale_pos_weight": 2.0}),
    ({"objective": "count:poisson"}, {"max_delta_step": 0.5}),
    ({"objective": "reg:tweedie"}, {"tweedie_variance_power": 1.3}),
    ({"objective": "reg:pseudohubererror"}, {"huber_slope": 2.0}),
    ({"objective": "reg:quantileerror"}, {"quantile_alpha": 0.9}),
    (RANKED, {"lambdarank_pair_method": "topk"}),
    (RANKED, {"lambdarank_num_pair_per_sample": 3}),
    (RANKED, {"lambdarank_normalization": False}),
    (RANKED, {"lambdarank_score_normalization": False}),
    (RANKED, {"ndcg_exp_gain": False}),
    (TIMES, {"aft_loss_distribution": "logistic"}),
    (TIMES, {"aft_loss_distribution_scale": 2.0}),
    ({"validation_fraction": 0.2}, {"early_stopping_rounds": 3}),
    ({}, {"gradient_bits": 12}),
    ({"protection": "paillier", "keyholder": "east"}, {"key_bits": 4096}),
    (
        {"parties": ["a", "b", "c", "d"], "protection": "paillier", "keyholder": "d"},
        {"keyholder_rows": False},
    ),
    ({"parties": ["a", "b", "c", "d"]}, {"colluding": 0}),
    ({"parties": ["a", "b"]}, {"allow_two_parties": True}),
    ({}, {"on_loss": "stop"}),
    ({}, {"turn_timeout": 7.0}),
    ({}, {"rejoin_timeout": 7.0}),
    ({"parties": ["a", "b", "c", "d"], "on_loss": "shrink"}, {"quorum": 3}),
    (APART, {"alone_rounds": 2}),
    (APART, {"min_rows_per_bin": 10}),
    (MATCHED, {"label_epsilon": 2.0}),
]


@pytest.mark.parametrize(("besides", "setting"), OTHERS, ids=[next(iter(one)) for _, one in OTHERS])
def test_a_setting_that_is_not_its_default_is_shown(besides, setting):
    ((name, value),) = setting.items()
    text = " ".join(summary(offered(**{**besides, **setting})).split())
    assert re.search(rf"settings [^:]*, {name} {re.escape(json.dumps(value))}[, ]", text), text


def test_every_setting_is_shown():
    tried = {name for _, setting in OTHERS for name in setting}
    assert tried | IN_LINES | {"objective_params"} == set(Terms.file_keys())
    assert 'columns.ranges {"age": [0.0, 100.0]}' in " ".join(summary(offered(**NOISY)).split())


def test_names_in_terms_cannot_move_the_cursor_of_who_is_asked_or_pose_as_other_text():
    nasty = "age\u202e\u2028protection  masked"
    agreement = offered(columns={"label": nasty, "weight": f"w{nasty}", "numeric": ['a", "b', "n" * 200]})
    agreement = agreement.changed(program=f"{nasty}\x1b[2J\r\n")
    text = summary(agreement)
    assert all(line.isprintable() for line in text.splitlines())
    assert [line for line in text.splitlines() if line.startswith("protection")] == ["protection   masked"]
    assert r'features     2: "a\", \"b", ' in text
    assert "n" * 60 in text


@pytest.fixture
def terminal(monkeypatch):
    """A terminal at standard input: a function that types into it."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs) as keyboard:
        monkeypatch.setattr(sys, "stdin", keyboard)
        yield lambda text: os.write(ours, text.encode())
    os.close(ours)


@pytest.fixture
def person(terminal):
    """Somebody who types this once the question stands there."""

    def sits_down(typed):
        def ask(text):
            later = threading.Timer(0.1, terminal, [typed])
            later.start()
            try:
                return terminal_ask(text)
            finally:
                later.join()

        return ask

    return sits_down


@pytest.mark.parametrize(
    ("typed", "agreed"), [("y\n", True), ("Yes\n", True), ("n\n", False), ("\n", False), ("\x04", False)]
)
def test_the_terminal_is_asked(typed, agreed, person, capsys):
    assert accepted(policy(approval="ask"), offered(), person(typed)) == agreed
    shown = capsys.readouterr()
    assert summary(offered()) in shown.err
    assert shown.err.endswith("[y/N] ")
    assert shown.out == ""


def test_what_was_typed_before_the_question_is_no_answer(terminal, person):
    terminal("y\n")
    assert not accepted(policy(approval="ask"), offered(), person("\n"))


def test_nobody_is_asked_any_longer_once_the_session_is_over(terminal, capsys):
    with raised(Refused, "terminal-no-answer"):
        terminal_ask("terms", lambda: True)
    assert "no longer needed" in capsys.readouterr().err


@pytest.mark.parametrize("standard_input", [io.StringIO("y\n"), None])
def test_who_is_no_terminal_cannot_agree(standard_input, monkeypatch):
    monkeypatch.setattr(sys, "stdin", standard_input)
    assert refused(policy(approval="ask"), offered(), terminal_ask) == (
        'approval = "ask", but its standard input is not a terminal, so no one can be asked'
    )
