"""Which models a site measures: those that it signed, or a party that it names, over all of their trees."""

import asyncio
import dataclasses
import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from approvals import permits, run
from cryptography import x509
from pyarrow import csv
from sites import bundles_of, consortium, fedboost, rows, shared_out, terms

import fedboost as fb
from fedboost.boosting.state import structure
from fedboost.errors import ConfigError, Refused
from fedboost.privacy.identity import Signer, identify, issue, new_root, to_pem
from fedboost.protocol import key_exchange
from fedboost.protocol.messages import Attest
from fedboost.runtime.local.simulation import simulate
from fedboost.runtime.model import Model, text_of
from fedboost.runtime.net.keys import write_bundle
from fedboost.runtime.site.config import read_party
from fedboost.runtime.site.models import signers_at, signers_of
from fedboost.runtime.site.policy import ModelSigners, Policy
from fedboost.runtime.tasks import drift_terms, evaluation_terms, terms_to_toml
from fedboost.terms import continuation
from fedboost.terms.reading import read_model
from fedboost.terms.session import TASKS
from fedboost.terms.tasks import rows_readable, terms_to_describe

THREE = ("north", "south", "east")
NOW = datetime.now(UTC)
LATER = NOW + timedelta(days=900)
KEY, ROOT = new_root("heart study", NOW, 2000)
ROOTS = to_pem(ROOT)
OPEN = {"parties": "any", "analysts": "any", "columns": "any"}
TABLES = shared_out(3, rows(900))
LEAVES = {"min_child_weight": 10, "objective": "reg:squarederror"}


def signer_of(name="north", role="party", root=(KEY, ROOT), days=10):
    key, certificate = issue(*root, name, role, NOW, days)
    return Signer(name, role, to_pem(certificate), key)


def trained(tables=TABLES, **settings):
    return simulate(terms(THREE, **{"protection": "masked", **LEAVES, **settings}), tables).model


def signed(model, *signers, name=None):
    """The model as these parties sign it at the end of its session."""
    own, attestations = model.terms, {}
    based = own.columns.base_margin is not None
    constant = model.booster.trees[0].value[0] if based else model.booster.constant
    if own.earlier is not None:
        constant = 0.0
    trees = model.booster.trees[len(own.roots) * own.constant_rounds :]
    edges = continuation.edges_in(model.terms.evaluation, model.summary)
    told = structure(constant, trees, model.booster.target_means.values(), edges)
    for signer in signers:
        party = name or signer.name
        attest = Attest(0, 7, b"t" * 32, told, signer.certificate, b"")
        statement = key_exchange.attestation(own, b"", b"s" * 32, party, attest)
        attestations[party] = dataclasses.replace(attest, signature=signer.sign(statement))
    return dataclasses.replace(model, attestations=attestations, session=b"s" * 32, request=None)


NORTH, SOUTH = signer_of(), signer_of("south")
SERIAL = identify(NORTH.certificate, ROOTS, NOW, ()).serial


@pytest.fixture(scope="module")
def model():
    return signed(trained(reference=True, max_bin=64), NORTH, SOUTH)


def names(asked, wanted=("north",), now=NOW, denied=(), roots=ROOTS):
    return {*signers_of(asked, wanted, roots, now, denied)}


def broken(asked, signers=frozenset({"north"}), **rules):
    policy = read_model(Policy, {**OPEN, **rules}, "party.toml")
    return [breach.key for breach in policy.breaches(asked, party="north", signers=ModelSigners(signers))]


# ---- signatures --------------------------------------------------------------------------------------


def test_bins_of_free_choice_are_not_those_that_were_signed(model):
    """Between other edges an analyst could look for single values, and a score has edges of a grid alone."""
    honest, _ = drift_terms(model)
    numeric, score = continuation.bins_of(honest.xgb_model)
    facts = continuation.facts_of(honest.xgb_model)

    def asked(*bins):
        text = continuation.written(model.booster, model.terms.columns, bins, facts)
        return honest.changed(xgb_model=text)

    assert names(asked(numeric, score)) == {"north"}
    moved = [[*numeric[0][:-1], numeric[0][-1] + 1e-6], *numeric[1:]]
    assert names(asked(moved, score)) == set()
    with pytest.raises(
        ConfigError, match="the score bins of xgb_model do not match its reference distribution"
    ):
        asked(numeric, [score[0] + 1e-4, *score[1:]])
    with pytest.raises(ConfigError, match="is malformed or altered"):
        asked([[*range(40)], *numeric[1:]], score)


def test_a_site_finds_its_own_signature_and_those_of_parties_it_names(model):
    for asked in (evaluation_terms(model), drift_terms(model)[0]):
        assert names(asked) == {"north"}
        assert names(asked, ("north", "south", "east")) == {"north", "south"}
        assert names(asked, ("east", "nobody")) == set()
    assert names(evaluation_terms(signed(model, SOUTH))) == set()


def test_a_certificate_that_has_expired_since_counts_and_one_that_is_denied_does_not(model):
    asked = evaluation_terms(model)
    assert names(asked, now=LATER) == {"north"}
    assert names(asked, denied=(SERIAL,)) == set()
    assert names(asked, now=LATER, denied=(SERIAL,)) == set()


def test_another_consortium_and_other_roles_sign_for_nobody_here(model):
    stranger = signer_of(root=new_root("another study", NOW, 2000))
    assert names(evaluation_terms(signed(model, stranger))) == set()
    for other in (SOUTH, signer_of("north", "analyst")):
        assert names(evaluation_terms(signed(model, other, name="north"))) == set()


@pytest.mark.parametrize("change", ["leaf", "threshold", "order", "base score", "missing"])
def test_trees_that_were_changed_are_signed_by_nobody(model, change):
    booster = model.booster
    trees = [*booster.trees]
    tree = trees[0]
    nodes = np.arange(len(tree))
    changes = {
        "leaf": {"value": np.where(nodes == tree.leaves[0], 9.0, tree.value)},
        "threshold": {"threshold": np.where(nodes == np.argmax(tree.inner), 51.25, tree.threshold)},
        "missing": {"missing_left": ~tree.missing_left},
    }
    if change in changes:
        trees[0] = tree.changed(**changes[change])
    if change == "order":
        trees[:2] = trees[1::-1]
    score = booster.base_score + 0.25 * (change == "base score")
    other = dataclasses.replace(booster, trees=tuple(trees), base_score=score)
    asked = evaluation_terms(dataclasses.replace(model, booster=other))
    assert names(asked) == set()


def test_levels_that_go_left_are_signed():
    levels = {"label": "y", "categorical": {"ward": ["a", "b", "c"]}}
    own = signed(trained(columns=levels), NORTH)
    assert names(evaluation_terms(own)) == {"north"}
    trees = [
        t.changed(categories=np.where(t.categories > 0, t.categories ^ 7, 0).astype(np.uint8))
        for t in own.booster.trees
    ]
    assert trees != [*own.booster.trees]
    booster = dataclasses.replace(own.booster, trees=tuple(trees))
    assert names(evaluation_terms(dataclasses.replace(own, booster=booster))) == set()


def test_facts_that_were_changed_are_signed_by_nobody(model):
    lax = dataclasses.replace(model, terms=model.terms.changed(min_child_weight=40))
    assert names(evaluation_terms(lax)) == set()
    assert names(evaluation_terms(dataclasses.replace(model, session=b"u" * 32))) == set()
    attest = dataclasses.replace(model.attestations["north"], transcript=b"u" * 32)
    assert names(evaluation_terms(dataclasses.replace(model, attestations={"north": attest}))) == set()
    attest = dataclasses.replace(model.attestations["north"], certificate=b"none")
    assert names(evaluation_terms(dataclasses.replace(model, attestations={"north": attest}))) == set()


@pytest.mark.parametrize("fact", ["attestations", "session", "request"])
@pytest.mark.parametrize("value", ["[]", "{", '{"north": {}}', '"x"', "7", "zz"])
def test_facts_that_cannot_be_read_name_nobody(model, fact, value):
    asked = evaluation_terms(model)
    content = json.loads(asked.xgb_model)
    content["learner"]["attributes"][f"fedboost.{fact}"] = value
    odd = asked.changed(xgb_model=json.dumps(content, separators=(",", ":")))
    assert names(odd) == set()


def test_columns_and_levels_mean_what_they_meant_in_the_training(model):
    """Thresholds that were grown on the ages may part single rows by another column."""
    asked = evaluation_terms(model)
    assert names(asked) == {"north"}
    content = asked.model_dump(mode="json", exclude_unset=True)
    booster = dataclasses.replace(model.booster, features=("dose", "age", "ward"))
    columns = {**content["columns"], "numeric": ["dose", "age"]}
    other = dataclasses.replace(model, booster=booster)
    text = str(text_of(other, task=TASKS["evaluate"]))
    assert names(asked.changed(columns=columns, xgb_model=text)) == set()
    columns = {**content["columns"], "categorical": {"ward": ["b", "a", "c"]}}
    bare = json.loads(asked.xgb_model)
    del bare["learner"]["attributes"]["fedboost.columns"]
    text = json.dumps(bare, separators=(",", ":"))
    assert names(asked.changed(xgb_model=text)) == {"north"}
    assert names(asked.changed(columns=columns, xgb_model=text)) == set()


def test_means_of_levels_are_those_of_their_column():
    columns = {"label": "y", "numeric": ["age"], "target_means": {"ward": 4, "site": 4}}
    own = signed(trained(columns=columns), NORTH)
    assert names(evaluation_terms(own)) == {"north"}
    means = dict(zip(("site", "ward"), own.booster.target_means.values(), strict=True))
    other = dataclasses.replace(own, booster=dataclasses.replace(own.booster, target_means=means))
    assert names(evaluation_terms(other)) == set()


def test_of_a_program_of_ones_own_the_trees_are_signed_by_nobody(model):
    """Its parties sign the questions alone."""
    other = dataclasses.replace(model, terms=model.terms.changed(program="mine", reference=False))
    assert names(evaluation_terms(signed(other, NORTH), model.terms)) == set()


def test_a_model_of_base_margins_is_found_and_begins_as_it_did():
    draw = np.random.default_rng(3)
    tables = {name: each.append_column("m", [draw.normal(size=len(each))]) for name, each in TABLES.items()}
    columns = terms().model_dump(mode="json", exclude_unset=True)["columns"] | {"base_margin": "m"}
    own = trained(tables, columns=columns)
    assert names(evaluation_terms(signed(own, NORTH))) == {"north"}
    first = own.booster.trees[0].changed(value=3.0)
    booster = dataclasses.replace(own.booster, trees=(first, *own.booster.trees[1:]))
    asked = evaluation_terms(dataclasses.replace(signed(own, NORTH), booster=booster))
    assert names(asked) == set()


def test_a_model_that_continues_another_asks_for_continue_models(model):
    own = trained(xgb_model=str(text_of(dataclasses.replace(model, attestations={}))))
    asked = evaluation_terms(signed(own, NORTH))
    assert names(asked) == {"north"}
    assert broken(asked) == ["continue_models"]
    assert broken(asked, continue_models=True) == []
    trees = (own.booster.trees[1], *own.booster.trees[1:])
    swapped = dataclasses.replace(own, booster=dataclasses.replace(own.booster, trees=trees))
    assert names(evaluation_terms(signed(swapped, NORTH))) == set()


# ---- rules -------------------------------------------------------------------------------------------


RULES = [
    # the training, who signed, the policy, the keys it breaks
    ({}, {"north"}, {}, []),
    ({}, set(), {}, ["evaluate"]),
    ({}, {"south"}, {}, ["evaluate"]),
    ({}, {"south"}, {"evaluate_signers": ["south", "west"]}, []),
    ({}, {"south"}, {"evaluate_signers": "east"}, ["evaluate"]),
    ({}, set(), {"evaluate": "any"}, []),
    ({}, {"north"}, {"min_rows_per_leaf": 11}, ["min_rows_per_leaf"]),
    ({}, {"south"}, {"min_rows_per_leaf": 11, "evaluate_signers": ["south"]}, ["min_rows_per_leaf"]),
    ({}, set(), {"min_rows_per_leaf": 11, "evaluate": "any"}, []),
    ({"min_child_weight": 9}, {"north"}, {}, ["min_rows_per_leaf"]),
    ({"sampling_method": "gradient_based", "subsample": 0.5}, {"north"}, {}, ["min_rows_per_leaf"]),
    ({"objective": "binary:logistic", "min_child_weight": 2.5}, {"north"}, {}, []),
    ({"objective": "binary:logistic", "min_child_weight": 2.2}, {"north"}, {}, ["min_rows_per_leaf"]),
    ({"objective": "binary:logistic", "scale_pos_weight": 2.0}, {"north"}, {}, ["min_rows_per_leaf"]),
    ({}, {"north"}, {"tasks": ["train", "evaluate", "drift"]}, []),
    ({}, {"north"}, {"tasks": "train"}, ["tasks"]),
    ({}, {"north"}, {"tasks": ["train", "describe", "tune", "predict"]}, ["tasks"]),
]


@pytest.mark.parametrize(("training", "signers", "rules", "keys"), RULES)
def test_a_site_measures_models_that_it_or_a_named_party_signed(training, signers, rules, keys):
    own = trained(reference=True, **training)
    for asked in (evaluation_terms(own), drift_terms(own)[0]):
        assert broken(asked, frozenset(signers), **rules) == keys


def test_weights_promise_no_rows_of_a_leaf():
    tables = {name: each.append_column("w", [np.full(len(each), 9.0)]) for name, each in TABLES.items()}
    columns = terms().model_dump(mode="json", exclude_unset=True)["columns"] | {"weight": "w"}
    asked = evaluation_terms(signed(trained(tables, columns=columns), NORTH))
    policy = read_model(Policy, OPEN, "party.toml")
    (breach,) = policy.breaches(asked, party="north", signers=ModelSigners(frozenset({"north"})))
    assert breach.key == "min_rows_per_leaf"
    assert (
        breach.why
        == "in the training of the model no minimum is guaranteed with the row weights of column 'w'"
    )


def test_covers_that_contradict_the_terms_of_the_training_are_refused(model):
    """They prove nothing, as no party signs them; but here the file itself says that leaves have few rows."""
    tree = model.booster.trees[1]
    cover = np.where(tree.inner, tree.cover, 1.0)
    trees = (model.booster.trees[0], tree.changed(cover=cover), *model.booster.trees[2:])
    other = dataclasses.replace(model, booster=dataclasses.replace(model.booster, trees=trees))
    asked = evaluation_terms(other)
    assert names(asked) == {"north"}
    assert broken(asked) == ["evaluate"]
    assert broken(asked, evaluate="any") == []


def test_each_task_has_its_name(model):
    for task in ("train", "describe"):
        asked = terms(THREE, protection="masked", min_child_weight=40)
        asked = terms_to_describe(asked) if task == "describe" else asked
        assert broken(asked, tasks=[task]) == []
        assert broken(asked, tasks=["drift"]) == ["tasks"]
    policy = read_model(Policy, {**OPEN, "tasks": "drift", "evaluate": "any"}, "party.toml")
    with pytest.raises(Refused) as error:
        policy.permit(evaluation_terms(model), "north")
    assert 'its policy has tasks = ["drift"], but the session\'s task is evaluate; run `' in str(error.value)


# ---- what a person reads ----------------------------------------------------------------------------


def site(folder, keys=True, **policy):
    """party.toml of site north, its rows, and its keys."""
    csv.write_csv(TABLES["north"], folder / "rows.csv")
    lines = ['party = "north"', 'aggregator = "localhost:7070"', 'data = "rows.csv"']
    if keys:
        write_bundle(folder / "keys", NORTH.key, x509.load_pem_x509_certificate(NORTH.certificate), ROOTS)
        lines.append('keys = "keys"')
    named = {"parties": [*THREE], "analysts": ["marie"], **policy}
    lines += ["[policy]", *(f"{key} = {json.dumps(value)}" for key, value in named.items())]
    lines += ["[policy.columns]", 'label = ["y"]', 'features = ["age", "dose", "ward"]']
    (folder / "party.toml").write_text("\n".join([*lines, ""]))


def approved(model, *options):
    """What `fedboost approve` prints of an evaluation of the model, in one line."""
    asked = evaluation_terms(model)
    Path("evaluate.toml").write_text(terms_to_toml(asked))
    end = run(*options, "--analyst", "marie", "--yes", terms_file="evaluate.toml")
    assert end.code == 0, end.err
    return asked, " ".join(end.out.split())


def test_an_approval_says_who_signed_the_model_and_what_it_could_read(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    site(tmp_path)
    leaves = sum(len(tree.leaves) for tree in model.booster.trees)
    asked, text = approved(model)
    assert f"reg:squarederror, 3 trees with {leaves} leaves, which are part of the terms" in text
    assert "signed by this site, which took part in its training" in text
    assert "each leaf of its trees has at least 10 training rows" in text
    assert "The terms break no rule of this site's policy." in text
    unsigned = dataclasses.replace(model, attestations={})
    asked, text = approved(unsigned)
    assert "signed by neither this site nor a party whose signature it accepts (evaluate_signers)" in text
    single = "some leaves of this model may contain a single row; the analyst can learn the values of at most"
    assert f"{single} {rows_readable(asked):,} individual people per session" in text
    assert 'evaluate = "own"' in text
    assert "THE ANALYST MAY READ VALUES OF INDIVIDUAL ROWS" in text
    assert permits(asked, "marie") == ""  # an approval by digest is above any rule


def test_a_named_signer_is_told_and_missing_keys_are_said(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    site(tmp_path, evaluate_signers=["south"])
    _, text = approved(signed(model, SOUTH))
    assert "signed by south, whose signature this site accepts (evaluate_signers)" in text
    for file in (tmp_path / "keys").iterdir():
        file.unlink()
    _, text = approved(signed(model, SOUTH, NORTH))
    assert "signed by unknown: this site's trusted certificates cannot be read: " in text
    assert "some leaves of this model may contain a single row" in text


def test_a_site_without_keys_refuses_and_says_so(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    site(tmp_path, keys=False)
    asked = evaluation_terms(model)
    assert signers_at(read_party(Path("party.toml"), None), asked).names == frozenset()
    assert (
        "this site has no keys, so it cannot check the model's signatures; run that site with keys, or set "
        in (permits(asked))
    )
    site(tmp_path, keys=False, evaluate="any")
    assert permits(asked) == ""


def test_values_that_can_be_read_are_no_fewer_than_the_numbers_of_a_result(model):
    for options in ({}, {"by": ["ward"], "by_site": True, "min_count": 1}):
        for own in (model, trained(objective="binary:logistic", min_child_weight=2.5)):
            asked = evaluation_terms(own, **options)
            assert numbers(fb.evaluate(own, TABLES, asked).summary) <= rows_readable(asked)
    asked = drift_terms(model, min_count=1)[0]
    assert numbers(model.summary["reference"]) <= rows_readable(asked)


def numbers(value):
    """Numbers in JSON, but for edges and thresholds."""
    if isinstance(value, dict):
        fixed = ("low", "high", "edges", "threshold", "min_count", "groups")
        return sum(numbers(each) for key, each in value.items() if key not in fixed)
    return sum(map(numbers, value)) if isinstance(value, list) else isinstance(value, int | float)


# ---- over gRPC ---------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_model_is_trained_and_measured_by_default_where_parties_have_keys(tmp_path):
    agreed = terms(THREE, protection="masked", min_child_weight=2.5, reference=True, max_bin=64)
    bundles = bundles_of(tmp_path / "keys", THREE)
    columns = {"label": ["y"], "features": ["age", "dose", "ward"]}
    policy = {"parties": [*THREE], "analysts": ["analyst"], "columns": columns}
    async with consortium(tmp_path / "c", {}, bundles=bundles) as one:
        for name, table in TABLES.items():
            one.start_party(name, table, policy=policy)
        own = (await one.train(agreed)).model
        own.save(tmp_path / "own.json")
        own.save(tmp_path / "beside.json", reproducible=True)
        shutil.copy(tmp_path / "beside.json", tmp_path / "lost.json")  # without its session
        options = "--aggregator", one.address, "--keys", tmp_path / "keys" / "analyst"
        for command in ("evaluate", "drift"):
            for file in ("own.json", "beside.json"):
                end = await asyncio.to_thread(fedboost, command, tmp_path / file, *options)
                assert end.code == 0, end.err
            end = await asyncio.to_thread(fedboost, command, tmp_path / "lost.json", *options)
            assert end.code == 2
            assert (
                'its policy has evaluate = "own", but the model has no signature of this site that' in end.err
            )
            assert "Traceback" not in end.err
        found = await asyncio.to_thread(one.analyst.evaluate, own)
        again = await asyncio.to_thread(one.analyst.evaluate, Model.load(tmp_path / "beside.json"))
        assert found.summary == again.summary
        fedboost("evaluate", tmp_path / "own.json", "--save-terms", tmp_path / "e.toml")
        end = await asyncio.to_thread(fedboost, "preflight", tmp_path / "e.toml", *options)
    assert end.code == 0, end.out + end.err
