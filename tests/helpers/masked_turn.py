"""A turn of protection `masked` in two legs, step by step."""

import numpy as np
from consortium import SESSION, masked_opener, masked_sealers, names, tag_of, upload, vectors

from fedboost.privacy import packing
from fedboost.privacy.ends import COMMIT, RECOVER
from fedboost.privacy.pairwise import TWO_LEGS, Group, context

PARTIES = names(5)  # four of them open a turn, and one may collude
ME, PEER, OTHER = PARTIES[:3]
GROUP = Group.of(PARTIES)
TAG = tag_of(PARTIES, turn=3, attempt=1)
X = np.array([5, -6, 7])


class Turn:
    """What all parties sealed for one tag, as the aggregator has it, and the requests it can make of that."""

    def __init__(self, sealers, tag=TAG, values=X, session=SESSION, group=GROUP):
        self.sealers = sealers
        self.ctx = context(TWO_LEGS, session, group, tag)
        self.uploads = {party: b"".join(sealers[party].seal(values, tag)) for party in tag.roster}
        self.notes = {party: sealers[party].note() for party in tag.roster}

    def shares(self, receiver):
        """Sender to its share for the receiver, sealed."""
        sealed = {}
        for sender, note in self.notes.items():
            if sender != receiver:
                _, *entries = packing.unpack(note)
                sealed[sender] = dict(zip(entries[::2], entries[1::2], strict=True))[receiver.encode()]
        return sealed

    def commit_request(self, receiver=ME, **changed):
        shares = {**self.shares(receiver), **changed}
        given = [(sender, share) for sender, share in sorted(shares.items()) if share]
        entries = [entry for sender, share in given for entry in (sender.encode(), share)]
        return packing.pack(COMMIT, self.ctx, *entries)

    def recover_request(self, *lost):
        return packing.pack(RECOVER, self.ctx, *(party.encode() for party in lost))

    def commit(self, receiver=ME):
        return self.sealers[receiver].assist(self.commit_request(receiver))

    def recover(self, *lost, receiver=ME):
        return self.sealers[receiver].assist(self.recover_request(*lost))


def lose_after_upload(lost, parties=PARTIES):
    tag = tag_of(parties)
    of, due = vectors(parties, 3, 8)
    sealers, opener = masked_sealers(parties), masked_opener(tag)
    upload(opener, sealers, of, tag)
    for party in lost:
        opener.lose(party)
        del sealers[party]
    return opener, sealers, due


def commit_all(opener, sealers):
    for party, request in opener.requests().items():
        opener.assist(party, sealers[party].assist(request))
