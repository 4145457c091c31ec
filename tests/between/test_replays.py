"""What an aggregator that lies can make of the end of a session, of another one, and of attempts: nothing.

Each of these attacks gave sums over single rows before a site remembered its sessions (issue: what a site
promises holds between sessions). An attacker who has one sum more than the terms plan, over nodes of its
choice, has the rows by which they differ.
"""

import dataclasses

import pytest
from inprocess import randomly, shard_of, terms_of
from liar import SMALL, Left, Liar, X, Y, end_of, never, root_of
from raised import raised

from fedboost.boosting.queries.labels import RowsQuery
from fedboost.boosting.queries.trees import HistogramQuery
from fedboost.errors import PeerError
from fedboost.fixedpoint import Scale
from fedboost.holders.whole_rows import HorizontalHolder
from fedboost.protocol import key_exchange
from fedboost.protocol.key_exchange import Attempt
from fedboost.protocol.messages import Ask, Join, Leave, Offer, Report, digest_of_roster
from fedboost.protocol.party import PartySession
from fedboost.protocol.site import Limits

LIMITS = Limits()


def children(query):
    return isinstance(query, HistogramQuery) and query.nodes != (0,)


# ---- after the end ----------------------------------------------------------------------------------


def test_a_session_that_a_party_left_is_refused_by_name():
    """A message that it refuses makes a party leave; its node forgot the session, and took it up again."""
    liar = Liar()
    query = liar.train(root_of(0))
    with pytest.raises(Left, match="the aggregator sent turn"):
        liar.ask(query, liar.turn + 5)
    liar.forget()
    with pytest.raises(Left, match="has already ended session s"):
        liar.gather()


@pytest.mark.parametrize("on_loss", ["wait", "stop", "shrink"])
def test_a_session_that_was_pushed_aside_is_remembered(on_loss):
    """An Offer of another session, then the first one's name with the next attempt: another question about
    the tree that grows gave six labels of single rows."""
    liar = Liar(on_loss=on_loss)
    query = liar.train(never, before=children)
    state = liar.state
    liar.ask(query, opened=False)
    aside = {name: PartySession(site) for name, site in liar.sites.items()}
    for party, session in aside.items():
        assert not isinstance(next(iter(session.handle(Offer("other", liar.terms, 1)))), Leave), party
    liar.forget()
    liar.gather(state)
    other = dataclasses.replace(query, nodes=(3 - query.nodes[0],))
    with pytest.raises(Left, match="was repeated with a different query or position"):
        liar.ask(other, liar.turn)


def test_a_session_that_was_pushed_aside_goes_on_where_it_stood():
    """The same question in the same place is answered: nothing is lost to whoever only crashed."""
    liar = Liar()
    query = liar.train(never, before=children)
    state = liar.state
    liar.ask(query, opened=False)
    liar.forget()
    liar.gather(state)
    assert liar.ask(query, liar.turn).any()


@pytest.mark.parametrize("on_loss", ["wait", "stop"])
def test_all_parties_restarted_remember_where_the_session_stands(on_loss):
    """All honest parties forgot at once, and two questions at one place gave the difference of two sums."""
    liar = Liar(on_loss=on_loss)
    liar.train(root_of(1))
    elsewhere = dataclasses.replace(liar.state.before_tree, rounds=())
    liar.forget()
    with pytest.raises(Left, match="a state that contradicts this site's earlier answers"):
        liar.gather(elsewhere)


# ---- one place, two vectors -------------------------------------------------------------------------


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("change", ["gradient", "hessian"])
def test_below_the_root_a_question_has_the_scales_of_the_root(change, restarted):
    """The same question at the same place in two attempts, at another scale: differently rounded gradients
    give two vectors, whose difference speaks of rows. Nobody was restarted."""
    settings = {"objective": "reg:squarederror", "protection": "masked"}
    liar = Liar(**settings)
    query = liar.train(never, before=children)
    scale = getattr(query, change)
    other = dataclasses.replace(query, **{change: Scale(scale.exponent + 1, scale.bits)})
    if restarted:
        state = liar.state
        liar.forget()
        liar.gather(state)
    with pytest.raises(Left, match="samples rows differently from the root's query"):
        liar.ask(other, liar.turn + 1)


def test_below_the_root_rows_are_drawn_by_the_threshold_of_the_root():
    settings = {"sampling_method": "gradient_based", "subsample": 0.5}
    liar = Liar(**settings)
    query = liar.train(never, before=children)
    assert query.threshold > 0
    state = liar.state
    liar.gather(state)
    with pytest.raises(Left, match="samples rows differently from the root's query"):
        liar.ask(dataclasses.replace(query, threshold=query.threshold / 2), liar.turn + 1)


SETTINGS = {
    "logistic": {},
    "squared error": {"objective": "reg:squarederror"},
    "absolute error": {"objective": "reg:absoluteerror"},
    "poisson": {"objective": "count:poisson"},
    "classes": {"objective": "multi:softprob", "num_class": 2},
    "subsample": {"subsample": 0.5},
    "bootstrap": {"subsample": 0.7, "sampling_method": "bootstrap"},
    "by size": {"subsample": 0.5, "sampling_method": "gradient_based"},
    "votes": {"vote_top_k": 1},
    "lossguide": {"grow_policy": "lossguide", "max_leaves": 3},
    "validation": {"validation_fraction": 0.3},
}


@pytest.mark.parametrize("nthread", [1, 4])
@pytest.mark.parametrize("name", SETTINGS)
def test_an_answer_depends_on_rows_terms_place_and_question_alone(name, nthread):
    """A party that lived through a session, one that was sent back and forth, and a fresh one that is told
    where the session stands answer each question of it alike."""
    terms = terms_of(X, 3, protection="masked", **{**SMALL, **SETTINGS[name]})
    parts = randomly(len(Y), 3)
    shards = {party: shard_of(X, Y, rows=rows) for party, rows in zip(terms.parties, parts, strict=True)}
    asked = []

    class Watched(Liar):
        def ask(self, query, turn=None, opened=True):
            asked.append((self.state, query))
            return super().ask(query, turn, opened)

    liar = Watched(**SETTINGS[name])
    liar.train(end_of(2))
    shard = shards["p0"]
    lived, moved = (HorizontalHolder(lambda: shard, terms, nthread, "p0") for _ in range(2))
    answers = [lived.answer(query) for _, query in asked]
    trees = [state for state, query in asked if query.__class__ is HistogramQuery]
    for number, ((state, query), answer) in enumerate(zip(asked, answers, strict=True)):
        moved.go_to(trees[number % len(trees)])
        moved.go_to(state)
        assert (moved.answer(query) == answer).all(), (number, query)
        if number % 3 == 0:
            fresh = HorizontalHolder(lambda: shard, terms, nthread, "p0")
            fresh.go_to(state)
            assert (fresh.answer(query) == answer).all(), (number, query)


# ---- said again -------------------------------------------------------------------------------------


def test_an_answer_that_broke_off_goes_on_with_the_same_sealing(monkeypatch):
    """The connection is lost after any part; asked again in the same attempt, the party says the same parts
    again and then the rest: never a second answer, nor a second sealing."""
    from fedboost.privacy import packing

    monkeypatch.setattr(packing, "CHUNK_CELLS", 64)  # so that an answer has several parts
    for broken in range(4):
        liar = Liar()
        liar.gather()
        end, sealed, answered = liar.ends["p0"], [], []
        seal, answer = end._introduced.sealer.seal, end._member.holder.answer
        end._introduced.sealer.seal = lambda *what, seal=seal, sealed=sealed: (
            sealed.append(what) or seal(*what)
        )
        end._member.holder.answer = lambda query, answer=answer, done=answered: (
            done.append(query) or answer(query)
        )
        ask = Ask(1, 1, digest_of_roster(liar.terms.parties), RowsQuery())
        replies = end.handle(ask)
        first = [next(replies) for _ in range(broken)]
        again = list(end.handle(ask))
        assert again[:broken] == first
        assert [report.part for report in again] == list(range(len(again)))
        assert len(again) > 4
        assert list(end.handle(ask)) == again
        assert (len(sealed), len(answered)) == (1, 1)
        assert all(isinstance(report, Report) for report in again)


# ---- what signatures are bound to -------------------------------------------------------------------

ATTEMPTS = {
    "session": {"session": "t"},
    "attempt": {"number": 2},
    "terms": {},
    "request": {"request": b"x" * 32},
}


def pieces():
    liar = Liar()
    attempt = Attempt("s", 1, liar.terms, b"n" * 32)
    other = liar.terms.changed(rounds=9)
    return (
        liar,
        attempt,
        {
            what: dataclasses.replace(attempt, **({"terms": other} if what == "terms" else change))
            for what, change in ATTEMPTS.items()
        },
    )


@pytest.mark.parametrize("what", ATTEMPTS)
def test_a_greeting_is_good_for_one_attempt_of_one_session(what):
    """An old key holder's greeting was accepted later."""
    liar, attempt, others = pieces()
    site = liar.sites["p0"]
    mine = key_exchange.greet(site.credentials, "p0", attempt, b"k" * 32, site.draw)
    trust = site.credentials
    join = Join("s", liar.terms.digest, 1, mine, trust.signer.certificate)
    key_exchange.check_greeting(trust, attempt, "p0", join)
    with raised(PeerError, "signature-invalid"):
        key_exchange.check_greeting(trust, others[what], "p0", join)
    assert key_exchange.session_digest(attempt, [mine]) != key_exchange.session_digest(others[what], [mine])


def test_two_parties_with_one_key():
    """Whose pair key would be known to a third."""
    liar = Liar()
    sites = liar.sites
    attempt = Attempt("s", 1, liar.terms)
    keys = {"p0": b"k" * 32, "p1": b"k" * 32, "p2": b"l" * 32, "p3": b"m" * 32}
    greetings = {
        name: key_exchange.greet(sites[name].credentials, name, attempt, key, sites[name].draw)
        for name, key in keys.items()
    }
    chains = [site.credentials.signer.certificate for site in sites.values()]
    certificates = {key_exchange.hash_of(chain): chain for chain in chains}
    told = greetings["p0"], attempt, tuple(greetings.values()), certificates
    with raised(PeerError, "key-repeated"):
        key_exchange.meet(sites["p0"].credentials, *told)


def test_a_request_is_good_for_one_session():
    """The terms were signed by nobody: an aggregator that lies could begin as many sessions as it liked."""
    from datetime import UTC, datetime

    from fedboost.privacy.identity import Signer, issue, new_root, to_pem

    now = datetime.now(UTC)
    root_key, root = new_root("consortium", now, 2)
    key, certificate = issue(root_key, root, "ada", "analyst", now, 1)
    ada = Signer("ada", "analyst", to_pem(certificate), key)
    liar = Liar()
    (party, *_) = liar.terms.parties
    seen = []
    credentials = dataclasses.replace(liar.sites[party].credentials, roots=to_pem(root))
    site = dataclasses.replace(
        liar.sites[party], credentials=credentials, permit=lambda offer: seen.append(offer) or LIMITS
    )

    def offered(session, request, terms=liar.terms):
        (reply,) = PartySession(site).handle(Offer(session, terms, 1, request))
        return reply.reason if isinstance(reply, Leave) else "joined"

    signed_at = int(now.timestamp())
    request = key_exchange.request(ada, liar.terms, b"n" * 32, signed_at)
    assert offered("one", request) == "joined"
    assert [(offer.analyst, offer.request) for offer in seen] == [("ada", b"n" * 32)]
    assert "request was already used for another session" in offered("two", request)
    assert "signature" in offered("three", dataclasses.replace(request, nonce=b"m" * 32))
    assert "signature" in offered("four", dataclasses.replace(request, time=signed_at - 60))
    assert "signature" in offered("five", request, liar.terms.changed(rounds=9))
    for days in (-31, 1):
        other = key_exchange.request(ada, liar.terms, b"p" * 32, signed_at + days * 86_400)
        assert "a request is valid only for 30 days" in offered("six", other)
    stranger = Signer("eve", "party", *party_of(root_key, root, now))
    forged = key_exchange.request(stranger, liar.terms, b"o" * 32, 1)
    assert "not by an analyst" in offered("six", forged)


def party_of(root_key, root, now):
    from fedboost.privacy.identity import issue, to_pem

    key, certificate = issue(root_key, root, "eve", "party", now, 1)
    return to_pem(certificate), key
