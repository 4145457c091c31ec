"""Golden digests: models, transcripts and bytes on the wire of whole sessions, as they were before the code
was laid out anew. A change of code alone changes none of them; whoever means to change one says so in a
decision record, and prints the new digests with `python tests/horizontal/test_golden.py`.
"""

import hashlib
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

import inprocess
from inprocess import run
from trainings import SETTINGS, parts_of, setting_of

from fedboost.protocol.party import PartySession
from fedboost.wire.messages import encode_from_party, encode_to_party

GOLDEN = {
    "logistic": ("16c3fbbcaaf594a1", "cf4f97330284c916", "e65e6063b3b6bf19"),
    "logistic, weights": ("2221a7b0f8f7116f", "e8a324c35753dfa0", "e14ccdbeefea87c5"),
    "squared error": ("9f9d3e771b0d13ed", "e5664ec65a34836d", "1d476a89adb93c86"),
    "squared error, weights": ("1c69eafe3a64b1f0", "53a16806f0027257", "321e2b4d17ad7a47"),
    "classes": ("75713a811d274f32", "119a08ab919a47c6", "eb5c02c69ba55ab1"),
    "classes, weights": ("4a0a4c1bd6692b57", "58fd0657532e8845", "50a957c3985d0202"),
    "counts": ("6da55627f1ea982b", "b52b4728be7c48f3", "d32565e1db1a9f90"),
    "counts, weights": ("b2c26e4a213e9a59", "43841764aff9c737", "dc9df37a776b6b76"),
    "amounts": ("c913093afc89184a", "6cc3bcf4166083b7", "9081f43142ecd197"),
    "amounts or nothing": ("c3d58284f6c264c4", "28e24a522c2606bb", "09cc7b627309a7e9"),
    "slopes": ("fc7029f30aa40b31", "cdcc40b8f4e143bc", "948623f035f24410"),
    "medians": ("e2c3ae9715550344", "66130bb589ea0083", "e9041a8a1e27428c"),
    "medians, weights": ("9db36fc97d28dac2", "1a6144f117b753bb", "0dbb6b1231e374f8"),
    "quantiles": ("ad8eba272e4ee1c4", "b767a3ed3c9b8548", "2ac299d983730dba"),
    "ranked by ndcg": ("b85576e5178f8870", "83e922928259263b", "3d449045204b1866"),
    "ranked by ndcg, weights": ("4d27f60c6d8de458", "b7e81bc8d21898b6", "6b03954d35406c5c"),
    "ranked by pairs": ("6b6ff8dae7e04881", "3fd2b18fe0de02b8", "b193231871d02020"),
    "ranked, rows drawn by gradients": ("16778386542e0f44", "c937bb177ef4c273", "b338bfbdf2bf4a8f"),
    "ranked, bootstrap": ("2a70e69137e1ef0c", "0b021bd71710a6f0", "5f7a20d41288efab"),
    "times": ("a138b46ccf15730e", "7e8089623ae1b3ed", "8b48bbb1383cddc2"),
    "times, weights": ("7b4c4f2f3c0c7086", "9fceed848187e48b", "9c58f57fb4c891e5"),
    "times, logistic": ("15939861fcfad8bc", "56d5d7d3157a3701", "db22f63272507b50"),
    "heavier positives": ("ff7224b4274512a6", "b7c36f2d15050406", "1054c1b99aaf1f27"),
    "strong penalties": ("42a7485d4199b833", "6536cd414699d3ca", "5e7bc5f72af2de80"),
    "best leaves first": ("7656a1decc58f646", "98e920479a64d0d4", "9bc4c356d7d99feb"),
    "best leaves first, classes": ("e4f33ae0bf67fdcd", "c7eac826fc23b98a", "4684054e3e09e462"),
    "constrained": ("70c38a08ab04d1f5", "244567e156d15ef5", "c78a8814fd169067"),
    "columns drawn, levels": ("3ccfee71050d685c", "0627486e6399250f", "be1e1f7d6d3fef15"),
    "monotone": ("6a06be242bf28d77", "bd8ea91b532726d6", "e9983c0468610186"),
    "few leaves": ("b90549af1fed5c2f", "6d2abd8b4604f2f0", "235da92b03c5118d"),
    "forests": ("15e8e2ccc64ed6db", "9ab60a7bee3019ba", "ef279a0d1b9a02b7"),
    "forests, classes": ("34cc282e4e740a33", "121ef5a28005121b", "ac5f4ba737b580fe"),
    "rows drawn": ("5a450b370414f57a", "108933ce331cf9e4", "81c038cb0cd9d807"),
    "rows drawn, classes": ("1d6ad47e0e5a2a01", "1704bbb6609656d0", "dd4bcceaba8b188a"),
    "rows drawn by gradients": ("1b71cc5ce2cfb67e", "1cd9c9ca380489d6", "9420c67d70e7deb7"),
    "rows drawn by gradients, number": ("b9c0dbb16881a8a4", "14021d6416120722", "f68ba528f0d6d9a4"),
    "rows drawn by gradients, classes": ("477a64ca80db0a4b", "03c3683b6a97013c", "08a032d552b84e51"),
    "bootstrap": ("a0abb2a49b6623fe", "30222e63114b6398", "462e348f4e70485a"),
    "bootstrap, classes": ("af8f29d0926c95ac", "42dec64c437a302a", "2ee47a0fef041439"),
    "bootstrap, medians": ("f3fab02f8a2b08f4", "ca96ce2997c1f76b", "c19c301c36d8e226"),
    "rows held out": ("81bf691993bd0fba", "4e4abe4b8f957bff", "7f312d9d3f1b415c"),
    "columns drawn": ("208292ee548a4a93", "cf0961de0f202400", "eb38a63d11421eb5"),
    "few bits": ("44330d9988450b93", "7953e374c10d2805", "2d3a9efc907b3fc9"),
    "levels": ("8f829b6937cc9578", "ff10f8b1d750d8d7", "2b7df0d84c5e9884"),
    "levels, weights, penalties": ("2cc9c2a1a8c000ae", "1a17105b8ff67797", "0677ccf29f0b2708"),
    "nothing but levels": ("0f9adc20e0a29088", "0df494caddc0bbb5", "04773b399387fea6"),
}


def digests(name):
    """The first 16 hex digits of the hashes of a session's model, transcript, and messages party by party."""
    wires = {}

    class Recorded(PartySession):
        def handle(self, message):
            wire = wires.setdefault(self._site.name, hashlib.sha256())
            wire.update(encode_to_party(message))
            for reply in super().handle(message):
                wire.update(encode_from_party(reply))
                yield reply

    X, y, weight, settings = setting_of(name)
    inprocess.PartySession = Recorded
    try:
        session = run(X, y, parts_of(name, "3 at random"), weight, **settings)
    finally:
        inprocess.PartySession = PartySession
    (transcript,) = {attest.transcript for attest in session.attestations.values()}
    wire = hashlib.sha256(b"".join(wires[party].digest() for party in sorted(wires)))
    model = hashlib.sha256(session.booster.to_xgboost().encode())
    return tuple(digest[:16] for digest in (model.hexdigest(), transcript.hex(), wire.hexdigest()))


@pytest.mark.parametrize("name", SETTINGS)
def test_models_transcripts_and_bytes_are_as_they_were(name):
    assert digests(name) == GOLDEN[name]


if __name__ == "__main__":
    for setting in SETTINGS:
        print(f"    {setting!r}: {digests(setting)!r},".replace("'", '"'))
