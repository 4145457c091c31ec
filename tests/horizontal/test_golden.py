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
    "logistic, weights": ("06ae75708cfed621", "4ea073135d78959a", "541702f1122eb34f"),
    "squared error": ("9f9d3e771b0d13ed", "fa1b03acf00df4e7", "bb169bd5d3c40d1e"),
    "squared error, weights": ("1ba740e1e89acd14", "91c7986f2585da08", "3029673ded5f7591"),
    "classes": ("75713a811d274f32", "0ab690dfd164f1fb", "ee89b39b9b61943c"),
    "classes, weights": ("97086a658209d967", "d77f5f2276ad9cc0", "2c4d022b259ed682"),
    "counts": ("6da55627f1ea982b", "d4980ed55b0f4bb5", "22a5061d07c39f44"),
    "counts, weights": ("8572999c1af5db22", "888937d17615d123", "dd05f1e09af81b3f"),
    "amounts": ("c913093afc89184a", "d86eee39e8e5e262", "74883edef23451ad"),
    "amounts or nothing": ("cd39f7142f76fb06", "dbbd9a7720897167", "c06f3e46dddf1e3c"),
    "slopes": ("fc7029f30aa40b31", "ea3415e6c493d328", "221a2a8464d0b548"),
    "medians": ("e2c3ae9715550344", "3acc55e0aa7311b7", "a50e822ff6d29b77"),
    "medians, weights": ("a69ede07528bdbc7", "56404b8d4b8bc2b2", "e62e323bcc7e8918"),
    "quantiles": ("00c5ffd748dd025d", "2cede5901a95e2db", "8923c40223cbc0a3"),
    "ranked by ndcg": ("b85576e5178f8870", "7c461b105c5c644a", "c440a839a4140a8e"),
    "ranked by ndcg, weights": ("b0481cd466886be9", "714653f305691a23", "550b1752cfae9f2d"),
    "ranked by pairs": ("6b6ff8dae7e04881", "b9890800e5004c2f", "6aefeec7176e3f60"),
    "ranked, rows drawn by gradients": ("ae2b92c15277be54", "35e25089cd0c8188", "861d36b0753d1a19"),
    "ranked, bootstrap": ("2a70e69137e1ef0c", "f92b7282eecd1622", "2f0d3b02a215d4c5"),
    "times": ("a138b46ccf15730e", "8cf1ea6e9f9db3e1", "d22fc8d498174212"),
    "times, weights": ("f3cfd508d886824b", "80c63cc8c113e1ec", "b5cc3fa1be4c7557"),
    "times, logistic": ("15939861fcfad8bc", "953eb9bef05ad8b4", "974b332185c69378"),
    "heavier positives": ("ff7224b4274512a6", "1345cfe285be11ce", "0bfd5b224847a2df"),
    "strong penalties": ("42a7485d4199b833", "92861b47932d668d", "6d435f93ae0190ab"),
    "best leaves first": ("7656a1decc58f646", "68b7ad9f309cc59d", "f105871ba7772a16"),
    "best leaves first, classes": ("214e987d639b6bb2", "29f6becb25f2167e", "b0e75a82b74be541"),
    "symmetric": ("7cd8be410150d52d", "6989ced7023ad8b7", "15d8f9bc0874487f"),
    "symmetric, medians": ("7fd6a86864867802", "9825566e1b0814c8", "5e5b294084408f2b"),
    "symmetric, constrained": ("cddbffb8b1cf345d", "8fb9e37e76b748e8", "22431f3230c7313d"),
    "symmetric, forests of classes": ("bbc67fcf398afa58", "169982a4aad9c6ce", "febd2519f300e209"),
    "constrained": ("70c38a08ab04d1f5", "a31ef022c3feeb04", "c60151a748491a09"),
    "columns drawn, levels": ("3ccfee71050d685c", "54ac706646df244e", "5ccb22b37d1fe78f"),
    "monotone": ("6a06be242bf28d77", "f13cea31b8d07fbd", "af05516c72d619a5"),
    "few leaves": ("b90549af1fed5c2f", "5656151450579839", "04aee6a39b2ba180"),
    "forests": ("ab3d18737e595801", "6ca22ae2a4ef9670", "efd4f13a07f34ff9"),
    "forests, classes": ("34cc282e4e740a33", "8d67e1832bc3cde2", "a182bbe5408643aa"),
    "rows drawn": ("3986276cfab8e490", "36845149cec8414d", "b01313078a1786a7"),
    "rows drawn, classes": ("1d6ad47e0e5a2a01", "1ffa998d98b40404", "24642058b7c811d2"),
    "rows drawn by gradients": ("4c2d96e3efe2947a", "91852766e60395c0", "4f1ad3cdda17125f"),
    "rows drawn by gradients, number": ("b9c0dbb16881a8a4", "0232bb24d08bacc1", "94341139f17da03d"),
    "rows drawn by gradients, classes": ("477a64ca80db0a4b", "11ae968db593436d", "ce8f4ffd4b6d0138"),
    "bootstrap": ("9cba30998e1b532e", "56197e0b0eb3bba5", "2399bf943aa875d8"),
    "bootstrap, classes": ("af8f29d0926c95ac", "d733224ae261dabc", "bc866f9214644b3f"),
    "bootstrap, medians": ("ecb56dfaade48ef9", "cefcc7bd41de10db", "5731be2d59c42afd"),
    "rows held out": ("666c32da1e707765", "46a4266274375fe6", "241e03d071f73d2c"),
    "columns drawn": ("208292ee548a4a93", "773511e20d704a94", "f263a72e4e503f35"),
    "few bits": ("ed46b717896ba0f5", "3249512f402ee8fb", "103131f7f09d0811"),
    "levels": ("8f829b6937cc9578", "57c55efb1ee5b2e5", "db47d15a95c2b294"),
    "levels, weights, penalties": ("7bfd3eaa8dbd0a9e", "36095fc6951dc1c4", "6430b8d2c44c5609"),
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
