"""Protection `masked`: which keys are used for what, how they are agreed on, and what is forgotten."""

import hashlib
from collections import Counter
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from consortium import (
    SESSION,
    drawing,
    keys_of_pairs,
    keystream,
    masked_opener,
    masked_sealers,
    names,
    setup_of,
    tag_of,
    upload,
)
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from masked_turn import GROUP, ME, OTHER, PARTIES, PEER, TAG, Turn, X, commit_all, lose_after_upload
from raised import raised

from fedboost.errors import PeerError, SessionFailed
from fedboost.privacy import packing, pairwise
from fedboost.privacy.ends import OneLegSealer, TwoLegSealer, self_key
from fedboost.privacy.packing import Segment
from fedboost.privacy.pairwise import BENEATH, ONE_LEG, TWO_LEGS, Group, Handshake, context

# ---- keys and masks ---------------------------------------------------------------------------------


@pytest.fixture
def streams(monkeypatch):
    """The key of every stream of masks that was begun."""
    keys = []

    begin = pairwise.mask

    def listening(whole, tag, streams):
        keys.extend(key for key, _ in streams)
        return begin(whole, tag, streams)

    monkeypatch.setattr(pairwise, "mask", listening)
    return keys


@pytest.fixture
def sealing_keys(monkeypatch):
    """The key of every share that was encrypted; the nonce is always zero."""
    keys = []

    def listening(key):
        keys.append(key)
        return AESGCM(key)

    monkeypatch.setattr("fedboost.privacy.ends.AESGCM", listening)
    return keys


def test_no_two_sealings_use_the_same_stream_or_key(streams, sealing_keys):
    """Turns, attempts, peers, sessions: each pair's mask is begun at both ends and never again."""
    tags = [
        replace(TAG, turn=turn, attempt=attempt, transcript=transcript)
        for turn, transcript in ((1, b"a"), (2, b"b"), (3, b"c"), (4, b"c"), (5, b"c"))
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
    tags = [replace(TAG, turn=n, attempt=a, segments=(Segment(64, 64),)) for n in (3, 4) for a in (0, 1)]
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
    """Reference of sealing: values and a check cell, plus the masks of later parties, minus those of earlier;
    in two legs plus the own mask."""
    group, keys = Group.of(names(3)), keys_of_pairs(names(3))
    tag = tag_of(names(3), cells=5)
    values, check = np.array([1, -1, 2**62, -(2**62), 0]), 1

    def mask_of(key):
        return np.frombuffer(keystream(key, 48), "<u8")

    def pair_of(key, ctx):
        return mask_of(hashlib.sha512(bytes(3) + b"\x01" + key + b"fedboost/5/mask" + ctx).digest()[:32])

    def masked(ctx):
        due = np.append(values, check).astype(np.uint64)
        return due + pair_of(keys["p01"]["p02"], ctx) - pair_of(keys["p01"]["p00"], ctx)

    alone = OneLegSealer(setup_of("p01", group, keys))
    assert list(alone.seal(values, tag)) == [masked(context(ONE_LEG, SESSION, group, tag)).tobytes()]
    middle = TwoLegSealer(setup_of("p01", group, keys, drawing("middle")))
    own = drawing("middle")(32)
    ctx = context(TWO_LEGS, SESSION, group, tag)
    due = masked(ctx) + mask_of(pairwise.derive(own, b"self", ctx, b"p01"))
    assert list(middle.seal(values, tag)) == [due.tobytes()]


@pytest.mark.parametrize(
    "other",
    [
        replace(TAG, turn=4),
        replace(TAG, attempt=2),
        replace(TAG, roster=PARTIES[:4]),
        replace(TAG, transcript=b""),
        replace(TAG, segments=(Segment(4, 64),)),
        replace(TAG, segments=(Segment(3, 56),)),
    ],
)
def test_everything_in_a_tag_is_in_its_context(other):
    ctx = context(ONE_LEG, SESSION, GROUP, TAG)
    assert ctx != context(ONE_LEG, SESSION, GROUP, other)
    assert ctx == context(ONE_LEG, SESSION, GROUP, replace(TAG, roster=PARTIES[::-1]))
    assert ctx != context(ONE_LEG, b"other", GROUP, TAG)
    assert ctx != context(ONE_LEG, SESSION, Group.of(PARTIES, 0), TAG)
    assert len({context(way, SESSION, GROUP, TAG) for way in (ONE_LEG, TWO_LEGS, BENEATH)}) == 3


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
        stream = keystream(self_key(turn.commit(party), turn.ctx, party), 8 * tag.cells)
        bare = np.frombuffer(turn.uploads[party], "<u8")[:-1] - np.frombuffer(stream, "<u8")
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


@pytest.mark.parametrize("legs", [1, 2])
def test_once_a_vector_is_sealed_the_keys_that_masked_it_are_gone(legs):
    sealers, first = masked_sealers(PARTIES, legs=legs), set(keys_of_pairs(PARTIES)[ME].values())
    assert first <= set(secrets_in(sealers[ME]))
    for turn in (3, 4):
        before = set(sealers[ME]._pairs._keys.values())
        list(sealers[ME].seal(X, replace(TAG, turn=turn)))
        assert not before & set(secrets_in(sealers[ME]))
    assert set(sealers[ME]._pairs._keys) == set(PARTIES) - {ME}


@pytest.mark.parametrize("legs", [1, 2])
def test_no_stream_of_a_turn_can_be_computed_from_what_is_left_after_it(legs, streams):
    """With all that is in memory after turn t taken for a key: no stream of the turns before, nor, in one
    leg, of turn t itself."""
    sealers, tags = masked_sealers(PARTIES, legs=legs), [replace(TAG, turn=turn) for turn in (3, 4, 5)]
    way = ONE_LEG if legs == 1 else TWO_LEGS
    for tag in tags:
        for party in PARTIES:
            list(sealers[party].seal(X, tag))
    used = set(streams)
    for tag in tags if legs == 1 else tags[:-1]:
        ctx = context(way, SESSION, GROUP, tag)
        for party in PARTIES:
            for secret in set(secrets_in(sealers[party])):
                assert pairwise.mask_keys(secret, ctx)[0] not in used
                assert pairwise.derive(secret, b"self", ctx, party.encode()) not in used
    first = keys_of_pairs(PARTIES)[ME][PEER]
    for tag in tags:
        ctx = context(way, SESSION, GROUP, tag)
        mask, first = pairwise.mask_keys(first, ctx)
        assert mask in used, "as from the first"


def test_with_the_next_turn_the_old_self_mask_and_shares_are_gone(turn):
    mask = turn.commit()
    _, share = packing.unpack(turn.recover(PEER))
    assert {mask, share} <= set(secrets_in(turn.sealers[ME]))
    Turn(turn.sealers, replace(TAG, turn=4))
    held = b"".join(secrets_in(turn.sealers[ME]))
    assert mask not in held
    assert share not in held


def test_with_the_next_attempt_the_aborted_self_mask_is_gone(turn):
    mask = turn.sealers[ME]._mask
    Turn(turn.sealers, replace(TAG, attempt=2))
    assert mask not in b"".join(secrets_in(turn.sealers[ME]))


def test_parties_that_sealed_under_different_tags_have_no_keys_in_common_any_more():
    """Nothing of theirs opens under these keys again: they meet in another attempt."""
    sealers, tag = masked_sealers(PARTIES, legs=1), replace(TAG, turn=4)
    for party in PARTIES:
        list(sealers[party].seal(X, replace(TAG, transcript=b"for you alone") if party == ME else TAG))
    opener = masked_opener(tag, legs=1)
    upload(opener, sealers, dict.fromkeys(PARTIES, X), tag)
    with raised(SessionFailed, "masks-not-cancelled"):
        opener.open()


# ---- the handshake ----------------------------------------------------------------------------------


def test_both_ends_of_a_pair_derive_the_same_key_and_no_two_pairs_do():
    handshakes = {party: Handshake(drawing(party)) for party in PARTIES}
    publics = {party: handshake.public for party, handshake in handshakes.items()}
    keys = {party: handshakes[party].pair_keys(party, publics, SESSION, PARTIES) for party in PARTIES}
    assert all(set(keys[party]) == set(PARTIES) - {party} for party in PARTIES)
    assert all(keys[one][other] == keys[other][one] for one, other in combinations(PARTIES, 2))
    assert len({key for of in keys.values() for key in of.values()}) == 10


def test_the_session_is_in_every_key():
    publics = {party: Handshake(drawing(party)).public for party in PARTIES}
    keys = [Handshake(drawing(ME)).pair_keys(ME, publics, session, PARTIES) for session in (b"one", b"two")]
    assert not set(keys[0].values()) & set(keys[1].values())


@pytest.mark.parametrize("public", [b"", bytes(31), bytes(33), bytes(32), (1).to_bytes(32, "little")])
def test_a_public_key_that_is_none_is_a_peer_error(public):
    """All zeros and one are points of small order: the secret shared with them is known to everybody."""
    with raised(PeerError, "key-not-x25519", naming=[PEER]):
        Handshake(drawing(0)).pair_keys(ME, {PEER: public}, SESSION, PARTIES)


def test_the_private_key_is_forgotten_once_the_pairs_have_theirs():
    """It gives the first keys of the session, and so those of every tree, to anyone who has it."""
    handshake = Handshake(drawing(0))
    publics = {PEER: Handshake(drawing(1)).public}
    handshake.pair_keys(ME, publics, SESSION, PARTIES)
    assert vars(handshake) == {"_private": None, "public": handshake.public}
    with raised(PeerError, "keys-derived-twice"):
        handshake.pair_keys(ME, publics, SESSION, PARTIES)


def test_keys_are_derived_as_hkdf_does():
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

    info = packing.pack(b"pair", b"context", b"north")
    expand = HKDFExpand(hashes.SHA256(), 32, info)
    assert pairwise.derive(b"k" * 32, b"pair", b"context", b"north") == expand.derive(b"k" * 32)


# ---- what is printed --------------------------------------------------------------------------------


def test_nothing_that_is_printed_has_a_secret(turn):
    opener, sealers, _ = lose_after_upload([ME])
    commit_all(opener, sealers)
    mask = turn.commit()
    for thing in (turn.sealers[ME], opener, Handshake(drawing(0)), GROUP, TAG):
        held = {secret for secret in secrets_in(thing) if len(secret) >= 16} | {mask}
        held -= {TAG.transcript}  # the hash of the questions is no secret, and tags print it
        for shown in (repr(thing), str(thing), f"{thing}"):
            for secret in held:
                assert secret.hex() not in shown
                assert repr(secret)[2:-1] not in shown
    assert repr(turn.sealers[ME]) == "TwoLegSealer('p00')"


def test_no_refusal_has_a_secret_in_its_message(turn):
    mask = turn.commit()
    bad = [
        lambda sealer: sealer.seal(X, TAG),
        lambda sealer: sealer.assist(turn.commit_request(**{PEER: b"x"})),
        lambda sealer: sealer.assist(turn.recover_request(PEER, OTHER)),
        lambda sealer: sealer.assist(packing.pack(b"?", turn.ctx)),
    ]
    for act in bad:
        with pytest.raises(PeerError) as caught:
            act(turn.sealers[ME])
        assert caught.value.__cause__ is None
        for secret in (mask, *secrets_in(turn.sealers[ME])):
            if len(secret) >= 16:
                assert repr(secret)[2:-1] not in str(caught.value)
                assert secret.hex() not in str(caught.value)
