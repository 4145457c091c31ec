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
    "logistic": ("16c3fbbcaaf594a1", "55dae2828c34258d", "02f151e1a86e8617"),
    "logistic, weights": ("06ae75708cfed621", "b824e9d837c9c4c0", "e21a1405fbc41afd"),
    "squared error": ("9f9d3e771b0d13ed", "bdd30319b71e1a45", "d912baaef0cd5c48"),
    "squared error, weights": ("1ba740e1e89acd14", "c57c2e3a2f070380", "5e05e95e3f645e2b"),
    "classes": ("75713a811d274f32", "f000d66c69c9f8ca", "fe32bb2e3fc35e25"),
    "classes, weights": ("97086a658209d967", "6e80c2fdf30e57b1", "5264f6ad12ddf5e2"),
    "counts": ("6da55627f1ea982b", "b80a176f3a36a51c", "3be296ab987efd5f"),
    "counts, weights": ("8572999c1af5db22", "c752951856bdaa29", "b91309bb17cf462e"),
    "amounts": ("c913093afc89184a", "e73d068e962043e0", "8fcb0ff7c9b359d1"),
    "amounts or nothing": ("cd39f7142f76fb06", "c8231f2c02852ce8", "ed3b75f12be553b9"),
    "slopes": ("fc7029f30aa40b31", "1f5d01d66405b7f2", "e2e3c4af4608a3bd"),
    "medians": ("e2c3ae9715550344", "3cae04e00ddfc962", "d1967766ed683318"),
    "medians, weights": ("a69ede07528bdbc7", "6e2de5d3804670d2", "2ba09074c93ab66f"),
    "quantiles": ("00c5ffd748dd025d", "4ef8776204aa56ba", "492f02b7250169ed"),
    "ranked by ndcg": ("b85576e5178f8870", "50fc4cb616b3cd5e", "3e2f08b08e8ae3b3"),
    "ranked by ndcg, weights": ("b0481cd466886be9", "004fbcb962898519", "ed68908756d4faee"),
    "ranked by pairs": ("6b6ff8dae7e04881", "f0229eae42ffe376", "973f4094c7b9020c"),
    "ranked, rows drawn by gradients": ("ae2b92c15277be54", "4a765b701954c603", "480aeb1d4223752e"),
    "ranked, bootstrap": ("2a70e69137e1ef0c", "6c0efee01343af41", "3833c098ac843b63"),
    "times": ("a138b46ccf15730e", "fa60cb387efbf0d2", "762dfc7ef709d14d"),
    "times, weights": ("f3cfd508d886824b", "5ba40d279336aae1", "3d2128f84005b803"),
    "times, logistic": ("15939861fcfad8bc", "9772f8e6f25349e0", "235094b95f7b9834"),
    "risks": ("f49e3c16bfd63760", "9896d3557f575dfd", "50eddf04e9aa7bdc"),
    "risks, weights": ("15b9f7a01ddb4dd2", "1387d26ea3f60c8f", "e393f4f4d3e22585"),
    "risks, forest": ("ce0d608194db112f", "cfdd2d90b0a30b74", "d82bd118283cc463"),
    "heavier positives": ("ff7224b4274512a6", "caf7158f06862d17", "3dc46bb110a7590e"),
    "strong penalties": ("42a7485d4199b833", "acbacdb6eb665acb", "612ec61a517f954e"),
    "best leaves first": ("7656a1decc58f646", "9ff48b5b1fd438a0", "9e1b80f223fd180e"),
    "best leaves first, classes": ("214e987d639b6bb2", "054ac242f1a53d8c", "95c705b315067903"),
    "symmetric": ("7cd8be410150d52d", "b888d4faa67787e5", "5a65f5d26e9e666d"),
    "symmetric, medians": ("7fd6a86864867802", "c8c70c0fc8427231", "52b3bea2dd3a2131"),
    "symmetric, constrained": ("cddbffb8b1cf345d", "16ae258432715e77", "c57902ac96f83752"),
    "symmetric, forests of classes": ("bbc67fcf398afa58", "286acf190a3ea2d9", "84d3446c7e9d4992"),
    "constrained": ("70c38a08ab04d1f5", "40717fb297d7a806", "fd603c832ee7aa12"),
    "columns drawn, levels": ("3ccfee71050d685c", "6a060d1930bab9fd", "1536126c555dbafa"),
    "monotone": ("6a06be242bf28d77", "6b19f1670c41a6df", "0abb3c1ae58deaa8"),
    "few leaves": ("b90549af1fed5c2f", "437bdd1f211efd1a", "4afabc7367e983f4"),
    "forests": ("ab3d18737e595801", "14df8ae7a72f1fbf", "6256c575a5ae0c79"),
    "forests, classes": ("34cc282e4e740a33", "7ded0a395fae2b9a", "e291b9ae5be6bb08"),
    "rows drawn": ("3986276cfab8e490", "dfdc7f2c1aac3d0a", "bc11d58a7ef6f71f"),
    "rows drawn, classes": ("1d6ad47e0e5a2a01", "2df97367d4061ecc", "1fd323ad021a8e97"),
    "rows drawn by gradients": ("4c2d96e3efe2947a", "c36b0048ca7ed27c", "e0c7ed94e82d0d16"),
    "rows drawn by gradients, number": ("b9c0dbb16881a8a4", "85c748925a62fd57", "8a8e1cacd6c01256"),
    "rows drawn by gradients, classes": ("477a64ca80db0a4b", "e83d5ae171463921", "40e6dc2645e43163"),
    "bootstrap": ("9cba30998e1b532e", "2168d450bd3d04e9", "1dacf90f53325dad"),
    "bootstrap, classes": ("af8f29d0926c95ac", "90a9b39975173f9f", "b9e33b340f13b09f"),
    "bootstrap, medians": ("ecb56dfaade48ef9", "bf7557b1275bf6ff", "1433fcdd3548202e"),
    "rows held out": ("666c32da1e707765", "23b079609c588aab", "f26d7781fadafe3e"),
    "columns drawn": ("208292ee548a4a93", "7ac7304d1db69df6", "9a8b310b37019b3f"),
    "few bits": ("ed46b717896ba0f5", "a1e3f910b0ef2585", "3df5bc68f89a42a2"),
    "levels": ("8f829b6937cc9578", "29999a534360a50f", "bf9aadfb465f81a3"),
    "levels, weights, penalties": ("7bfd3eaa8dbd0a9e", "8cf7c1f9154a0fb1", "f3dd83360f21ea3d"),
    "nothing but levels": ("0f9adc20e0a29088", "4d9e7daf0b83868d", "514e7a6992e14c59"),
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
