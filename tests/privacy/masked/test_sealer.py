"""Protection `masked`: what a party refuses, which keys are used for what, and what it forgets.

That sums come out right is in test_contract.py; what the aggregator can make of all it sees is in
test_curious_aggregator.py.
"""

from collections import Counter
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from consortium import (
    SESSION,
    drawing,
    help_open,
    keys_of_pairs,
    masked_opener,
    masked_sealers,
    names,
    tag_of,
    upload,
    vectors,
)
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fedboost.errors import PeerError, RosterTooSmall, SessionFailed
from fedboost.privacy import fields
from fedboost.privacy.bit_packing import Segment
from fedboost.privacy.masked import pairwise
from fedboost.privacy.masked.pairwise import Group, Handshake, context
from fedboost.privacy.masked.sealer import MaskedSealer
from fedboost.privacy.masked.shares import COMMIT, RECOVER, self_stream
from fedboost.privacy.shamir import SHARE_BYTES

PARTIES = names(5)  # four of them open a turn, and one may collude
ME, PEER, OTHER = PARTIES[:3]
GROUP = Group.of(PARTIES)
TAG = tag_of(PARTIES, turn=3, attempt=1, epoch=2)
X = np.array([5, -6, 7])


class Turn:
    """What all parties sealed for one tag, as the aggregator has it, and the requests it can make of that."""

    def __init__(self, sealers, tag=TAG, values=X, session=SESSION, group=GROUP):
        self.sealers = sealers
        self.ctx = context(session, group, tag)
        self.uploads = {party: b"".join(sealers[party].seal(values, tag)) for party in tag.roster}
        self.notes = {party: sealers[party].note() for party in tag.roster}

    def shares(self, receiver):
        """Sender to its share for the receiver, sealed."""
        sealed = {}
        for sender, note in self.notes.items():
            if sender != receiver:
                _, *entries = fields.unpack(note)
                sealed[sender] = dict(zip(entries[::2], entries[1::2], strict=True))[receiver.encode()]
        return sealed

    def commit_request(self, receiver=ME, **changed):
        shares = {**self.shares(receiver), **changed}
        given = [(sender, share) for sender, share in sorted(shares.items()) if share]
        entries = [entry for sender, share in given for entry in (sender.encode(), share)]
        return fields.pack(COMMIT, self.ctx, *entries)

    def recover_request(self, *lost):
        return fields.pack(RECOVER, self.ctx, *(party.encode() for party in lost))

    def commit(self, receiver=ME):
        return self.sealers[receiver].assist(self.commit_request(receiver))

    def recover(self, *lost, receiver=ME):
        return self.sealers[receiver].assist(self.recover_request(*lost))


@pytest.fixture
def sealers():
    return masked_sealers(PARTIES)


@pytest.fixture
def turn(sealers):
    return Turn(sealers)


# ---- the group --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("parties", "threshold"), [(3, 2), (4, 3), (5, 4), (6, 4), (10, 6), (100, 51)])
def test_the_threshold_of_the_design(parties, threshold):
    assert Group.of(names(parties)).threshold == threshold


def test_the_order_in_which_the_terms_name_the_parties_does_not_matter():
    assert Group.of(PARTIES) == Group.of(PARTIES[::-1])
    assert [GROUP.point(party) for party in PARTIES] == [1, 2, 3, 4, 5]


def both_open(threshold, colluding, rosters, answers):
    """Whether each roster gets its answers: an honest party answers for one of them, a colluder for both."""
    return all(
        sum(party in colluding or answers[party] == number for party in roster) >= threshold
        for number, roster in enumerate(rosters)
    )


@pytest.mark.parametrize("parties", range(3, 7))
@pytest.mark.parametrize("short", [0, 1])
def test_no_two_rosters_of_one_turn_can_both_be_opened(parties, short):
    """Exhaustively, over who colludes, all pairs of rosters, and every split of the honest answers.

    With a threshold smaller by one some pair of rosters can: the threshold is no larger than it must be.
    """
    members, group = names(parties), Group.of(names(parties))
    least = group.threshold - short
    rosters = [set(r) for size in range(least, parties + 1) for r in combinations(members, size)]
    found = 0
    for colluding in combinations(members, group.colluding):
        honest = [party for party in members if party not in colluding]
        for pair in combinations(rosters, 2):
            for split in product((0, 1), repeat=len(honest)):
                found += both_open(least, colluding, pair, dict(zip(honest, split, strict=True)))
    assert bool(found) == bool(short)


@pytest.mark.parametrize("parties", [3, 5, 7])
@pytest.mark.parametrize("colluding", range(4))
def test_colluding_parties_alone_never_reach_the_threshold(parties, colluding):
    group = Group.of(names(parties), colluding)
    assert group.threshold >= colluding + 2, "at least two honest parties are in every sum"
    assert 2 * group.threshold - colluding > parties


# ---- what a party does not seal ---------------------------------------------------------------------


def test_an_older_turn_is_refused(sealers):
    Turn(sealers)
    with pytest.raises(PeerError, match="turn 2, attempt 9 was sealed already, or is older"):
        sealers[ME].seal(X, replace(TAG, turn=2, attempt=9))


def test_an_older_attempt_is_refused(sealers):
    Turn(sealers)
    with pytest.raises(PeerError, match="turn 3, attempt 0 was sealed already, or is older"):
        sealers[ME].seal(X, replace(TAG, attempt=0))


def test_a_tag_used_twice_is_refused(sealers):
    Turn(sealers)
    for tag in (TAG, replace(TAG, transcript=b"another question"), replace(TAG, segments=(Segment(1, 64),))):
        with pytest.raises(PeerError, match="turn 3, attempt 1 was sealed already"):
            sealers[ME].seal(X, tag)


def test_an_upload_after_this_turns_commit_is_refused(turn):
    turn.commit()
    with pytest.raises(PeerError, match="turn 3 was committed: no other attempt of it"):
        turn.sealers[ME].seal(X, replace(TAG, attempt=2))
    turn.sealers[ME].seal(X, replace(TAG, turn=4, attempt=0))


def test_an_older_tree_is_refused(sealers):
    Turn(sealers)
    with pytest.raises(PeerError, match="epoch 1 after epoch 2"):
        sealers[ME].seal(X, replace(TAG, turn=4, epoch=1))


@pytest.mark.parametrize("newer", [replace(TAG, turn=4), replace(TAG, attempt=2)])
def test_another_roster_within_a_tree_is_refused(sealers, newer):
    Turn(sealers)
    for roster in combinations(PARTIES, 4):
        if ME in roster:
            with pytest.raises(PeerError, match="the roster changed within epoch 2"):
                sealers[ME].seal(X, replace(newer, roster=roster))
    sealers[ME].seal(X, newer)


def test_a_larger_roster_within_a_tree_is_refused(sealers):
    few = PARTIES[:4]
    Turn(sealers, replace(TAG, roster=few))
    with pytest.raises(PeerError, match="the roster changed"):
        sealers[ME].seal(X, replace(TAG, turn=4))


def test_the_roster_may_change_with_the_tree(sealers):
    Turn(sealers)
    tag = replace(TAG, turn=4, epoch=3, roster=PARTIES[:4])
    of, due = vectors(PARTIES[:4], 3, 8)
    opener = masked_opener(tag, PARTIES)
    upload(opener, sealers, of, tag)
    assert help_open(opener, sealers).tolist() == due.tolist()


def test_a_roster_with_a_stranger_is_refused(sealers):
    for roster in ((*PARTIES, "p99"), (*PARTIES[:4], "p99"), (ME, "p97", "p98", "p99")):
        with pytest.raises(PeerError, match="the roster has strangers"):
            sealers[ME].seal(X, replace(TAG, roster=roster))


def test_a_roster_without_this_party_is_refused(sealers):
    with pytest.raises(PeerError, match="lacks this party"):
        sealers[ME].seal(X, replace(TAG, roster=PARTIES[1:]))


@pytest.mark.parametrize("roster", [(), (ME,), PARTIES[:3]])
def test_a_roster_smaller_than_the_threshold_is_refused(sealers, roster):
    with pytest.raises(PeerError, match=r"lacks this party|fewer than 4"):
        sealers[ME].seal(X, replace(TAG, roster=roster))
    sealers[ME].seal(X, replace(TAG, roster=PARTIES[:4]))


def test_of_three_parties_no_two_make_a_roster():
    """Two would open, yet each could subtract itself; who runs the aggregator may well be one of them."""
    three, two = names(3), names(2)
    for roster in combinations(three, 2):
        with pytest.raises(PeerError, match="a roster of 2 parties, fewer than 3"):
            masked_sealers(three)[roster[0]].seal(X, replace(TAG, roster=roster))
    masked_sealers(two)[ME].seal(X, replace(TAG, roster=two))  # terms that name two have allowed it


@pytest.mark.parametrize("roster", [(ME, *PARTIES), (ME, ME, ME, ME), (*PARTIES[:3], OTHER)])
def test_a_roster_that_names_a_party_twice_is_refused(sealers, roster):
    with pytest.raises(PeerError, match="the roster names a party twice"):
        sealers[ME].seal(X, replace(TAG, roster=roster))


def test_what_was_refused_leaves_the_party_as_it_was(turn):
    bad = [
        replace(TAG, turn=2),
        replace(TAG, turn=4, roster=PARTIES[:4]),
        replace(TAG, turn=4, epoch=1),
        replace(TAG, turn=4, epoch=9, roster=PARTIES[:2]),
    ]
    before = dict(vars(turn.sealers[ME]))
    for tag in bad:
        with pytest.raises(PeerError):
            turn.sealers[ME].seal(X, tag)
    assert vars(turn.sealers[ME]) == before
    assert len(turn.commit()) == 32


# ---- what a party does not help with ----------------------------------------------------------------


def test_a_commit_gives_the_self_mask_and_again_the_same(turn):
    mask = turn.commit()
    assert len(mask) == 32
    assert turn.commit() == mask


def test_a_commit_before_anything_was_sealed_is_refused(turn):
    fresh = masked_sealers(PARTIES)[ME]
    with pytest.raises(PeerError, match="not the last"):
        fresh.assist(turn.commit_request())
    with pytest.raises(PeerError, match="not the last"):
        fresh.assist(fields.pack(COMMIT, b""))


def test_a_commit_of_an_old_attempt_is_refused(turn):
    old = turn.commit_request()
    Turn(turn.sealers, replace(TAG, attempt=2))
    with pytest.raises(PeerError, match="a turn or attempt that is not the last"):
        turn.sealers[ME].assist(old)


def test_a_commit_of_an_old_turn_is_refused(turn):
    old = turn.commit_request()
    turn.commit()
    Turn(turn.sealers, replace(TAG, turn=4))
    with pytest.raises(PeerError, match="a turn or attempt that is not the last"):
        turn.sealers[ME].assist(old)


def test_a_commit_of_an_attempt_that_this_party_has_not_sealed_is_refused(turn):
    """The others are at attempt 2, this one is at 1: their shares do not commit it to either."""
    others = {party: sealer for party, sealer in turn.sealers.items() if party != ME}
    double = masked_sealers(PARTIES)[ME]  # so that there are shares for it
    later = Turn({**others, ME: double}, replace(TAG, attempt=2))
    with pytest.raises(PeerError, match="not the last"):
        turn.sealers[ME].assist(later.commit_request())
    with pytest.raises(PeerError, match="not authentic"):
        turn.sealers[ME].assist(turn.commit_request(**later.shares(ME)))


@pytest.mark.parametrize("sender", PARTIES[1:])
def test_a_commit_without_a_share_is_refused(turn, sender):
    with pytest.raises(PeerError, match="without the share of every party"):
        turn.sealers[ME].assist(turn.commit_request(**{sender: b""}))
    with pytest.raises(PeerError, match="recover before this party committed"):
        turn.recover(sender)


def test_a_commit_with_no_share_at_all_is_refused(turn):
    with pytest.raises(PeerError, match="without the share of every party"):
        turn.sealers[ME].assist(fields.pack(COMMIT, turn.ctx))


@pytest.mark.parametrize("extra", [ME, "p99"])
def test_a_commit_with_a_share_too_many_is_refused(turn, extra):
    with pytest.raises(PeerError, match="without the share of every party"):
        turn.sealers[ME].assist(turn.commit_request(**{extra: turn.shares(ME)[PEER]}))


def test_a_commit_with_two_shares_of_one_party_is_refused(turn):
    entries = fields.unpack(turn.commit_request())
    for doubled in (entries + entries[2:4], [*entries[:2], *entries[2:4], *entries[2:-2]], entries[:-1]):
        with pytest.raises(PeerError, match=r"not one for each party|share of every party"):
            turn.sealers[ME].assist(fields.pack(*doubled))


@pytest.mark.parametrize("place", [0, 1, 30, SHARE_BYTES - 1, SHARE_BYTES, SHARE_BYTES + 15])
def test_a_changed_share_is_refused(turn, place):
    share = bytearray(turn.shares(ME)[PEER])
    share[place] ^= 1
    with pytest.raises(PeerError, match=f"the share of party {PEER} is not authentic"):
        turn.sealers[ME].assist(turn.commit_request(**{PEER: bytes(share)}))


@pytest.mark.parametrize("share", [b"\0", bytes(SHARE_BYTES), bytes(SHARE_BYTES + 16), bytes(1000)])
def test_a_made_up_share_is_refused(turn, share):
    with pytest.raises(PeerError, match="not authentic"):
        turn.sealers[ME].assist(turn.commit_request(**{PEER: share}))


def test_a_share_for_or_of_another_party_is_refused(turn):
    swapped = {PEER: turn.shares(ME)[OTHER], OTHER: turn.shares(ME)[PEER]}
    own_to_peer = {PEER: turn.shares(PEER)[ME]}
    for changed in (swapped, own_to_peer, {PEER: turn.shares(OTHER)[PEER]}):
        with pytest.raises(PeerError, match="not authentic"):
            turn.sealers[ME].assist(turn.commit_request(**changed))


@pytest.mark.parametrize(
    "theirs",
    [
        replace(TAG, roster=PARTIES[:4]),
        replace(TAG, epoch=3),
        replace(TAG, epoch=1),
        replace(TAG, transcript=b"other questions"),
        replace(TAG, turn=4),
        replace(TAG, attempt=2),
        replace(TAG, segments=(Segment(4, 64),)),
        replace(TAG, segments=(Segment(3, 32),)),
    ],
    ids=["roster", "tree", "earlier tree", "transcript", "turn", "attempt", "cells", "bits"],
)
def test_a_share_under_another_tag_is_refused(turn, theirs):
    """One party was told something else than the others: nobody gives a self mask away."""
    split = masked_sealers(PARTIES)
    list(split[PEER].seal(np.zeros(4), theirs))
    note = dict(zip(*[iter(fields.unpack(split[PEER].note())[1:])] * 2, strict=True))
    with pytest.raises(PeerError, match=f"the share of party {PEER} is not authentic"):
        turn.sealers[ME].assist(turn.commit_request(**{PEER: note[ME.encode()]}))


def test_a_share_under_another_session_is_refused(turn):
    other = Turn(masked_sealers(PARTIES, session=b"another session"), session=b"another session")
    with pytest.raises(PeerError, match="not authentic"):
        turn.sealers[ME].assist(turn.commit_request(**{PEER: other.shares(ME)[PEER]}))


def test_a_share_under_another_group_is_refused(turn):
    """Same members, another threshold."""
    group = Group.of(PARTIES, 0)
    other = Turn(masked_sealers(PARTIES, group=group), group=group)
    with pytest.raises(PeerError, match="not authentic"):
        turn.sealers[ME].assist(turn.commit_request(**{PEER: other.shares(ME)[PEER]}))


def test_a_share_under_another_key_is_refused(turn):
    """Key confirmation: whoever stands in the middle has no share that opens."""
    other = Turn(masked_sealers(PARTIES, seed=1))
    with pytest.raises(PeerError, match="not authentic"):
        turn.sealers[ME].assist(turn.commit_request(**{PEER: other.shares(ME)[PEER]}))


def test_a_commit_twice_with_different_shares_is_refused(turn):
    """A peer that broke the rules sealed two sets of shares under one tag."""
    twin = masked_sealers(PARTIES)[PEER]
    twin._draw = drawing("another polynomial")
    list(twin.seal(X, TAG))
    note = dict(zip(*[iter(fields.unpack(twin.note())[1:])] * 2, strict=True))
    turn.commit()
    with pytest.raises(PeerError, match="commit twice with different shares"):
        turn.sealers[ME].assist(turn.commit_request(**{PEER: note[ME.encode()]}))
    turn.commit()


def test_a_refused_commit_commits_to_nothing(turn):
    with pytest.raises(PeerError):
        turn.sealers[ME].assist(turn.commit_request(**{PEER: b"x"}))
    with pytest.raises(PeerError, match="recover before"):
        turn.recover(PEER)
    turn.sealers[ME].seal(X, replace(TAG, attempt=2))


def test_a_recovery_without_this_partys_commit_is_refused(turn):
    turn.commit(PEER)
    with pytest.raises(PeerError, match="asked to recover before this party committed"):
        turn.recover(OTHER)


def test_a_recovery_of_an_old_turn_is_refused(turn):
    turn.commit()
    old = turn.recover_request(OTHER)
    later = Turn(turn.sealers, replace(TAG, turn=4))
    later.commit()
    with pytest.raises(PeerError, match="not the last"):
        turn.sealers[ME].assist(old)


@pytest.mark.parametrize("lost", [(PEER, OTHER), PARTIES[1:], (PEER, ME), (ME,), ("p99",), (PEER, "p99")])
def test_a_recovery_of_too_many_or_of_no_peer_is_refused(turn, lost):
    turn.commit()
    with pytest.raises(PeerError, match=f"asked to recover {len(lost)} of 5 parties"):
        turn.recover(*lost)


def test_a_recovery_gives_shares_of_the_lost_only(turn):
    turn.commit()
    name, share = fields.unpack(turn.recover(PEER))
    assert name == PEER.encode()
    assert len(share) == SHARE_BYTES


def test_names_that_are_not_text_are_refused(turn):
    with pytest.raises(PeerError, match="not text"):
        turn.sealers[ME].assist(fields.pack(COMMIT, turn.ctx, b"\xff", b"share"))
    turn.commit()
    with pytest.raises(PeerError, match="not text"):
        turn.sealers[ME].assist(fields.pack(RECOVER, turn.ctx, b"\xff"))


# ---- losses -----------------------------------------------------------------------------------------


def lose_after_upload(lost, parties=PARTIES):
    tag = tag_of(parties)
    of, due = vectors(parties, 3, 8)
    sealers, opener = masked_sealers(parties), masked_opener(tag)
    upload(opener, sealers, of, tag)
    for party in lost:
        opener.lose(party)
        del sealers[party]
    return opener, sealers, due


@pytest.mark.parametrize("lost", PARTIES)
def test_one_of_five_lost_after_its_upload_does_not_cost_the_turn_nor_its_rows(lost):
    opener, sealers, due = lose_after_upload([lost])
    assert help_open(opener, sealers).tolist() == due.tolist()


@pytest.mark.parametrize("lost", [PARTIES[:2], PARTIES[1:4], PARTIES])
def test_of_five_two_or_more_lost_cost_the_turn_before_any_mask_is_given_away(lost):
    opener, _, _ = lose_after_upload(lost)
    with pytest.raises(RosterTooSmall, match=f"{5 - len(lost)} of 5 parties are left, 4 are needed"):
        opener.requests()


def test_parties_lost_after_they_gave_their_masks_are_no_longer_needed():
    opener, sealers, due = lose_after_upload([])
    for party, request in opener.requests().items():
        opener.assist(party, sealers[party].assist(request))
        opener.lose(party)
    assert opener.requests() == {}
    assert opener.open().tolist() == due.tolist()


def test_a_party_lost_between_its_upload_and_its_commit():
    opener, sealers, due = lose_after_upload([])
    requests = opener.requests()
    for party in PARTIES[1:]:
        opener.assist(party, sealers[party].assist(requests[party]))
    opener.lose(ME)
    assert set(opener.requests()) == set(PARTIES[1:])
    assert help_open(opener, sealers).tolist() == due.tolist()


def test_the_largest_number_of_losses_that_ten_parties_can_bear():
    parties = names(10)
    opener, sealers, due = lose_after_upload(parties[3:7], parties)
    assert help_open(opener, sealers).tolist() == due.tolist()
    opener, _, _ = lose_after_upload(parties[3:8], parties)
    with pytest.raises(RosterTooSmall):
        opener.requests()


# ---- what the aggregator does not take ---------------------------------------------------------------


def test_a_sum_is_not_opened_before_its_time():
    opener, _, _ = lose_after_upload([])
    with pytest.raises(PeerError, match="cannot be opened yet"):
        opener.open()


def test_a_self_mask_that_was_not_committed_to_is_a_peer_error():
    opener, sealers, due = lose_after_upload([])
    for answer in (bytes(32), b"", sealers[PEER].assist(opener.requests()[PEER])):
        with pytest.raises(PeerError, match=f"mask of party {ME} is not the one it committed to"):
            opener.assist(ME, answer)
    assert help_open(opener, sealers).tolist() == due.tolist()


def commit_all(opener, sealers):
    for party, request in opener.requests().items():
        opener.assist(party, sealers[party].assist(request))


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        fields.pack(OTHER.encode(), bytes(SHARE_BYTES)),
        fields.pack(ME.encode(), bytes(SHARE_BYTES - 1)),
        fields.pack(ME.encode(), bytes(SHARE_BYTES), OTHER.encode(), bytes(SHARE_BYTES)),
        fields.pack(ME.encode(), bytes(SHARE_BYTES), ME.encode(), bytes(SHARE_BYTES)),
    ],
    ids=["nothing", "another", "short", "more", "twice"],
)
def test_shares_that_were_not_asked_for_are_a_peer_error(answer):
    """An answer without the shares would have the aggregator ask for them for ever."""
    opener, sealers, due = lose_after_upload([ME])
    commit_all(opener, sealers)
    opener.requests()
    with pytest.raises(PeerError):
        opener.assist(PEER, answer)
    assert help_open(opener, sealers).tolist() == due.tolist()


@pytest.mark.parametrize("wrong", [bytes(SHARE_BYTES), b"\x01\xff" + b"\xff" * 64, b"\xff" * SHARE_BYTES])
def test_wrong_shares_name_the_lost_party_and_give_no_wrong_sum(wrong):
    """Who spoilt them cannot be told: it is no fault of the party that helped last."""
    opener, sealers, _ = lose_after_upload([ME])
    commit_all(opener, sealers)
    requests = opener.requests()
    opener.assist(PEER, fields.pack(ME.encode(), wrong))
    for party in PARTIES[2:4]:
        opener.assist(party, sealers[party].assist(requests[party]))
    said = f"self mask of party {ME}, which was lost, .* party {ME} dealt wrong ones, or a party that helped"
    with pytest.raises(SessionFailed, match=said):
        opener.assist(PARTIES[4], sealers[PARTIES[4]].assist(requests[PARTIES[4]]))
    assert opener.requests(), "the sum cannot be opened"


@pytest.mark.parametrize("kept", [slice(0, 0), slice(0, 1), slice(0, 3), slice(3, None), slice(0, 8)])
def test_a_note_without_a_share_for_everybody_is_a_peer_error(turn, kept):
    opener = masked_opener(TAG)
    with pytest.raises(PeerError):
        opener.note(ME, fields.pack(*fields.unpack(turn.notes[ME])[kept]))


@pytest.mark.parametrize("place", [0, 2, -1])
def test_a_note_whose_commitment_or_share_is_longer_is_a_peer_error(turn, place):
    """What a party says, the aggregator keeps or passes on: it must not be of any size."""
    said = fields.unpack(turn.notes[ME])
    said[place] += b"\0"
    with pytest.raises(PeerError, match="another length"):
        masked_opener(TAG).note(ME, fields.pack(*said))


# ---- keys and masks ---------------------------------------------------------------------------------


@pytest.fixture
def streams(monkeypatch):
    """The key of every stream of masks that was begun."""
    keys = []

    begin = pairwise.Stream.__init__

    def listening(stream, key):
        keys.append(key)
        begin(stream, key)

    monkeypatch.setattr(pairwise.Stream, "__init__", listening)
    return keys


@pytest.fixture
def sealing_keys(monkeypatch):
    """The key of every share that was encrypted; the nonce is always zero."""
    keys = []

    def listening(key):
        keys.append(key)
        return AESGCM(key)

    monkeypatch.setattr("fedboost.privacy.masked.sealer.AESGCM", listening)
    return keys


def test_no_two_sealings_use_the_same_stream_or_key(streams, sealing_keys):
    """Turns, attempts, trees, peers, sessions: each pair's mask is begun at both ends and never again."""
    tags = [
        replace(TAG, turn=turn, attempt=attempt, epoch=tree, transcript=transcript)
        for turn, tree, transcript in ((1, -1, b"a"), (2, 0, b"b"), (3, 0, b"c"), (4, 1, b"c"), (5, 5, b"c"))
        for attempt in (0, 1)
    ]
    for session in (b"one", b"two"):
        sealers = masked_sealers(PARTIES, session=session, seed=session)
        for tag in tags:
            Turn(sealers, tag, session=session)
    sealings = 2 * len(tags) * len(PARTIES)
    counts = Counter(Counter(streams).values())
    assert counts == {1: sealings, 2: sealings * 4 // 2}, "one self mask each, and four masks shared by two"
    assert set(Counter(sealing_keys).values()) == {1}
    assert len(sealing_keys) == sealings * 4
    assert not set(streams) & set(sealing_keys)


def test_the_same_keys_in_another_session_or_with_another_threshold_make_other_streams(streams):
    for session, colluding in ((b"one", 1), (b"two", 1), (b"one", 0), (b"one", 2)):
        group = Group.of(PARTIES, colluding)
        for party, sealer in masked_sealers(PARTIES, session=session, group=group).items():
            sealer._draw = drawing(f"{party} {session} {colluding}")
            list(sealer.seal(X, TAG))
    assert set(Counter(streams).values()) == {1, 2}


def test_the_same_vector_looks_unrelated_each_time_it_is_sealed():
    sealers = masked_sealers(PARTIES)
    zeros = np.zeros(64, np.int64)
    tags = [
        replace(TAG, turn=n, attempt=a, epoch=n, segments=(Segment(64, 64),)) for n in (3, 4) for a in (0, 1)
    ]
    seen = [b"".join(sealers[party].seal(zeros, tag)) for tag in tags for party in PARTIES]
    for one, other in combinations(seen, 2):
        equal = np.count_nonzero(np.frombuffer(one, np.uint8) == np.frombuffer(other, np.uint8))
        assert equal < 16, "512 random bytes agree in 2 places on average"


def test_a_note_is_made_once_and_asked_for_again_it_is_the_same(turn, sealing_keys):
    """Two sets of shares under one key and nonce would give both away."""
    assert turn.sealers[ME].note() == turn.notes[ME]
    assert sealing_keys == []
    assert Turn(turn.sealers, replace(TAG, turn=4)).notes[ME] != turn.notes[ME]


def test_what_a_party_sends_is_what_the_design_says():
    """A twin of the sealing: values plus the own mask, plus the masks of later parties, minus of earlier."""
    group, keys = Group.of(names(3)), keys_of_pairs(names(3))
    tag = tag_of(names(3), epoch=-1, cells=5)
    ctx = context(SESSION, group, tag)
    values = np.array([1, -1, 2**62, -(2**62), 0])

    def mask_of(key):
        stream = Cipher(algorithms.AES(key), modes.CTR(bytes(15) + b"\x02")).encryptor().update(bytes(40))
        return np.frombuffer(stream, "<u8")

    middle = MaskedSealer("p01", group, SESSION, keys["p01"], drawing("middle"))
    own = drawing("middle")(32)
    due = values.astype(np.uint64) + mask_of(pairwise.derive(own, b"self", ctx, b"p01"))
    due += mask_of(pairwise.derive(keys["p01"]["p02"], b"pair", ctx, b"p01", b"p02"))
    due -= mask_of(pairwise.derive(keys["p01"]["p00"], b"pair", ctx, b"p00", b"p01"))
    assert list(middle.seal(values, tag)) == [due.tobytes()]


@pytest.mark.parametrize(
    "other",
    [
        replace(TAG, turn=4),
        replace(TAG, attempt=2),
        replace(TAG, epoch=3),
        replace(TAG, epoch=-1),
        replace(TAG, roster=PARTIES[:4]),
        replace(TAG, transcript=b""),
        replace(TAG, segments=(Segment(4, 64),)),
        replace(TAG, segments=(Segment(3, 56),)),
    ],
)
def test_everything_in_a_tag_is_in_its_context(other):
    assert context(SESSION, GROUP, TAG) != context(SESSION, GROUP, other)
    assert context(SESSION, GROUP, TAG) == context(SESSION, GROUP, replace(TAG, roster=PARTIES[::-1]))
    assert context(b"other", GROUP, TAG) != context(SESSION, GROUP, TAG)
    assert context(SESSION, Group.of(PARTIES, 0), TAG) != context(SESSION, GROUP, TAG)


def chi_square(data):
    """Of the bytes against evenly distributed ones: 255 degrees of freedom, mean 255, deviation 22.6."""
    counts = np.bincount(np.frombuffer(data, np.uint8), minlength=256)
    due = len(data) / 256
    return float(((counts - due) ** 2 / due).sum())


@pytest.mark.parametrize("bits", [1, 23, 64])
@pytest.mark.parametrize("value", [0, -1, 77])
def test_one_report_looks_uniformly_random(value, bits):
    tag = replace(TAG, segments=(Segment(40_000, bits),))
    for sealer in masked_sealers(PARTIES).values():
        report = b"".join(sealer.seal(np.full(tag.cells, value), tag))
        steps = np.diff(np.frombuffer(report, np.uint8)).tobytes()
        bits = np.unpackbits(np.frombuffer(report, np.uint8))
        assert 172 < chi_square(report) < 350, "0.001 % on either side"
        assert 172 < chi_square(steps) < 350
        assert abs(bits.mean() - 0.5) < 4.5 * 0.5 / np.sqrt(bits.size)


def test_a_report_still_looks_random_when_its_self_mask_is_known():
    """The pairs' masks hide it on their own: what commits and recoveries give away opens no report."""
    tag = replace(TAG, segments=(Segment(40_000, 64),))
    turn = Turn(masked_sealers(PARTIES), tag, np.zeros(tag.cells, np.int64))
    for party in PARTIES:
        stream = self_stream(turn.commit(party), turn.ctx, party).next(8 * tag.cells)
        bare = np.frombuffer(turn.uploads[party], "<u8") - np.frombuffer(stream, "<u8")
        assert 172 < chi_square(bare.tobytes()) < 350


def test_without_any_mask_the_uniformity_test_fails():
    assert chi_square(np.full(40_000, 77).tobytes()) > 350


# ---- what is forgotten ------------------------------------------------------------------------------


def secrets_in(thing, seen=None):
    """Every byte string that can be reached from an object's attributes."""
    seen = set() if seen is None else seen
    if isinstance(thing, bytes | bytearray | memoryview):
        yield bytes(thing)
        return
    if id(thing) in seen or isinstance(thing, type) or callable(thing):
        return
    seen.add(id(thing))
    if isinstance(thing, dict):
        inner = [*thing.keys(), *thing.values()]
    elif isinstance(thing, list | tuple | set):
        inner = list(thing)
    else:
        inner = list(getattr(thing, "__dict__", {}).values())
    for each in inner:
        yield from secrets_in(each, seen)


def test_with_the_next_tree_the_old_keys_are_gone(sealers):
    before = set(keys_of_pairs(PARTIES)[ME].values())
    old = Turn(sealers, replace(TAG, epoch=-1))
    old_keys, old_mask = set(sealers[ME]._pairs._keys.values()), old.commit()
    assert before == old_keys <= set(secrets_in(sealers[ME])), "the first keys are those of epoch -1"
    assert {old_mask, old.ctx} <= set(secrets_in(sealers[ME]))

    Turn(sealers, replace(TAG, turn=4, epoch=0))
    held = b"".join(secrets_in(sealers[ME]))
    for secret in (*old_keys, old_mask, old.ctx):
        assert secret not in held


def test_old_masks_cannot_be_computed_from_what_is_left(sealers, streams):
    """With all that is in memory after the ratchet taken for a key: no stream of an earlier tree."""
    old_tag = replace(TAG, epoch=0)
    old = Turn(sealers, old_tag)
    used = set(streams)
    Turn(sealers, replace(TAG, turn=4, epoch=1))
    for party in PARTIES:
        for secret in set(secrets_in(sealers[party])):
            for low, high in combinations(PARTIES, 2):
                key = pairwise.derive(secret, b"pair", old.ctx, low.encode(), high.encode())
                assert key not in used
            assert pairwise.derive(secret, b"self", old.ctx, party.encode()) not in used
    first = keys_of_pairs(PARTIES)[ME][PEER]
    of_tree_0 = pairwise.derive(first, b"ratchet", fields.number(-1))
    pair = pairwise.derive(of_tree_0, b"pair", old.ctx, ME.encode(), PEER.encode())
    assert pair in used, "while from the first key it can"


def test_with_the_next_turn_the_old_self_mask_and_shares_are_gone(turn):
    mask = turn.commit()
    _, share = fields.unpack(turn.recover(PEER))
    assert {mask, share} <= set(secrets_in(turn.sealers[ME]))
    Turn(turn.sealers, replace(TAG, turn=4))
    held = b"".join(secrets_in(turn.sealers[ME]))
    assert mask not in held
    assert share not in held


def test_with_the_next_attempt_the_aborted_self_mask_is_gone(turn):
    mask = turn.sealers[ME]._mask
    Turn(turn.sealers, replace(TAG, attempt=2))
    assert mask not in b"".join(secrets_in(turn.sealers[ME]))


@pytest.mark.parametrize("trees", [(-1, 0, 1, 2), (0, 2), (2,)])
def test_parties_that_were_away_for_some_trees_have_the_keys_of_the_others(trees):
    """Keys depend on the tree alone, not on the trees that a party saw."""
    sealers = masked_sealers(PARTIES)
    for turn, tree in enumerate((-1, 0, 1, 2)):
        roster = PARTIES if tree in trees else PARTIES[1:]
        tag = tag_of(roster, turn=turn, epoch=tree)
        of, due = vectors(roster, 3, 8)
        opener = masked_opener(tag, PARTIES)
        upload(opener, sealers, of, tag)
        assert help_open(opener, sealers).tolist() == due.tolist()


# ---- the handshake ----------------------------------------------------------------------------------


def test_both_ends_of_a_pair_derive_the_same_key_and_no_two_pairs_do():
    handshakes = {party: Handshake(drawing(party)) for party in PARTIES}
    publics = {party: handshake.public for party, handshake in handshakes.items()}
    keys = {party: handshakes[party].pair_keys(party, publics, SESSION) for party in PARTIES}
    assert all(set(keys[party]) == set(PARTIES) - {party} for party in PARTIES)
    assert all(keys[one][other] == keys[other][one] for one, other in combinations(PARTIES, 2))
    assert len({key for of in keys.values() for key in of.values()}) == 10


def test_the_session_is_in_every_key():
    publics = {party: Handshake(drawing(party)).public for party in PARTIES}
    keys = [Handshake(drawing(ME)).pair_keys(ME, publics, session) for session in (b"one", b"two")]
    assert not set(keys[0].values()) & set(keys[1].values())


@pytest.mark.parametrize("public", [b"", bytes(31), bytes(33), bytes(32), (1).to_bytes(32, "little")])
def test_a_public_key_that_is_none_is_a_peer_error(public):
    """All zeros and one are points of small order: the secret shared with them is known to everybody."""
    with pytest.raises(PeerError, match=f"the key of party {PEER} is no X25519 key"):
        Handshake(drawing(0)).pair_keys(ME, {PEER: public}, SESSION)


def test_the_private_key_is_forgotten_once_the_pairs_have_theirs():
    """It gives the first keys of the session, and so those of every tree, to whoever has it."""
    handshake = Handshake(drawing(0))
    publics = {PEER: Handshake(drawing(1)).public}
    handshake.pair_keys(ME, publics, SESSION)
    assert vars(handshake) == {"_private": None, "public": handshake.public}
    with pytest.raises(PeerError, match="derived already"):
        handshake.pair_keys(ME, publics, SESSION)


def test_keys_are_derived_as_hkdf_does():
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

    info = fields.pack(b"pair", b"context", b"north")
    expand = HKDFExpand(hashes.SHA256(), 32, info)
    assert pairwise.derive(b"k" * 32, b"pair", b"context", b"north") == expand.derive(b"k" * 32)


# ---- what is printed --------------------------------------------------------------------------------


def test_nothing_that_is_printed_has_a_secret(turn):
    opener, sealers, _ = lose_after_upload([ME])
    commit_all(opener, sealers)
    mask = turn.commit()
    stream = pairwise.Stream(mask)
    for thing in (turn.sealers[ME], opener, Handshake(drawing(0)), stream, GROUP, TAG):
        held = {secret for secret in secrets_in(thing) if len(secret) >= 16} | {mask}
        held -= {TAG.transcript}  # the hash of the questions is no secret, and tags print it
        for shown in (repr(thing), str(thing), f"{thing}"):
            for secret in held:
                assert secret.hex() not in shown
                assert repr(secret)[2:-1] not in shown
    assert repr(turn.sealers[ME]) == "MaskedSealer('p00')"


def test_no_refusal_has_a_secret_in_its_message(turn):
    mask = turn.commit()
    bad = [
        lambda sealer: sealer.seal(X, TAG),
        lambda sealer: sealer.assist(turn.commit_request(**{PEER: b"x"})),
        lambda sealer: sealer.assist(turn.recover_request(PEER, OTHER)),
        lambda sealer: sealer.assist(fields.pack(b"?", turn.ctx)),
    ]
    for act in bad:
        with pytest.raises(PeerError) as caught:
            act(turn.sealers[ME])
        assert caught.value.__cause__ is None
        for secret in (mask, *secrets_in(turn.sealers[ME])):
            if len(secret) >= 16:
                assert repr(secret)[2:-1] not in str(caught.value)
                assert secret.hex() not in str(caught.value)
