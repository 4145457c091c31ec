"""What the tests of kernels share: margins, odd floats, trees drawn at random, equality bit for bit."""

import math

import numpy as np

from fedboost.gbdt.kernels.histogram import Columns

ROOT_EPS = 1e-15


def same_bits(one, other):
    one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
    assert one.shape == other.shape
    assert one.tobytes() == other.tobytes()


def margins(size=3000):
    rng = np.random.default_rng(size)
    edges = [
        0.0,
        -0.0,
        1e-300,
        -1e-300,
        0.5,
        -0.5,
        36.7,
        -36.8,
        699.9,
        700.0,
        701.0,
        -700.0,
        -701.0,
        1e9,
        -1e9,
    ]
    ln2 = math.log(2) * np.arange(-20, 20)  # where the nearest power of two changes
    spread = rng.normal(0, 1, size) * 10.0 ** rng.integers(-6, 3, size)
    return np.concatenate([edges, ln2, ln2 / 2, np.nextafter(ln2 / 2, 9), spread])


def binned(rng, rows, sizes):
    codes = np.stack([rng.integers(0, size, rows) for size in sizes], axis=1).astype(np.uint8)
    offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.uint32)
    return np.ascontiguousarray(codes.reshape(rows, len(sizes))), offsets


def columns_of(sizes, offsets, joint=()):
    """The last columns are joint ones, each of as many features as said."""
    alone = len(sizes) - sum(joint)
    starts = np.cumsum([0, *[1] * alone, *joint])
    bins = np.zeros((256, sum(joint)), np.uint8)
    counts = np.array([*sizes[:alone], *(256 for _ in joint)], np.int64)
    return Columns(counts, starts, offsets.astype(np.int64), bins)


def random_tree(rng, features, depth, by_level):
    nodes = [(-1, -1, 0, 0.0, False, float(np.float32(rng.normal())))]
    for _ in range(depth):
        for number, one in enumerate(list(nodes)):
            if one[0] < 0 and rng.random() < 0.7:
                cut = float(rng.choice(np.array([-1, 0, 0.25, 1, np.inf], np.float32)))
                if rng.random() < by_level:
                    cut = {*rng.choice([0, 1, 3, 63, 64, 200, 255], 3).tolist()}
                split = int(rng.integers(features)), cut, bool(rng.integers(2))
                nodes[number] = (len(nodes), len(nodes) + 1, *split, one[5])
                nodes += [(-1, -1, 0, 0.0, False, float(np.float32(rng.normal()))) for _ in range(2)]
    return nodes
