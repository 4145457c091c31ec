"""Parties with different columns continue a model: the result is the model of pooled rows, bit for bit,
whether the terms contain the earlier model or each party keeps its part."""

from functools import cache

import numpy as np
import pytest
from apart_sessions import NOW, Apart, refused, sealing
from columns_apart import (
    LAYOUTS,
    left_joined,
    matched,
    of_people,
    pooled,
    scattered,
    terms_of,
    train_apart,
    train_pooled,
)
from consortium import installed
from policies import policy
from raised import raised
from sites import bundles_of, consortium

import fedboost as fb
from fedboost.errors import ConfigError, Refused, SessionFailed
from fedboost.holders.alignment import CHECK
from fedboost.holders.columns import LEAF_BITS, STANDING
from fedboost.protocol.site import KnownSession, Limits, SessionOffer, judge, predicted_by
from fedboost.runtime.model import text_of
from fedboost.runtime.signed_model import PartyModel, assembled, signed_model_of, trained_model_of
from fedboost.runtime.site.config import PartyConfig
from fedboost.runtime.site.models import PartFolder
from fedboost.views.approval import summary
from tests.vertical.test_equal import SETTINGS

TWO, THREE = LAYOUTS["two holders"], LAYOUTS["three holders"]
MORE = {"rounds": 3, "max_depth": 4}
FEW = {"rounds": 2, "max_depth": 3, "max_bin": 8}
PARTIES = ("bank", "telco", "shop")
BY_ID = {"rows": "common", "columns": {"row_id": "id"}}


def more(setting):
    """The settings of the second training; the constant is already in the model."""
    return {**{key: value for key, value in SETTINGS[setting][1].items() if key != "base_score"}, **MORE}


@cache
def first(setting="logistic"):
    """The earlier model, trained on pooled rows."""
    label, own = SETTINGS[setting]
    return train_pooled(pooled(label=label), **own).model


@cache
def due(setting="logistic"):
    """The earlier model, continued on pooled rows."""
    settings = {"xgb_model": first(setting), **more(setting)}
    return train_pooled(pooled(label=SETTINGS[setting][0]), **settings)


def metrics(result):
    return [{k: v for k, v in row.items() if k not in ("seconds", "bytes")} for row in result.history]


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_model_in_the_terms_is_continued_as_on_pooled_rows(setting):
    layout = LAYOUTS["blocks"] if setting in ("logistic", "classes") else THREE
    table = pooled(label=SETTINGS[setting][0])
    apart = train_apart(layout, table, xgb_model=first(setting), **more(setting))
    earlier = first(setting).booster
    assert apart.model.booster == due(setting).model.booster
    assert apart.model.booster.trees[: len(earlier.trees)] == earlier.trees
    assert metrics(apart) == metrics(due(setting))


@pytest.mark.parametrize("setting", SETTINGS)
def test_parts_are_continued_into_parts_of_one_model(tmp_path, setting):
    table = pooled(label=SETTINGS[setting][0])
    kept = train_apart(THREE, table, model="parties", **SETTINGS[setting][1])
    terms = terms_of(THREE, model="parties", xgb_model=kept.party_models["shop"], **more(setting))
    result = fb.simulate(terms, THREE.tables(table), models=kept.party_models)
    assert result.model.booster == due(setting).model.booster
    files = [tmp_path / f"{party}.json" for party in PARTIES]
    for file, part in zip(files, result.party_models.values(), strict=True):
        part.save(file)
    assert fb.assemble(files).booster.to_xgboost() == due(setting).model.booster.to_xgboost()
    # The part's file continues once more, and depth may change.
    again = {**more(setting), "rounds": 1, "max_depth": 2}
    settings = {"model": "parties", "xgb_model": str(files[1]), **again}
    last = fb.simulate(terms_of(THREE, **settings), THREE.tables(table), models=result.party_models)
    pooled_last = train_pooled(table, xgb_model=result.model, **again).model
    assert last.model.booster == pooled_last.booster


def of_ids(kind):
    """The tables of the parties, the rows that they train on in one table, and the settings."""
    if kind.startswith("repeated"):
        tables, inner, left = of_people(THREE)
    else:
        tables, inner = scattered(THREE, pooled())
        left = left_joined(THREE, pooled(), tables)
    is_left = kind.endswith("left")
    settings = {"repeated_ids": kind.startswith("repeated"), "rows": "label_holder" if is_left else "common"}
    return tables, left if is_left else inner, {"min_common_rows": 20, **settings}


@pytest.mark.parametrize("kind", ["common", "left", "repeated", "repeated left"])
@pytest.mark.parametrize("model", ["whole", "parties"])
def test_so_they_are_if_rows_are_matched_by_ids(kind, model):
    tables, rows, settings = of_ids(kind)
    drawn = {"subsample": 0.7, "columns": {"row_id": "id"}}
    earlier = fb.simulate(matched(THREE, model=model, **settings, **drawn, **FEW), tables)
    parts = earlier.party_models or None
    given = earlier.model if parts is None else parts["telco"]
    terms = matched(THREE, model=model, xgb_model=given, **settings, **drawn, **MORE)
    result = fb.simulate(terms, tables, models=parts)
    whole = train_pooled(rows, xgb_model=train_pooled(rows, **drawn, **FEW).model, **drawn, **MORE)
    assert result.model.booster == whole.model.booster
    if parts and kind == "common":
        joined = left_joined(THREE, pooled(), tables)
        values, reasons = fb.predict_jointly(result.party_models, tables, reasons=True)
        assert np.array_equal(values, whole.model.predict(joined))
        assert reasons.sum(axis=1) == pytest.approx(np.log(values / (1 - values)))
        found = fb.evaluate(result.party_models, tables, min_count=1).summary["metrics"]
        assert found == fb.evaluate(whole.model, {"pooled": rows}, min_count=1).summary["metrics"]


# ---- sessions with keys: signatures, restarts, lies -----------------------------------------------------


def session(**settings):
    return Apart(table=pooled(60), **{**FEW, "min_child_weight": 1, "on_loss": "wait", **settings})


@cache
def earlier_parts():
    """The earlier model in parts, by party, and as the analyst gets it."""
    apart = session(model="parties").play()
    parts = {part.party: PartyModel.of(part) for part in apart.parts}
    return parts, PartyModel.from_bytes(trained_model_of(apart.session).to_bytes())


def continuing(kind, **settings):
    """A session that continues a model: `whole` in the terms, or in `parties`."""
    if kind == "whole":
        return session(xgb_model=small(), **settings)
    parts, analysts = earlier_parts()
    boosters = {party: part.booster for party, part in parts.items()}
    return session(model="parties", xgb_model=text_of(analysts), models=boosters, **settings)


@cache
def small():
    return train_pooled(pooled(60), **FEW, min_child_weight=1).model


@cache
def small_due():
    return train_pooled(pooled(60), xgb_model=small(), **FEW, min_child_weight=1).model.booster


def result_of(apart):
    """The model of a session: of its parts, if parties keep them."""
    assert apart.session.phase == "done", apart.error
    if not apart.parts:
        return signed_model_of(apart.session)
    analysts = PartyModel.from_bytes(trained_model_of(apart.session).to_bytes())
    return assembled([analysts, *{part.party: PartyModel.of(part) for part in apart.parts}.values()])


@pytest.mark.parametrize("kind", ["whole", "parties"])
def test_the_signatures_hold_for_the_whole_model(kind):
    apart = continuing(kind).play()
    model = result_of(apart)
    assert model.booster == small_due()
    assert model.verify(apart.roots, NOW) == PARTIES
    if kind == "parties":
        analysts = PartyModel.from_bytes(trained_model_of(apart.session).to_bytes())
        assert analysts.verify(apart.roots, NOW) == PARTIES
        assert (analysts.kept, len(analysts.booster.trees)) == (2, 4)
        assert {part.id for part in map(PartyModel.of, apart.parts)} == {analysts.id}


def test_a_part_shows_no_more_of_the_earlier_trees_than_the_earlier_part():
    apart = continuing("parties").play()
    parts, _ = earlier_parts()
    for part in apart.parts:
        known = parts[part.party].booster
        assert part.booster.trees[: len(known.trees)] == known.trees
        assert part.booster.base_score == known.base_score
    public = apart.terms.earlier
    assert {value for tree in public.trees for value in (*tree.value, *tree.gain, *tree.cover)} == {0.0}
    splits = [pair for tree in public.trees for pair in zip(tree.feature, tree.left, strict=True)]
    assert min(feature for feature, left in splits if left >= 0) >= len(public.features)


@pytest.mark.parametrize("kind", ["whole", "parties"])
@pytest.mark.parametrize("party", PARTIES)
def test_a_party_may_die_after_each_turn(kind, party):
    for turn in range(1, 8):
        assert result_of(continuing(kind).dying(party, turn).play()).booster == small_due()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "party"),
    [
        *(("parties", party) for party in PARTIES),
        ("whole", "bank"),
        *(pytest.param("whole", party, marks=pytest.mark.long) for party in PARTIES if party != "bank"),
    ],
)
def test_a_party_may_die_at_every_message(kind, party):
    number = 0
    while apart := continuing(kind).dies_at(party, number + 1):
        number += 1
        assert result_of(apart).booster == small_due(), number
    assert number > 20


def test_leaf_bits_go_to_the_label_holder_once(monkeypatch):
    sent = []

    def note(party, send, ask):
        if send.kind == LEAF_BITS:
            sent.append((party, send.to, send.about, len(send.content)))

    sealing(monkeypatch, note)
    apart = continuing("whole").play()
    sizes = {}
    for tree in small().booster.trees:
        for name in PARTIES[1:]:
            own = {small().booster.features.index(column) for column in THREE.held[name]}
            has = any(left >= 0 and f in own for f, left in zip(tree.feature, tree.left, strict=True))
            sizes[name] = sizes.get(name, 0) + has
    assert sorted(sent) == sorted((name, ("bank",), 60, 60 * size) for name, size in sizes.items() if size)
    assert {party for party, *_ in sent} == {"telco", "shop"}
    assert result_of(apart).booster == small_due()


@pytest.mark.parametrize("change", [lambda bits: bits[:-1], lambda bits: b"\xff" * len(bits)])
def test_impossible_leaf_bits_name_their_sender(monkeypatch, change):
    def lie(party, send, ask):
        return change(send.content) if party == "telco" and send.kind == LEAF_BITS else None

    sealing(monkeypatch, lie)
    assert "telco" in refused(continuing("whole", on_loss="stop"))


def test_ids_are_compared_again_before_leaf_bits_leave(monkeypatch):
    """As after an aggregator kept back the first hash of the ids, and started another attempt."""
    sent = []

    def lie(party, send, ask):
        sent.append(send.kind)
        return bytes(len(send.content)) if sent.count(CHECK) == 2 and send.kind == CHECK else None

    sealing(monkeypatch, lie)
    tables, _ = scattered(THREE, pooled())
    settings = {**FEW, "min_common_rows": 20, "on_loss": "stop", "xgb_model": small()}
    terms = matched(THREE, **settings).with_parties(PARTIES)
    assert "the common rows have different ids" in refused(Apart(terms=terms, tables=tables))
    assert sent.count(CHECK) == 2
    assert LEAF_BITS not in sent


def test_nothing_is_told_to_a_label_holder_that_claims_to_continue(monkeypatch):
    """In a session that continues no model, it says that it lacks the margins of an earlier one."""
    sent = []

    def lie(party, send, ask):
        sent.append(send.kind)
        lacks = np.array([-1, 1], "<i8").tobytes()
        return lacks if party == "bank" and send.kind == STANDING else None

    sealing(monkeypatch, lie)
    for turn in range(3, 8):
        apart = session().dying("bank", turn).play()
        assert apart.session.phase == "done"
    assert STANDING in sent
    assert LEAF_BITS not in sent


@pytest.mark.slow
async def test_sites_continue_the_parts_that_they_keep(tmp_path):
    """The terms file names the analyst's structure; the parts are in the sites' folders."""
    tables, path = THREE.tables(pooled()), tmp_path / "structure.json"
    terms = terms_of(THREE, model="parties", **FEW).with_parties(PARTIES)
    async with consortium(tmp_path / "c", tables, bundles=bundles_of(tmp_path / "keys", PARTIES)) as one:
        earlier = (await one.train(terms)).model
        earlier.save(path)
        file = tmp_path / "terms.toml"
        terms.changed(rounds=3).save(file)
        file.write_text(f'xgb_model = "structure.json"\n{file.read_text()}')
        model = (await one.train(fb.Terms.load(file))).model
    parts = [*tmp_path.rglob(f"models/{model.id[:16]}.json")]
    assert len(parts) == len(PARTIES) == len([*tmp_path.rglob(f"models/{earlier.id[:16]}.json")])
    whole = fb.assemble([model, *parts])
    small = train_pooled(pooled(), **FEW).model
    assert whole.booster == train_pooled(pooled(), **{**FEW, "rounds": 3}, xgb_model=small).model.booster
    assert set(whole.attestations) == set(PARTIES)


# ---- encrypted gradients --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["whole", "parties"])
def test_models_are_continued_with_encrypted_gradients(kind):
    if not installed("paillier"):
        pytest.skip("needs the extra paillier")
    hidden = {"protection": "paillier", "key_bits": 2048}
    assert result_of(continuing(kind, **hidden).play()).booster == small_due()
    apart = continuing(kind, **hidden, alone_rounds=1, min_rows_per_bin=5).dying("bank", 6).play()
    model = result_of(apart)
    assert model.verify(apart.roots, NOW) == PARTIES
    own = set(range(6)) - {model.booster.features.index(n) for names in THREE.held.values() for n in names}
    tree = model.booster.trees[2]
    assert {f for f, left in zip(tree.feature, tree.left, strict=True) if left >= 0} <= own


# ---- refusals -------------------------------------------------------------------------------------------


def kept_terms(**settings):
    text = text_of(earlier_parts()[1])
    return terms_of(THREE, **{"model": "parties", "xgb_model": text, **FEW, **settings})


@pytest.mark.parametrize(
    ("changes", "naming"),
    [
        ({"model": "whole"}, "kept in parts"),
        ({"xgb_model": "whole"}, "is whole"),
        ({"objective": "reg:squarederror"}, "binary:logistic"),
        ({"num_parallel_tree": 2}, "num_parallel_tree"),
        ({"base_score": 0.3}, "base_score"),
        ({"columns": {"categorical": {"colour": ["red", "green"]}}}, "colour"),
        ({"columns": {"numeric": ["minutes", "age", "income", "calls", "visits"]}}, "feature 1"),
        ({"program": "evaluate", "predict_rows": 100, **BY_ID}, "kept in parts"),
    ],
)
def test_terms_that_differ_from_the_model_are_refused(changes, naming):
    if changes.get("xgb_model"):
        changes = {"xgb_model": text_of(small())}
    with raised(ConfigError, "settings-invalid", naming=[naming]):
        kept_terms(**changes)


@pytest.mark.parametrize("number", [-1, 9, 400])
def test_a_structure_that_the_parties_cannot_have_is_refused(number):
    text = text_of(earlier_parts()[1])
    at = text.index('"split_indices":[') + len('"split_indices":[')
    bad = f"{text[:at]}{number}{text[text.index(',', at) :]}"
    with raised(ConfigError, "settings-invalid", naming=["xgb_model"]):
        kept_terms(xgb_model=bad, parties=list(PARTIES))


def test_an_id_is_not_a_path():
    with raised(ConfigError, "settings-invalid", naming=["xgb_model"]):
        kept_terms(xgb_model=text_of(earlier_parts()[1]).replace('parts":"', 'parts":"../'))


def test_a_simulation_needs_the_parts():
    with raised(SessionFailed, "session-failed", naming=["does not have any models"]):
        fb.simulate(kept_terms(), THREE.tables(pooled(60)))


@pytest.fixture
def folder(tmp_path):
    """The folder of a site that keeps its part of the earlier model."""
    config = PartyConfig(party="telco", aggregator="x:1", data=tmp_path / "t.csv", state=tmp_path)
    parts = PartFolder(config)
    parts.folder.mkdir(parents=True)
    part = earlier_parts()[0]["telco"]
    part.save(parts.file(part.id))
    return parts


def test_a_site_continues_its_own_part(folder):
    terms = kept_terms(rounds=5, max_depth=6, seed=3).with_parties(PARTIES)
    assert folder.model_of(terms) == earlier_parts()[0]["telco"].booster


@pytest.mark.parametrize(
    "changes",
    [
        {"label_epsilon": 1.0, **BY_ID},
        {"columns": {"weight": "weight"}},
        {"parties": ["telco", "bank", "shop"]},
    ],
)
def test_a_site_does_not_continue_it_under_terms_that_change_its_meaning(folder, changes):
    with raised(Refused, "part-other-terms"):
        folder.model_of(kept_terms(**{"parties": list(PARTIES), **changes}))


def test_a_site_without_the_part_refuses(folder):
    folder.file(earlier_parts()[1].id).unlink()
    with raised(Refused, "part-missing"):
        folder.model_of(kept_terms().with_parties(PARTIES))


# ---- the site's policy ----------------------------------------------------------------------------------


def by_ids(**settings):
    settings = {"rows": "common", "columns": {"row_id": "id"}, "max_ids": 5000, **settings}
    return kept_terms(**settings).with_parties(PARTIES)


def broken(terms, party="telco", **rules):
    allowed = {"by_columns": True, "label_holders": "any", "min_parties": 2, "protections": ["plain"]}
    found = policy(**{**allowed, "min_rows_per_leaf": 1, **rules}).breaches(terms, "marie", party)
    return [breach.key for breach in found if breach.key not in ("parties", "analysts", "columns")]


def test_a_feature_holder_charges_the_rows_as_predicted():
    assert broken(by_ids()) == ["max_predicted_rows", "continue_models"]
    assert broken(by_ids(), tasks=["train"]) == ["tasks", "max_predicted_rows", "continue_models"]
    assert broken(by_ids(), continue_models=True, max_predicted_rows=4999) == ["max_predicted_rows"]
    assert broken(by_ids(), continue_models=True, max_predicted_rows=5000) == []
    assert broken(by_ids(), "bank") == ["continue_models"]
    assert broken(by_ids(), "bank", continue_models=True, min_alone_rounds=1) == ["min_alone_rounds"]
    assert (predicted_by(by_ids(), "telco"), predicted_by(by_ids(), "bank")) == (5000, None)


def test_a_session_that_continues_a_model_is_a_training_and_a_prediction():
    known = KnownSession.begun("a", by_ids(), party="telco")
    met = KnownSession(**{**vars(known), "attempt": 1})
    assert met.trained
    offer = SessionOffer("b", by_ids())
    with raised(Refused, "policy-max-predicted-rows"):
        judge(offer, None, [met], Limits(max_predicted_rows=9999), "telco")
    judge(offer, None, [met], Limits(max_predicted_rows=10_000), "telco")
    with raised(Refused, "policy-max-sessions"):
        judge(offer, None, [met], Limits(max_predicted_rows=10_000, max_sessions=1), "telco")


def test_the_approval_says_which_model_is_continued_and_what_is_relayed():
    text = " ".join(summary(by_ids(), ("marie",)).split())
    assert f"continuing a model of 2 trees, {earlier_parts()[1].id}, of which each party has its" in text
    assert "which leaves of each tree the splits of each other site rule out" in text
    whole = " ".join(summary(session(xgb_model=small()).terms).split())
    assert "continuing a model of 2 trees" in whole
    assert "which leaves of each tree the splits of each other site rule out" in whole
