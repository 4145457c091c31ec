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
    "logistic": ("16c3fbbcaaf594a1", "3b24ab4d9dfa1273", "6f5cc757ab8ca2da"),
    "logistic, weights": ("2221a7b0f8f7116f", "ffc44ea523c7be45", "64f59e3dc28fc4d0"),
    "squared error": ("9547903ba5843792", "dd021c7dec2965b4", "6fc8faf7d93ffd85"),
    "squared error, weights": ("ed91a4d41dc59fe6", "7d8fd3fdd2a0609c", "bc52322e223e003c"),
    "classes": ("75713a811d274f32", "6ae4789b712d5001", "ac4be9282515e7cc"),
    "classes, weights": ("4a0a4c1bd6692b57", "980d4824f73b2faa", "956226398d7589cc"),
    "counts": ("c9eab3ace42ab01c", "348c93eb50c387ee", "963b128ea7cbf822"),
    "counts, weights": ("4b4a5e3c803e145b", "c0f70370ca135b72", "df9cacea02ceeb4b"),
    "amounts": ("c913093afc89184a", "c7f5c8f1b95a5624", "39b55d39b22e690e"),
    "amounts or nothing": ("24fb08231a62f01d", "5c4fe04de8b610fd", "e5f6146f03c36c8b"),
    "slopes": ("fc7029f30aa40b31", "f95fc7ab1851c6c2", "400d7573da4d1c22"),
    "medians": ("e2c3ae9715550344", "05b886b58a05984d", "4ed87814d8ce1521"),
    "medians, weights": ("9db36fc97d28dac2", "92c6287f724dfbd8", "eca19fa7221282bc"),
    "quantiles": ("ad8eba272e4ee1c4", "42b224888d852d41", "fbc235007166942d"),
    "ranked by ndcg": ("b85576e5178f8870", "61201932dc4f576c", "8286645e7ae0f1ac"),
    "ranked by ndcg, weights": ("4d27f60c6d8de458", "24d9d99e061c3166", "91a61110bb88f17e"),
    "ranked by pairs": ("6b6ff8dae7e04881", "367ff157cda3dac9", "f3b90db9ddb2dbcd"),
    "ranked, rows drawn by gradients": ("16778386542e0f44", "8b94ca6a4461d021", "3e13e45c41beafe2"),
    "ranked, bootstrap": ("2a70e69137e1ef0c", "c4a03cc86ac64c43", "48308b9cb582c240"),
    "times": ("a138b46ccf15730e", "41f66fd3b637e304", "7a9354f459460f51"),
    "times, weights": ("7b4c4f2f3c0c7086", "b54d9a250ad2cef7", "16ae7bcdae2d4fd2"),
    "times, logistic": ("15939861fcfad8bc", "68199f39edce0ba7", "7cc069252d31c6df"),
    "heavier positives": ("ff7224b4274512a6", "63b890aa9656677e", "7875f6ddc7322009"),
    "strong penalties": ("42a7485d4199b833", "b026d155ef1ed6cc", "f9be6aa6108c5b8c"),
    "best leaves first": ("7656a1decc58f646", "470db71cd197c7a3", "f9bb21d692eec753"),
    "best leaves first, classes": ("e4f33ae0bf67fdcd", "989f9ecfab10252e", "285b183b98d32224"),
    "constrained": ("70c38a08ab04d1f5", "addd70137b1aa1b1", "c27c1656130fd29e"),
    "columns drawn, levels": ("3ccfee71050d685c", "b64b5a876d3e9b13", "2801abcd3df87a18"),
    "monotone": ("b4011bc02d1db3ff", "b26b4f8c29f6957c", "8167b5285b797ff8"),
    "few leaves": ("af3b17ac7f690b06", "c37715c332b94e77", "cdb24b93b60bddce"),
    "forests": ("96423471a764a40a", "bf1c7b7d075d2fd3", "1cba60c9562e4001"),
    "forests, classes": ("34cc282e4e740a33", "789324f4b39dddf1", "d503706089d4f994"),
    "rows drawn": ("5a450b370414f57a", "935d8abe181a569c", "e4f8b291ff31a323"),
    "rows drawn, classes": ("1d6ad47e0e5a2a01", "df7b6f373b1d59e7", "bb1d9ffcf5e8e69e"),
    "rows drawn by gradients": ("1b71cc5ce2cfb67e", "ac7746cf7f030d14", "29fa9afad7fb7f7b"),
    "rows drawn by gradients, number": ("b9c0dbb16881a8a4", "696f6e48d6b1a92f", "82ee15d004e0282d"),
    "rows drawn by gradients, classes": ("477a64ca80db0a4b", "78d6131102443212", "29a88efbfeedc1ff"),
    "bootstrap": ("a0abb2a49b6623fe", "dc6f22373dfb7456", "98e9c26903fbd3c0"),
    "bootstrap, classes": ("af8f29d0926c95ac", "a843e3e45e54ba64", "991b6964d0c2efbd"),
    "bootstrap, medians": ("f3fab02f8a2b08f4", "bd5643aa968b6b71", "9ae9afd62bd38bc5"),
    "rows held out": ("373840ce38868c38", "1e38cf9c3b37f9d4", "61dd38ce73f243db"),
    "columns drawn": ("208292ee548a4a93", "acd4b31de52795e0", "1185594e3d214f1a"),
    "few bits": ("44330d9988450b93", "fa1ce9b7167ba412", "422a3b07ecff1d64"),
    "levels": ("8f829b6937cc9578", "88054a0ee143d442", "01101db65ece5152"),
    "levels, weights, penalties": ("2cc9c2a1a8c000ae", "166217d0cec59118", "90fd9e65b3eb1c4d"),
    "nothing but levels": ("0f9adc20e0a29088", "31d76366670c90e2", "4fe2ac7b5e7b78b2"),
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
