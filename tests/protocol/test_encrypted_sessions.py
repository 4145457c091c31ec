"""Sessions whose sums are encrypted: the model of the plain one, and who sees what on the way."""

import dataclasses
import os

import numpy as np
import pytest
from inprocess import model_of, randomly, run, session_of, shard_of, sites_of, terms_of

from fedboost.boosting.programs import boosting
from fedboost.boosting.state import INITIAL_STATE
from fedboost.errors import ConfigError, PeerError
from fedboost.privacy.protections import PROTECTIONS, scheme_of
from fedboost.protocol import party
from fedboost.protocol.aggregator import AggregatorSession
from fedboost.protocol.contracts import Several
from fedboost.protocol.messages import Ask, Offer, OpenRequest, OpenShare, Report
from fedboost.protocol.party import PartySession

ROWS = 90
SMALL = {"rounds": 2, "max_depth": 2, "max_bin": 8, "key_bits": 2048}
OBJECTIVES = {
    "binary": {"objective": "binary:logistic"},
    "number": {"objective": "reg:squarederror"},
    "classes": {"objective": "multi:softprob", "num_class": 3},
}


@pytest.fixture(autouse=True)
def one_key(monkeypatch):
    pytest.importorskip("phe")
    import one_paillier

    one_paillier.share(monkeypatch)


def data(kind="binary"):
    draw = np.random.default_rng(3)
    X = draw.normal(size=(ROWS, 3)).astype(np.float32)
    X[draw.random(X.shape) < 0.1] = np.nan
    signal = np.nan_to_num(X[:, 0]) + np.nan_to_num(X[:, 1]) ** 2
    y = {"binary": signal > 0.6, "number": 9 * signal - 4, "classes": np.digitize(signal, [0.2, 1.0])}[kind]
    return X, y.astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("kind", OBJECTIVES)
def test_the_model_is_that_of_the_plain_session(kind):
    X, y = data(kind)
    parts, settings = randomly(ROWS, 3), {**SMALL, **OBJECTIVES[kind]}
    plain = model_of(X, y, parts, **settings)
    assert model_of(X, y, parts, protection="paillier", keyholder="p1", **settings) == plain


def consortium(parties=3, rows_of=None, **settings):
    """Both ends of a session of which each message can be looked at; p0 holds the key."""
    X, y = data()
    terms = terms_of(X, parties, protection="paillier", keyholder="p0", **{**SMALL, **settings})
    parts = dict(zip(terms.parties, rows_of or randomly(ROWS, parties), strict=True))
    shards = {name: shard_of(X, y, rows=part) for name, part in parts.items()}
    return terms, sites_of(terms, shards)


def watched(terms, sites, look=None):
    """Run a session; `look` sees each message of a party and of the aggregator, and may change it."""
    return session_of(terms, sites, spoil=look, told=look)


@pytest.mark.slow
def test_a_key_holder_need_not_have_rows():
    X, y = data()
    parts = randomly(ROWS, 3)
    terms, sites = consortium(4, rows_of=[np.arange(0), *parts], keyholder_rows=False)
    sites["p0"] = dataclasses.replace(sites["p0"], holder=None)
    aggregator = watched(terms, sites)
    assert aggregator.phase == "done", aggregator.error
    assert aggregator.booster.to_xgboost() == model_of(X, y, parts, **SMALL)


@pytest.mark.slow
@pytest.mark.parametrize("values", [(), ((7, 0.5),), ((0, 0.5), (1, 0.5))])
def test_a_key_holder_without_rows_refuses_values_of_other_leaves(values):
    """It has no leaves of its own to compare with."""
    rows = [np.arange(0), *randomly(ROWS, 3)]
    terms, sites = consortium(4, rows_of=rows, keyholder_rows=False)
    sites["p0"] = dataclasses.replace(sites["p0"], holder=None)

    def look(name, message):
        if name != "p0" or not isinstance(message, Ask) or not message.query.ends_tree:
            return message
        end, *further = message.query.parts
        changed = dataclasses.replace(end, values=values)
        return dataclasses.replace(message, query=Several((changed, *further)) if further else changed)

    aggregator = watched(terms, sites, look)
    assert str(aggregator.error) == ("party p0 left: the leaf values do not match the leaves of the tree")


@pytest.mark.parametrize(
    ("name", "has_rows", "settings", "said"),
    [
        ("p0", False, {}, "key holder p0 has no rows, but the terms say that it has rows"),
        (
            "p0",
            True,
            {"keyholder_rows": False},
            "key holder p0 has rows, but the terms say that it has none",
        ),
        ("p1", False, {}, "party p1 has no rows and is not the terms' key holder"),
    ],
)
def test_a_site_that_holds_rows_where_the_terms_say_none_refuses(name, has_rows, settings, said):
    """And the other way round, before any row is read."""
    terms, sites = consortium(4, **settings)
    read = []
    sites = {each: dataclasses.replace(site, holder=read.append) for each, site in sites.items()}
    if not has_rows:
        sites[name] = dataclasses.replace(sites[name], holder=None)
    session = PartySession(sites[name])
    (left,) = session.handle(Offer("s", terms, 1))
    assert said in left.reason
    assert "\n" not in left.reason
    assert read == []


@pytest.mark.slow
def test_no_message_has_a_partys_numbers_in_it_and_two_of_the_same_numbers_differ():
    terms, sites = consortium()
    reports = {}

    def look(name, message):
        if isinstance(message, Report):
            reports.setdefault((name, message.turn), b"")
            reports[name, message.turn] += message.cells
        return message

    aggregator = watched(terms, sites, look)
    first = dict(reports)
    again = watched(terms, consortium()[1], look)
    assert aggregator.booster.to_xgboost() == again.booster.to_xgboost()
    assert all(first[key] != reports[key] for key in first)


@pytest.mark.slow
def test_the_key_holder_is_shown_other_numbers_than_the_sums():
    """The sums of a training are the same each time; what is decrypted of them is not."""
    shown = []

    def look(name, message):
        if isinstance(message, OpenShare):
            shown[-1].append(message.answer)
        return message

    for _ in range(2):
        shown.append([])
        aggregator = watched(*consortium(), look)
        assert aggregator.phase == "done"
    assert len(shown[0]) == len(shown[1]) > 5
    assert not {*shown[0]} & {*shown[1]}


@pytest.mark.slow
def test_a_turn_is_opened_once():
    terms, sites = consortium()
    ends = {name: PartySession(site) for name, site in sites.items()}
    aggregator = AggregatorSession("s", terms, boosting.train, INITIAL_STATE, draw=os.urandom)
    waiting, opened = aggregator.start(), None
    while opened is None:
        name, message = waiting.pop(0)
        opened = (name, message) if isinstance(message, OpenRequest) else None
        if opened is None:
            for reply in ends[name].handle(message):
                waiting += aggregator.handle(name, reply)
    name, message = opened
    assert name == "p0"
    (answer,) = ends[name].handle(message)
    assert [*ends[name].handle(message)] == [answer]  # said again
    flipped = bytearray(message.request)
    flipped[len(flipped) // 2] ^= 1
    (left,) = ends[name].handle(dataclasses.replace(message, request=bytes(flipped)))
    assert type(left).__name__ == "Leave"
    assert ends[name].ended is not None


@pytest.mark.slow
def test_only_the_key_holder_helps():
    terms, sites = consortium()
    asked = {}

    def look(name, message):
        if isinstance(message, OpenRequest):
            asked.setdefault(name, 0)
            asked[name] += 1
        return message

    aggregator = watched(terms, sites, look)
    assert aggregator.phase == "done"
    assert set(asked) == {"p0"}
    assert all(end.ended == "" for end in aggregator.ends.values())


def test_a_key_that_is_too_short_is_the_key_holders_fault():
    with pytest.raises(PeerError):
        scheme_of("paillier").read_public(scheme_of("paillier").new_secret(2048).public.to_bytes(), 3072)


def test_terms_say_who_holds_the_key():
    X, _ = data()
    for settings, said in (
        ({}, "needs keyholder"),
        ({"keyholder": "p9"}, "'p9' is not one of the parties"),
        ({"keyholder": "p0", "on_loss": "shrink"}, "shrink"),
        ({"keyholder": "p0", "key_bits": 1024}, "key_bits"),
    ):
        with pytest.raises(ConfigError, match=said):
            terms_of(X, 4, protection="paillier", **settings)
    with pytest.raises(ConfigError, match="keyholder is only for protection paillier, not masked"):
        terms_of(X, 3, protection="masked", keyholder="p0")


@pytest.mark.slow
def test_a_party_that_sends_what_is_no_ciphertext_is_named():
    terms, sites = consortium()

    def look(name, message):
        if isinstance(message, Report) and name == "p2":
            return dataclasses.replace(message, cells=bytes(len(message.cells)))
        return message

    aggregator = watched(terms, sites, look)
    assert aggregator.phase == "failed"
    assert str(aggregator.error).startswith("party p2 broke the protocol")


@pytest.mark.slow
def test_noise_goes_under_encryption_too():
    from fedboost.boosting.programs import private

    X, y = data()
    noise = {"epsilon": 8.0, "delta": 1e-5}
    settings = {"rounds": 3, "key_bits": 2048, "ranges": [(-3, 3)] * 3, "noise": noise}
    session = run(
        X,
        y,
        randomly(ROWS, 3),
        program=private.train,
        protection="paillier",
        keyholder="p0",
        **settings,
    )
    assert session.phase == "done", session.error
    assert isinstance(session.booster.trees[0].value[0], float)


def test_a_sum_that_no_message_could_answer_is_refused(monkeypatch):
    smaller = dataclasses.replace(PROTECTIONS["paillier"], max_cells=100)
    monkeypatch.setitem(PROTECTIONS, "paillier", smaller)
    aggregator = watched(*consortium())
    assert aggregator.phase == "failed"
    assert "lower max_bin or max_depth" in str(aggregator.error)


@pytest.mark.slow
def test_there_is_an_end_to_what_a_key_holder_opens(monkeypatch):
    monkeypatch.setattr(party, "MAX_OPENINGS_PER_TURN", 0)
    aggregator = watched(*consortium())
    assert aggregator.phase == "failed"
    assert "asked for more than the 0 sums that the terms allow" in str(aggregator.ends["p0"].ended)
