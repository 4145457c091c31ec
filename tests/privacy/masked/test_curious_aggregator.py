"""An aggregator that keeps everything it ever sees, of attempts that were aborted too, and asks for more.

Parties are `MaskedSealer`s; the aggregator here is the test. It asks whatever it likes in any order, takes
every answer that is not a refusal, and then tries to open what it must not: the sum of some of the roster.
"""

import random
from collections import Counter
from dataclasses import replace
from itertools import combinations, permutations, product

import numpy as np
import pytest
from consortium import SESSION, masked_sealers, names, tag_of
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fedboost.errors import PeerError
from fedboost.privacy import fields, shamir
from fedboost.privacy.masked import pairwise
from fedboost.privacy.masked.pairwise import Group, context
from fedboost.privacy.masked.shares import COMMIT, RECOVER, self_stream

CELLS = 4  # of eight bytes: two different sums are equal by chance with probability 2**-256


def subsets(members, least=1):
    return [chosen for size in range(least, len(members) + 1) for chosen in combinations(members, size)]


class Aggregator:
    """Asks, and keeps all answers.

    Parties that collude show it their keys and what they were sent, and seal whatever it wants, by no rule.
    """

    def __init__(self, parties, seed=0, colluding=(), group=None):
        self.parties = parties
        self.group = group or Group.of(parties)
        self.sealers = masked_sealers(parties, group=self.group, seed=seed)
        self.colluding = colluding
        self.seed = seed
        self.truth = {}  # turn -> party -> vector; the aggregator does not look in here
        self.uploads = {}  # tag -> party -> masked vector
        self.sealed = {}  # tag -> (sender, receiver) -> sealed share
        self.masks = {}  # (tag, party) -> self mask
        self.shares = {}  # (tag, party) -> point -> share of its self mask
        self.keys = {}  # (tag, colluder) -> the keys of its pairs in that tree
        self.refused = Counter()
        self._rng = np.random.default_rng(seed)

    def context(self, tag):
        return context(SESSION, self.group, tag)

    # -- what it asks; each returns whether it was answered

    def seal(self, party, tag):
        ends = np.iinfo(np.int64)
        truth = self.truth.setdefault(tag.turn, {})
        if party not in truth:
            truth[party] = self._rng.integers(ends.min, ends.max, CELLS)
        sealer = self.sealers[party]
        if party in self.colluding:
            sealer = masked_sealers(self.parties, group=self.group, seed=self.seed)[party]
        try:
            (cells,) = sealer.seal(truth[party], tag)
        except PeerError:
            self.refused["seal"] += 1
            return False
        _, *entries = fields.unpack(sealer.note())
        self.uploads.setdefault(tag, {})[party] = np.frombuffer(cells, "<u8")
        for receiver, share in zip(entries[::2], entries[1::2], strict=True):
            self.sealed.setdefault(tag, {})[party, receiver.decode()] = share
        if party in self.colluding:
            self.keys[tag, party] = dict(sealer._pairs._keys)
            self.masks[tag, party] = sealer._mask
        return True

    def commit(self, party, tag, **others):
        sealed = {
            sender: share for (sender, to), share in self.sealed.get(tag, {}).items() if to == party
        } | others
        entries = [field for sender, share in sealed.items() for field in (sender.encode(), share)]
        try:
            mask = self.sealers[party].assist(fields.pack(COMMIT, self.context(tag), *entries))
        except PeerError:
            self.refused["commit"] += 1
            return False
        assert self.masks.setdefault((tag, party), mask) == mask
        return True

    def recover(self, party, tag, lost):
        request = fields.pack(RECOVER, self.context(tag), *(name.encode() for name in lost))
        try:
            answer = fields.unpack(self.sealers[party].assist(request))
        except PeerError:
            self.refused["recover"] += 1
            return False
        for name, share in zip(answer[::2], answer[1::2], strict=True):
            self._learn_share(tag, name.decode(), party, share)
        return True

    def _learn_share(self, tag, of, holder, share):
        self.shares.setdefault((tag, of), {})[self.group.point(holder)] = int.from_bytes(share)

    # -- what it makes of the answers

    def self_mask(self, tag, party):
        """A party's self mask, if it is known by any way; else None."""
        if (tag, party) in self.masks:
            return self.masks[tag, party]
        for colluder in self.colluding:
            if (tag, colluder) in self.keys and (sealed := self.sealed[tag].get((party, colluder))):
                key = pairwise.derive(
                    self.keys[tag, colluder][party],
                    b"share",
                    self.context(tag),
                    party.encode(),
                    colluder.encode(),
                )
                self._learn_share(tag, party, colluder, AESGCM(key).decrypt(bytes(12), sealed, None))
        shares = self.shares.get((tag, party), {})
        if len(shares) < self.group.threshold:
            return None
        chosen = dict(list(shares.items())[: self.group.threshold])
        return shamir.combine(chosen).to_bytes(32)

    def bare(self, tag, party):
        """A party's upload with everything taken off that is known."""
        cells = self.uploads[tag][party].copy()
        if mask := self.self_mask(tag, party):
            cells -= words(self_stream(mask, self.context(tag), party))
        for colluder in self.colluding:
            if colluder != party and (tag, colluder) in self.keys:
                low, high = sorted((party, colluder))
                pair = pairwise.derive(
                    self.keys[tag, colluder][party], b"pair", self.context(tag), low.encode(), high.encode()
                )
                mask = words(pairwise.Stream(pair))
                cells = cells - mask if party == low else cells + mask
        return cells

    def sum_of(self, tag, parties):
        return sum((self.bare(tag, party) for party in parties), np.zeros(CELLS, np.uint64))

    def true_sum(self, tag, parties):
        return sum(self.truth[tag.turn][party].astype(np.uint64) for party in parties)

    def opens(self, tag, parties):
        """Whether what is known gives these parties' true sum."""
        if not set(parties) <= set(self.uploads.get(tag, {})):
            return False
        return np.array_equal(self.sum_of(tag, parties), self.true_sum(tag, parties))

    def opened(self):
        """Tag to every set of honest parties that opens: there should be one a turn, the whole roster's."""
        found = {}
        for tag, uploads in self.uploads.items():
            honest = [party for party in sorted(uploads) if party not in self.colluding]
            sets = [chosen for chosen in subsets(honest) if self.opens(tag, chosen)]
            if sets:
                found[tag] = sets
        return found


def words(stream):
    return np.frombuffer(stream.next(8 * CELLS), "<u8")


# ---- fault schedules --------------------------------------------------------------------------------


def schedule(rng, parties, least):
    """What an aggregator may do in four turns of two trees, in some order: mostly the due one."""
    steps, start = [], 0.0
    for turn, tree in enumerate((0, 0, 1, 1)):
        for attempt in range(rng.choice((1, 1, 2, 3))):
            size = len(parties) if rng.random() < 0.8 else rng.randint(least, len(parties))
            roster = tuple(rng.sample(parties, size))
            tag = tag_of(roster, turn, attempt, tree, CELLS, transcript=bytes([turn]))
            lost = rng.sample(roster, rng.choice((0, 0, 1, 2)))
            early = rng.random() < 0.3  # lost before the upload
            for party in parties:
                if not (early and party in lost):
                    steps.append((start + rng.random() * rng.choice((1, 1, 1, 4)), "seal", party, tag, ()))
                if party not in lost:
                    for _ in range(rng.choice((1, 1, 2))):
                        late = start + 1 + rng.random() * rng.choice((1, 1, 3))
                        steps.append((late, "commit", party, tag, ()))
                    steps.append((start + 2 + rng.random(), "recover", party, tag, tuple(lost)))
            start += rng.choice((0.5, 2.0, 3.0))
        start += 3.0
    return sorted(steps, key=lambda step: step[0])


def played(seed, parties, colluding=()):
    """An aggregator after a whole schedule."""
    rng = random.Random(seed)
    aggregator = Aggregator(parties, seed, colluding)
    for _, act, party, tag, lost in schedule(rng, parties, aggregator.group.min_roster):
        if act == "seal":
            aggregator.seal(party, tag)
        elif act == "commit":
            aggregator.commit(party, tag)
        else:
            aggregator.recover(party, tag, lost)
    return aggregator


def check_only_whole_rosters_open(aggregator):
    """Of each turn one attempt at most, of each tree one roster, and no proper subset. Gives what opened."""
    opened = aggregator.opened()
    for tag, sets in opened.items():
        assert sets == [tuple(party for party in sorted(tag.roster) if party not in aggregator.colluding)]
    turns = Counter(tag.turn for tag in opened)
    assert all(count == 1 for count in turns.values())
    assert len({(tag.epoch, frozenset(tag.roster)) for tag in opened}) == len({tag.epoch for tag in opened})
    return opened


def test_no_schedule_of_faults_opens_less_than_a_roster():
    seen = Counter()
    for seed in range(60):
        aggregator = played(seed, names(3 + seed % 3))
        opened = check_only_whole_rosters_open(aggregator)
        seen["opened"] += len(opened)
        seen["not opened"] += len(aggregator.uploads) - len(opened)
        seen["recovered"] += sum(
            any((tag, party) not in aggregator.masks for party in tag.roster) for tag in opened
        )
        seen["in part"] += sum(
            any((tag, party) in aggregator.masks for party in tag.roster)
            for tag in aggregator.uploads
            if tag not in opened
        )
        seen.update(aggregator.refused)
    wanted = {"opened": 60, "not opened": 60, "recovered": 10, "in part": 15}
    for what, least in {**wanted, "seal": 60, "commit": 60, "recover": 60}.items():
        assert seen[what] >= least, f"the schedules have too few of: {what} ({dict(seen)})"


def test_a_colluding_party_does_not_open_less_than_the_honest_of_a_roster_either():
    opened = 0
    for seed in range(40):
        parties = names(4 + seed % 2)
        opened += len(check_only_whole_rosters_open(played(seed, parties, parties[seed % 4 : seed % 4 + 1])))
    assert opened >= 40


def test_no_sum_of_uploads_of_different_attempts_opens_anything():
    """Each upload added, subtracted or left out, all attempts of a turn mixed: only whole rosters open."""
    checked = opened = 0
    for seed in range(40):
        aggregator = played(seed, names(3))
        for turn in range(4):
            tags = [tag for tag in aggregator.uploads if tag.turn == turn]
            kept = [(tag, party) for tag in tags for party in aggregator.uploads[tag]][:8]
            if len({tag for tag, _ in kept}) < 2:
                continue
            signs = np.array(list(product((0, 1, -1), repeat=len(kept)))).astype(np.uint64)
            bare = np.array([aggregator.bare(*upload) for upload in kept])
            truth = np.array([aggregator.truth[turn][party].astype(np.uint64) for _, party in kept])
            matching = signs[(signs @ bare == signs @ truth).all(axis=1)].astype(np.int64)
            whole = {tag for tag in aggregator.opened() if tag.turn == turn}
            for row in matching[matching.any(axis=1)]:
                (tag,) = {kept[place][0] for place in np.flatnonzero(row)}
                assert tag in whole
                assert abs(int(row.sum())) == np.count_nonzero(row) == len(tag.roster)
                opened += 1
            checked += 1
    assert checked >= 20
    assert opened >= 10


# ---- aimed attacks ----------------------------------------------------------------------------------

PARTIES = names(4)  # three open a turn, one may collude
TAG = tag_of(PARTIES, cells=CELLS)


def seal_everybody(aggregator, tag):
    return [aggregator.seal(party, tag) for party in tag.roster]


def commit_everybody(aggregator, tag):
    return [aggregator.commit(party, tag) for party in tag.roster]


def test_the_whole_roster_opens_and_no_proper_subset_of_it():
    aggregator = Aggregator(PARTIES)
    assert all(seal_everybody(aggregator, TAG))
    assert aggregator.opened() == {}
    assert all(commit_everybody(aggregator, TAG))
    assert all(aggregator.recover(party, TAG, [lost]) for party, lost in permutations(PARTIES, 2))
    assert aggregator.opened() == {TAG: [PARTIES]}


@pytest.mark.parametrize("committed", range(3))
def test_fewer_than_the_threshold_open_nothing(committed):
    aggregator = Aggregator(PARTIES)
    for party in PARTIES:
        aggregator.seal(party, TAG)
    for party in PARTIES[:committed]:
        assert aggregator.commit(party, TAG)
        for lost in set(PARTIES) - {party}:
            assert aggregator.recover(party, TAG, [lost])
    assert aggregator.opened() == {}


def test_an_attempt_that_was_aborted_never_opens_not_even_with_a_late_upload():
    aggregator, again = Aggregator(PARTIES), replace(TAG, attempt=1)
    for party in PARTIES[:3]:
        aggregator.seal(party, TAG)
    for party in PARTIES[:3]:
        assert aggregator.seal(party, again)
    assert aggregator.seal(PARTIES[3], TAG), "the late upload of the first attempt"
    assert commit_everybody(aggregator, TAG) == [False] * 3 + [True]
    assert aggregator.seal(PARTIES[3], again) is False, "it committed the turn to the first attempt"
    assert commit_everybody(aggregator, again) == [False] * 4
    assert aggregator.opened() == {}


def test_every_mixture_of_two_attempts_shares_is_refused():
    """For each other party its share of the one attempt or of the other: only the pure set commits."""
    for mixture in product((0, 1), repeat=3):
        aggregator, again = Aggregator(PARTIES), replace(TAG, attempt=1)
        for tag in (TAG, again):
            for party in PARTIES:
                aggregator.seal(party, tag)
        me = PARTIES[0]
        shares = {
            peer: aggregator.sealed[(TAG, again)[of]][peer, me]
            for peer, of in zip(PARTIES[1:], mixture, strict=True)
        }
        assert aggregator.commit(me, again, **shares) == all(mixture)


def test_telling_parties_different_rosters_of_one_tree_opens_one_at_most():
    """Every way to tell each of four parties one of two rosters in turn 1; in turn 2 everything is tried."""
    opened = 0
    rosters = subsets(PARTIES, least=3)
    for pair in combinations(rosters, 2):
        for told in product((0, 1), repeat=4):
            aggregator = Aggregator(PARTIES)
            for party, choice in zip(PARTIES, told, strict=True):
                aggregator.seal(party, replace(TAG, roster=pair[choice]))
            for roster in pair:
                tag = replace(TAG, roster=roster)
                for party in roster:
                    aggregator.commit(party, tag)
                    aggregator.recover(party, tag, [next(iter(set(roster) - {party}))])
            opened += len(check_only_whole_rosters_open(aggregator))
    assert opened


def test_with_a_threshold_smaller_by_one_two_rosters_of_one_turn_do_open():
    """The attack that the threshold stops, so that the tests above are known to be able to see it."""

    class Lower(Group):
        threshold = 3

    parties = names(6)
    assert Group.of(parties).threshold == 4
    aggregator = Aggregator(parties, group=Lower(parties, 1))
    for roster in (parties[:3], parties[3:]):
        tag = replace(TAG, roster=roster)
        assert all(seal_everybody(aggregator, tag))
        assert all(commit_everybody(aggregator, tag))
    assert len(aggregator.opened()) == 2


def test_parent_minus_children_across_a_roster_change_finds_no_step():
    """parent(with the leaver) - left - right(without it) would be the leaver's own histogram.

    The aggregator opens the root with all four, then tries for the children every smaller roster, in the same
    turn and the next, in each order; and the other way round, the small roster first.
    """
    small = [roster for roster in subsets(PARTIES, least=3) if len(roster) == 3]
    for roster in small:
        for first, second in ((PARTIES, roster), (roster, PARTIES)):
            aggregator = Aggregator(PARTIES)
            root = replace(TAG, roster=first)
            for party in first:
                assert aggregator.seal(party, root)
            assert all(commit_everybody(aggregator, root))
            for turn, attempt in ((1, 1), (2, 0), (2, 1), (3, 0)):
                child = replace(TAG, turn=turn, attempt=attempt, roster=second, transcript=b"children")
                sealed = [party for party in second if aggregator.seal(party, child)]
                assert set(sealed) <= set(second) - set(first), "whoever was asked for the root refuses"
                assert not any(commit_everybody(aggregator, child))
            assert set(aggregator.opened()) == {root}


def test_parent_minus_children_within_one_roster_is_what_everybody_may_know():
    """The same steps with one roster open both: it is the roster that the attack above fails for."""
    aggregator = Aggregator(PARTIES)
    for turn in (1, 2):
        tag = replace(TAG, turn=turn)
        for party in PARTIES:
            assert aggregator.seal(party, tag)
        assert all(commit_everybody(aggregator, tag))
    assert len(aggregator.opened()) == 2


def test_a_party_that_was_asked_something_else_stops_the_turn():
    """An aggregator that shows one party other splits, to look at its rows alone, opens nothing."""
    for victim in PARTIES:
        aggregator = Aggregator(PARTIES)
        aimed = replace(TAG, transcript=b"splits for you alone")
        for party in PARTIES:
            aggregator.seal(party, aimed if party == victim else TAG)
        for party in PARTIES:
            assert not aggregator.commit(party, TAG)
            assert not aggregator.commit(party, aimed)
        merged = {**aggregator.sealed[TAG], **aggregator.sealed[aimed]}
        aggregator.sealed[TAG] = aggregator.sealed[aimed] = merged
        for party in PARTIES:
            assert not aggregator.commit(party, TAG)
            assert not aggregator.commit(party, aimed)
        assert aggregator.opened() == {}
