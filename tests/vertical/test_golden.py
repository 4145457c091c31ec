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
    "plain": ("75b8ff4a2fa6c8e6", "8443a83a4a1e9b0f", "8b5a19f8 1f5b6a20 46d284cd"),
    "plain, parts": ("525d6e1fc63740b3", "4e8af385565bdddc", "88c7dfa5 ca72652d afcc7fbb"),
    "plain, by id": ("6c8291501ff5a582", "969f60c7260edb3b", "e501d905 4aaaf1ec 418d4999"),
    "plain, by id, parts": ("2eae3394cea1de32", "5d1c7ff86315c5ad", "d46dda63 05008418 c8b03463"),
    "plain, blocks": ("0dcb385e7c8f78c0", "4fc8301af2c5034b", "2dbcf166 61e6eef0 55870990 c61489f9 b53a360e"),
    "plain, blocks by id": ("d8dc42eb39a96b2d", "f2f2e5999d7fb7dc", "72a2a0b2 e0f719e5 3af38b98 5c2e5efd"),
    "plain, classes": ("526c23dedce4bae0", "54adb04dcdce6f16", "38ea91b1 628e9164"),
    "plain, medians": (
        "9aaec43dac36318f",
        "14ac711994c4ccfa",
        "d63fc386 d1dcad91 f9766ae2 2f5b8d97 783a4a98 ec1f0078 027de42a",
    ),
    "plain, best leaves first": ("4731d0d0cc05590d", "e738272499144bcb", "648e0263 d82282ef"),
    "plain, symmetric": ("2d97b3a102f38e4e", "c1175ee5b7de1012", "f6216f47 1edfe52d"),
    "plain, rows and columns drawn, by id": (
        "c365b537bfe6eaed",
        "7df825849a0a8b37",
        "5de31345 c670238d e1d43a6e",
    ),
    "plain, rows held out": ("ee4b3f2c90177385", "f8dbdb9978759d73", "bc72a821 21086c0b"),
    "plain, base margins": ("a0573c92527fe915", "316041f92932c591", "7f5cb746 449d6b71"),
    "plain, noise on labels": ("9e02b829eb86cdf0", "07b9f4983f66d81b", "637950d2 c6da3e6f"),
    "plain, bins of many rows": ("0687752d4afcf9ca", "a0186a1991d21eab", "34a07f06 a3fee6ec 1e639e64"),
    "plain, ids repeated": ("a3bb57818e847854", "3e3ed7b7326dae5a", "57d8a02f d17544d9 237990e2"),
    "paillier": ("00dd181164d7c52a", "6e72ec7d3876cda5", "d2d1aa74 94c07c14"),
    "paillier, three holders, parts": ("38427f43d96fce39", "6ec31df597588dcb", "d28607e3 b94e1abd fdcd4684"),
    "paillier, by id": ("c8e34228aa9ece5c", "4effe6199fb272dd", "b984da50 2374f8a1"),
    "paillier, by id, parts": ("78dcb33c91301305", "5ad04e93cde9377b", "581b3b24 51e61d59"),
    "paillier, rows held out": ("f28fd89797dac090", "728588f7d2c3fe82", "0b948fff 7c6a16a2"),
    "predicted": ("c77e7995b84e3ea1", "7d2f8b0e54a88c72", "e55a8c65 de418d6b 9323c5a5"),
    "predicted, classes": (
        "0bca41d34e5b3503",
        "19e79b100a4a6e0f",
        "4d0b3c57 c56fde31 08bbd13c b1271eb9 d4f1309c 79b11baf d41e0f99",
    ),
    "predicted, forest": ("aac0cea5c374d28e", "f1b2e0fb36f0e867", "506e015a 5789ce63 4fa2b27b"),
    "predicted, base margins": ("d73e806b75205313", "acf081a1ca2b0fea", "3a8b17db a14e6566"),
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
