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
    "logistic": ("16c3fbbcaaf594a1", "9545ee5acd5284d0", "1321fd67e94327a6"),
    "logistic, weights": ("06ae75708cfed621", "8ecc45f162308345", "2d2c2f42834ed386"),
    "squared error": ("9f9d3e771b0d13ed", "fdfb2b812bd35a66", "50e9dcc7a77ceb1c"),
    "squared error, weights": ("1ba740e1e89acd14", "cb5c5cbe1e2cb9a7", "eaef82c32125051f"),
    "classes": ("75713a811d274f32", "354002bb3900f064", "2cab116ac4c59ff7"),
    "classes, weights": ("97086a658209d967", "3ec455aa3a6b739d", "fc3222a53b02accc"),
    "counts": ("6da55627f1ea982b", "20bc08eabcdd51c8", "c6d77e6917ae0d0b"),
    "counts, weights": ("8572999c1af5db22", "def8df90aa6d933a", "3926ed99a5c7d53b"),
    "amounts": ("c913093afc89184a", "e6dca094e533269a", "2995688a67e3a519"),
    "amounts or nothing": ("cd39f7142f76fb06", "4510c34d879131dc", "12b2e19cfaea1d9c"),
    "slopes": ("fc7029f30aa40b31", "5b8c13a1be6f15aa", "41acc7889844e36a"),
    "medians": ("e2c3ae9715550344", "30be41655edcdaf7", "1b36cd13a611e12b"),
    "medians, weights": ("a69ede07528bdbc7", "bb31c7fd1faee56e", "36290f9000b21187"),
    "quantiles": ("00c5ffd748dd025d", "054767d160fe83d8", "62db7d5888fb5fcb"),
    "ranked by ndcg": ("b85576e5178f8870", "1bc029dd56104180", "71fd5f830ef689e7"),
    "ranked by ndcg, weights": ("b0481cd466886be9", "3e6f686ef6620393", "ca597c1c3b7ddccc"),
    "ranked by pairs": ("6b6ff8dae7e04881", "0bea14c7367e29c1", "5fbb1740ad771118"),
    "ranked, rows drawn by gradients": ("ae2b92c15277be54", "115ba1449e1fd289", "8fcc536207d81d32"),
    "ranked, bootstrap": ("2a70e69137e1ef0c", "a3bf1fa55073e252", "2574b9080df3bea9"),
    "times": ("a138b46ccf15730e", "b6556b7554b8f0c8", "f51df67f7dda1bb2"),
    "times, weights": ("f3cfd508d886824b", "02ccf6ea4909669c", "0e23fd357167c652"),
    "times, logistic": ("15939861fcfad8bc", "4b3550c17f86b1e7", "d3341e08913b0d98"),
    "heavier positives": ("ff7224b4274512a6", "ec54fab099c962df", "b558704cd4c7aca1"),
    "strong penalties": ("42a7485d4199b833", "08ab6f65b188d8f2", "5efc4af4e9837464"),
    "best leaves first": ("7656a1decc58f646", "850e1c300da26dd4", "e0c367307402f2cb"),
    "best leaves first, classes": ("214e987d639b6bb2", "01d742e0643dd696", "58461b551988a525"),
    "symmetric": ("7cd8be410150d52d", "6fda15360ca51d73", "a5b2faee90a5d430"),
    "symmetric, medians": ("7fd6a86864867802", "5686bbdf2b21d2e1", "fe8d5e8a4b70d051"),
    "symmetric, constrained": ("cddbffb8b1cf345d", "8c863795397d9d77", "007e685b7c8d7708"),
    "symmetric, forests of classes": ("bbc67fcf398afa58", "6cf9fe3c2c58990b", "e4c6dacf4facba50"),
    "constrained": ("70c38a08ab04d1f5", "e7565f59202f9353", "50f1aa46c6176a50"),
    "columns drawn, levels": ("3ccfee71050d685c", "615d6d1e4e5f99ca", "11703d59bba5d9bc"),
    "monotone": ("6a06be242bf28d77", "f597b23a50b703b3", "881f125c5d6d892f"),
    "few leaves": ("b90549af1fed5c2f", "10afc2786ccecc28", "17a176d451970e94"),
    "forests": ("ab3d18737e595801", "758d1c9d990a0f64", "5eec3040e83364ae"),
    "forests, classes": ("34cc282e4e740a33", "a5fc4272e2e0cd97", "ce1c9284e344b58e"),
    "rows drawn": ("3986276cfab8e490", "b206cbdf79ff911f", "8d59ae9c13f4a85a"),
    "rows drawn, classes": ("1d6ad47e0e5a2a01", "b2236995422b2a4d", "9438c25813646f67"),
    "rows drawn by gradients": ("4c2d96e3efe2947a", "5b408262d4225935", "a74c5a7497b7477a"),
    "rows drawn by gradients, number": ("b9c0dbb16881a8a4", "3e5447096ad8dde8", "f7c1b920e309839f"),
    "rows drawn by gradients, classes": ("477a64ca80db0a4b", "1cc3ece42ba7a76d", "230779b85d884d7a"),
    "bootstrap": ("9cba30998e1b532e", "4b698f9be64150b7", "3f9251bffd367b43"),
    "bootstrap, classes": ("af8f29d0926c95ac", "def9678f48e9ba3b", "bb52355f256bca94"),
    "bootstrap, medians": ("ecb56dfaade48ef9", "5602dacdf87fc4ad", "9e93bb6fd9239bbd"),
    "rows held out": ("666c32da1e707765", "f037045132c53d0c", "c3ce71fcf3db2aee"),
    "columns drawn": ("208292ee548a4a93", "e22ab372411946f9", "b2dfb3af2ebfadd4"),
    "few bits": ("ed46b717896ba0f5", "d91109b8424cfcd3", "b4e30153ee976a41"),
    "levels": ("8f829b6937cc9578", "0eaf098661948c6c", "f1020f97c474e8eb"),
    "levels, weights, penalties": ("7bfd3eaa8dbd0a9e", "e7f4f935ede32786", "bbd935d4982b5aab"),
    "nothing but levels": ("0f9adc20e0a29088", "ea5bc8946032fcdd", "f80f93ef178d28e9"),
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
