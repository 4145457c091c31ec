"""Relays: only a receiver opens one, of that sender and in that context; anything else is a PeerError."""

import hashlib
import itertools

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from fedboost.errors import PeerError
from fedboost.privacy import packing
from fedboost.privacy.pairwise import MIN_SEALED_BYTES, derive, open_sealed, seal, sealed_size

SECRET, OTHER = b"s" * 32, b"o" * 32
KEYS = {"shop": SECRET, "telco": OTHER}
REFUSED = (
    "^the bytes relayed by party bank cannot be decrypted: they were changed in transit, or are for a "
    "different turn or tree$"
)


def draws():
    """A source of random bytes that never repeats itself."""
    numbers = itertools.count(1)
    return lambda size: next(numbers).to_bytes(size)


def sealed(content=b"content", keys=KEYS, context=b"context", sender="bank"):
    return seal(content, sender, keys, context, draws())


def refused(data, sender="bank", receiver="shop", secret=SECRET, context=b"context"):
    with pytest.raises(PeerError, match=REFUSED.replace("bank", sender)):
        open_sealed(data, sender, receiver, secret, context)


names = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=8)
secrets = st.binary(min_size=32, max_size=32)


@given(st.binary(max_size=300), names, st.dictionaries(names, secrets, min_size=1, max_size=4), st.binary())
def test_each_receiver_opens_what_was_sealed_for_it(content, sender, keys, context):
    data = sealed(content, keys, context, sender)
    assert len(data) == sealed_size(len(content), keys) >= MIN_SEALED_BYTES
    for receiver, secret in keys.items():
        assert open_sealed(data, sender, receiver, secret, context) == content


def test_nobody_else_opens_it():
    data = sealed(keys={"shop": SECRET})
    refused(data, secret=OTHER)
    refused(data, receiver="telco")
    refused(data, receiver="telco", secret=OTHER)
    refused(data, sender="mall")
    refused(data, context=b"contexts")
    refused(data, context=b"")


def test_a_party_does_not_open_what_it_sealed_itself_as_if_another_had():
    """The two ends of a pair share one secret."""
    refused(sealed(keys={"shop": SECRET}), sender="shop", receiver="bank")


@given(st.data())
def test_a_changed_byte_is_refused(data):
    whole = sealed(keys={"shop": SECRET})
    place = data.draw(st.integers(0, len(whole) - 1))
    flipped = whole[place] ^ data.draw(st.integers(1, 255))
    refused(whole[:place] + bytes([flipped]) + whole[place + 1 :])


@given(st.integers(0, 10_000))
def test_bytes_that_are_cut_off_are_refused(end):
    whole = sealed(keys={"shop": SECRET})
    refused(whole[: end % len(whole)])


@given(st.binary(max_size=400) | st.lists(st.binary(max_size=60), max_size=6).map(lambda f: packing.pack(*f)))
def test_any_bytes_are_refused(data):
    refused(data)


def test_a_swapped_receiver_is_refused():
    ciphertext, *wrapped = packing.unpack(sealed())
    assert wrapped[::2] == [b"shop", b"telco"]
    swapped = packing.pack(ciphertext, b"telco", wrapped[1], b"shop", wrapped[3])
    refused(swapped)
    refused(swapped, receiver="telco", secret=OTHER)


def test_the_wrapped_key_of_another_relay_is_refused():
    """Of the same sender and context: it belongs to another ciphertext."""
    draw = draws()
    one, other = (packing.unpack(seal(text, "bank", KEYS, b"context", draw)) for text in (b"one", b"two"))
    refused(packing.pack(one[0], *other[1:]))
    refused(packing.pack(other[0], *one[1:]))


def test_a_receiver_cannot_put_other_bytes_in_their_place():
    """It knows the key of the content, and the others' wrapped keys; not what these are bound to."""
    content_key = (1).to_bytes(32)
    ciphertext, *wrapped = packing.unpack(sealed())
    assert AESGCM(content_key).decrypt(bytes(12), ciphertext, b"context") == b"content"
    forged = AESGCM(content_key).encrypt(bytes(12), b"forgery", b"context")
    refused(packing.pack(forged, *wrapped))


@pytest.mark.parametrize("size", [0, 5, 31, 33])
def test_a_wrapped_key_that_is_none_is_refused(size):
    """As a hostile sender may wrap it."""
    draw = iter([bytes(32)])
    honest = seal(b"content", "bank", {"shop": SECRET}, b"context", lambda _: next(draw))
    ciphertext, name, _ = packing.unpack(honest)
    wrapper = AESGCM(derive(SECRET, b"fedboost/4/relay", b"bank", b"shop", b"context"))
    key = wrapper.encrypt(bytes(12), bytes(size), hashlib.sha256(ciphertext).digest())
    refused(packing.pack(ciphertext, name, key))


def test_what_is_sealed_twice_shares_no_bytes():
    """Each time the content has a key of its own."""
    draw = draws()
    one, other = (seal(bytes(64), "bank", KEYS, context, draw) for context in (b"1", b"2"))
    assert len(one) == len(other)
    for first, second in zip(packing.unpack(one), packing.unpack(other), strict=True):
        assert first == second if first in (b"shop", b"telco") else first != second
