"""Sketches: cut points near the quantiles, and hostile bytes that are refused."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedboost.boosting.queries import KllQuery
from fedboost.errors import PeerError
from fedboost.gbdt.cut_points import keys_to_floats
from fedboost.horizontal.sketch import SketchOpener, most_bytes, sketch

QUERY = KllQuery(30_000, 1, 64)


def opened(*columns):
    opener = SketchOpener(KllQuery(sum(map(len, columns)), 1, 64))
    for column in columns:
        (part,) = sketch([column], QUERY)
        opener.add("p", 0, part)
    missing, cuts, *keys = opener.open().tolist()
    return missing, keys_to_floats(np.array(keys[:cuts]))


def test_cuts_lie_near_the_quantiles_of_all_parties_rows():
    draw = np.random.default_rng(0)
    columns = [draw.normal(place, 1, 10_000).astype(np.float32) for place in (0, 1, 5)]
    missing, cuts = opened(*columns)
    ranks = np.searchsorted(np.sort(np.concatenate(columns)), cuts) / 30_000
    assert missing == 0
    assert len(cuts) == 63
    assert np.abs(ranks - np.arange(1, 64) / 64).max() < 0.25 / 64


def test_missing_values_are_counted_and_few_values_are_all_cut():
    column = np.array([1, 2, 2, 3, np.nan], np.float32)
    assert opened(column, np.full(2, np.nan, np.float32))[0] == 3
    assert opened(column)[1].tolist() == [2, 3]
    assert opened(np.full(3, np.nan, np.float32)) == (3, pytest.approx([]))


def packed(missing, *items):
    return struct.pack("<q", missing) + b"".join(struct.pack("<fq", *item) for item in items)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"1234567",
        packed(0, (1.0, 1))[:-1],
        packed(-1),
        packed(0, (1.0, 0)),
        packed(0, (1.0, -1)),
        packed(0, (float("nan"), 1)),
        packed(0, (float("inf"), 1)),
        packed(0, (1.0, 30_001)),
        packed(1, (1.0, 30_000)),
        packed(0, *[(1.0, 1)] * 20_000),
        packed(0, *[(1.0, 2**62)] * 4),
    ],
)
def test_what_is_no_sketch_is_refused(data):
    with pytest.raises(PeerError):
        SketchOpener(QUERY).add("p", 0, data)


def test_a_sketch_larger_than_sketches_are_is_refused():
    """The bound is one for memory; the sketch of millions of rows keeps well below it."""
    items = (most_bytes(64) - 8) // 12
    SketchOpener(QUERY).add("p", 0, packed(0, *[(1.0, 1)] * items))
    with pytest.raises(PeerError, match=r"bytes; \d+ are allowed"):
        SketchOpener(QUERY).add("p", 0, packed(0, *[(1.0, 1)] * (items + 1)))
    (part,) = sketch([np.arange(3_000_000, dtype=np.float32)], KllQuery(3_000_000, 1, 64))
    assert len(part) < 0.9 * most_bytes(64)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_open(data):
    opener = SketchOpener(QUERY)
    try:
        opener.add("p", 0, data)
    except PeerError:
        return
    _, cuts, *keys = opener.open().tolist()
    assert keys[:cuts] == sorted(set(keys[:cuts]))


def test_rows_whose_sum_overflows_are_refused():
    opener = SketchOpener(KllQuery(1 << 47, 1, 64))
    with pytest.raises(PeerError):
        opener.add("p", 0, packed(0, *[(float(i), 1 << 47) for i in range(1 << 17)]))
