"""Fields packed so that no two lists of them look alike."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raised import raised

from fedboost.errors import PeerError
from fedboost.privacy.packing import number, pack, unpack

lists = st.lists(st.binary(max_size=6), max_size=5)


def test_a_field_stands_behind_its_length():
    assert pack(b"ab", b"", b"c") == b"\0\0\0\2ab" + b"\0\0\0\0" + b"\0\0\0\1c"


@given(lists)
def test_what_was_packed_unpacks(fields):
    assert unpack(pack(*fields)) == fields


@given(lists, lists)
def test_different_fields_never_pack_to_the_same_bytes(one, other):
    assert (pack(*one) == pack(*other)) == (one == other)


def test_where_a_field_ends_matters():
    assert (
        len({pack(b"ab", b"c"), pack(b"a", b"bc"), pack(b"abc"), pack(b"abc", b""), pack(b"", b"abc")}) == 5
    )


def test_packed_fields_may_be_fields():
    assert unpack(unpack(pack(pack(b"a", b"b"), b"c"))[0]) == [b"a", b"b"]


def test_no_bytes_are_no_fields():
    assert unpack(b"") == []


@given(lists.filter(bool))
def test_bytes_that_end_within_a_field_are_a_peer_error(fields):
    data = pack(*fields)
    whole = {len(pack(*fields[:count])) for count in range(len(fields) + 1)}
    for end in set(range(len(data))) - whole:
        with raised(PeerError, "fields-cut-short"):
            unpack(data[:end])


@given(st.binary(max_size=12))
def test_any_bytes_are_either_what_pack_wrote_or_a_peer_error(data):
    try:
        fields = unpack(data)
    except PeerError:
        return
    assert pack(*fields) == data


def test_a_length_that_no_message_has_is_a_peer_error():
    with pytest.raises(PeerError):
        unpack(b"\xff\xff\xff\xff" + bytes(8))


def test_numbers_are_eight_bytes_with_their_sign():
    assert number(1) == bytes(7) + b"\1"
    assert number(-1) == b"\xff" * 8
    values = [-(2**63), -(2**32), -2, -1, 0, 1, 255, 256, 2**32, 2**63 - 1]
    assert len({number(value) for value in values}) == len(values)
    assert all(int.from_bytes(number(value), signed=True) == value for value in values)


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1])
def test_a_number_of_more_than_64_bits_is_never_cut(value):
    with pytest.raises(OverflowError):
        number(value)
