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
    "logistic": ("16c3fbbcaaf594a1", "9bf000a688046ad9", "fe04d512ac03a909"),
    "logistic, weights": ("2221a7b0f8f7116f", "9adf1ca95434418a", "4b7108fbb25f33da"),
    "squared error": ("9547903ba5843792", "e84bf4d3837b4001", "e12e9e87ffee8d5f"),
    "squared error, weights": ("ed91a4d41dc59fe6", "5592597bb4de41a5", "958dc3d0a04e5fbc"),
    "classes": ("75713a811d274f32", "5483d94ff58622fb", "0ed4e8f050006992"),
    "classes, weights": ("4a0a4c1bd6692b57", "42f295350e119c87", "63c609b479ddb1ef"),
    "counts": ("c9eab3ace42ab01c", "f2de3e9de37a9de0", "73ae9ba5ddf6946c"),
    "counts, weights": ("4b4a5e3c803e145b", "f4c7cbbb6c3741f0", "42a9b19cdd967e7e"),
    "amounts": ("c913093afc89184a", "0fd01ad3086431ae", "d8f67f31067c6ca0"),
    "amounts or nothing": ("24fb08231a62f01d", "21f5319e339b114b", "a9004243a6ec5b46"),
    "slopes": ("fc7029f30aa40b31", "3e12ab0b1344cba1", "b18a387966b65b79"),
    "medians": ("e2c3ae9715550344", "b20ba79c0d97190d", "a86656adf10e36de"),
    "medians, weights": ("9db36fc97d28dac2", "328c3ec31a007807", "4847655837e28298"),
    "quantiles": ("ad8eba272e4ee1c4", "17526ea73c596d04", "1392118a879e07da"),
    "ranked by ndcg": ("b85576e5178f8870", "5607e0f84dfd5900", "38540f9378a8be43"),
    "ranked by ndcg, weights": ("4d27f60c6d8de458", "7ba5ee1be83bb32a", "3a0fe0c4e1bf1ea3"),
    "ranked by pairs": ("6b6ff8dae7e04881", "56ce5ee7df9ad174", "7c6877d5cf257bc8"),
    "ranked, rows drawn by gradients": ("16778386542e0f44", "3960938677f47857", "9beecb9dcd8a1772"),
    "ranked, bootstrap": ("2a70e69137e1ef0c", "3e5e488975f92d2d", "a2585cce5487307d"),
    "times": ("a138b46ccf15730e", "a0247b1a9e5b78fc", "fd483818aa7a5883"),
    "times, weights": ("7b4c4f2f3c0c7086", "c9b8c72ce2c3ef5e", "b9c85e8269e2176c"),
    "times, logistic": ("15939861fcfad8bc", "65bb633e62cfbad6", "23da5f4b10405b5f"),
    "heavier positives": ("ff7224b4274512a6", "70c2f1b05348bfd6", "3d563d134e073b4e"),
    "strong penalties": ("42a7485d4199b833", "e7688c945f840518", "4d56cbed74a9c58b"),
    "best leaves first": ("7656a1decc58f646", "cc7c96ce300f16f9", "59289ac4642b4015"),
    "best leaves first, classes": ("e4f33ae0bf67fdcd", "056ad4a0e0f73923", "2ad9bd4e9c6ae68f"),
    "constrained": ("70c38a08ab04d1f5", "4b86312b818a44ec", "b00ac15a7b8d106c"),
    "columns drawn, levels": ("3ccfee71050d685c", "072c18436e831a05", "01259a1c94c89c40"),
    "monotone": ("b4011bc02d1db3ff", "28c21d1d9d38f42f", "604cd900a24f8714"),
    "few leaves": ("af3b17ac7f690b06", "394c2d5d190f3b6e", "cc234102321c136a"),
    "forests": ("96423471a764a40a", "ccde81f20f8ed74d", "9fa857ce357e6232"),
    "forests, classes": ("34cc282e4e740a33", "cdfddd7d2ee46036", "6a86fe65b2982ce4"),
    "rows drawn": ("5a450b370414f57a", "053fc81968d0c361", "4763aaa90d3ffa5b"),
    "rows drawn, classes": ("1d6ad47e0e5a2a01", "eea14606bfa1186c", "3d43dd2b49d111b1"),
    "rows drawn by gradients": ("1b71cc5ce2cfb67e", "0cd35ee54efccc01", "556860a17787a5af"),
    "rows drawn by gradients, number": ("b9c0dbb16881a8a4", "00c27b64f0c702e1", "27fd48c741fc7a67"),
    "rows drawn by gradients, classes": ("477a64ca80db0a4b", "4638a75a212f55b7", "13328f652efe1866"),
    "bootstrap": ("a0abb2a49b6623fe", "27049a3d2c107d0a", "17bc8a70acb405bb"),
    "bootstrap, classes": ("af8f29d0926c95ac", "6553a486bcba3888", "130a913ad29ef8c1"),
    "bootstrap, medians": ("f3fab02f8a2b08f4", "546599d920c16322", "ef4079366fdc25b8"),
    "rows held out": ("373840ce38868c38", "ff3a14689a61b1a8", "eb3d75cdca408829"),
    "columns drawn": ("208292ee548a4a93", "0377dede06593f61", "d1fedae9795f7821"),
    "few bits": ("44330d9988450b93", "d7c6a39566904313", "2ac2ab2fa7d43a2b"),
    "levels": ("8f829b6937cc9578", "d0dc209833d903ac", "bfa1d09e674ba590"),
    "levels, weights, penalties": ("2cc9c2a1a8c000ae", "071aad586da5bfce", "dea50a0e609f4209"),
    "nothing but levels": ("0f9adc20e0a29088", "d28b71d4df38831a", "cd744be6c79cf267"),
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
