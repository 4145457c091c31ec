"""A site that helps others to predict: what its policy, an approval and its memory on disk allow."""

from contextlib import closing

import pytest
from approvals import SITE, approvals, permits, run
from certificates import NOW, ROOTS, signer
from policies import policy
from raised import raised
from refusals import refusal
from sites import fedboost
from starts import Running

from fedboost.errors import PeerError, Refused
from fedboost.protocol import key_exchange
from fedboost.protocol.key_exchange import Trust
from fedboost.protocol.site import Budget, Limits, SessionOffer
from fedboost.runtime.config import to_toml
from fedboost.runtime.site.approval import review
from fedboost.runtime.site.backup import memory_path
from fedboost.runtime.site.config import read_party
from fedboost.runtime.site.memory import FileMemory, read_spent
from fedboost.runtime.site.store import make_file
from fedboost.runtime.tasks import terms_to_toml
from fedboost.terms.terms import Terms

COLUMNS = {
    "label": "y",
    "numeric": ["age", "dose"],
    "row_id": "id",
    "held": {"north": ["age"]},
    "base_margin": "margin",
}
NAMED = {
    "by_columns": True,
    "protections": ["paillier"],
    "columns": {"features": ["age"], "row_id": ["id"]},
    "label_holders": ["south"],
    "min_parties": 2,
    "parties": ["north", "south"],
}


def trained(**settings):
    """Terms of a training that hardly any policy allows."""
    wild = {
        "rounds": 5000,
        "max_depth": 9,
        "min_child_weight": 0,
        "eval_metric": ["logloss", "error@0.3"],
        "validation_fraction": 0.2,
        "num_parallel_tree": 101,
    }
    common = {"columns": COLUMNS, "parties": ["north", "south"], "label_holder": "south"}
    return Terms.read({**common, "protection": "paillier", **wild, **settings})


def predicting(rows=500, **settings):
    return trained(predict_with="0" * 64, predict_rows=rows, **settings)


def broken(agreement, party="north", analyst="south", **rules):
    return [breach.key for breach in policy(**{**NAMED, **rules}).breaches(agreement, analyst, party)]


# ---- the policy -------------------------------------------------------------------------------------


def test_predictions_are_off_until_the_site_says_how_many_rows():
    assert broken(predicting()) == ["max_predicted_rows"]
    with pytest.raises(Refused) as off:
        policy(**NAMED).permit(predicting(), "north", analyst="south")
    assert off.value.public == (
        "site north refuses: its policy has max_predicted_rows = 0, but the terms predict 500 rows with this "
        "site's columns (0 disables predictions); set max_predicted_rows = 500 in its [policy] and restart "
        "`fedboost party`"
    )
    with pytest.raises(Refused, match="max_predicted_rows = 499, but the terms predict 500 rows"):
        policy(**NAMED, max_predicted_rows=499).permit(predicting(), "north", analyst="south")
    limits = policy(**NAMED, max_predicted_rows=500).permit(predicting(), "north", analyst="south")
    assert limits == Limits(max_predicted_rows=500, min_difference=10)


def test_a_refused_prediction_names_all_that_the_policy_lacks():
    """Nobody can approve its terms: there is no file of them."""
    strict = policy(**{**NAMED, "parties": ["south"], "columns": {"row_id": ["id"]}})
    with pytest.raises(Refused) as error:
        strict.permit(predicting(), "north", analyst="south")
    assert error.value.public.endswith(
        'add "north" to parties, add "age" to columns.features, set max_predicted_rows = 500 in its '
        "[policy] and restart `fedboost party`"
    )


@pytest.mark.parametrize(
    ("changed", "rules", "key"),
    [
        ({}, {"parties": ["south"]}, "parties"),
        ({}, {"columns": {"row_id": ["id"]}}, "columns.features"),
        ({}, {"label_holders": ["west"]}, "label_holders"),
        ({}, {"by_columns": False}, "by_columns"),
        ({"min_common_rows": 9}, {}, "min_common_rows"),
        ({"max_ids": 10_000_001}, {}, "max_foreign_ids"),
        ({"protection": "plain"}, {}, "protections"),
        ({}, {"min_parties": 3}, "min_parties"),
    ],
)
def test_rules_of_who_and_which_rows_hold_for_predictions(changed, rules, key):
    assert broken(predicting(**changed), max_predicted_rows=500, **rules) == [key]


def test_rules_of_what_is_trained_do_not():
    """Nor `analysts`, nor a budget of epsilon: no noise could go on what is predicted."""
    strict = {"epsilon": 1.0, "delta": 1e-5, "analysts": []}
    assert not broken(predicting(), max_predicted_rows=500, **strict)
    assert {"max_rounds", "epsilon", "validation", "max_trees_per_round"} <= {*broken(trained(), **strict)}


def test_the_label_holder_needs_no_leave_to_predict_its_own_rows():
    own = {"columns": {"features": ["dose"], "row_id": ["id"], "base_margin": ["margin"]}}
    assert not broken(predicting(), party="south", **own)


def test_a_whole_model_is_for_sites_that_give_it():
    def keys(agreement, **rules):
        return "model" in broken(agreement, analyst="", **rules)

    assert keys(trained(model="whole"))
    assert not keys(trained(model="whole"), model="whole")
    assert not keys(trained())
    assert not keys(trained(protection="plain"))  # cut points are known there anyway
    assert not keys(predicting(model="whole"))
    (breach,) = (b for b in policy(**NAMED).breaches(trained(model="whole"), "", "north") if b.key == "model")
    assert breach.refusal("north").public == (
        'site north refuses: its policy has model = "parties", but the terms have model = "whole", which '
        'gives the analyst the thresholds of all columns; set model = "parties", or run `fedboost '
        "approve terms.toml --config party.toml` at that site"
    )


def test_a_label_holder_may_want_first_rounds_alone():
    def keys(agreement, party):
        return "min_alone_rounds" in broken(agreement, party, "", min_alone_rounds=2)

    assert keys(trained(), "south")
    assert keys(trained(alone_rounds=1), "south")
    assert not keys(trained(alone_rounds=2), "south")
    assert not keys(trained(), "north")  # another party's labels
    assert not keys(predicting(), "south")
    assert not keys(Terms.read({"columns": {"label": "y", "numeric": ["age"]}}), "south")


def test_bins_of_few_rows_are_refused_where_labels_are_hidden_unless_a_site_says_otherwise():
    def keys(agreement, party="north", **rules):
        return "min_rows_per_bin" in broken(agreement, party, "", **rules)

    one_tree = {"num_parallel_tree": 1}
    assert keys(trained())
    assert keys(trained(), "south")
    assert keys(trained(**one_tree, min_rows_per_bin=9))
    assert not keys(trained(**one_tree, min_rows_per_bin=10))
    assert not keys(trained(**one_tree, min_rows_per_bin=5), min_rows_per_bin=5)
    assert keys(trained(**one_tree, min_rows_per_bin=10), min_rows_per_bin=11)
    assert not keys(trained(), min_rows_per_bin=1)
    plain = trained(protection="plain")
    assert not keys(plain)  # parties see each other's labels, and several blocks have no floor
    assert keys(plain, min_rows_per_bin=2)
    assert not keys(predicting())
    assert not keys(Terms.read({"columns": {"label": "y", "numeric": ["age"]}}), min_rows_per_bin=2)
    (breach,) = (b for b in policy(**NAMED).breaches(trained(), "", "north") if b.key == "min_rows_per_bin")
    assert breach.refusal("north").public == (
        "site north refuses: its policy has min_rows_per_bin = 10, but the terms allow bins with one row; "
        "set min_rows_per_bin = 10, or run `fedboost approve terms.toml --config party.toml` at that site"
    )


# ---- who asks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "role", "agreement", "fault"),
    [
        ("south", "party", predicting(), None),
        ("marie", "analyst", trained(), None),
        ("south", "party", trained(), "signed by party south, not by an analyst"),
        ("marie", "analyst", predicting(), "signed by analyst marie, but label holder"),
        ("south", "analyst", predicting(), "signed by analyst south, but label holder"),
        ("north", "party", predicting(), "signed by party north, but label holder"),
    ],
)
def test_a_prediction_is_asked_for_by_the_label_holder_itself(name, role, agreement, fault):
    trust = Trust(ROOTS, (), lambda: NOW)
    request = key_exchange.request(signer(name, role), agreement, bytes(32), 0)
    if fault is None:
        assert key_exchange.check_request(trust, agreement, request) == name
        return
    with pytest.raises(PeerError, match=fault):
        key_exchange.check_request(trust, agreement, request)


# ---- the memory on disk, and approvals --------------------------------------------------------------


def test_predictions_count_in_the_next_process(tmp_path):
    path = tmp_path / "memory.sqlite"
    make_file(path, "patients")
    limits = Limits(max_predicted_rows=700)
    with closing(FileMemory(path, "north", "patients", Budget(1.0, 1e-5))) as memory:
        memory.begin(SessionOffer("s", predicting()), limits).meet(1)
    with (
        closing(FileMemory(path, "north", "patients")) as memory,
        raised(Refused, "policy-max-predicted-rows"),
    ):
        memory.begin(SessionOffer("t", predicting()), limits)
    assert (read_spent(path).sessions, read_spent(path).cost) == (0, 0.0)  # no training, and no epsilon


def test_a_new_memory_knows_the_predictions_that_the_counter_has(tmp_path):
    site = tmp_path / "party.toml"
    site.write_text(SITE)
    with Running(site) as running:
        running.memory.begin(SessionOffer("s", predicting()), Limits(max_predicted_rows=700)).meet(1)
    memory_path(read_party(site)).unlink()
    fedboost("privacy", "init", "--restored", "--config", site)
    with Running(site) as again, raised(Refused, "policy-max-predicted-rows"):
        again.memory.begin(SessionOffer("t", predicting()), Limits(max_predicted_rows=700))


def test_a_person_approves_predictions_row_by_row(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path
    (folder / "rows.csv").write_text("age,id\n30,a\n40,b\n")
    rules = {**NAMED, "max_predicted_rows": 700}
    (folder / "party.toml").write_text(f'{SITE}keys = "keys/north"\npolicy = {to_toml(rules)}\n')
    first, more = predicting(), predicting(300)
    for agreement in (first, more):
        (folder / f"{agreement.digest}.toml").write_text(terms_to_toml(agreement))
    config = read_party(folder / "party.toml", None)
    memory_path(config).parent.mkdir(parents=True)
    make_file(memory_path(config), config.rows_name)
    with closing(FileMemory(memory_path(config), "north", config.rows_name)) as memory:
        memory.begin(SessionOffer("s", first), Limits(max_predicted_rows=700)).meet(1)
    end = run("--yes", terms_file=f"{more.digest}.toml")
    assert not end.err, end.err
    text = " ".join(end.out.split())
    assert "predictions 500 of 700 rows used (max_predicted_rows)" in text
    assert "predicts 300 rows of south; nothing is trained" in text
    assert (
        "max_predicted_rows = 700 This site has helped to predict 500 rows so far, and the terms predict "
        "300 more" in text
    )
    assert approvals(folder)
    assert permits(more, analyst="south") == ""
    assert "requested by label holder south, not by an analyst" in refusal(
        "approve", f"{more.digest}.toml", "--config", "party.toml", "--analyst", "marie", "--yes"
    )


def test_a_person_approves_more_splits_than_the_policy_has(tmp_path):
    """Those of a session before, at this site, are in the line that is shown."""
    small = Terms.read(
        {
            "columns": COLUMNS,
            "label_holder": "south",
            "max_depth": 5,
            "parties": ["north", "south"],
            "protection": "paillier",
            "rounds": 50,
        }
    )
    (tmp_path / "party.toml").write_text(f"{SITE}policy = {to_toml(NAMED)}\n")
    config = read_party(tmp_path / "party.toml", None)
    memory_path(config).parent.mkdir(parents=True)
    make_file(memory_path(config), config.rows_name)
    with closing(FileMemory(memory_path(config), "north", config.rows_name)) as memory:
        memory.begin(SessionOffer("s", small), Limits()).meet(1)
        with raised(Refused, "policy-max-splits"):
            memory.begin(SessionOffer("t", small), Limits())
    breaches = [breach for breach in review(config, small, ()).breaches if breach.key == "max_splits"]
    assert [(breach.allow, breach.why) for breach in breaches] == [
        (3100, "earlier sessions may have 1,550 splits on this site's columns, and this one 1,550 more")
    ]
