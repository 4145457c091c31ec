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
    "logistic": ("16c3fbbcaaf594a1", "28743ce2063c40e5", "9697358e32970f60"),
    "logistic, weights": ("2221a7b0f8f7116f", "59739e9f06781435", "1b5055ca8727bf77"),
    "squared error": ("9547903ba5843792", "ad2ae1a503ae4365", "a52fb440a738b6f4"),
    "squared error, weights": ("ed91a4d41dc59fe6", "c4942d7cfb0e17ea", "45c2e51f3f3a4e91"),
    "classes": ("75713a811d274f32", "ed11a2f2d8ec4c5b", "be2dfe87016e5c2d"),
    "classes, weights": ("4a0a4c1bd6692b57", "d0b20f502d9fd5c9", "c466d6779a20bcbd"),
    "counts": ("c9eab3ace42ab01c", "910660638f10dee0", "9a7b38b0793c26fd"),
    "counts, weights": ("4b4a5e3c803e145b", "2251b320300093dc", "cc790fef19545d86"),
    "amounts": ("c913093afc89184a", "3b2b906fc996686e", "c286bd3f0b049f1a"),
    "amounts or nothing": ("24fb08231a62f01d", "0bf1be1ab0cb919d", "265713a08c90839b"),
    "slopes": ("fc7029f30aa40b31", "d33d5984a5d74dfb", "0fd2b71e89707208"),
    "medians": ("e2c3ae9715550344", "180de12d5ea2887c", "62e332bbdfcbb3d7"),
    "medians, weights": ("9db36fc97d28dac2", "614018dd45c5988b", "adc8a1f91f10bfaf"),
    "quantiles": ("ad8eba272e4ee1c4", "0a30f5e3d7d244b0", "3dea2b1f7925ebe0"),
    "ranked by ndcg": ("b85576e5178f8870", "0a226751c3b1c3ca", "47f20f47433e20b7"),
    "ranked by ndcg, weights": ("4d27f60c6d8de458", "d3e8b489141529f9", "4475336749778bd4"),
    "ranked by pairs": ("6b6ff8dae7e04881", "832827de96a76706", "c51f3dee517b88a8"),
    "ranked, rows drawn by gradients": ("16778386542e0f44", "de1f3130974c7ee0", "534fb6d38ed95f5e"),
    "ranked, bootstrap": ("2a70e69137e1ef0c", "f409d9a42744ef45", "9360d9ebc6a02acb"),
    "times": ("a138b46ccf15730e", "342112cb0c61f5d3", "002e0e9c689ed73d"),
    "times, weights": ("7b4c4f2f3c0c7086", "dc6d6f21baaaed6b", "bb305141e04e9c27"),
    "times, logistic": ("15939861fcfad8bc", "7643b9a28a6eda75", "9f1ee2a641a3f1f4"),
    "heavier positives": ("ff7224b4274512a6", "0fc6b4f88dde9094", "fbf9bf6a9bc25d1b"),
    "strong penalties": ("42a7485d4199b833", "2c41e47ec1f0272f", "628f50d082787690"),
    "best leaves first": ("7656a1decc58f646", "1a2a6ceaf16782fd", "9e482db95ae0486a"),
    "best leaves first, classes": ("e4f33ae0bf67fdcd", "61848ca0fbb97fb5", "4ca911abb9ce01bf"),
    "constrained": ("70c38a08ab04d1f5", "821eb6ccc68cc317", "d6605d1c443d890a"),
    "columns drawn, levels": ("3ccfee71050d685c", "968179d45f3a6659", "37e7655c719cda99"),
    "monotone": ("b4011bc02d1db3ff", "3ead6ed61d066b3a", "939eeab96ba13ebd"),
    "few leaves": ("af3b17ac7f690b06", "0308be30111d214c", "ebe3595c5f78a002"),
    "forests": ("96423471a764a40a", "c28e7c4a66bec2b1", "5138aedfc33fbb6b"),
    "forests, classes": ("34cc282e4e740a33", "dba16bcae09a229b", "a09a500f1f757f62"),
    "rows drawn": ("5a450b370414f57a", "4db8df94b6d6d448", "089a36c4d0b24727"),
    "rows drawn, classes": ("1d6ad47e0e5a2a01", "62ca6beb83025300", "f492a9f2016115c1"),
    "rows drawn by gradients": ("1b71cc5ce2cfb67e", "fb865e9d5b7bd30c", "820888c1d0a61aea"),
    "rows drawn by gradients, number": ("b9c0dbb16881a8a4", "4f858048e86bacef", "3d53797fe853377c"),
    "rows drawn by gradients, classes": ("477a64ca80db0a4b", "bc5091ed48918701", "e0e4c8343a80960a"),
    "bootstrap": ("a0abb2a49b6623fe", "8b2add1ba76163c7", "7f69e5275be31839"),
    "bootstrap, classes": ("af8f29d0926c95ac", "44773948d2a933ca", "0bdeede3e5160494"),
    "bootstrap, medians": ("f3fab02f8a2b08f4", "ed5284f6624b55e3", "6ca68726557bdcb9"),
    "rows held out": ("373840ce38868c38", "1d7fee0aa2524398", "1470c8527e26bdac"),
    "columns drawn": ("208292ee548a4a93", "36c70954fe25d5a3", "c71ae3d16a14844c"),
    "few bits": ("44330d9988450b93", "85ab741d01dfaa08", "8a55fe775cfa86bb"),
    "levels": ("8f829b6937cc9578", "887bb6aa182ae4b3", "2fe3e307ba436355"),
    "levels, weights, penalties": ("2cc9c2a1a8c000ae", "3c076f2aedba41a4", "e4f2504bb85c74ed"),
    "nothing but levels": ("0f9adc20e0a29088", "d9132f1cc64ffbd3", "c7618fdc11f5eaab"),
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
