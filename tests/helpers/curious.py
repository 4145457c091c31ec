"""An aggregator that keeps everything it ever sees, and opens whatever can be opened from it."""

import random
from collections import Counter
from dataclasses import replace
from itertools import combinations

import numpy as np
from consortium import SESSION, keys_of_pairs, keystream, masked_sealers, tag_of
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fedboost.errors import PeerError
from fedboost.privacy import packing, pairwise
from fedboost.privacy.ends import COMMIT, RECOVER, self_key
from fedboost.privacy.pairwise import ONE_LEG, TWO_LEGS, Group, context
from fedboost.protocol.adding import Addition, RunningSum
from fedboost.protocol.messages import Report

CELLS = 4  # of eight bytes: two different sums are equal by chance with probability 2**-256


def subsets(members, least=1):
    return [chosen for size in range(least, len(members) + 1) for chosen in combinations(members, size)]


class Aggregator:
    """Asks, and keeps all answers.

    Parties that collude show it the keys of their pairs, and in two legs seal whatever it wants, by no rule.
    Each attempt has keys of its own. legs: in two, turns count their attempts, and a party's sealer lives for
    `turns_a_tree`, however often the parties meet; in one leg it is made with an attempt, and gone with it.
    """

    def __init__(self, parties, seed=0, colluding=(), group=None, legs=2, turns_a_tree=100):
        self.parties = parties
        self.group = group or Group.of(parties)
        self.legs = legs
        self.way = ONE_LEG if legs == 1 else TWO_LEGS
        self.turns_a_tree = turns_a_tree
        self.sealers = {}
        self.lives = dict.fromkeys(parties, -1)  # party -> the tree, or attempt, that its sealer is of
        self.colluding = colluding
        self.seed = seed
        self.truth = {}  # turn -> party -> vector; the aggregator does not look in here
        self.uploads = {}  # tag -> party -> masked vector
        self.sent = {}  # (tag, party) -> the bytes of its vector, as they pass an adder
        self.sealed = {}  # tag -> (sender, receiver) -> sealed share
        self.masks = {}  # (tag, party) -> self mask
        self.shares = {}  # (tag, party) -> point -> share of its self mask
        self.keys = {}  # (tag, party) -> the keys that it sealed with: its pairs' with colluders are known
        self.refused = Counter()
        self._rng = np.random.default_rng(seed)

    def context(self, tag):
        return context(self.way, SESSION, self.group, tag)

    # -- what it asks; each returns whether it was answered

    def seal(self, party, tag):
        ends = np.iinfo(np.int64)
        truth = self.truth.setdefault(tag.turn, {})
        if party not in truth:
            truth[party] = self._rng.integers(ends.min, ends.max, CELLS)
        try:
            sealer = self.sealer(party, tag)
            keys = dict(sealer._pairs._keys)
            (cells,) = sealer.seal(truth[party], tag)
        except PeerError:
            self.refused["seal"] += 1
            return False
        self.uploads.setdefault(tag, {})[party] = words_of(cells)
        self.sent[tag, party] = cells
        self.keys[tag, party] = keys
        if self.legs == 2:
            _, *entries = packing.unpack(sealer.note())
            for receiver, share in zip(entries[::2], entries[1::2], strict=True):
                self.sealed.setdefault(tag, {})[party, receiver.decode()] = share
            if party in self.colluding:
                self.masks[tag, party] = sealer._mask
        return True

    def sealer(self, party, tag):
        """The sealer that a party answers with, with the keys of the attempt. PeerError where it has none."""
        if self.legs == 1:
            if party in self.colluding:
                raise PeerError("test", "it tells the aggregator its keys, which is as good")
            return self._living(party, tag.attempt, f"{self.seed} {tag.attempt}")
        if party in self.colluding:
            self.lives[party] = -1
        sealer = self._living(party, tag.turn // self.turns_a_tree, self.seed)
        seed = f"{self.seed} {tag.turn} {tag.attempt}"
        sealer._pairs._keys = keys_of_pairs(self.parties, seed)[party]
        return sealer

    def _living(self, party, life, seed):
        if life < self.lives[party]:
            raise PeerError("test", "it has dropped the keys of that time")
        if life > self.lives[party]:
            fresh = masked_sealers(self.parties, group=self.group, seed=seed, legs=self.legs)
            self.lives[party], self.sealers[party] = life, fresh[party]
        return self.sealers[party]

    def commit(self, party, tag, **others):
        sealed = {
            sender: share for (sender, to), share in self.sealed.get(tag, {}).items() if to == party
        } | others
        entries = [field for sender, share in sealed.items() for field in (sender.encode(), share)]
        try:
            mask = self.sealers[party].assist(packing.pack(COMMIT, self.context(tag), *entries))
        except (KeyError, PeerError):
            self.refused["commit"] += 1
            return False
        assert self.masks.setdefault((tag, party), mask) == mask
        return True

    def recover(self, party, tag, lost):
        request = packing.pack(RECOVER, self.context(tag), *(name.encode() for name in lost))
        try:
            answer = packing.unpack(self.sealers[party].assist(request))
        except (KeyError, PeerError):
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
            if sealed := self.sealed.get(tag, {}).get((party, colluder)):
                key = pairwise.derive(
                    self.keys[tag, party][colluder],
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
        return pairwise.combine(chosen).to_bytes(32)

    def bare(self, tag, party):
        """A party's upload with everything taken off that is known."""
        cells = self.uploads[tag][party].copy()
        if self.legs == 2 and (mask := self.self_mask(tag, party)):
            cells -= words(self_key(mask, self.context(tag), party))
        for colluder in self.colluding:
            if colluder != party and colluder in tag.roster:
                pair, _ = pairwise.mask_keys(self.keys[tag, party][colluder], self.context(tag))
                cells = cells - words(pair) if party < colluder else cells + words(pair)
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
        """Tag to every set of honest parties that opens: there should be the whole roster's alone."""
        found = {}
        for tag, uploads in self.uploads.items():
            honest = [party for party in sorted(uploads) if party not in self.colluding]
            sets = [chosen for chosen in subsets(honest) if self.opens(tag, chosen)]
            if sets:
                found[tag] = sets
        return found


class WithAdders(Aggregator):
    """An aggregator together with adders, in one leg. It opens from the sums of regions, each as a real
    adder gives it; every set of parties is a region of some adder."""

    def region_sum(self, tag, region):
        """What the adder of a region sends; all adders may leave parties out, so a region is any set."""
        addition = Addition(tag.turn, tag.attempt, self.context(tag), tag.segments, True)
        running, summed = RunningSum(addition, tuple(range(len(region)))), None
        for number, party in enumerate(region):
            report = Report(tag.turn, tag.attempt, 0, self.sent[tag, party], ctx=addition.ctx)
            assert running.fits(number, report)
            summed = running.add(number, report, 0)
        return words_of(summed.cells)

    def sum_of(self, tag, parties):
        """As above, of two regions and whoever calls the aggregator itself."""
        regions = parties[: len(parties) // 2], parties[len(parties) // 2 : -1]
        known = super().sum_of(tag, parties) - sum(self.uploads[tag][party] for party in parties)
        sums = [self.region_sum(tag, region) for region in regions if region]
        return sum(sums, self.uploads[tag][parties[-1]] + known)

    def adds_nothing(self):
        """The sums of regions, all of them, follow from the vectors that the aggregator of the model has."""
        for tag, uploads in self.uploads.items():
            for region in subsets(sorted(uploads)):
                due = sum((uploads[party] for party in region), np.zeros(CELLS, np.uint64))
                assert np.array_equal(self.region_sum(tag, region), due)


def words_of(cells):
    """The cells of a vector, without its check cell."""
    return np.frombuffer(cells, "<u8")[:CELLS]


def words(key):
    return np.frombuffer(keystream(key, 8 * CELLS), "<u8")


def check_only_whole_rosters_open(aggregator):
    """No proper subset of a roster. In one leg the roster is all parties; in two at most one attempt of each
    turn opens, and one roster of each tree. Gives what opened."""
    opened = aggregator.opened()
    for tag, sets in opened.items():
        assert sets == [tuple(party for party in sorted(tag.roster) if party not in aggregator.colluding)]
    if aggregator.legs == 1:
        assert all(sorted(tag.roster) == sorted(aggregator.parties) for tag in opened)
        return opened
    assert all(count == 1 for count in Counter(tag.turn for tag in opened).values())
    trees = {tag.turn // aggregator.turns_a_tree for tag in opened}
    rosters = {(tag.turn // aggregator.turns_a_tree, frozenset(tag.roster)) for tag in opened}
    assert len(rosters) == len(trees)
    return opened


# ---- schedules --------------------------------------------------------------------------------------


def schedule(rng, parties, legs):
    """What an aggregator may do in four turns of two trees, in some order: mostly the due one."""
    least = Group.of(parties).min_roster
    steps, start, attempt = [], 0.0, 0
    for turn in range(4):
        for number in range(rng.choice((1, 1, 2, 3))):
            attempt += number > 0 or not attempt or rng.random() < 0.3
            size = len(parties) if rng.random() < 0.8 else rng.randint(least - (legs == 1), len(parties))
            roster = tuple(rng.sample(parties, size))
            tag = tag_of(roster, turn, attempt if legs == 1 else number, CELLS, transcript=bytes([turn]))
            lost = rng.sample(roster, rng.choice((0, 0, 1, 2)))
            early = rng.random() < 0.3  # lost before the upload
            for party in parties:
                told = replace(tag, transcript=b"for you alone") if rng.random() < 0.02 else tag
                if not (early and party in lost):
                    steps.append((start + rng.random() * rng.choice((1, 1, 1, 4)), "seal", party, told, ()))
                if legs == 2 and party not in lost:
                    for _ in range(rng.choice((1, 1, 2))):
                        late = start + 1 + rng.random() * rng.choice((1, 1, 3))
                        steps.append((late, "commit", party, tag, ()))
                    steps.append((start + 2 + rng.random(), "recover", party, tag, tuple(lost)))
            start += rng.choice((0.5, 2.0, 3.0))
        start += 3.0
    return sorted(steps, key=lambda step: step[0])


def played(seed, parties, colluding=(), legs=2, kind=Aggregator):
    """An aggregator after a whole schedule."""
    aggregator = kind(parties, seed, colluding, legs=legs, turns_a_tree=2)
    for _, act, party, tag, lost in schedule(random.Random(seed), parties, legs):
        if act == "seal":
            aggregator.seal(party, tag)
        elif act == "commit":
            aggregator.commit(party, tag)
        else:
            aggregator.recover(party, tag, lost)
    return aggregator
