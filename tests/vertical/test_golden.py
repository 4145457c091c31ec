"""Golden digests of sessions of parties that hold different columns: the model or its parts, transcripts,
messages party by party, and predictions, as `tests/horizontal/test_golden.py` has them. Whoever means to
change one prints the new digests with `python tests/vertical/test_golden.py`.
"""

import hashlib
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from consortium import installed
from fixed import fixed_randomness, short, table_of_digests

from fedboost.protocol.messages import Attest, Connected, Disconnected
from fedboost.runtime.signed_model import PartyModel, signed_model_of
from fedboost.wire.messages import encode_from_party, encode_to_party
from tests.helpers.apart_sessions import Apart
from tests.helpers.columns_apart import LAYOUTS, of_people, pooled, scattered
from tests.helpers.predictions import Predicting, trained

pytestmark = pytest.mark.slow
ROWS = 120
BY_ID = {"rows": "common", "min_common_rows": 20, "columns": {"row_id": "id"}}
PARTS = {"model": "parties"}
HIDDEN = {"protection": "paillier", "key_bits": 2048, "max_bin": 6}
TRAININGS = {
    "plain": ("three holders", "binary", {}),
    "plain, parts": ("three holders", "binary", PARTS),
    "plain, by id": ("three holders", "binary", BY_ID),
    "plain, by id, parts": ("three holders", "binary", BY_ID | PARTS),
    "plain, blocks": ("ragged blocks", "binary", {}),
    "plain, blocks by id": ("blocks", "binary", BY_ID),
    "plain, classes": ("two holders", "classes", {"objective": "multi:softprob", "num_class": 3}),
    "plain, medians": ("one a column", "number", {"objective": "reg:absoluteerror"}),
    "plain, best leaves first": ("two holders", "binary", {"grow_policy": "lossguide", "max_leaves": 5}),
    "plain, symmetric": ("two holders", "binary", {"grow_policy": "symmetric", **PARTS}),
    "plain, rows and columns drawn, by id": (
        "three holders",
        "binary",
        {**BY_ID, "subsample": 0.6, "colsample_bytree": 0.7, "num_parallel_tree": 2},
    ),
    "plain, rows held out": ("two holders", "binary", {"columns": {"validation": "held_out"}}),
    "plain, base margins": ("two holders", "binary", {"columns": {"base_margin": "margin"}}),
    "plain, noise on labels": ("two holders", "binary", {**BY_ID, "label_epsilon": 2.0}),
    "plain, bins of many rows": ("three holders", "binary", {"min_rows_per_bin": 10}),
    "plain, ids repeated": (
        "three holders",
        "binary",
        {**BY_ID, "rows": "label_holder", "repeated_ids": True},
    ),
    "paillier": ("two holders", "binary", HIDDEN),
    "paillier, three holders, parts": ("three holders", "binary", HIDDEN | PARTS),
    "paillier, by id": ("two holders", "binary", HIDDEN | BY_ID),
    "paillier, by id, parts": ("two holders", "binary", HIDDEN | BY_ID | PARTS),
    "paillier, rows held out": ("two holders", "binary", HIDDEN | {"columns": {"validation": "held_out"}}),
}
PREDICTIONS = {
    "predicted": ("three holders", "logistic"),
    "predicted, classes": ("one a column", "classes"),
    "predicted, forest": ("no own columns", "forest"),
    "predicted, base margins": ("two holders", "base margins"),
}
GOLDEN = {
    "plain": ("25584bf223c2b267", "8fb3a546bf24ccd7", "b202e429 ea3929ff 16a11b7b"),
    "plain, parts": ("525d6e1fc63740b3", "a4bfaf5d4ead4e0f", "89bae439 29dd1917 426367c1"),
    "plain, by id": ("d0612b1b243f612c", "4429bba24f604fbf", "e29f4df8 1b664a83 e93c7d5d"),
    "plain, by id, parts": ("2eae3394cea1de32", "54fb4fa06bba78e5", "f3cf3f54 03d186ce cebc281c"),
    "plain, blocks": ("3edea4bc3544298f", "7dd11538082f15a7", "5136dd50 97c8b6bc c1b426fe dfdd9d71 fdaa09d0"),
    "plain, blocks by id": ("27bca9504295c7d1", "f1e7331e0a04a14b", "e770a0fb 8cdf27f9 b447cd8a 6b76c49e"),
    "plain, classes": ("ca932f220f0d2d2d", "91bd0c6c9659f6f5", "94a25e56 ea452cd2"),
    "plain, medians": (
        "bc94f318f92e9655",
        "a63e4ce45e8ad3ef",
        "7c71055a 8be2220a 2d5a9fe9 7b59025c 5906bcad 6f121640 9df748a3",
    ),
    "plain, best leaves first": ("96134caec18fdbb1", "9091b58c8fb67beb", "c40e51f1 339b0fa5"),
    "plain, symmetric": ("2d97b3a102f38e4e", "a00d123e5b6c6af6", "608e1071 6d97b279"),
    "plain, rows and columns drawn, by id": (
        "694db7729a0a99f2",
        "489b2ece63e7aec2",
        "09239dc7 f5b99a8e 6ef972c0",
    ),
    "plain, rows held out": ("6ca6c393cb392276", "5a67dc6dabe0a3a6", "7baac904 6ddcaa74"),
    "plain, base margins": ("6479c5f2937f2d6b", "a50f0ec0d777e634", "811c0a2e 9bae96d3"),
    "plain, noise on labels": ("e10fbeb0025f0d7a", "0cd6fc04643c6716", "02d83d4d ab2c8671"),
    "plain, bins of many rows": ("a31cd132bc2caa4e", "06628885f96a7fbc", "b131f62c 3907e357 86fa1b6e"),
    "plain, ids repeated": ("0fad0bad4f236962", "e3217a1dbc2c8145", "b2fb49d6 6662587a 386bf5ba"),
    "paillier": ("d888a755cea79da9", "f20d57f51043ed72", "ba92f8df ab4f0c55"),
    "paillier, three holders, parts": ("38427f43d96fce39", "8c799f1295fce7ac", "fe6c4017 16a6e573 4d98ebb0"),
    "paillier, by id": ("3ff6ac15ea064ec0", "44b8286c6a0ab341", "1e78c019 fb2a849c"),
    "paillier, by id, parts": ("78dcb33c91301305", "cb53e2abaaf2e48e", "db12e685 92417dfe"),
    "paillier, rows held out": ("2068edb316e50264", "0faa2008b8cb48f3", "92a7491a a1c8fe68"),
    "predicted": ("c77e7995b84e3ea1", "b9882f05a26ea4a4", "1faff66f b985bdcf 2ff0303a"),
    "predicted, classes": (
        "0bca41d34e5b3503",
        "89fe28cc83cb02a4",
        "0caa486a 3e911a56 3f8c5cd0 8efcf75a ebc9a87e 5142e8b5 559b254d",
    ),
    "predicted, forest": ("aac0cea5c374d28e", "1108e337e27588cf", "6be00a59 88877634 1ca2d087"),
    "predicted, base margins": ("d73e806b75205313", "d60c11e8f3909aa7", "40fd3101 3485d030"),
}


def played(name):
    """The session of this name, once it is over."""
    if name in PREDICTIONS:
        return Predicting(*PREDICTIONS[name]).play()
    layout, label, settings = TRAININGS[name]
    if settings.get("repeated_ids"):
        tables, *_ = of_people(LAYOUTS[layout], people=60, rows=ROWS)
    elif settings.get("rows") == "common":
        tables, _ = scattered(LAYOUTS[layout], pooled(ROWS, label=label))
    else:
        tables = LAYOUTS[layout].tables(pooled(ROWS, label=label))
    return Apart(layout, tables=tables, **settings).play()


def outcome(apart):
    """The model or the prediction, with what parties keep and sign, as bytes."""
    if isinstance(apart, Predicting):
        return [apart.prediction.margins.tobytes(), apart.prediction.known.tobytes()]
    if not apart.terms.keeps_parts:
        return [signed_model_of(apart.session).to_bytes()]
    parts = {part.party: PartyModel.of(part).to_bytes() for part in apart.parts}
    return [apart.session.booster.to_xgboost().encode(), *(parts[party] for party in sorted(parts))]


def digests(name):
    """The digests of the outcome, of the transcripts that the parties signed, and of what each of them was
    told and said, in the order of the terms."""
    if name in PREDICTIONS:
        trained(PREDICTIONS[name][1])  # which draws, too, unless another test already trained it
    with fixed_randomness():
        apart = played(name)
    assert apart.session.phase == "done", apart.error
    wires = {party: hashlib.sha256() for party in apart.terms.parties}
    for party, message in apart.told:
        wires[party].update(encode_to_party(message))
    for party, message in apart.sent:
        if not isinstance(message, Connected | Disconnected):
            wires[party].update(encode_from_party(message))
    attests = [(party, message) for party, message in apart.sent if isinstance(message, Attest)]
    signed = [party.encode() + message.transcript for party, message in attests]
    made = short(b"".join(hashlib.sha256(part).digest() for part in outcome(apart)))
    return made, short(b"".join(sorted(signed))), " ".join(wire.hexdigest()[:8] for wire in wires.values())


@pytest.mark.parametrize("name", [*TRAININGS, *PREDICTIONS])
def test_models_transcripts_and_bytes_are_as_they_were(name):
    if name.startswith("paillier") and not installed("paillier"):
        pytest.skip("needs the extra paillier")
    assert digests(name) == GOLDEN[name]


if __name__ == "__main__":
    table_of_digests((name, digests(name)) for name in [*TRAININGS, *PREDICTIONS])
