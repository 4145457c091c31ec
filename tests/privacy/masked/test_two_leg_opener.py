"""Protection `masked`: losses, and what the aggregator does not take."""

import pytest
from consortium import help_open, masked_opener, names
from masked_turn import ME, OTHER, PARTIES, PEER, TAG, commit_all, lose_after_upload
from raised import raised

from fedboost.errors import PeerError, RosterTooSmall, SessionFailed
from fedboost.privacy import packing
from fedboost.privacy.pairwise import SHARE_BYTES

# ---- losses -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", PARTIES)
def test_one_of_five_lost_after_its_upload_does_not_cost_the_turn_nor_its_rows(lost):
    opener, sealers, due = lose_after_upload([lost])
    assert help_open(opener, sealers).tolist() == due.tolist()


@pytest.mark.parametrize("lost", [PARTIES[:2], PARTIES[1:4], PARTIES])
def test_of_five_two_or_more_lost_cost_the_turn_before_any_mask_is_given_away(lost):
    opener, _, _ = lose_after_upload(lost)
    with raised(RosterTooSmall, "roster-too-small", naming=[5 - len(lost)]):
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


# ---- what the aggregator does not take --------------------------------------------------------------


def test_a_sum_is_not_opened_before_its_time():
    opener, _, _ = lose_after_upload([])
    with raised(PeerError, "sum-not-open"):
        opener.open()


def test_a_self_mask_that_was_not_committed_to_is_a_peer_error():
    opener, sealers, due = lose_after_upload([])
    for answer in (bytes(32), b"", sealers[PEER].assist(opener.requests()[PEER])):
        with raised(PeerError, "self-mask-wrong", naming=[ME]):
            opener.assist(ME, answer)
    assert help_open(opener, sealers).tolist() == due.tolist()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        packing.pack(OTHER.encode(), bytes(SHARE_BYTES)),
        packing.pack(ME.encode(), bytes(SHARE_BYTES - 1)),
        packing.pack(ME.encode(), bytes(SHARE_BYTES), OTHER.encode(), bytes(SHARE_BYTES)),
        packing.pack(ME.encode(), bytes(SHARE_BYTES), ME.encode(), bytes(SHARE_BYTES)),
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
    opener.assist(PEER, packing.pack(ME.encode(), wrong))
    for party in PARTIES[2:4]:
        opener.assist(party, sealers[party].assist(requests[party]))
    said = f"self mask of lost party {ME} .* party {ME} sent wrong shares, or another party"
    with pytest.raises(SessionFailed, match=said):
        opener.assist(PARTIES[4], sealers[PARTIES[4]].assist(requests[PARTIES[4]]))
    assert opener.requests(), "the sum cannot be opened"


@pytest.mark.parametrize("kept", [slice(0, 0), slice(0, 1), slice(0, 3), slice(3, None), slice(0, 8)])
def test_a_note_without_a_share_for_everybody_is_a_peer_error(turn, kept):
    opener = masked_opener(TAG)
    with pytest.raises(PeerError):
        opener.note(ME, packing.pack(*packing.unpack(turn.notes[ME])[kept]))


@pytest.mark.parametrize("place", [0, 2, -1])
def test_a_note_whose_commitment_or_share_is_longer_is_a_peer_error(turn, place):
    """What a party says, the aggregator keeps or passes on: it must not be of any size."""
    said = packing.unpack(turn.notes[ME])
    said[place] += b"\0"
    with raised(PeerError, "commitment-length"):
        masked_opener(TAG).note(ME, packing.pack(*said))
