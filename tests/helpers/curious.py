"""An aggregator that keeps everything it ever sees, and opens whatever can be opened from it."""

from collections import Counter
from itertools import combinations

import numpy as np
from consortium import SESSION, masked_sealers
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


def check_only_whole_rosters_open(aggregator):
    """Of each turn one attempt at most, of each tree one roster, and no proper subset. Gives what opened."""
    opened = aggregator.opened()
    for tag, sets in opened.items():
        assert sets == [tuple(party for party in sorted(tag.roster) if party not in aggregator.colluding)]
    turns = Counter(tag.turn for tag in opened)
    assert all(count == 1 for count in turns.values())
    assert len({(tag.epoch, frozenset(tag.roster)) for tag in opened}) == len({tag.epoch for tag in opened})
    return opened
