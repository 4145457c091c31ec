"""Each party keeps its part of the model: what is in it, who is told what, and how parts become the model."""

import json
from dataclasses import replace

import numpy as np
import pytest
from apart_sessions import LOST, NOW, Apart, once
from columns_apart import LAYOUTS, pooled, terms_of, train_apart, train_pooled
from consortium import installed
from raised import raised
from typer.testing import CliRunner

import fedboost as fb
from fedboost.cli.main import app
from fedboost.errors import ConfigError
from fedboost.protocol.messages import Attest, Close
from fedboost.runtime.signed_model import PartyModel, trained_model_of
from tests.vertical.test_equal import SETTINGS

PARTIES = "bank", "telco", "shop"
ONE_BLOCK = ["two holders", "three holders", "one a column"]
FEW = {"rounds": 2, "max_depth": 3}


def train(setting="logistic", layout="three holders", **more):
    label, settings = SETTINGS[setting]
    return train_apart(LAYOUTS[layout], pooled(label=label), **{**settings, "model": "parties", **more})


def session(**settings):
    """A session over a consortium with keys."""
    return Apart(model="parties", table=pooled(), **{**FEW, **settings}).play()


def analysts(apart):
    return PartyModel.from_bytes(trained_model_of(apart.session).to_bytes())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "layout"),
    [
        (setting, layout)
        for s, setting in enumerate(SETTINGS)
        for at, layout in enumerate(ONE_BLOCK)
        if setting == "logistic" or s % len(ONE_BLOCK) == at
    ],
)
def test_the_parts_of_all_parties_are_the_model_of_pooled_rows(tmp_path, setting, layout):
    label, settings = SETTINGS[setting]
    result = train(setting, layout)
    files = []
    for party, part in result.party_models.items():
        files.append(tmp_path / f"{party}.json")
        part.save(files[-1])
        assert PartyModel.load(files[-1]).to_bytes() == part.to_bytes()
    due = train_pooled(pooled(label=label), **settings).model.booster
    assert fb.assemble(files).booster.to_xgboost() == due.to_xgboost()
    assert result.model.booster == due


def test_so_they_are_where_gradients_are_hidden():
    if not installed("paillier"):
        pytest.skip("needs the extra paillier")
    settings = {"protection": "paillier", "key_bits": 2048, **FEW}
    result = train_apart(LAYOUTS["two holders"], pooled(), **settings)
    assert set(result.party_models) == {"bank", "telco"}
    assert fb.assemble(result.party_models.values()).booster == train_pooled(pooled(), **FEW).model.booster


@pytest.mark.parametrize("model", [*PARTIES, "the analyst's"])
def test_a_part_has_the_splits_of_its_party_alone(model):
    apart = session(max_depth=4)
    kept = {part.party: PartyModel.of(part) for part in apart.parts}
    part = analysts(apart) if model == "the analyst's" else kept[model]
    whole, features = apart.session.booster, apart.terms.columns.features
    holders = [next(p for p in PARTIES if name in own(apart, p)) for name in features]
    foreign = 0
    for tree, told in zip(whole.trees, part.booster.trees, strict=True):
        assert told.left.tolist() == tree.left.tolist()
        every, shown = tree.to_columns(), told.to_columns()
        for node, left in enumerate(tree.left):
            decision = [every[key][node] for key in DECISION]
            seen = [shown[key][node] for key in DECISION]
            numbers = [told.value[node], told.gain[node], told.cover[node]]
            due = [tree.value[node], tree.gain[node], tree.cover[node]]
            assert numbers == (due if model == "bank" else [0.0] * 3)
            if left < 0:
                continue
            holder = holders[tree.feature[node]]
            if holder == model:
                assert seen == decision
            else:
                foreign += 1
                assert seen == [len(features) + PARTIES.index(holder), np.inf, False, 0]
    assert foreign
    assert (part.booster.base_score == whole.base_score) is (model == "bank")


DECISION = "feature", "threshold", "missing_left", "categories"


def own(apart, party):
    return apart.terms.blocks.columns_of(party).features


def test_the_analyst_has_metrics_signatures_and_each_partys_share():
    apart = session()
    model = analysts(apart)
    assert [row["round"] for row in model.rounds] == [0, 1]
    assert model.verify(apart.roots, NOW) == apart.terms.parties
    assert sum(model.importance.values()) == pytest.approx(1)
    gains = dict.fromkeys(PARTIES, 0.0)
    for name, gain in gains_by_column(apart.session.booster).items():
        gains[next(party for party in PARTIES if name in own(apart, party))] += gain
    assert model.gains == pytest.approx(gains)


def gains_by_column(booster):
    names = booster.features
    found = dict.fromkeys(names, 0.0)
    for tree in booster.trees:
        for feature, left, gain in zip(tree.feature, tree.left, tree.gain, strict=True):
            if left >= 0:
                found[names[feature]] += gain
    return found


def test_an_analyst_is_told_no_gain_and_no_value_of_any_node():
    """From gains and covers the values of leaves follow."""
    model = json.loads(trained_model_of(session().session).to_bytes())["model"]["learner"]
    for tree in model["gradient_booster"]["model"]["trees"]:
        for numbers in ("base_weights", "loss_changes", "sum_hessian"):
            assert not any(tree[numbers])


def test_a_signature_of_another_structure_is_found():
    apart = session()
    model = analysts(apart)
    first, *others = model.booster.trees
    other = first.changed(feature=first.feature + (first.feature == len(apart.terms.columns.features)))
    changed = replace(model.booster, trees=(other, *others))
    assert other != first
    faults = replace(model, booster=changed).faults(apart.roots, NOW)
    assert set(faults.values()) == {
        f"party {p} signed trees that differ from the model's trees" for p in PARTIES
    }


def test_parts_with_the_analysts_make_a_signed_model():
    apart = session()
    parts = [PartyModel.of(part) for part in apart.parts]
    model = fb.assemble([analysts(apart), *parts])
    assert model.booster == apart.session.booster
    assert model.verify(apart.roots, NOW) == apart.terms.parties
    assert [row["round"] for row in model.rounds] == [0, 1]
    assert fb.Model.from_bytes(model.to_bytes()).verify(apart.roots, NOW) == apart.terms.parties


def test_a_part_that_was_changed_is_not_the_one_that_was_signed():
    apart = session()
    parts = {part.party: PartyModel.of(part) for part in apart.parts}
    telco = parts["telco"]
    trees = [
        tree.changed(threshold=tree.threshold + ((tree.threshold != 0) & (abs(tree.threshold) < 9)))
        for tree in telco.booster.trees
    ]
    parts["telco"] = replace(telco, booster=replace(telco.booster, trees=tuple(trees)))
    assert fb.assemble(parts.values()).booster != apart.session.booster  # nothing to hold it against
    with raised(ConfigError, "model-part-altered"):
        fb.assemble([analysts(apart), *parts.values()])


def test_parts_that_do_not_belong_together():
    result, other = train(), train(rounds=3)
    parts = result.party_models
    refused = {
        "the part of telco is missing; it is needed for split": [parts["bank"], parts["shop"]],
        "the part of label holder bank is missing": [parts["telco"], parts["shop"]],
        "the part of telco was passed twice": [parts["bank"], parts["telco"], parts["telco"]],
        "the part of telco comes from a different session than that of bank": [
            parts["bank"],
            other.party_models["telco"],
        ],
        "there are no model parts; pass the part of each party": [],
    }
    for words, given in refused.items():
        with pytest.raises(ConfigError, match=words):
            fb.assemble(given)


def test_the_part_of_a_party_without_a_split_is_not_needed():
    result = train(max_depth=1, rounds=1)
    feature = result.model.booster.trees[0].feature[0]
    name = result.model.booster.features[feature]
    columns = result.model.terms.blocks.columns_of
    needed = {"bank", next(party for party in PARTIES if name in columns(party).features)}
    assert fb.assemble(result.party_models[party] for party in needed).booster == result.model.booster


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: content | {"version": 2}, "from a newer fedboost"),
        (lambda content: content | {"party": "shop"}, "its trees do not match its terms"),
        (lambda content: content | {"party": "nobody"}, "its trees do not match its terms"),
        (lambda content: content | {"salt": "x"}, "incomplete or damaged"),
        (lambda content: {k: v for k, v in content.items() if k != "model"}, "incomplete or damaged"),
        (lambda content: content | {"format": "x"}, "is not a model part written by"),
    ],
)
def test_a_file_that_is_no_part_is_refused_with_one_line(tmp_path, change, words):
    file = tmp_path / "telco.json"
    file.write_text(json.dumps(change(json.loads(train().party_models["telco"].to_bytes()))))
    with pytest.raises(ConfigError, match=words) as caught:
        PartyModel.load(file)
    assert str(caught.value).startswith(str(file))
    assert "\n" not in str(caught.value)


def test_a_part_is_no_model_by_itself(tmp_path):
    file = tmp_path / "telco.json"
    train().party_models["telco"].save(file)
    with raised(ConfigError, "model-is-part"):
        fb.Model.load(file)


# ---- who is told what at the end ----------------------------------------------------------------------


def closes(party, change):
    """The aggregator tells a party another end."""
    return once(lambda name, m: name == party and isinstance(m, Close), lambda m: [change(m)])


@pytest.mark.parametrize(
    ("party", "change", "words"),
    [
        (
            "telco",
            lambda m: replace(m, numbers=bytes(4)),
            "the aggregator sent gains and leaf values to a party without labels",
        ),
        ("bank", lambda m: replace(m, numbers=b""), "0 bytes of values"),
        ("bank", lambda m: replace(m, numbers=m.numbers[:-4]), "bytes of values for"),
        (
            "bank",
            lambda m: replace(m, numbers=m.numbers[:4] + bytes(len(m.numbers) - 4)),
            "the leaf values of tree",
        ),
    ],
)
def test_a_party_that_is_told_what_cannot_be_at_the_end_signs_nothing(party, change, words):
    apart = session(down=closes(party, change))
    assert party not in apart.session.attestations
    assert words in apart.ends[party].ended


def test_the_label_holder_alone_is_told_numbers_of_nodes():
    told = {party: m.numbers for party, m in session().told if isinstance(m, Close)}
    assert [party for party, numbers in told.items() if numbers] == ["bank"]


@pytest.mark.parametrize(
    ("parts", "fields"),
    [
        (True, {"part": b""}),
        (True, {"part": bytes(31)}),
        (False, {"part": bytes(32)}),
        (False, {"thresholds": bytes(4)}),
    ],
)
def test_a_party_signs_the_hash_of_its_part_and_thresholds_where_they_are_asked_for(parts, fields):
    change = once(
        lambda party, m: party == "telco" and isinstance(m, Attest), lambda m: [replace(m, **fields)]
    )
    apart = session(up=change) if parts else Apart(up=change).play()
    assert change.done
    assert parts or apart.session.phase == "done"
    assert apart.session.closing.unsigned == {"telco"}


@pytest.mark.parametrize("party", PARTIES)
def test_a_party_that_dies_when_it_signs_keeps_the_same_part(party):
    def crash(name, message):
        if name == party and isinstance(message, Close) and not done:
            done.append(True)
            apart.crash(party)
            return LOST
        return None

    done = []
    apart = Apart(down=crash, model="parties", on_loss="wait", **FEW)
    apart.play()
    assert apart.session.phase == "done", apart.error
    kept = [PartyModel.of(part) for part in apart.parts]
    assert len(kept) > len(PARTIES)
    assert len({part.to_bytes() for part in kept}) == len(PARTIES)
    assert fb.assemble([analysts(apart), *{part.party: part for part in kept}.values()])


# ---- the command --------------------------------------------------------------------------------------


def run(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_the_command(tmp_path):
    result = train()
    files = {}
    for party, part in result.party_models.items():
        files[party] = tmp_path / f"{party}.json"
        part.save(files[party])
    out = tmp_path / "whole.json"
    done = run("assemble", *files.values(), "--out", out)
    assert done.exit_code == 0, done.output
    assert fb.Model.load(out).booster == result.model.booster
    assert f"model: {out} (XGBoost JSON, {len(result.model.booster.trees)} trees)" in done.output.replace(
        "\n", ""
    )


def test_terms_say_who_gets_the_model():
    assert terms_of(LAYOUTS["two holders"], model="parties").digest != terms_of(LAYOUTS["two holders"]).digest
