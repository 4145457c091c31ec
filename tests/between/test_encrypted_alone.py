"""A vector of `paillier` that is opened alone: by an aggregator that lies or has the secret key.

Each test plays an aggregator that keeps to the protocol but for one lie, against the parties' real sessions.
"""

import dataclasses
import os

import numpy as np
import pytest
from inprocess import randomly, shard_of, sites_of, terms_of

from fedboost.boosting.programs import boosting, private
from fedboost.boosting.state import INITIAL_STATE
from fedboost.privacy import packing
from fedboost.privacy.ends import NAME_BYTES, EncryptedOpener, EncryptedSealer, OneLegOpener
from fedboost.protocol.aggregator import AggregatorSession
from fedboost.protocol.messages import Ask, OpenRequest, OpenShare, Report
from fedboost.protocol.party import PartySession

ROWS = 90
PARTIES = ("p0", "p1", "p2")
SMALL = {"rounds": 1, "max_depth": 2, "max_bin": 8, "key_bits": 2048, "keyholder": "p0"}
UNEVEN = 60
"""Chi-square of 15 degrees of freedom, beyond which it is once in four million."""
NOISE = {"noise": {"epsilon": 1.0, "delta": 1e-5}, "ranges": [(-3, 3)] * 3}


@pytest.fixture(autouse=True)
def one_key(monkeypatch):
    pytest.importorskip("phe")
    import one_paillier

    one_paillier.share(monkeypatch)


@pytest.fixture
def vectors(monkeypatch):
    """Party and turn to the tag and the vector that was sealed: the truth, which no aggregator has."""
    known, seal = {}, EncryptedSealer.seal

    def listening(sealer, values, tag):
        assert (sealer._me, tag.turn) not in known, "a tag is sealed once"
        known[sealer._me, tag.turn] = tag, values.copy()
        return seal(sealer, values, tag)

    monkeypatch.setattr(EncryptedSealer, "seal", listening)
    return known


class Liar:
    """An aggregator that keeps all it sees, and asks for other openings than it should: those that `forge`,
    given this and the request, returns in its place."""

    def __init__(
        self, forge=None, program=boosting.train, rows_at=PARTIES, protection="paillier", **settings
    ):
        draw = np.random.default_rng(3)
        X = draw.normal(size=(ROWS, 3)).astype(np.float32)
        y = (X[:, 0] + X[:, 1] ** 2 > 0.6).astype(np.float32)
        without = {"masked": ("keyholder", "key_bits")}.get(protection, ())
        without += ("max_bin",) if "noise" in settings else ()
        given = {name: value for name, value in SMALL.items() if name not in without}
        names = sorted({*PARTIES, *rows_at})
        self.terms = terms_of(X, len(names), protection=protection, **{**given, **settings})
        parts = dict(zip(rows_at, randomly(ROWS, len(rows_at)), strict=True))
        shards = {name: shard_of(X, y, rows=parts.get(name, np.arange(0))) for name in names}
        self.sites = sites_of(self.terms, shards)
        self.released = {}
        for name, site in self.sites.items():
            kept = self.released[name] = []
            holder = site.holder if name in parts else None
            self.sites[name] = dataclasses.replace(site, holder=holder, record=kept.append)
        self.parties = {name: PartySession(site) for name, site in self.sites.items()}
        self.session = AggregatorSession("s", self.terms, program, INITIAL_STATE, draw=os.urandom)
        self.reports, self.answers = {}, []
        self.public = None
        """What sums are encrypted under, once the key holder has greeted with it."""
        self._forge = forge

    def run(self):
        """Until nothing is left to say, or a forged request was answered."""
        waiting = self.session.start()
        while waiting and not self.answers:
            name, message = waiting.pop(0)
            self.public = self.session.introduction.public or self.public
            forging = self._forge is not None and isinstance(message, OpenRequest)
            if forging:
                message = dataclasses.replace(message, request=self._forge(self, message))
            for reply in self.parties[name].handle(message):
                if isinstance(reply, Report):
                    self.reports.setdefault((name, reply.turn), []).append(reply.cells[NAME_BYTES:])
                if forging and isinstance(reply, OpenShare):
                    self.answers = packing.unpack(reply.answer)
                    break
                waiting += self.session.handle(name, reply)
        return self

    def ciphers(self, tag):
        """Encryption of each part."""
        return [self.public.cipher(part, len(tag.roster)) for part in tag.checked]

    def decrypt(self, sealed, part):
        """The plaintexts of ciphertexts with the secret key itself."""
        secret = self.parties["p0"]._member.secret
        return secret.decrypt(secret.public.cipher(part, len(self.terms.parties)).read(sealed))

    def words(self, tag, answers, blinds=None):
        """The cells in answers of the key holder, each modulo its size: uint64 [cells]."""
        out = np.zeros(tag.cells, np.uint64)
        for number, (part, cipher) in enumerate(zip(tag.chunks, self.ciphers(tag), strict=True)):
            blind = nothing(self.public, answers[number]) if blinds is None else blinds[number]
            part.of(out)[:] = cipher.unblind(answers[number], blind)[:-1]
        return modulo(out, tag)

    def alone(self, name, turn, tag):
        """What one party's vector shows when it is opened alone."""
        sealed = self.reports[name, turn]
        opened = [self.decrypt(data, part) for data, part in zip(sealed, tag.checked, strict=True)]
        return self.words(tag, opened)


def nothing(public, answer):
    """A blind of zeros."""
    return [0] * (len(answer) // public.bytes)


def modulo(words, tag):
    """Each cell modulo its size."""
    bits = np.concatenate([np.full(run.cells, run.bits, np.uint64) for run in tag.segments])
    return np.asarray(words).view(np.uint64) & (np.uint64(2**64 - 1) >> (np.uint64(64) - bits))


def assert_noise(shown, truth, tag):
    """What is shown has nothing of the truth: the differences are unrelated from cell to cell. A shift that
    both sides know would be the same in all cells of a run."""
    off, start, looked = modulo(shown - truth.view(np.uint64), tag), 0, not tag.cells
    for run in tag.segments:
        of_run, start = off[start : start + run.cells], start + run.cells
        if run.cells > 1 and run.bits >= 30:
            assert len({0, *of_run.tolist()}) > run.cells - run.cells // 20
            looked = True
        elif run.cells >= 100:
            assert chi_square(of_run >> np.uint64(run.bits - 4), 16) < UNEVEN
            looked = True
    assert looked


def chi_square(numbers, values):
    """Of numbers below `values` against evenly distributed ones."""
    counts = np.bincount(numbers.astype(int), minlength=values)
    due = numbers.size / values
    return ((counts - due) ** 2 / due).sum()


@pytest.mark.slow
def test_the_secret_key_itself_shows_the_sum_and_nothing_less(vectors):
    """The key holder gives its key to the aggregator, which opens each party's ciphertexts of every turn
    alone, and every two added."""
    liar = Liar().run()
    assert liar.session.phase == "done", liar.session.error
    turns = sorted({turn for _, turn in vectors})
    assert len(turns) > 4
    for turn in turns:
        tag = vectors["p0", turn][0]
        shown = {name: liar.alone(name, turn, tag) for name in PARTIES}
        truth = {name: vectors[name, turn][1] for name in PARTIES}
        for name, other in (("p0", "p1"), ("p1", "p2"), ("p2", "p0")):
            assert_noise(shown[name], truth[name], tag)
            assert_noise(shown[name] + shown[other], truth[name] + truth[other], tag)
        assert modulo(sum(shown.values()), tag).tolist() == modulo(sum(truth.values()), tag).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("kept", [("p1",), ("p1", "p2"), ("p1", "p1", "p1")])
def test_an_opening_of_less_than_the_whole_sum_is_noise(vectors, kept):
    """The aggregator has one party's ciphertexts opened instead of the sum, or leaves the key holder's own
    out, blinded as a sum is."""
    blinds = []

    def forge(liar, message):
        ctx, *_ = packing.unpack(message.request)
        tag = vectors["p1", message.turn][0]
        sealed = []
        for number, cipher in enumerate(liar.ciphers(tag)):
            total, *others = (cipher.read(liar.reports[name, message.turn][number]) for name in kept)
            for more in others:
                total = cipher.add(total, more)
            data, blind = cipher.blind(total, os.urandom)
            sealed.append(data)
            blinds.append(blind)
        return packing.pack(ctx, *sealed)

    liar = Liar(forge).run()
    tag = vectors["p1", 1][0]
    shown = liar.words(tag, liar.answers, blinds)
    assert_noise(shown, sum(vectors[name, 1][1] for name in kept), tag)


@pytest.mark.slow
def test_the_same_vector_sealed_twice_is_unrelated_both_times(vectors):
    """Two sessions over the same rows, both opened with their keys: masks are of one session and turn."""
    first = Liar().run()
    known = dict(vectors)
    vectors.clear()
    second = Liar().run()
    for (name, turn), (tag, truth) in known.items():
        assert truth.tolist() == vectors[name, turn][1].tolist()
        if name == "p1":
            assert_noise(first.alone(name, turn, tag), second.alone(name, turn, tag).view(np.int64), tag)


@pytest.mark.slow
def test_the_opened_sums_are_those_of_masked(monkeypatch):
    """Cell for cell, in every turn; `masked` asks two queries in the first one."""
    opened = {}
    for opener in (EncryptedOpener, OneLegOpener):

        def listening(self, opener=opener, was=opener.open):
            total = was(self)
            opened.setdefault(opener, []).extend(total.tolist())
            return total

        monkeypatch.setattr(opener, "open", listening)
    models = [Liar(protection=name).run().session.booster.to_xgboost() for name in ("paillier", "masked")]
    assert opened[EncryptedOpener] == opened[OneLegOpener]
    assert len(opened[EncryptedOpener]) > 7000
    assert models[0] == models[1]


@pytest.mark.slow
def test_a_vector_alone_says_nothing_under_distributed_noise(vectors):
    """One share of the noise alone is too little: an epsilon of 1.45 of three parties, where the terms say 1.
    Now every cell is as likely to be any, by its four highest bits."""
    liar = Liar(program=private.train, **NOISE).run()
    assert liar.session.phase == "done", liar.session.error
    for name in PARTIES:
        shown, truth = [], []
        for turn in sorted({turn for _, turn in vectors}):
            tag, values = vectors[name, turn]
            above = np.concatenate([np.full(run.cells, run.bits - 4, np.uint64) for run in tag.segments])
            shown.append(liar.alone(name, turn, tag) >> above)
            truth.append(modulo(values, tag) >> above)
        assert chi_square(np.concatenate(shown), 16) < UNEVEN < chi_square(np.concatenate(truth), 16)


@pytest.mark.slow
def test_a_key_holder_without_rows_counts_in_nothing(vectors):
    """It masks zeros, draws no share of the noise, and what it sends is charged to nobody."""
    noisy = {**NOISE, "keyholder_rows": False}
    with_rows = ("p1", "p2", "p3")
    liar = Liar(program=private.train, rows_at=with_rows, **noisy).run()
    assert liar.session.phase == "done", liar.session.error
    assert liar.terms.holders == with_rows
    assert liar.terms.honest == 2
    assert all(release.drawn == 3 for release in liar.terms.plan.releases.values())
    for turn in sorted({turn for _, turn in vectors}):
        tag, sealed = vectors["p0", turn]
        assert not sealed.any()
        assert_noise(liar.alone("p0", turn, tag), sealed, tag)
    assert not any(release.charge for release in liar.released["p0"])
    assert all(any(release.charge for release in liar.released[name]) for name in with_rows)


@pytest.mark.slow
def test_a_question_asked_twice_is_sealed_once(vectors):
    """An aggregator that asks again gets the same ciphertexts; `vectors` refuses a second sealing."""
    liar = Liar()
    waiting, asked = liar.session.start(), 0
    while waiting:
        name, message = waiting.pop(0)
        replies = [*liar.parties[name].handle(message)]
        if isinstance(message, Ask):
            asked += 1
            assert [*liar.parties[name].handle(message)] == replies
        for reply in replies:
            waiting += liar.session.handle(name, reply)
    assert liar.session.phase == "done", liar.session.error
    assert asked == len(vectors)
