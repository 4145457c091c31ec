"""Gradients that the label holder hides: who learns what, and who is named for what was made up."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from apart_sessions import Apart
from columns_apart import LAYOUTS, pooled, terms_of, train_pooled
from consortium import installed

import fedboost as fb
from fedboost.holders.column_rows import GradientExchange
from fedboost.privacy import pairwise
from fedboost.protocol.messages import Ask, OpenRequest, OpenShare, Relay, Report

if not installed("paillier"):
    pytest.skip("needs the extra paillier", allow_module_level=True)

from fedboost.privacy.rowsums import ends
from fedboost.privacy.rowsums import ends as openings
from fedboost.privacy.rowsums.sums import RowEncryption

pytestmark = pytest.mark.usefixtures("one_key")
SETTINGS = {"protection": "paillier", "key_bits": 2048, "rounds": 2, "max_depth": 3, "max_bin": 8}


def play(layout="three holders", **settings):
    hooks = {name: settings.pop(name) for name in ("up", "down", "table") if name in settings}
    return Apart(layout, **{**SETTINGS, **settings}, **hooks).play()


def test_a_session_makes_the_model_of_pooled_rows():
    apart = play(table=pooled(60))
    settings = {
        name: apart.terms.flat[name] for name in ("rounds", "max_depth", "max_bin", "min_child_weight")
    }
    assert apart.session.booster == train_pooled(pooled(60), **settings).model.booster


@pytest.mark.slow
@pytest.mark.parametrize("party", ["bank", "telco"])
@pytest.mark.parametrize("nth", [3, 14])
def test_a_party_may_die_at_any_message(party, nth):
    apart = Apart("two holders", table=pooled(60), **SETTINGS, on_loss="wait")
    assert apart.dies_at(party, nth)
    assert apart.session.booster == play("two holders", table=pooled(60)).session.booster


# ---- what others can keep ----------------------------------------------------------------------------------


class Unsealed:
    """A cipher that hides nothing."""

    def __init__(self, key):
        self.key = key

    def encrypt(self, nonce, content, context):
        return content + bytes(16)

    def decrypt(self, nonce, content, context):
        return content[:-16]


def rows_in_messages(monkeypatch):
    """How many of the encrypted rows stand in what the aggregator saw, and how many there are."""
    made = []
    encrypt = RowEncryption.encrypt

    def kept(self, pairs):
        made.append(encrypt(self, pairs))
        return made[-1]

    monkeypatch.setattr(RowEncryption, "encrypt", kept)
    apart = play("two holders", table=pooled(60))
    seen = b"".join(m.content for _, m in apart.sent if isinstance(m, Relay))
    seen += b"".join(m.note + m.cells for _, m in apart.sent if isinstance(m, Report))
    rows = [content[at : at + 512] for content in made for at in range(0, len(content), 512)]
    return sum(row in seen for row in rows), len(rows)


def test_the_aggregator_sees_no_encrypted_row(monkeypatch):
    seen, made = rows_in_messages(monkeypatch)
    assert seen == 0
    assert made >= 60


def test_rows_are_found_where_relays_are_not_sealed(monkeypatch):
    monkeypatch.setattr(pairwise, "AESGCM", Unsealed)
    seen, made = rows_in_messages(monkeypatch)
    assert seen == made


def test_a_feature_holder_reports_so_many_bytes_whatever_the_rows_are():
    """Two tables of the same columns, labels reversed in one: the same sizes of all that is reported."""
    table = pooled(60)
    y = table["y"].to_numpy()
    other = table.set_column(table.column_names.index("y"), "y", [1 - y])
    sizes = []
    for each in (table, other):
        apart = play("two holders", table=each, rounds=1, max_depth=1)
        sizes.append([len(m.note) for m in apart.said(Report, "telco")])
    assert sizes[0] == sizes[1]
    assert max(sizes[0]) > 0


# ---- what is made up -------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 3])
def test_sums_that_are_made_up_are_found_when_they_win_a_split(monkeypatch, depth):
    """A feature holder reports the sums of other rows, so that its column seems to tell labels."""
    report = GradientExchange.report

    def made_up(self, gradients, nodes, bins, groups):
        other = SimpleNamespace(by_feature=bins.rows.by_feature[:, ::-1])
        return report(self, gradients, nodes, SimpleNamespace(layout=bins.layout, rows=other), groups)

    monkeypatch.setattr(GradientExchange, "report", made_up)
    table = pooled(60)
    at = table.column_names.index("minutes")
    table = table.set_column(at, "minutes", [table["y"].to_numpy()[::-1].astype(np.float32)])
    apart = play("two holders", table=table, max_depth=depth)
    assert apart.session.booster is None
    assert "telco" in (apart.left("bank") or apart.error)
    found = "differ from the sums that party telco reported", "party telco made up sums"
    assert any(words in str(apart.left("bank")) + apart.error for words in found)


def test_a_leaf_value_that_moves_nothing_is_found():
    """An aggregator that leaves margins where they are could compare the sums of two trees."""

    def still(party, message):
        if isinstance(message, Ask) and party == "bank":
            parts = message.query.parts
            ends = [part for part in parts if part.name == "EndRoundQuery" and part.tree >= 0]
            if ends:
                changed = [
                    dataclasses.replace(part, values=tuple((node, 0.0) for node, _ in part.values))
                    if part in ends
                    else part
                    for part in parts
                ]
                query = (
                    changed[0]
                    if len(changed) == 1
                    else dataclasses.replace(message.query, parts=tuple(changed))
                )
                return [dataclasses.replace(message, query=query)]
        return None

    apart = play("two holders", table=pooled(60), down=still)
    assert apart.session.booster is None
    assert "does not follow from its rows" in str(apart.left("bank"))


def test_an_opening_of_something_else_names_the_label_holder(monkeypatch):

    right = ends.open_blinded

    def steered(secret, request, count):
        answer = right(secret, request, count)
        size = secret.public.bytes
        first = (int.from_bytes(answer[:size], "little") + 1) % int(secret.public.n)
        return first.to_bytes(size, "little") + answer[size:]

    monkeypatch.setattr(ends, "open_blinded", steered)
    apart = play("two holders", table=pooled(60))
    assert apart.session.booster is None
    assert "bank sent a wrong plaintext for ciphertext 1 of" in apart.error


def test_a_key_without_proof_is_refused(monkeypatch):

    prove = openings.prove
    monkeypatch.setattr(openings, "prove", lambda secret, context: prove(secret, b"another attempt"))
    apart = play("two holders", table=pooled(60))
    assert apart.session.booster is None
    assert "party bank broke the protocol" in apart.error
    assert "root" in apart.error


def test_the_label_holder_opens_a_turn_once():
    asked = []

    def twice(party, message):
        if isinstance(message, OpenRequest) and not asked:
            asked.append(message)
            changed = bytearray(message.request)
            changed[-5] ^= 1
            return [message, dataclasses.replace(message, request=bytes(changed))]
        return None

    apart = play("two holders", table=pooled(60), down=twice)
    assert "with different requests" in str(apart.left("bank"))
    assert len(apart.said(OpenShare, "bank")) == 1


def test_a_report_that_is_none_is_refused_with_who_sent_it():
    def cut(party, message):
        if isinstance(message, Report) and message.note:
            return [dataclasses.replace(message, note=message.note[:-1])]
        return None

    apart = play("two holders", table=pooled(60), up=cut)
    assert "party telco broke the protocol" in apart.error


def test_more_sums_than_one_answer_holds_are_refused():

    table = pooled(60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ends, "MAX_OPENING_BYTES", 511)
        apart = play("two holders", table=table)
    assert "encrypted sums, but the label holder decrypts at most 0" in apart.error


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        (
            {"keyholder": "telco"},
            "label_holder with keyholder: the label holder has the key; remove keyholder",
        ),
        (
            {"keyholder_rows": False},
            "label_holder with keyholder_rows = false: the label holder is the key holder and has rows",
        ),
        ({"key_bits": 1024}, "key_bits"),
    ],
)
def test_settings_that_cannot_be_are_one_line(settings, fault):
    with pytest.raises(fb.ConfigError) as raised:
        terms_of(LAYOUTS["two holders"], protection="paillier", parties=["bank", "telco"], **settings)
    assert fault in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


def test_blocks_have_no_common_key():
    with pytest.raises(fb.ConfigError, match="a single label holder must have the key"):
        terms_of(LAYOUTS["blocks"], protection="paillier", parties=["bank", "telco", "bank2", "telco2"])
