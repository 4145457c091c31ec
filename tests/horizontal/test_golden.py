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
    "logistic": ("16c3fbbcaaf594a1", "2634e67cff3088ac", "fe8680357ea598c8"),
    "logistic, weights": ("2221a7b0f8f7116f", "7f9b084657a9e70b", "0271039f3b9aefe6"),
    "squared error": ("9f9d3e771b0d13ed", "fa1b03acf00df4e7", "bb169bd5d3c40d1e"),
    "squared error, weights": ("1c69eafe3a64b1f0", "cf5920f9a47a4656", "c4121f50f15ad6f4"),
    "classes": ("75713a811d274f32", "0ab690dfd164f1fb", "ee89b39b9b61943c"),
    "classes, weights": ("4a0a4c1bd6692b57", "84869c4749d8f7ba", "85eef7081bc529a6"),
    "counts": ("6da55627f1ea982b", "d4980ed55b0f4bb5", "22a5061d07c39f44"),
    "counts, weights": ("b2c26e4a213e9a59", "7cfcf77f7aae62c5", "8ba5e5c7963e1368"),
    "amounts": ("c913093afc89184a", "d86eee39e8e5e262", "74883edef23451ad"),
    "amounts or nothing": ("c3d58284f6c264c4", "a98fd362b7d742d1", "06db7f674b9a4fc9"),
    "slopes": ("fc7029f30aa40b31", "ea3415e6c493d328", "221a2a8464d0b548"),
    "medians": ("e2c3ae9715550344", "3acc55e0aa7311b7", "a50e822ff6d29b77"),
    "medians, weights": ("9db36fc97d28dac2", "ff5686feb0f5defc", "62baf46500da6be1"),
    "quantiles": ("ad8eba272e4ee1c4", "bb25d754bdc3a88a", "e786e81616c307ea"),
    "ranked by ndcg": ("b85576e5178f8870", "7c461b105c5c644a", "c440a839a4140a8e"),
    "ranked by ndcg, weights": ("4d27f60c6d8de458", "51fb4f0f4ad9e360", "3e49f83d2f45ece5"),
    "ranked by pairs": ("6b6ff8dae7e04881", "b9890800e5004c2f", "6aefeec7176e3f60"),
    "ranked, rows drawn by gradients": ("16778386542e0f44", "629071388890baf0", "9f6a2e852d387301"),
    "ranked, bootstrap": ("2a70e69137e1ef0c", "f92b7282eecd1622", "2f0d3b02a215d4c5"),
    "times": ("a138b46ccf15730e", "8cf1ea6e9f9db3e1", "d22fc8d498174212"),
    "times, weights": ("7b4c4f2f3c0c7086", "26e75d920712f90c", "7ad58195b233dd6b"),
    "times, logistic": ("15939861fcfad8bc", "953eb9bef05ad8b4", "974b332185c69378"),
    "heavier positives": ("ff7224b4274512a6", "1345cfe285be11ce", "0bfd5b224847a2df"),
    "strong penalties": ("42a7485d4199b833", "92861b47932d668d", "6d435f93ae0190ab"),
    "best leaves first": ("7656a1decc58f646", "68b7ad9f309cc59d", "f105871ba7772a16"),
    "best leaves first, classes": ("e4f33ae0bf67fdcd", "0b1432f9e6e98ff4", "68dba68ac78f2ce1"),
    "symmetric": ("0d6ce982579674ab", "d36a4822c675c565", "758327abeac55bb4"),
    "symmetric, medians": ("7fd6a86864867802", "9825566e1b0814c8", "5e5b294084408f2b"),
    "symmetric, constrained": ("cddbffb8b1cf345d", "8fb9e37e76b748e8", "22431f3230c7313d"),
    "symmetric, forests of classes": ("dacb5734e808ed3a", "2f41a611ae5618ff", "4c9e6fa334b9cf27"),
    "constrained": ("70c38a08ab04d1f5", "a31ef022c3feeb04", "c60151a748491a09"),
    "columns drawn, levels": ("3ccfee71050d685c", "54ac706646df244e", "5ccb22b37d1fe78f"),
    "monotone": ("6a06be242bf28d77", "f13cea31b8d07fbd", "af05516c72d619a5"),
    "few leaves": ("b90549af1fed5c2f", "5656151450579839", "04aee6a39b2ba180"),
    "forests": ("15e8e2ccc64ed6db", "f929d4b080166b96", "5c95dce69b8a56b8"),
    "forests, classes": ("34cc282e4e740a33", "8d67e1832bc3cde2", "a182bbe5408643aa"),
    "rows drawn": ("5a450b370414f57a", "c7fb3625f7fee5d5", "80ad60d28047a1b8"),
    "rows drawn, classes": ("1d6ad47e0e5a2a01", "1ffa998d98b40404", "24642058b7c811d2"),
    "rows drawn by gradients": ("1b71cc5ce2cfb67e", "0f5ba5becbc6c9ad", "149fd4503fdbc0dd"),
    "rows drawn by gradients, number": ("b9c0dbb16881a8a4", "0232bb24d08bacc1", "94341139f17da03d"),
    "rows drawn by gradients, classes": ("477a64ca80db0a4b", "11ae968db593436d", "ce8f4ffd4b6d0138"),
    "bootstrap": ("a0abb2a49b6623fe", "d1a46d9640e17728", "73afa30f0d37b113"),
    "bootstrap, classes": ("af8f29d0926c95ac", "d733224ae261dabc", "bc866f9214644b3f"),
    "bootstrap, medians": ("f3fab02f8a2b08f4", "595d7e745e9f0759", "cff7be422f984a20"),
    "rows held out": ("81bf691993bd0fba", "0193c69e582523f6", "a528f0dd920122de"),
    "columns drawn": ("208292ee548a4a93", "773511e20d704a94", "f263a72e4e503f35"),
    "few bits": ("44330d9988450b93", "5d10a4462422e217", "215f5d77e9ebb0db"),
    "levels": ("8f829b6937cc9578", "57c55efb1ee5b2e5", "db47d15a95c2b294"),
    "levels, weights, penalties": ("2cc9c2a1a8c000ae", "7be4939b3853d001", "47953cbd81ab8ee7"),
    "nothing but levels": ("0f9adc20e0a29088", "64e2c51e8720b69f", "c9ded06953a0ceef"),
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
