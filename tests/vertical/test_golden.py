"""Golden digests of sessions of parties that hold different columns: the model or its parts, transcripts,
messages party by party, and predictions, as `tests/horizontal/test_golden.py` has them. Whoever means to
change one prints the new digests with `python tests/vertical/test_golden.py`.
"""

import hashlib
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from consortium import installed
from fixed import fixed_randomness, short, table_of_digests

from fedboost.holders import alignment, column_rows, columns, shard
from fedboost.protocol.messages import Attest, Connected, Disconnected
from fedboost.runtime import signed_model
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
    "plain": ("d449912853d3f626", "101c51836054c324", "7d5f7ff9 62bcabae d1ebdf73"),
    "plain, parts": ("b6d9988aa1b55cd9", "fc4ff40a82c9856e", "89364973 8ad2e4f4 f2779240"),
    "plain, by id": ("6426b00e8416caf1", "fb735f1b927b47a3", "4efb3138 ce2f846b 5a7e7046"),
    "plain, by id, parts": ("9b5d436484fc4b99", "ff9e9333dbbead78", "3530474f 1f0a9b43 b35de721"),
    "plain, blocks": ("3028016b17c30b2c", "04b3e887e67f6546", "dc2c8f2a 08d7753a 63a859a9 8779f361 11fba43e"),
    "plain, blocks by id": ("235c6a6437c7f6a6", "81584b3fe7783bfd", "c70e26c3 cf0897d1 6907a223 a6ef2662"),
    "plain, classes": ("172e1a16a32d30ab", "2154ea36a2ae6dae", "4fbba26e 80e2ee33"),
    "plain, medians": (
        "701d4de497518d7d",
        "68a12810d4b01847",
        "1bb1602e cc62d12c 90f4e9f7 20d55fd0 c1dcbe75 b1bb13b8 c753d4cb",
    ),
    "plain, best leaves first": ("13e0a072dede8f4e", "664c278901845d07", "d1429fb9 98148780"),
    "plain, symmetric": ("d59048584070d28d", "539426d9945a5e37", "105e6104 b365a434"),
    "plain, rows and columns drawn, by id": (
        "08bcbd4cc8b73b44",
        "f4075f8bcb72addd",
        "d09318f7 106f92fe c2470708",
    ),
    "plain, rows held out": ("a5bc1a1ce865cb8e", "6aaf87b71475b894", "29d38674 19dfbdea"),
    "plain, base margins": ("51b59991b30f084a", "e7ea7a092f5e33ec", "2b132799 c756e6ea"),
    "plain, noise on labels": ("c5f9bb1c0ce09445", "9de96ec83f092bcc", "a1cd51b1 140c3762"),
    "plain, bins of many rows": ("020bba9bcb8757b0", "e3550030d25363a0", "7fc9e307 49528ec7 397d8d7a"),
    "plain, ids repeated": ("48a6b2cebc51c33f", "e1fbb6d2e689fc63", "a7b90df2 8982478a 52fd5fe0"),
    "paillier": ("8b042365c91a557e", "7fb6805b748db5bb", "4e191c77 d3d62af5"),
    "paillier, three holders, parts": ("51efe2d60061ba2f", "14edddaae9a3f7bf", "acab8f59 d20b13bd 56cab7fc"),
    "paillier, by id": ("670605d67fb9d137", "3b56a8a886a25231", "4ec34e46 cb7d6e28"),
    "paillier, by id, parts": ("17a2a170717227f3", "c4fcf8f4e0d298f3", "69ea00e1 c6cc154d"),
    "paillier, rows held out": ("f57d5a8b6347ff70", "6c2184b2b1bfc758", "159a43bb 5a2df7ab"),
    "predicted": ("c77e7995b84e3ea1", "75a54df639f038a8", "ec124f1d 51d2b91a 62f6d7e3"),
    "predicted, classes": (
        "0bca41d34e5b3503",
        "a79238f450f3971a",
        "e124434c c717ed17 c3cda56d 823217e7 0fccb2a2 8df0502b b0abb446",
    ),
    "predicted, forest": ("aac0cea5c374d28e", "95d9c6e57e7c6902", "fc4ddc18 965d6706 5fe815c7"),
    "predicted, base margins": ("d73e806b75205313", "680101f83bf4ec87", "b7d4ea0c c3ed14ac"),
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


@contextmanager
def fixed_version():
    """The version of fedboost, which is in models and in hashes of the parties' rows, is always this one."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (alignment, column_rows, columns, shard):
            patch.setattr(module, "VERSION", "0.2.0")
        patch.setattr(signed_model, "__version__", "0.2.0")
        yield


def digests(name):
    """The digests of the outcome, of the transcripts that the parties signed, and of what each of them was
    told and said, in the order of the terms."""
    if name in PREDICTIONS:
        trained(PREDICTIONS[name][1])  # which draws, too, unless another test already trained it
    with fixed_randomness(), fixed_version():
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
    with fixed_version():
        made = short(b"".join(hashlib.sha256(part).digest() for part in outcome(apart)))
    return made, short(b"".join(sorted(signed))), " ".join(wire.hexdigest()[:8] for wire in wires.values())


@pytest.mark.parametrize("name", [*TRAININGS, *PREDICTIONS])
def test_models_transcripts_and_bytes_are_as_they_were(name):
    if name.startswith("paillier") and not installed("paillier"):
        pytest.skip("needs the extra paillier")
    assert digests(name) == GOLDEN[name]


if __name__ == "__main__":
    table_of_digests((name, digests(name)) for name in [*TRAININGS, *PREDICTIONS])
