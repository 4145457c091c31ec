"""Sums that are hidden: who may say what of them, and what a party that lies is told before it is found."""

import dataclasses

import numpy as np
import pytest
from apart_sessions import LOST, Apart
from columns_apart import pooled, train_pooled
from consortium import installed

from fedboost.boosting.queries.trees import HistogramQuery
from fedboost.gbdt.histogram import STATS
from fedboost.holders.columns import OwnBins, VerticalHolder
from fedboost.privacy import packing, pairwise
from fedboost.protocol.contracts import Answered
from fedboost.protocol.messages import Ask, Attest, Introduce, OpenRequest, OpenShare, Relay, Report
from fedboost.protocol.site import OPENINGS, THRESHOLDS, Release

if not installed("paillier"):
    pytest.skip("needs the extra paillier", allow_module_level=True)

from fedboost.privacy.paillier import Paillier

SETTINGS = {"protection": "paillier", "key_bits": 2048, "rounds": 2, "max_depth": 2, "max_bin": 8}


@pytest.fixture(scope="module")
def keys():
    return [Paillier().new_secret(2048) for _ in range(2)]


@pytest.fixture(autouse=True)
def few_keys(keys, monkeypatch):
    """To make a key takes longer than a session. A label holder that begins anew has another one."""
    made = []

    def next_key(scheme, bits):
        made.append(bits)
        return keys[len(made) % len(keys)]

    monkeypatch.setattr(Paillier, "new_secret", next_key)


def play(layout="two holders", **settings):
    hooks = {name: settings.pop(name) for name in ("up", "down") if name in settings}
    return Apart(layout, table=pooled(60), **{**SETTINGS, **settings}, **hooks).play()


def opened(apart):
    return len(apart.said(OpenShare, "bank"))


# ---- in plain what is encrypted ----------------------------------------------------------------------


@pytest.mark.parametrize("cells", [(0, 2), (4, 8)])
def test_a_label_holder_chooses_no_split_of_a_foreign_column(monkeypatch, cells):
    """It adds numbers of its own to the sums of a column that it does not have, so that a split wins that
    shows which rows have a value in its lowest bin."""
    among = OwnBins.among_all

    def steered(self, query, sums, has_labels):
        out = among(self, query, sums, has_labels).copy()
        first = STATS * np.setdiff1d(np.arange(query.bins), self.places)[0]  # a bin of telco
        most = 20 * query.gradient.limit
        out[first + cells[0]] += most
        out[first + cells[1]] -= most
        return out

    monkeypatch.setattr(OwnBins, "among_all", steered)
    apart = play(max_depth=1)
    assert apart.error.startswith("party bank broke the protocol: it sent unencrypted sums in turn")
    assert not opened(apart)
    assert not apart.said(Relay, "telco")


@pytest.mark.parametrize("cell", [0, 5, -1])
def test_a_feature_holder_says_nothing_in_plain(monkeypatch, cell):
    """It adds to sums of others, so that their columns win."""

    def added(steps):
        answered = yield from steps
        values = answered.values.copy()
        if answered.encrypted:
            values[cell] += 1
        return Answered(values, answered.encrypted)

    answering = VerticalHolder.answering
    monkeypatch.setattr(VerticalHolder, "answering", lambda self, query: added(answering(self, query)))
    apart = play()
    assert apart.error.startswith("party telco broke the protocol: it sent unencrypted sums in turn")
    assert not opened(apart)


# ---- another key ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("at", [OpenRequest, Ask])
def test_a_label_holder_that_comes_back_has_another_key_and_the_model_is_the_same(at, nth):
    """Nobody sums gradients that were encrypted under the key before."""
    seen = []

    def crash(told, message):
        if told == "bank" and isinstance(message, at) and apart.session.run.grows_a_tree:
            seen.append(message)
            if len(seen) == nth:
                apart.crash("bank")
                return LOST
        return None

    settings = {**SETTINGS, "max_depth": 3}
    apart = Apart("two holders", down=crash, table=pooled(60), **settings, on_loss="wait")
    apart.play()
    assert apart.session.attempt > 1
    grown = {name: settings[name] for name in ("rounds", "max_depth", "max_bin")}
    whole = train_pooled(pooled(60), **grown, min_child_weight=0)
    assert apart.session.booster == whole.model.booster


def test_a_label_holder_that_changes_its_key_in_a_tree_is_found_by_who_sums(keys):
    """It says that it lost nothing, so that nobody asks for gradients under the new key."""
    asked = []

    def change_key(told, m):
        second = isinstance(m, Ask) and isinstance(m.query, HistogramQuery) and len(m.query.splits)
        if not second or asked[:1] not in ([], [m.attempt]):
            return None
        asked.append(m.attempt)
        if told == "telco":
            return []
        member = apart.ends["bank"]._membership
        other = next(key for key in keys if key is not member.secret)
        apart.ends["bank"]._membership = dataclasses.replace(member, secret=other)
        return LOST

    settings = {**SETTINGS, "max_depth": 3}
    apart = Apart("two holders", table=pooled(60), down=change_key, **settings, on_loss="wait")
    apart.play()
    assert len(asked) == 2
    assert apart.left("telco") == "the label holder's key has changed since it relayed the gradients"


# ---- what cannot be a report or an opening ---------------------------------------------------------------

SHORT = {"rounds": 1, "max_depth": 1}
SIZE = 512
"""Bytes of a ciphertext."""


def with_first(number):
    return lambda note: number.to_bytes(SIZE, "little") + note[SIZE:]


REPORTS = {
    "nothing": (lambda note: b"", "0 bytes"),
    "one less": (lambda note: note[SIZE:], "bytes"),
    "one more": (lambda note: note + note[:SIZE], "bytes"),
    "a byte more": (lambda note: note + b"\0", "bytes"),
    "much more": (lambda note: note * 1000, "bytes"),
    "zero": (with_first(0), "a ciphertext is out of range"),
    "the largest": (with_first(2 ** (8 * SIZE) - 1), "a ciphertext is out of range"),
}


@pytest.mark.parametrize("report", REPORTS)
def test_what_is_no_report_is_refused_with_who_sent_it(report):
    change, says = REPORTS[report]

    def up(party, m):
        return [dataclasses.replace(m, note=change(m.note))] if isinstance(m, Report) and m.note else None

    apart = play(up=up, **SHORT)
    assert apart.error.startswith("party telco broke the protocol: ")
    assert says in apart.error
    assert len(apart.error) < 200
    assert not opened(apart)


def test_a_multiple_of_n_is_no_ciphertext(keys):
    """The label holder's own answer would show that it cannot be opened, or hang."""

    def up(party, m):
        if not (isinstance(m, Report) and m.note):
            return None
        n = int(apart.ends["bank"]._membership.secret.public.n)
        return [dataclasses.replace(m, note=with_first(7 * n)(m.note))]

    apart = Apart("two holders", table=pooled(60), up=up, **{**SETTINGS, **SHORT})
    apart.play()
    assert "party telco broke the protocol: a ciphertext is invalid: it is not a unit" in apart.error


@pytest.mark.parametrize("party", ["bank", "telco"])
@pytest.mark.parametrize("nth", [0, 2])
def test_a_note_where_none_is_due_is_refused(party, nth):
    seen = []

    def up(told, m):
        if told != party or not isinstance(m, Report) or m.note:
            return None
        seen.append(m)
        return [dataclasses.replace(m, note=bytes(SIZE))] if len(seen) == nth + 1 else None

    apart = play(up=up, **SHORT)
    assert apart.error.startswith(
        f"party {party} broke the protocol: it sent a note with its report, but protection plain has no notes"
    )


def test_ciphertexts_of_no_sums_end_the_session_and_name_who_may_have_made_them():
    """A unit modulo n squared opens to something, which is no sum."""
    made_up = with_first(3**1000)

    def up(party, m):
        return [dataclasses.replace(m, note=made_up(m.note))] if isinstance(m, Report) and m.note else None

    apart = play(up=up, **SHORT)
    assert apart.session.phase == "failed"
    assert "telco" in apart.error
    assert "bank" in apart.error


NO_OPENINGS = {
    "nothing": lambda answer: b"",
    "one less": lambda answer: answer[: -SIZE // 2],
    "much more": lambda answer: answer * 100,
    "zeros": lambda answer: bytes(len(answer)),
    "the largest": lambda answer: b"\xff" * len(answer),
    "the halves swapped": lambda answer: answer[len(answer) // 2 :] + answer[: len(answer) // 2],
}


@pytest.mark.parametrize("opening", NO_OPENINGS)
def test_what_is_no_opening_is_refused_with_who_sent_it(opening):
    def up(party, m):
        if not isinstance(m, OpenShare):
            return None
        return [dataclasses.replace(m, answer=NO_OPENINGS[opening](m.answer))]

    apart = play(up=up, **SHORT)
    assert apart.error.startswith("party bank broke the protocol: bank ")
    assert len(apart.error) < 250


def test_a_feature_holder_opens_nothing():
    asked = []

    def down(party, m):
        if isinstance(m, OpenRequest) and not asked:
            asked.append(m)
            apart.tell("telco", m)
        return None

    apart = Apart("two holders", table=pooled(60), down=down, **{**SETTINGS, **SHORT})
    apart.play()
    assert apart.left("telco") == (
        "the aggregator asked this party to decrypt a sum, but this party lacks the secret key"
    )


# ---- what does not depend on labels ------------------------------------------------------------------------


def told_and_said(apart, party):
    """All messages of a party: those in the clear as they are, of sealed ones their sizes, in order."""

    def shape(m):
        match m:
            case Ask():
                return "asked", m.turn, m.query.digest, m.roster
            case Relay():
                return "relay", m.turn, m.number, m.to, m.sender, m.last, len(m.content)
            case Report():
                return "report", m.turn, m.part, m.cells, len(m.note), m.ctx
            case Introduce():
                return "introduced", m.state.position.digest
            case Attest():
                return "attests", m.turns, m.transcript != b"", m.structure, m.thresholds
            case _:
                return type(m).__name__, getattr(m, "rounds", None)

    return [[shape(m) for name, m in log if name == party] for log in (apart.told, apart.sent)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("label", "objective", "other"),
    [
        ("number", "reg:squarederror", lambda y: -y),
        ("number", "reg:squarederror", lambda y: 64 * y),
        ("binary", "binary:logistic", lambda y: 1 - y),
    ],
)
def test_a_feature_holder_is_told_and_says_the_same_whatever_the_labels_are(label, objective, other):
    """Labels that are scaled or turned around grow the same trees. Else trees are what differs."""
    table = pooled(60, label=label)
    place = table.column_names.index("y")
    turned = table.set_column(place, "y", [other(table["y"].to_numpy())])
    hidden = {**SETTINGS, "objective": objective, "reg_lambda": 0, "reg_alpha": 0, "max_depth": 3}
    one, two = (Apart("three holders", table=each, **hidden).play() for each in (table, turned))
    assert one.session.booster.trees[0].feature.tolist() == two.session.booster.trees[0].feature.tolist()
    assert one.session.booster != two.session.booster
    for party in ("telco", "shop"):
        for mine, others in zip(told_and_said(one, party), told_and_said(two, party), strict=True):
            assert mine == others
    assert told_and_said(one, "bank") != told_and_said(two, "bank")


# ---- the audit log -----------------------------------------------------------------------------------------


def test_the_audit_log_has_openings_and_thresholds():
    """What leaves without being asked for has lines, too, with the numbers in it."""
    records = {"bank": [], "telco": []}
    apart = Apart("two holders", table=pooled(60), **{**SETTINGS, "max_depth": 4})
    for party, own in records.items():
        apart.crash(party, record=own.append)
    apart.play()
    bank, telco = map(unasked, records.values())
    asked = [len(m.request) for m in apart.heard(OpenRequest, "bank")]
    openings = [cells for what, cells, _ in bank if what == OPENINGS]
    assert openings == [size // SIZE for size in asked]
    given = {party: len(attest.thresholds) for party, attest in apart.session.attestations.items()}
    assert given["telco"] > 0
    assert bank[-1] == (THRESHOLDS, given["bank"] // 4, given["bank"])
    assert telco == [(THRESHOLDS, given["telco"] // 4, given["telco"])]


def unasked(records):
    releases = [record for record in records if isinstance(record, Release) and not record.question]
    return [(release.what, release.cells, release.size) for release in releases]


def test_a_label_holder_opens_nothing_in_a_turn_without_hidden_sums():
    """However the aggregator asks: what it kept of another turn is not opened here."""
    asked = []

    def down(party, m):
        end = apart.ends["bank"]
        if asked or party != "telco" or end._answer is None:
            return None
        sealer = end._introduced.sealer
        context = pairwise.context(pairwise.BENEATH, sealer._session, sealer._group, sealer._tag)
        asked.append(m)
        numbers = (3**1000).to_bytes(SIZE, "little")
        request = OpenRequest(end._answer.ask.turn, end._attempt, packing.pack(context, numbers))
        apart.tell("bank", request)
        return None

    apart = Apart("two holders", table=pooled(60), down=down, **{**SETTINGS, **SHORT})
    apart.play()
    assert asked
    assert not opened(apart)
    assert (
        apart.left("bank")
        == "the aggregator requested data to open the sum of turn 1, which is not encrypted"
    )
