"""Parts of models, and somebody lies or changes a file: nothing wrong is signed, kept or put together."""

import json
from base64 import b64encode
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from raised import raised

import fedboost as fb
from fedboost.boosting.state import INITIAL_STATE, structure
from fedboost.errors import ConfigError, DurabilityError, Refused
from fedboost.protocol.messages import Attest, Close, Leave, first_transcript, next_transcript
from fedboost.runtime.signed_model import PartyModel, terms_to_predict, trained_model_of
from fedboost.runtime.site.backup import PartFolder
from fedboost.runtime.site.config import PartyConfig
from fedboost.wire.messages import decode_to_party, encode_to_party
from tests.helpers.apart_sessions import LOST, NOW, Apart, once
from tests.helpers.columns_apart import LAYOUTS, pooled, scattered

PARTIES = "bank", "telco", "shop"
BASED = {"columns": {"base_margin": "margin"}}


def session(**settings):
    return Apart(**{"model": "parties", "table": pooled(), "rounds": 2, "max_depth": 3, **settings})


@cache
def trained():
    """A training over rows that were matched by their ids."""
    common = {"rows": "common", "min_common_rows": 20, "columns": {"row_id": "id"}}
    apart = session(tables=scattered(LAYOUTS["three holders"], pooled())[0], **common).play()
    return apart, {part.party: PartyModel.of(part) for part in apart.parts}


# ---- an aggregator that lies at the end -----------------------------------------------------------------


def with_number(at, value):
    """The end that tells the label holder another number."""

    def change(close):
        numbers = np.frombuffer(close.numbers, "<f4").copy()
        numbers[at] = value
        return [replace(close, numbers=numbers.tobytes())]

    return once(lambda party, m: party == "bank" and isinstance(m, Close), change)


NOT_FINITE = "the aggregator sent a gain, cover or value that is not finite"
OTHER_SCORE = "the base score differs from the base score sent at the start"


@pytest.mark.parametrize(
    ("at", "value", "settings", "words"),
    [
        (0, 0.3, {}, OTHER_SCORE),
        (0, 2.0, {}, "base score 2.0 is not possible for binary:logistic"),
        (0, np.nan, {}, NOT_FINITE),
        (1, np.inf, {}, NOT_FINITE),
        (20, np.nan, {}, NOT_FINITE),
        (0, 0.3, {"base_score": 0.4}, OTHER_SCORE),
        (0, 0.3, BASED, OTHER_SCORE),
        (2, -1.0, BASED, "the aggregator sent a negative cover for a node of tree 0"),
        (3, 0.3, BASED, OTHER_SCORE),  # gain, cover and value of the leaf that is the constant
    ],
)
def test_a_label_holder_keeps_no_part_of_numbers_that_it_was_not_told(at, value, settings, words):
    """Every prediction would begin from another constant, or no part could be read back."""
    apart = session(down=with_number(at, value), **settings).play()
    assert apart.ends["bank"].ended == words
    assert "bank" not in [part.party for part in apart.parts]


@pytest.mark.parametrize("settings", [{}, {"base_score": 0.4}, BASED, {"num_parallel_tree": 2, **BASED}])
def test_honest_numbers_are_kept(settings):
    apart = session(**settings).play()
    assert {part.party for part in apart.parts} == {*PARTIES}
    assert apart.session.phase == "done"


@pytest.mark.parametrize("party", PARTIES)
def test_a_session_fails_where_a_party_keeps_no_part(party):
    """Nobody could predict with that model."""
    change = once(lambda name, m: name == party and isinstance(m, Attest), lambda m: [Leave("no more", "s")])
    apart = session(up=change).play()
    assert apart.error == f"party {party} left: no more"


# ---- an analyst, or a party that has the analyst's file -------------------------------------------------


@pytest.mark.parametrize("party", PARTIES)
def test_no_hash_in_the_analysts_file_is_of_what_one_party_was_told(party):
    """Of rows in a known order all of that but the splits of this party may be known: they could be tried."""
    apart = session(rounds=1, max_depth=1).play()
    state, told = INITIAL_STATE.seen_by(apart.terms, party), []
    told.append(first_transcript(apart.session.digest, state))
    for query in apart.queries:
        told.append(next_transcript(told[-1], query.seen_by(apart.terms, party)))
    (part,) = (part for part in apart.parts if part.party == party)
    told += [bytes.fromhex(part.booster.fingerprint), structure(part.booster.constant, part.booster.trees)]
    data = trained_model_of(apart.session).to_bytes().decode()
    written = [text for hash in told for text in (hash.hex(), b64encode(hash).decode()) if text in data]
    assert written == []
    assert any(text in data for text in (part.digest.hex(), b64encode(part.digest).decode()))
    assert PartyModel.from_bytes(data.encode()).verify(apart.roots, NOW) == apart.terms.parties


# ---- a site that cannot write its part ------------------------------------------------------------------


@pytest.mark.parametrize("party", PARTIES)
def test_a_party_that_cannot_write_its_part_signs_nothing_and_goes_on_once_it_can(party):
    def full(part):
        if not apart.broken:
            apart.broken.append(part)
            raise DurabilityError("no space left on device")
        apart.parts.append(part)

    def down(name, message):
        if name != party or not isinstance(message, Close) or apart.broken:
            return None
        with pytest.raises(DurabilityError):
            list(apart.ends[party].handle(decode_to_party(encode_to_party(message))))
        assert party not in apart.session.attestations
        apart.crash(party)
        return LOST

    apart = session(down=down, on_loss="wait")
    apart.broken = []
    apart.sites[party] = replace(apart.sites[party], keep=full)
    apart.crash(party)
    apart.play()
    assert apart.session.phase == "done", apart.error
    (lost,) = apart.broken
    kept = {part.party: PartyModel.of(part) for part in apart.parts}
    assert kept[party].to_bytes() == PartyModel.of(lost).to_bytes()
    analysts = PartyModel.from_bytes(trained_model_of(apart.session).to_bytes())
    assert fb.assemble([analysts, *kept.values()]).booster == apart.session.booster


# ---- the folder of parts --------------------------------------------------------------------------------


def folder(path, party="telco"):
    return PartFolder(PartyConfig(party=party, aggregator="localhost:1", models=path))


def part_of(party):
    return next(part for part in trained()[0].parts if part.party == party)


def terms(**changes):
    return terms_to_predict(trained()[1]["telco"], 2000).changed(**changes)


def test_a_part_is_read_back_under_the_terms_that_predict_with_it(tmp_path):
    kept = folder(tmp_path / "a" / "models")
    file = kept.keep(part_of("telco"))
    assert kept.keep(part_of("telco")) == file
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert kept.model_of(terms()) == trained()[1]["telco"].booster


def test_a_part_does_not_replace_that_of_another_party_in_the_same_folder(tmp_path):
    file = folder(tmp_path).keep(part_of("telco"))
    before = file.read_bytes()
    with pytest.raises(DurabilityError, match=r"that belongs to party 'telco', which would be lost"):
        folder(tmp_path, "bank").keep(part_of("bank"))
    assert file.read_bytes() == before


@pytest.mark.parametrize("there", ["a file", "a loop"])
def test_a_folder_that_cannot_be_one_ends_the_process(tmp_path, there):
    path = tmp_path / "models"
    path.write_text("") if there == "a file" else path.symlink_to(path)
    with pytest.raises(DurabilityError, match="models: cannot"):
        folder(path).keep(part_of("telco"))


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: data.replace(b'"split_conditions":[', b'"split_conditions":[9', 1),
        lambda data: data[:-1] + b',"gains":{"telco":1' + b"0" * 400 + b"}}",
        lambda data: data.replace(b'"session":"s"', b'"session":"\\ud800"'),
    ],
)
def test_a_damaged_part_is_refused_and_its_path_stays_at_the_site(tmp_path, damage):
    kept = folder(tmp_path)
    file = kept.keep(part_of("telco"))
    file.write_bytes(damage(file.read_bytes()))
    with raised(Refused, "part-unreadable") as caught:
        kept.model_of(terms())
    assert str(file) in str(caught.value)
    assert str(tmp_path) not in caught.value.public


def test_a_part_in_a_folder_or_behind_a_loop_is_refused(tmp_path):
    kept = folder(tmp_path)
    file = kept.file(terms().vertical.predict_with)
    file.mkdir()
    with raised(Refused, "part-unreadable"):
        kept.model_of(terms())
    file.rmdir()
    file.symlink_to(file)
    with raised(Refused, "part-missing"):
        kept.model_of(terms())


OTHERWISE = {
    "id_form": {"id_form": "lower"},
    "max_ids": {"max_ids": 77},
    "rounds": {"rounds": 3},
    "on_loss": {"on_loss": "wait"},
    "columns": {"columns": {"numeric": ["age", "income", "minutes", "calls"]}},
    "whole": {"model": "whole"},
    "the id": {"predict_with": "0" * 64},
}


@pytest.mark.parametrize("what", OTHERWISE)
def test_terms_that_predict_otherwise_than_was_trained_are_refused(tmp_path, what):
    kept, (_, parts) = folder(tmp_path), trained()
    kept.keep(part_of("telco"))
    changes = OTHERWISE[what]
    if what == "columns":
        columns = parts["telco"].terms.columns
        held = {"telco": ["calls"], "shop": ["visits", "colour"]}
        changes = {"columns": {**columns.model_dump(mode="json", exclude_unset=True), "held": held}}
    with raised(Refused, "part-missing", "part-other-terms"):
        kept.model_of(terms(**changes))


def test_a_part_of_another_model_with_the_same_name_of_file_is_refused(tmp_path):
    kept, id = folder(tmp_path), terms().vertical.predict_with
    file = kept.keep(part_of("telco"))
    with raised(Refused, "part-mismatch"):
        kept.model_of(terms(predict_with=id[:16] + "0" * 48))
    file.write_bytes(trained()[1]["bank"].to_bytes())
    with raised(Refused, "part-mismatch"):
        kept.model_of(terms())


# ---- a whole model that was put together ------------------------------------------------------------------


def together():
    apart, parts = trained()
    return fb.assemble([PartyModel.from_bytes(trained_model_of(apart.session).to_bytes()), *parts.values()])


CHANGES = {
    "values": lambda tree: tree.changed(value=2 * tree.value),
    "thresholds": lambda tree: tree.changed(threshold=tree.threshold + (tree.threshold != 0)),
    "directions": lambda tree: tree.changed(missing_left=tree.inner),
    "covers": lambda tree: tree.changed(cover=tree.cover + 1),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_whole_model_that_was_changed_is_not_the_one_that_was_signed(tmp_path, what):
    model, roots = together(), trained()[0].roots
    changed(model, CHANGES[what]).save(tmp_path / "whole.json")
    faults = fb.Model.load(tmp_path / "whole.json").faults(roots, NOW)
    assert "bank" in faults
    assert set(faults) == ({*PARTIES} if what in ("thresholds", "directions") else {"bank"})
    assert faults["bank"].startswith("party bank signed a part that differs from the model's part")


@pytest.mark.parametrize("reproducible", [False, True])
def test_a_whole_model_is_the_one_that_was_signed(tmp_path, reproducible):
    together().save(tmp_path / "whole.json", reproducible=reproducible)
    model = fb.Model.load(tmp_path / "whole.json")
    assert model.verify(trained()[0].roots, NOW) == PARTIES
    without = replace(model, salts={name: model.salts[name] for name in ("bank", "shop")})
    assert set(without.faults(trained()[0].roots, NOW)) == {"telco"}


# ---- files ----------------------------------------------------------------------------------------------


def changed(model, tree):
    """The part with each tree changed."""
    return replace(model, booster=replace(model.booster, trees=tuple(map(tree, model.booster.trees))))


def as_of_another(tree):
    """Every split told by the number of the party itself, and nothing else of it."""
    own, untold = (len(trained()[0].terms.columns.features) + n for n in (PARTIES.index("telco"), 0))
    feature = np.where(tree.inner & (tree.feature < untold), own, tree.feature)
    threshold = np.where(tree.inner, np.inf, 0.0)
    return tree.changed(0 * tree.categories, feature=feature, threshold=threshold, missing_left=False)


def test_a_part_whose_own_splits_are_missing_is_none(tmp_path):
    """Put together, a split by it would be by a column behind the last."""
    _, parts = trained()
    bad = changed(parts["telco"], as_of_another)
    assert bad.id == parts["telco"].id
    bad.save(tmp_path / "telco.json")
    parts["bank"].save(tmp_path / "bank.json")
    with raised(ConfigError, "model-altered"):
        fb.assemble([tmp_path / "bank.json", tmp_path / "telco.json", parts["shop"]])


def with_content(change):
    content = json.loads(trained()[1]["telco"].to_bytes())
    change(content)
    return json.dumps(content, separators=(",", ":")).encode()


BAD = {
    "a gain beyond all": lambda c: c.update(gains={"telco": 10**400}),
    "a session that is no text": lambda c: c.update(session="\ud800"),
    "a model that is a list": lambda c: c.update(model=[]),
    "a salt that is a number": lambda c: c.update(salt=5),
    "no trees": lambda c: trees_of(c).clear(),
    "a threshold beyond all": lambda c: trees_of(c)[0]["split_conditions"].__setitem__(0, 10**400),
    "no threshold": lambda c: trees_of(c)[0]["split_conditions"].__setitem__(0, float("nan")),
    "a child of its own": lambda c: trees_of(c)[0]["left_children"].__setitem__(0, 0),
    "a split by a column behind all": lambda c: trees_of(c)[0]["split_indices"].__setitem__(0, 9),
    "a split by a negative column": lambda c: trees_of(c)[0]["split_indices"].__setitem__(0, -1),
    "other terms": lambda c: (
        c["model"]["learner"]["attributes"].pop("fedboost.terms", None) or c["model"].clear()
    ),
}


def trees_of(content):
    return content["model"]["learner"]["gradient_booster"]["model"]["trees"]


@pytest.mark.parametrize("what", BAD)
def test_a_bad_file_is_refused_with_one_line(what):
    with pytest.raises(ConfigError) as caught:
        PartyModel.from_bytes(with_content(BAD[what]), "telco.json")
    assert str(caught.value).startswith("telco.json")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("depth", [500, 100_000])
def test_a_file_of_deep_brackets_is_refused(depth):
    data = with_content(lambda c: None).replace(
        b'"model":{', b'"model":{"x":' + b"[" * depth + b"]" * depth + b","
    )
    with pytest.raises(ConfigError):
        PartyModel.from_bytes(data)
