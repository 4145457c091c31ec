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
    "logistic": ("16c3fbbcaaf594a1", "55dae2828c34258d", "c28220153471b120"),
    "logistic, weights": ("06ae75708cfed621", "b824e9d837c9c4c0", "ef01ad1b41d5436a"),
    "squared error": ("9f9d3e771b0d13ed", "bdd30319b71e1a45", "98b838a3259b3a22"),
    "squared error, weights": ("1ba740e1e89acd14", "c57c2e3a2f070380", "6553e41cd1c80a1b"),
    "classes": ("75713a811d274f32", "f000d66c69c9f8ca", "011701b39cb093cd"),
    "classes, weights": ("97086a658209d967", "6e80c2fdf30e57b1", "0bdb7cbf286e069e"),
    "counts": ("6da55627f1ea982b", "b80a176f3a36a51c", "a2ba9da24d7c91bc"),
    "counts, weights": ("8572999c1af5db22", "c752951856bdaa29", "9153f5aa670eec81"),
    "amounts": ("c913093afc89184a", "e73d068e962043e0", "9a443888e734e739"),
    "amounts or nothing": ("cd39f7142f76fb06", "c8231f2c02852ce8", "19246a7e1df8c645"),
    "slopes": ("fc7029f30aa40b31", "1f5d01d66405b7f2", "e96c5500f00449a2"),
    "medians": ("e2c3ae9715550344", "3cae04e00ddfc962", "9e498016af7b707a"),
    "medians, weights": ("a69ede07528bdbc7", "6e2de5d3804670d2", "685bc8a483261807"),
    "quantiles": ("00c5ffd748dd025d", "4ef8776204aa56ba", "7c8ee12ae543df2b"),
    "ranked by ndcg": ("b85576e5178f8870", "50fc4cb616b3cd5e", "c764ddc031cc40c7"),
    "ranked by ndcg, weights": ("b0481cd466886be9", "004fbcb962898519", "3c4665678b3281a8"),
    "ranked by pairs": ("6b6ff8dae7e04881", "f0229eae42ffe376", "5405297e89c72105"),
    "ranked, rows drawn by gradients": ("ae2b92c15277be54", "4a765b701954c603", "9bd3b0fdae11bb9d"),
    "ranked, bootstrap": ("2a70e69137e1ef0c", "6c0efee01343af41", "667d6c5685dfc3a0"),
    "times": ("a138b46ccf15730e", "fa60cb387efbf0d2", "13c85d803f3fdbcf"),
    "times, weights": ("f3cfd508d886824b", "5ba40d279336aae1", "0dd3fb6d212716d2"),
    "times, logistic": ("15939861fcfad8bc", "9772f8e6f25349e0", "5c511f3f47a8069c"),
    "risks": ("f49e3c16bfd63760", "9896d3557f575dfd", "06e0681bc9cc728b"),
    "risks, weights": ("15b9f7a01ddb4dd2", "1387d26ea3f60c8f", "4bd8f3c31f99b4b7"),
    "risks, forest": ("ce0d608194db112f", "cfdd2d90b0a30b74", "6ee6d4c5eb3377b1"),
    "heavier positives": ("ff7224b4274512a6", "caf7158f06862d17", "2abf0c958abdfe68"),
    "strong penalties": ("42a7485d4199b833", "acbacdb6eb665acb", "f4d623dbaf1621fc"),
    "best leaves first": ("7656a1decc58f646", "9ff48b5b1fd438a0", "d3954dcfc22bc999"),
    "best leaves first, classes": ("214e987d639b6bb2", "054ac242f1a53d8c", "87cc36f780422dd4"),
    "symmetric": ("7cd8be410150d52d", "b888d4faa67787e5", "06ed8e2c9433d461"),
    "symmetric, medians": ("7fd6a86864867802", "c8c70c0fc8427231", "ee45db54c8974838"),
    "symmetric, constrained": ("cddbffb8b1cf345d", "16ae258432715e77", "d46ecd5af5002949"),
    "symmetric, forests of classes": ("bbc67fcf398afa58", "286acf190a3ea2d9", "f4656d6fa5f78357"),
    "constrained": ("70c38a08ab04d1f5", "40717fb297d7a806", "6538758df32e5cf2"),
    "columns drawn, levels": ("3ccfee71050d685c", "6a060d1930bab9fd", "c1a11c95a0d67a19"),
    "monotone": ("6a06be242bf28d77", "6b19f1670c41a6df", "ba31a2dba42f4dfa"),
    "few leaves": ("b90549af1fed5c2f", "437bdd1f211efd1a", "42ddc7aa1490da63"),
    "forests": ("ab3d18737e595801", "14df8ae7a72f1fbf", "ed30412099d40df6"),
    "forests, classes": ("34cc282e4e740a33", "7ded0a395fae2b9a", "5ec012336d77c3f8"),
    "rows drawn": ("3986276cfab8e490", "dfdc7f2c1aac3d0a", "75abdd9122e9892b"),
    "rows drawn, classes": ("1d6ad47e0e5a2a01", "2df97367d4061ecc", "7a8347d3c22aa03c"),
    "rows drawn by gradients": ("4c2d96e3efe2947a", "c36b0048ca7ed27c", "935f9fb6fa300eb5"),
    "rows drawn by gradients, number": ("b9c0dbb16881a8a4", "85c748925a62fd57", "e26b47a329e29d0e"),
    "rows drawn by gradients, classes": ("477a64ca80db0a4b", "e83d5ae171463921", "46ab50dd11abf414"),
    "bootstrap": ("9cba30998e1b532e", "2168d450bd3d04e9", "257e37502de29519"),
    "bootstrap, classes": ("af8f29d0926c95ac", "90a9b39975173f9f", "c5484d18b9868e31"),
    "bootstrap, medians": ("ecb56dfaade48ef9", "bf7557b1275bf6ff", "7bcbfaf5026cb85b"),
    "rows held out": ("666c32da1e707765", "23b079609c588aab", "d78027159eaaf87b"),
    "columns drawn": ("208292ee548a4a93", "7ac7304d1db69df6", "56fb972ef1758bec"),
    "few bits": ("ed46b717896ba0f5", "a1e3f910b0ef2585", "d697c4da1badd7f1"),
    "levels": ("8f829b6937cc9578", "29999a534360a50f", "46ff464eee023b4f"),
    "levels, weights, penalties": ("7bfd3eaa8dbd0a9e", "8cf7c1f9154a0fb1", "e8ae1d6352ea1e0c"),
    "nothing but levels": ("0f9adc20e0a29088", "4d9e7daf0b83868d", "46fb2ff534efb1f9"),
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
