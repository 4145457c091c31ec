"""Private set intersection on Curve25519: points of ids, products that commute, tokens, intersections."""

import hashlib
import importlib.util
import sys

import numpy as np
import pytest
from consortium import drawing
from hypothesis import given, settings
from hypothesis import strategies as st
from raised import raised

from fedboost.errors import PeerError
from fedboost.privacy import points as module
from fedboost.privacy.packing import number, pack
from fedboost.privacy.points import PRIME, check_points, intersect, multiply, points_of, tokens_of

SMALL_ORDER = (
    0,
    1,
    PRIME - 1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
)
"""The x of the points of order 1 to 8 of the curve and of its twist."""

VECTORS = [
    "3f0a0e92adb904a7d3725dd6e40285eb8351baf56559c276101c18201dc58309",
    "1f32d64be86c8b91fec3cd1de27371c0ef454ee49b8f63d87f2eac04144ebc04",
]


def written(*numbers: int) -> bytes:
    return b"".join(x.to_bytes(32, "little") for x in numbers)


def split(points: bytes) -> list[bytes]:
    return [points[begin : begin + 32] for begin in range(0, len(points), 32)]


def reference(row_id: bytes, context: bytes) -> bytes:
    """The definition, with Euler's criterion."""
    n = 0
    while True:
        digest = hashlib.sha512(pack(b"fedboost/1/id", number(n), context, row_id)).digest()
        x = int.from_bytes(digest, "little") % PRIME
        if pow(x**3 + 486662 * x**2 + x, (PRIME - 1) // 2, PRIME) == 1:
            return written(x)
        n += 1


# ---- Points -----------------------------------------------------------------------------------------


def test_the_points_of_fixed_ids_are_fixed():
    assert [point.hex() for point in split(points_of([b"123", b"anna"], b"session"))] == VECTORS


def test_points_are_those_of_the_definition():
    ids = [b"%d" % n for n in range(60)]
    assert split(points_of(ids, b"here")) == [reference(row_id, b"here") for row_id in ids]
    assert points_of([], b"here") == b""


def test_without_gmpy2_the_points_are_the_same(monkeypatch):
    monkeypatch.setitem(sys.modules, "gmpy2", None)
    spec = importlib.util.spec_from_file_location("points_without_gmpy2", module.__file__)
    without = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(without)
    assert without.jacobi is without.euler
    ids = [b"%d" % n for n in range(60)]
    assert without.points_of(ids, b"here") == points_of(ids, b"here")


def test_a_point_depends_on_context_and_id_and_their_border():
    found = {points_of([row_id], context) for context, row_id in ((b"a", b"bc"), (b"ab", b"c"), (b"a", b"b"))}
    assert len(found) == 3


# ---- Products ---------------------------------------------------------------------------------------


def test_products_are_those_of_rfc_7748():
    secret = bytes.fromhex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4")
    point = bytes.fromhex("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c")
    product = "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"
    assert multiply(point + point, secret).hex() == 2 * product


def test_products_commute_and_keep_the_order():
    draw = drawing(1)
    a, b, c = draw(32), draw(32), draw(32)
    points = points_of([b"%d" % n for n in range(20)], b"session")
    one, other = multiply(multiply(multiply(points, a), b), c), multiply(multiply(multiply(points, c), a), b)
    assert one == other
    assert split(one) == [multiply(multiply(multiply(point, a), b), c) for point in split(points)]
    assert len({*split(points), *split(multiply(points, a)), *split(one)}) == 60


@pytest.mark.parametrize("x", SMALL_ORDER)
def test_a_point_of_small_order_is_refused(x):
    with raised(PeerError, "points-small-order"):
        multiply(points_of([b"1"], b"") + written(x), drawing(1)(32))


@pytest.mark.parametrize("work", [lambda cut: multiply(cut, bytes(32)), tokens_of])
def test_a_list_that_ends_within_a_point_is_refused(work):
    with raised(PeerError, "points-cut-short"):
        work(points_of([b"1", b"2"], b"")[:-1])


# ---- Lists of others --------------------------------------------------------------------------------


def test_lists_of_distinct_points_pass():
    check_points(points_of([b"%d" % n for n in range(50)], b""), 50, "north")
    check_points(written(1, PRIME - 1, 1 << 254, 256, 1 << 64), 5, "north")
    check_points(b"", 0, "north")


@pytest.mark.parametrize(
    ("points", "count", "reason"),
    [
        (written(5, 6)[:-1], 2, "ends within a point"),
        (written(5, 6), 3, "has 2 points instead of 3"),
        (written(5, 6), 1, "has 2 points instead of 1"),
        (written(5, 0, 6), 3, "a zero"),
        (written(5, 7, 6, 7), 4, "a duplicate point"),
        (written(5, PRIME), 2, "not below the prime"),
        (written(5, PRIME + 18), 2, "not below the prime"),
        (written(5, 5 + (1 << 255)), 2, "not below the prime"),
        (written((1 << 256) - 1), 1, "not below the prime"),
    ],
)
def test_other_lists_are_refused_by_the_name_of_the_sender(points, count, reason):
    with pytest.raises(PeerError, match=f"^the list of points of party north .*{reason}"):
        check_points(points, count, "north")


# ---- Tokens and intersections -----------------------------------------------------------------------


def test_tokens_are_the_first_bytes_of_the_hashes():
    points = points_of([b"1", b"2", b"3"], b"")
    tokens = tokens_of(points)
    assert (tokens.dtype, tokens.shape) == (np.uint32, (3, 4))
    assert [token.astype("<u4").tobytes() for token in tokens] == [
        hashlib.sha256(point).digest()[:16] for point in split(points)
    ]
    assert tokens_of(b"").shape == (0, 4)


def listed(tokens) -> np.ndarray:
    return np.array(tokens, np.uint32).reshape(-1, 4)


WORDS = st.sampled_from([0, 1, 2, (1 << 32) - 1])
LISTS = st.lists(
    st.lists(st.tuples(WORDS, WORDS, WORDS, WORDS), unique=True, max_size=40), min_size=1, max_size=4
)


@settings(deadline=None)
@given(LISTS, st.data())
def test_intersections_are_those_of_sets(lists, data):
    shared = data.draw(st.lists(st.sampled_from(lists[0]), unique=True)) if lists[0] else []
    lists = [
        data.draw(st.permutations([*tokens, *(token for token in shared if token not in tokens)]))
        for tokens in lists
    ]
    common = sorted(set.intersection(*map(set, lists)))
    places = intersect([listed(tokens) for tokens in lists])
    assert len(places) == len(lists)
    for tokens, its in zip(lists, places, strict=True):
        assert its.dtype == np.int64
        assert [tokens[place] for place in its] == common


@pytest.mark.parametrize("twice", [0, 1, 2])
def test_a_list_with_a_token_twice_is_refused(twice):
    lists = [[(0, 0, 0, n) for n in range(5)] for _ in range(3)]
    lists[twice].append((0, 0, 0, 2))
    with raised(PeerError, "tokens-repeated", naming=[twice + 1]):
        intersect([listed(tokens) for tokens in lists])


def test_a_token_twice_where_others_lack_it_is_refused():
    with raised(PeerError, "tokens-repeated"):
        intersect([listed([(1, 1, 1, 1), (1, 1, 1, 1)]), listed([(2, 2, 2, 2)])])


def test_three_parties_find_whom_they_share():
    draw, ids = drawing(2), [[b"a", b"b", b"c", b"d"], [b"d", b"x", b"b"], [b"b", b"y", b"d", b"a"]]
    secrets = [draw(32) for _ in ids]
    tokens = []
    for first, own in enumerate(ids):
        points = points_of(own, b"session")
        for hop in range(3):
            points = multiply(points, secrets[(first + hop) % 3])
            check_points(points, len(own), "north")
        tokens.append(tokens_of(points))
    found = [[own[place] for place in places] for own, places in zip(ids, intersect(tokens), strict=True)]
    assert found[0] == found[1] == found[2]
    assert {*found[0]} == {b"b", b"d"}
