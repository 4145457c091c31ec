"""Protection `masked`: what a party does not help to open."""

from dataclasses import replace

import numpy as np
import pytest
from consortium import drawing, masked_sealers
from masked_turn import ME, OTHER, PARTIES, PEER, TAG, Turn, X
from raised import raised

from fedboost.errors import PeerError
from fedboost.privacy import packing
from fedboost.privacy.ends import COMMIT, RECOVER
from fedboost.privacy.packing import Segment
from fedboost.privacy.pairwise import SHARE_BYTES, Group


def test_a_commit_gives_the_self_mask_and_again_the_same(turn):
    mask = turn.commit()
    assert len(mask) == 32
    assert turn.commit() == mask


def test_a_commit_before_anything_was_sealed_is_refused(turn):
    fresh = masked_sealers(PARTIES)[ME]
    with raised(PeerError, "help-stale"):
        fresh.assist(turn.commit_request())
    with raised(PeerError, "help-stale"):
        fresh.assist(packing.pack(COMMIT, b""))


@pytest.mark.parametrize("newer", [{"attempt": 2}, {"turn": 4}], ids=str)
def test_a_commit_of_an_old_attempt_or_turn_is_refused(turn, newer):
    old = turn.commit_request()
    if "turn" in newer:
        turn.commit()
    Turn(turn.sealers, replace(TAG, **newer))
    with raised(PeerError, "help-stale"):
        turn.sealers[ME].assist(old)


def test_a_commit_of_an_attempt_that_this_party_has_not_sealed_is_refused(turn):
    """The others are at attempt 2, this one is at 1: their shares do not commit it to either."""
    others = {party: sealer for party, sealer in turn.sealers.items() if party != ME}
    double = masked_sealers(PARTIES)[ME]  # so that there are shares for it
    later = Turn({**others, ME: double}, replace(TAG, attempt=2))
    with raised(PeerError, "help-stale"):
        turn.sealers[ME].assist(later.commit_request())
    with raised(PeerError, "share-not-authentic"):
        turn.sealers[ME].assist(turn.commit_request(**later.shares(ME)))


@pytest.mark.parametrize("sender", PARTIES[1:])
def test_a_commit_without_a_share_is_refused(turn, sender):
    with raised(PeerError, "commit-shares-missing"):
        turn.sealers[ME].assist(turn.commit_request(**{sender: b""}))
    with raised(PeerError, "recover-before-commit"):
        turn.recover(sender)


def test_a_commit_with_no_share_at_all_is_refused(turn):
    with raised(PeerError, "commit-shares-missing"):
        turn.sealers[ME].assist(packing.pack(COMMIT, turn.ctx))


@pytest.mark.parametrize("extra", [ME, "p99"])
def test_a_commit_with_a_share_too_many_is_refused(turn, extra):
    with raised(PeerError, "commit-shares-missing"):
        turn.sealers[ME].assist(turn.commit_request(**{extra: turn.shares(ME)[PEER]}))


def test_a_commit_with_two_shares_of_one_party_is_refused(turn):
    entries = packing.unpack(turn.commit_request())
    for doubled in (entries + entries[2:4], [*entries[:2], *entries[2:4], *entries[2:-2]], entries[:-1]):
        with raised(PeerError, "help-fields-invalid"):
            turn.sealers[ME].assist(packing.pack(*doubled))


@pytest.mark.parametrize("place", [0, 1, 30, SHARE_BYTES - 1, SHARE_BYTES, SHARE_BYTES + 15])
def test_a_changed_share_is_refused(turn, place):
    share = bytearray(turn.shares(ME)[PEER])
    share[place] ^= 1
    with raised(PeerError, "share-not-authentic", naming=[PEER]):
        turn.sealers[ME].assist(turn.commit_request(**{PEER: bytes(share)}))


@pytest.mark.parametrize("share", [b"\0", bytes(SHARE_BYTES), bytes(SHARE_BYTES + 16), bytes(1000)])
def test_a_made_up_share_is_refused(turn, share):
    with raised(PeerError, "share-not-authentic"):
        turn.sealers[ME].assist(turn.commit_request(**{PEER: share}))


def test_a_share_for_or_of_another_party_is_refused(turn):
    swapped = {PEER: turn.shares(ME)[OTHER], OTHER: turn.shares(ME)[PEER]}
    own_to_peer = {PEER: turn.shares(PEER)[ME]}
    for changed in (swapped, own_to_peer, {PEER: turn.shares(OTHER)[PEER]}):
        with raised(PeerError, "share-not-authentic"):
            turn.sealers[ME].assist(turn.commit_request(**changed))


@pytest.mark.parametrize(
    "theirs",
    [
        replace(TAG, roster=PARTIES[:4]),
        replace(TAG, transcript=b"other questions"),
        replace(TAG, turn=4),
        replace(TAG, attempt=2),
        replace(TAG, segments=(Segment(4, 64),)),
        replace(TAG, segments=(Segment(3, 32),)),
    ],
    ids=["roster", "transcript", "turn", "attempt", "cells", "bits"],
)
def test_a_share_under_another_tag_is_refused(turn, theirs):
    """One party was told something else than the others: nobody gives a self mask away."""
    split = masked_sealers(PARTIES)
    list(split[PEER].seal(np.zeros(4), theirs))
    note = dict(zip(*[iter(packing.unpack(split[PEER].note())[1:])] * 2, strict=True))
    with raised(PeerError, "share-not-authentic", naming=[PEER]):
        turn.sealers[ME].assist(turn.commit_request(**{PEER: note[ME.encode()]}))


@pytest.mark.parametrize(
    "other", [{"session": b"another session"}, {"group": Group.of(PARTIES, 0)}, {"seed": 1}], ids=str
)
def test_a_share_under_another_session_group_or_key_is_refused(turn, other):
    """A group of the same members with another threshold. The key is confirmed: whoever stands in the middle
    has no share that opens."""
    theirs = Turn(masked_sealers(PARTIES, **other), **{k: v for k, v in other.items() if k != "seed"})
    with raised(PeerError, "share-not-authentic"):
        turn.sealers[ME].assist(turn.commit_request(**{PEER: theirs.shares(ME)[PEER]}))


def test_a_commit_twice_with_different_shares_is_refused(turn):
    """A peer that broke the rules sealed two sets of shares under one tag."""
    twin = masked_sealers(PARTIES)[PEER]
    twin._draw = drawing("another polynomial")
    list(twin.seal(X, TAG))
    note = dict(zip(*[iter(packing.unpack(twin.note())[1:])] * 2, strict=True))
    turn.commit()
    with raised(PeerError, "commit-repeated"):
        turn.sealers[ME].assist(turn.commit_request(**{PEER: note[ME.encode()]}))
    turn.commit()


def test_a_refused_commit_commits_to_nothing(turn):
    with pytest.raises(PeerError):
        turn.sealers[ME].assist(turn.commit_request(**{PEER: b"x"}))
    with raised(PeerError, "recover-before-commit"):
        turn.recover(PEER)
    turn.sealers[ME].seal(X, replace(TAG, attempt=2))


def test_a_recovery_without_this_partys_commit_is_refused(turn):
    turn.commit(PEER)
    with raised(PeerError, "recover-before-commit"):
        turn.recover(OTHER)


def test_a_recovery_of_an_old_turn_is_refused(turn):
    turn.commit()
    old = turn.recover_request(OTHER)
    later = Turn(turn.sealers, replace(TAG, turn=4))
    later.commit()
    with raised(PeerError, "help-stale"):
        turn.sealers[ME].assist(old)


@pytest.mark.parametrize("lost", [(PEER, OTHER), PARTIES[1:], (PEER, ME), (ME,), ("p99",), (PEER, "p99")])
def test_a_recovery_of_too_many_or_of_no_peer_is_refused(turn, lost):
    turn.commit()
    with raised(PeerError, "recover-too-many", naming=[len(lost)]):
        turn.recover(*lost)


def test_a_recovery_gives_shares_of_the_lost_only(turn):
    turn.commit()
    name, share = packing.unpack(turn.recover(PEER))
    assert name == PEER.encode()
    assert len(share) == SHARE_BYTES


def test_names_that_are_not_text_are_refused(turn):
    with raised(PeerError, "help-name-invalid"):
        turn.sealers[ME].assist(packing.pack(COMMIT, turn.ctx, b"\xff", b"share"))
    turn.commit()
    with raised(PeerError, "help-name-invalid"):
        turn.sealers[ME].assist(packing.pack(RECOVER, turn.ctx, b"\xff"))
