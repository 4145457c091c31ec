"""Every kernel equals its naive twin bit for bit; the element-wise functions also are close to libm's."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedboost.gbdt.kernels import elementwise, objectives
from fedboost.gbdt.kernels.bins import bin_column, count_cells, float_keys, transpose, weigh_residuals
from fedboost.gbdt.kernels.elementwise import exps, log_factorials, logs, sigmoids
from fedboost.gbdt.kernels.fixedpoint import LIMBS, add_limbs, gradient_norms, quantise, sum_units
from fedboost.gbdt.kernels.histogram import (
    SCRATCH,
    build_histogram,
    pack_pairs,
    pair_bits,
    sum_pairs,
    unpack_pairs,
)
from fedboost.gbdt.kernels.objectives import (
    log_losses,
    logistic_gradients,
    softmax_gradients,
    softmax_losses,
    softmaxes,
)
from fedboost.gbdt.kernels.predict import predict_margins
from fedboost.gbdt.kernels.rows import add_value, count_up, partition
from fedboost.gbdt.kernels.split import best_gains, best_split, categories_right
from fedboost.gbdt.kernels.survival import NORMAL, aft_gradients, aft_losses, normal_tails
from tests.gbdt.reference import split as reference

ROOT_EPS = 1e-15
NAN_PAYLOADS = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF, 0x7FFFFFFF], np.uint32)


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


# ---- element-wise functions -------------------------------------------------------------------------


def test_exps():
    x = margins()
    same_bits(exps(x), reference.exps(x))
    inside = x[np.abs(x) <= 700]
    libm = np.exp(inside)
    assert (np.abs(exps(inside) - libm) <= ROOT_EPS * libm).all()
    assert exps(np.array([701.0, 1e9])).tolist() == exps(np.array([700.0, 700.0])).tolist()


def test_logs():
    rng = np.random.default_rng(0)
    near_one = 1.0 + rng.uniform(-0.3, 1.1, 2000)
    smallest, root = np.finfo(np.float64).tiny, math.sqrt(2.0)
    edges = [
        1.0,
        np.nextafter(1, 0),
        np.nextafter(1, 2),
        0.5,
        2.0,
        root,
        np.nextafter(root, 2),
        smallest,
        1e308,
    ]
    x = np.concatenate([near_one, edges, 10.0 ** rng.uniform(-300, 300, 2000)])
    same_bits(logs(x), reference.logs(x))
    libm = np.log(x)
    assert (np.abs(logs(x) - libm) <= ROOT_EPS * np.abs(libm)).all()
    assert logs(np.array([1.0])).tolist() == [0.0]


def test_sigmoids():
    x = margins()
    same_bits(sigmoids(x), reference.sigmoids(x))
    inside = x[np.abs(x) <= 700]
    libm = 1.0 / (1.0 + np.exp(-inside))
    assert (np.abs(sigmoids(inside) - libm) <= ROOT_EPS * libm).all()
    assert sigmoids(np.array([0.0])).tolist() == [0.5]


def rows_of_loss():
    margin = margins()
    rng = np.random.default_rng(1)
    label = rng.integers(0, 2, margin.size).astype(np.float32)
    weight = (2.0 ** rng.uniform(-10, 10, margin.size)).astype(np.float32)
    weight[::5] = 0
    return margin, label, weight


def test_logistic_gradients():
    margin, label, weight = rows_of_loss()
    found, due = (
        logistic_gradients(margin, label, weight),
        reference.logistic_gradients(margin, label, weight),
    )
    same_bits(found[0], due[0])
    same_bits(found[1], due[1])
    assert (np.abs(found[0]) <= weight).all()
    assert (found[1] >= 0).all()
    assert (found[1] <= weight / 4).all()


def test_log_losses():
    margin, label, weight = rows_of_loss()
    found = log_losses(margin, label, weight)
    same_bits(found, reference.log_losses(margin, label, weight))
    z = np.where(label == 1, margin, -margin)
    libm = weight * (np.maximum(-z, 0) + np.log(1 + np.exp(-np.abs(z))))
    assert (np.abs(found - libm) <= ROOT_EPS * libm).all()


def test_gradients_of_rates_and_of_the_pseudo_huber_loss():
    margin, _, weight = rows_of_loss()
    label = np.round(np.random.default_rng(3).exponential(5, margin.size)).astype(np.float32)
    arguments = margin, label, weight
    for name, extra in {
        "poisson_gradients": (2.0137527074704766,),
        "gamma_gradients": (),
        "tweedie_gradients": (1.3,),
        "pseudo_huber_gradients": (0.7,),
    }.items():
        found = getattr(objectives, name)(*arguments, *extra)
        for one, due in zip(found, getattr(reference, name)(*arguments, *extra), strict=True):
            same_bits(one, due)
        assert all(np.isfinite(one).all() for one in found)
        assert (found[1] >= 0).all()


@pytest.mark.parametrize(
    ("name", "extra", "loss"),
    [
        ("poisson_gradients", (1.0,), lambda m, y: np.exp(m) - y * m),
        ("gamma_gradients", (), lambda m, y: y * np.exp(-m) + m),
        ("tweedie_gradients", (1.3,), lambda m, y: y * np.exp(-0.3 * m) / 0.3 + np.exp(0.7 * m) / 0.7),
        ("pseudo_huber_gradients", (0.7,), lambda m, y: 0.49 * (np.sqrt(1 + ((m - y) / 0.7) ** 2) - 1)),
    ],
)
def test_gradients_are_those_of_the_loss(name, extra, loss):
    rng = np.random.default_rng(4)
    margin, label = rng.normal(0, 1, 50), rng.integers(1, 5, 50).astype(np.float32)
    gradient, hessian = getattr(objectives, name)(margin, label, np.ones(50, np.float32), *extra)
    up, at, down = (loss(margin + step, label.astype(np.float64)) for step in (1e-4, 0, -1e-4))
    assert gradient == pytest.approx((up - down) / 2e-4, rel=1e-5, abs=1e-6)
    assert hessian == pytest.approx((up - 2 * at + down) / 1e-8, rel=1e-4, abs=1e-5)


def test_log_factorials():
    x = np.concatenate([np.arange(200.0), np.random.default_rng(5).exponential(4, 300), [1e3, 1e9, 2.0**60]])
    found = log_factorials(x)
    same_bits(found, reference.log_factorials(x))
    libm = np.array([math.lgamma(value + 1) for value in x])
    assert (np.abs(found - libm) <= 1e-13 * np.maximum(libm, 1)).all()


def test_normal_tails_are_those_of_erfc():
    rng = np.random.default_rng(8)
    x = np.concatenate([rng.normal(0, 3, 500), rng.uniform(0, 37, 500), [0.0, -0.0, 1e-300, 5.0, -40.0]])
    found = normal_tails(x)
    same_bits(found, np.array([reference.normal_tail(value) for value in x.tolist()]))
    libm = np.array([math.erfc(value / math.sqrt(2)) / 2 for value in x])
    # x / sqrt(2) and x * x / 2 are rounded, and e to them grows that by the exponent
    assert (np.abs(found - libm) <= (1e-15 + 4e-16 * x * x) * libm).all()


def intervals():
    """Margins and bounds: times known, censored on one side, on both; narrow, far off, beyond all."""
    rng = np.random.default_rng(9)
    margin = np.concatenate([rng.normal(2, 1, 400), rng.normal(0, 30, 90), [1e6, -1e6, 600.0, -600.0, 2, 2]])
    lower = np.exp(rng.normal(2, 1, margin.size)).astype(np.float32)
    upper = (lower * np.exp(rng.exponential(1, margin.size))).astype(np.float32)
    upper[::5], lower[1::5], upper[2::5] = np.inf, 0, lower[2::5]
    upper[3::10] = np.nextafter(lower[3::10], np.float32(np.inf))
    upper[-2:], lower[-2:] = 2.0**60, 2.0**-60
    return margin, lower, upper


@pytest.mark.parametrize("distribution", range(3))
@pytest.mark.parametrize("scale", [1.0, 0.3, 1e-6, 1e6])
def test_aft_gradients_and_losses(distribution, scale):
    margin, lower, upper = intervals()
    weight = np.random.default_rng(1).exponential(1, margin.size).astype(np.float32)
    with np.errstate(over="ignore"):
        found = aft_gradients(margin, lower, upper, weight, distribution, scale)
        due = reference.aft_gradients(margin, lower, upper, weight, distribution, scale)
    for one, other in zip(found, due, strict=True):
        same_bits(one, other)
        assert (np.abs(one) <= 15.0 * weight.astype(np.float64)).all()
    assert (found[1] > 0).all()
    losses = aft_losses(margin, lower, upper, distribution, scale)
    same_bits(losses, reference.aft_losses(margin, lower, upper, distribution, scale))
    assert np.isfinite(losses).all()


@pytest.mark.parametrize("distribution", range(3))
def test_aft_gradients_are_those_of_the_loss(distribution):
    rng = np.random.default_rng(4)
    margin, lower, upper = (values[:400] for values in intervals())
    margin = np.log(np.where(lower > 0, lower, upper)) + rng.uniform(-2, 2, 400)
    wide = (lower == upper) | (upper > 1.01 * lower)  # of the others differences of losses have few digits
    margin, lower, upper = margin[wide], lower[wide], upper[wide]
    found = aft_gradients(margin, lower, upper, np.ones(margin.size, np.float32), distribution, 1.3)
    up, at, down = (aft_losses(margin + step, lower, upper, distribution, 1.3) for step in (1e-4, 0, -1e-4))
    assert found[0] == pytest.approx((up - down) / 2e-4, rel=1e-5, abs=1e-6)
    assert found[1] == pytest.approx((up - 2 * at + down) / 1e-8, rel=1e-3, abs=1e-5)


def test_aft_gradients_keep_their_digits_far_in_the_tail():
    """A normal time censored long after its prediction, of which 1 - F(z) would say nothing."""
    lower, ones = np.exp(np.array([5.0, 9.0, 14.0])).astype(np.float32), np.ones(3, np.float32)
    of = np.zeros(3), lower, np.full(3, np.inf, np.float32), ones
    gradient, hessian = aft_gradients(*of, NORMAL, 1.0)
    z = np.log(lower.astype(np.float64))
    tail = np.array([math.erfc(one / math.sqrt(2)) / 2 for one in z])
    assert gradient == pytest.approx(-np.exp(-z * z / 2) / math.sqrt(2 * math.pi) / tail, rel=1e-13)
    assert ((hessian > 0.9) & (hessian < 1)).all()


@pytest.mark.parametrize("count", [0, 1, 700])
def test_add_limbs(count):
    rng = np.random.default_rng(count)
    values = rng.normal(0, 1, count) * 2.0 ** rng.integers(-250, 140, count)
    values[:9] = [0.0, -0.0, np.inf, -np.inf, 5e-324, 2.0**-184, -(2.0**-185), 2.0**127, np.nan][:count]
    weight = (2.0 ** rng.integers(-60, 61, count)).astype(np.float32)
    weight[::7] = 0
    out = np.zeros(LIMBS, np.int64)
    add_limbs(values, weight, out)
    assert out.tolist() == reference.add_limbs(values, weight)
    add_limbs(values, weight, out)
    assert out.tolist() == [2 * limb for limb in reference.add_limbs(values, weight)]


@pytest.mark.parametrize(("start", "width"), [(0, 32), (0x80000000, 24), (0xBF800000, 16), (0x3F000000, 24)])
def test_weigh_residuals(start, width):
    rng = np.random.default_rng(width)
    label = np.concatenate([rng.normal(0, 2, 300), rng.integers(-2, 3, 300), [2.0**60, 0, 1]]).astype(
        np.float32
    )
    margin = np.concatenate([rng.normal(0, 1, 300), np.zeros(300), [-1e39, 1e39, np.nextafter(1, 2)]])
    weight = rng.exponential(1, label.size).astype(np.float32)
    rows = np.sort(rng.choice(label.size, 500, replace=False)).astype(np.uint32)
    arguments = label, margin, weight, rows, start, width, 8, 64.0
    out = np.zeros(256, np.int64)
    weigh_residuals(*arguments, 128.0, out)
    assert out.tolist() == reference.weigh_residuals(*arguments, 128)
    assert out.any()


@pytest.mark.parametrize("outputs", [1, 3])
def test_gradient_sizes(outputs):
    rng = np.random.default_rng(outputs)
    gradient = rng.normal(0, 1, (outputs, 500)) * np.exp(rng.normal(0, 20, 500))
    hessian = rng.random((outputs, 500)) * np.exp(rng.normal(0, 20, 500))
    gradient[:, :9] = 0.0
    hessian[:, 5:20] = 0.0
    for reg_lambda in (0.0, 0.3, 1e6):
        found = gradient_norms(gradient, hessian, reg_lambda)
        same_bits(found, reference.gradient_norms(gradient, hessian, reg_lambda))
        assert (found >= np.abs(gradient).max(axis=0) * (1 - 1e-15)).all()


def test_softmax():
    rng = np.random.default_rng(2)
    margin = rng.normal(0, 3, (5, 400)) * np.exp(rng.normal(0, 2, 400))
    label, weight = rng.integers(0, 5, 400).astype(np.float32), rng.random(400).astype(np.float32)
    same_bits(softmaxes(margin), reference.softmaxes(margin))
    same_bits(softmaxes(margin)[:, 0], np.array([softmaxes_of(row)[0] for row in margin.T]))
    for found, due in zip(
        softmax_gradients(margin, label, weight),
        reference.softmax_gradients(margin, label, weight),
        strict=True,
    ):
        same_bits(found, due)
    same_bits(softmax_losses(margin, label, weight), reference.softmax_losses(margin, label, weight))
    assert np.abs(softmaxes(margin).sum(axis=1) - 1).max() <= 1e-15


def softmaxes_of(row):
    """Of one row by itself: a row's probabilities do not depend on its neighbours."""
    return softmaxes(np.ascontiguousarray(row[:, None]))[0]


@pytest.mark.parametrize("name", ["exps", "logs", "sigmoids"])
def test_no_rows_no_values(name):
    assert getattr(elementwise, name)(np.zeros(0)).shape == (0,)


# ---- gradients to packed integers -------------------------------------------------------------------


@pytest.mark.parametrize("bits", [8, 16, 24])
def test_quantise(bits):
    rng = np.random.default_rng(bits)
    limit, unit = 1 << (bits - 1), 2.0 ** (1 - bits)
    ties = (np.arange(-9, 9) + 0.5) * unit
    gradient = np.concatenate([rng.uniform(-1, 1, 500), ties, [0.0, -0.0, 1, -1, 1.5, -1.5, 1e9, -1e9]])
    hessian = np.concatenate([rng.uniform(0, 0.3, 500), np.abs(ties), [0.0, 0.25, 0.26, 1e9, 0, 0, 0, 0]])
    arguments = gradient, hessian, float(limit), 4.0 * limit, float(limit)
    out = np.empty(gradient.size, np.int64)
    quantise(*arguments, out)
    assert out.tolist() == reference.quantise(*arguments).tolist()


@pytest.mark.parametrize("count", [0, 1, 500])
def test_sum_units(count):
    rng = np.random.default_rng(count)
    values = np.concatenate([rng.normal(0, 1, count), [1e9, -1e9, 0.25, -0.25, 0.75, np.inf, -0.0][:count]])
    for factor, limit in ((2.0, 8), (2.0**31, 2**31), (2.0**-3, 4)):
        assert sum_units(values, factor, float(limit)) == reference.sum_units(values, factor, limit)


# ---- histograms -------------------------------------------------------------------------------------


def binned(rng, rows, sizes):
    codes = np.stack([rng.integers(0, size, rows) for size in sizes], axis=1).astype(np.uint8)
    offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.uint32)
    return np.ascontiguousarray(codes.reshape(rows, len(sizes))), offsets


SIZES = {
    "few features": [1, 256, 3, 17],
    "eight": [2, 256, 256, 5, 255, 1, 9, 256],
    "as many as fit": [256, 3, 255, 7] * 15 + [256, 1, 2, 256],
}


@pytest.mark.parametrize("block", [1, 7, 255, 10_000])
@pytest.mark.parametrize("count", [0, 1, 60, 600])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=list(SIZES))
def test_build_histogram(block, count, sizes):
    rng = np.random.default_rng(block + count)
    bins, offsets = binned(rng, 700, sizes)
    limit = 1 << 23
    # Full bounds: with the block of 24-bit gradients (255 rows) a half must not overflow.
    gradient = rng.choice([-limit, limit, 1, -1, 0], 700)
    pairs = (gradient << 32) + rng.choice([0, limit], 700)
    rows = np.sort(rng.choice(700, count, replace=False)).astype(np.uint32)
    scratch, begins = np.zeros(SCRATCH, np.int64), offsets.astype(np.int64)
    due = [
        *reference.build_histogram(bins, rows, pairs, offsets, sum(sizes)),
        *reference.sum_positive(rows, pairs),
    ]
    wider = np.full((700, len(sizes) + 3), 255, np.uint8)
    wider[:, : len(sizes)] = bins
    for table in (bins, wider):  # what stands behind the bins of a row is no bin
        for middle in (1, len(sizes) - 1, len(sizes)):
            out = np.full(2 * sum(sizes) + 2, 5, np.int64)
            for first, last in ((0, middle), (middle, len(sizes))):
                build_histogram(
                    table, rows, pairs, begins, begins + sizes, first, last, min(block, 255), scratch, out
                )
                assert not scratch.any()
            assert (out - 5).tolist() == due


@pytest.mark.parametrize("sign", [1, -1])
def test_build_histogram_holds_at_the_bounds_of_a_block(sign):
    limit, rows = 1 << 23, 255 * 3 + 1
    bins = np.zeros((rows, 1), np.uint8)
    pairs = np.full(rows, (sign * limit << 32) + limit, np.int64)
    out = np.zeros(4, np.int64)
    everyone = np.arange(rows, dtype=np.uint32)
    scratch = np.zeros(SCRATCH, np.int64)
    build_histogram(bins, everyone, pairs, np.array([0]), np.array([1]), 0, 1, 255, scratch, out)
    assert out.tolist() == [sign * limit * rows, limit * rows, max(sign, 0) * limit * rows, limit * rows]


@pytest.mark.parametrize("count", [0, 1, 500])
def test_sum_pairs(count):
    rng = np.random.default_rng(count)
    pairs = (rng.integers(-(1 << 23), 1 << 23, count) << 32) + rng.integers(0, 1 << 23, count)
    assert tuple(sum_pairs(pairs)) == reference.sum_pairs(pairs)


@pytest.mark.parametrize("size", [0, 1, 300])
@pytest.mark.parametrize("bits", [1, 20, 31, 63])
def test_pairs_as_one_cell(size, bits):
    rng = np.random.default_rng([size, bits])
    gradient = rng.integers(-(1 << (63 - bits)), 1 << (63 - bits), size)
    sums = np.stack([gradient, rng.integers(0, 1 << bits, size)], axis=1).reshape(-1)
    cells, again = np.empty(size, np.int64), np.empty(2 * size, np.int64)
    pack_pairs(sums, bits, cells)
    assert cells.tolist() == reference.pack_pairs(sums, bits)
    unpack_pairs(cells, bits, again)
    assert again.tolist() == sums.tolist()
    assert tuple(pair_bits(sums)) == reference.pair_bits(sums)


# ---- rows of nodes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("count", [0, 1, 40, 300])
def test_partition(count, share):
    rng = np.random.default_rng(count)
    table, _ = binned(rng, 400, [10, 256, 5])
    everyone = rng.permutation(400).astype(np.uint32)
    rows, scratch = everyone[20 : 20 + count], np.empty(400, np.uint32)
    before, around = rows.copy(), (everyone[:20].tolist(), everyone[20 + count :].tolist())
    goes_left = (rng.random(256) < share).astype(np.uint8)
    for codes in np.ascontiguousarray(table.T):
        left, right = reference.partition(codes, goes_left, before)
        rows[:] = before
        split = partition(codes, goes_left, rows, scratch)
        assert (split, rows.tolist()) == (len(left), left + right)
        assert (everyone[:20].tolist(), everyone[20 + count :].tolist()) == around


def test_count_up():
    rows = np.full(5, 9, np.uint32)
    count_up(rows)
    assert rows.tolist() == [0, 1, 2, 3, 4]


def test_add_value():
    margin = np.arange(6.0)
    add_value(margin, np.array([4, 1], np.uint32), 0.1)
    assert margin.tolist() == [0.0, 1.1, 2.0, 3.0, 4.0 + 0.1, 5.0]
    add_value(margin, np.zeros(0, np.uint32), 9.0)
    assert margin.tolist() == [0.0, 1.1, 2.0, 3.0, 4.0 + 0.1, 5.0]


# ---- splits -----------------------------------------------------------------------------------------


def node(rng, sizes, missing, size=60, spread=5):
    """A histogram of a random node, gradients small integers so that gains tie often."""
    widths = [s + m for s, m in zip(sizes, missing, strict=True)]
    histogram = np.zeros(2 * sum(widths), np.int64)
    gradient, hessian = rng.integers(-spread, spread + 1, size), rng.integers(0, 4, size)
    first = 0
    for width in widths:
        place = first + rng.integers(0, width, size)
        np.add.at(histogram, 2 * place, gradient)
        np.add.at(histogram, 2 * place + 1, hessian)
        first += width
    return histogram, (int(gradient.sum()), int(hessian.sum()))


def compare_best_split(
    histogram, sizes, missing, factors, penalties, total, by_level=False, most_levels=(4, 64)
):
    value_bins, missing = np.array(sizes, np.int64), np.array(missing, np.bool_)
    kinds = value_bins, missing, np.broadcast_to(by_level, missing.shape).copy()
    offsets = np.concatenate([[0], np.cumsum(value_bins + missing)[:-1]]).astype(np.uint32)
    rule = factors, penalties, most_levels, total
    found = tuple(best_split(histogram, offsets, *kinds, *rule, None))
    assert found == reference.best_split(histogram, *kinds, *rule)
    for f, gain in enumerate(best_gains(histogram, offsets, *kinds, *rule)):
        own = histogram[2 * offsets[f] : 2 * (offsets[f] + value_bins[f] + missing[f])]
        assert gain == reference.best_split(own, *(kind[f : f + 1] for kind in kinds), *rule)[0]
    if found[1] >= 0 and kinds[2][found[1]]:
        _, feature, way, missing_left, *left = found
        first, size = offsets[feature], value_bins[feature]
        cells, one_hot = histogram[2 * first : 2 * (first + size)], bool(size < most_levels[0])
        right = categories_right(cells, way, one_hot, factors, penalties).tolist()
        pairs = [(int(g), int(h)) for g, h in cells.reshape(-1, 2)]
        assert right == reference.ways_to_part(pairs, factors, penalties, most_levels)[1][way]
        absent = histogram[2 * (first + size) :][:2] if missing[feature] and not missing_left else [0, 0]
        sums = [sum(pairs[level][stat] for level in right) + absent[stat] for stat in (0, 1)]
        assert [int(s) for s in sums] == [total[0] - left[0], total[1] - left[1]]
    return found


@given(
    seed=st.integers(0, 2**32),
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    reg_lambda=st.sampled_from([0.0, 1.0, 2.5]),
    reg_alpha=st.sampled_from([0.0, 0.3, 4.0]),
    min_child_weight=st.sampled_from([0.0, 1.0, 7.0, 1e9]),
    max_delta_step=st.sampled_from([math.inf, 0.25, 3.0]),
    size=st.sampled_from([0, 1, 2, 10, 60]),
    spread=st.sampled_from([1, 5, 100_000]),
    levels=st.sampled_from([(4, 64), (1, 64), (7, 64), (1, 2), (1, 3)]),
)
@settings(max_examples=500)
def test_best_split(
    seed, sizes, reg_lambda, reg_alpha, min_child_weight, max_delta_step, size, spread, levels
):
    rng = np.random.default_rng(seed)
    missing, by_level = rng.integers(0, 2, (2, len(sizes)), np.bool_)
    histogram, total = node(rng, sizes, missing.tolist(), size, spread)
    rule = (16.0, 2.0), (reg_lambda, reg_alpha, min_child_weight, max_delta_step)
    compare_best_split(histogram, sizes, missing, *rule, total, by_level, levels)


@pytest.mark.parametrize("missing", [0, 1])
@pytest.mark.parametrize("levels", [(4, 64), (256, 64), (4, 256)])
def test_best_split_of_as_many_levels_as_there_can_be(levels, missing):
    rng = np.random.default_rng(missing)
    histogram, total = node(rng, [255], [missing], 4000, 100)
    penalties = 1.0, 0.0, 1.0, math.inf
    found = compare_best_split(histogram, [255], [missing], (16.0, 2.0), penalties, total, True, levels)
    assert found[1] == 0


def test_best_split_breaks_ties_by_feature_then_bin_then_missing_right():
    none = (1.0, 0.0, 0.0, math.inf)
    # Two features with the same bins: the first wins. An empty middle bin: cutting before it wins.
    same = np.array([-4, 4, 0, 0, 4, 4] * 2, np.int64)
    assert compare_best_split(same, [3, 3], [0, 0], (1.0, 1.0), none, (0, 8))[1:4] == (0, 0, False)
    # The missing values weigh alike on both sides (gradient 0 in the middle): they go right.
    level = np.array([-4, 4, 4, 4, 0, 2], np.int64)
    assert compare_best_split(level, [2], [1], (1.0, 1.0), none, (0, 10))[1:4] == (0, 0, False)


def test_best_split_parts_the_present_from_the_missing():
    histogram = np.array([-2, 3, -2, 3, 4, 3], np.int64)
    found = compare_best_split(histogram, [2], [1], (1.0, 1.0), (1.0, 0.0, 0.0, math.inf), (0, 9))
    assert found[1:] == (0, 1, False, -4, 6)


def test_best_split_of_a_pure_node_is_none():
    histogram = np.array([0, 3, 0, 3], np.int64)
    assert compare_best_split(histogram, [2], [0], (1.0, 1.0), (1.0, 0.0, 0.0, math.inf), (0, 6))[1] == -1


@given(
    seed=st.integers(0, 2**32),
    sign=st.sampled_from([-1, 0, 1]),
    reg_alpha=st.sampled_from([0.0, 0.7]),
    bound=st.sampled_from([0.05, 0.5, math.inf]),
)
@settings(max_examples=100)
def test_best_split_within_limits(seed, sign, reg_alpha, bound):
    rng = np.random.default_rng(seed)
    histogram, total = node(rng, [6], [0], 60, 4)
    lower, upper = -bound, bound / 2
    asked = np.zeros(1, np.uint32), np.array([6]), np.zeros(1, np.bool_), np.zeros(1, np.bool_)
    rule = (16.0, 2.0), (1.0, reg_alpha, 0.5, math.inf), (4, 64), total
    found = best_split(histogram, *asked, *rule, (lower, upper, np.array([sign])))

    def leaf(g, h):
        """The value within the limits, and the loss it takes away, doubled."""
        g, h = g / 16, h / 2
        shrunk = max(g - reg_alpha, 0) + min(g + reg_alpha, 0)
        value = max(lower, min(upper, -shrunk / (h + 1.0)))
        return value, -(2 * g * value + (h + 1.0) * value * value + 2 * reg_alpha * abs(value))

    gains = []
    for b in range(5):
        left = histogram[0 : 2 * b + 2 : 2].sum(), histogram[1 : 2 * b + 3 : 2].sum()
        right = total[0] - left[0], total[1] - left[1]
        (low, first), (high, second) = leaf(*left), leaf(*right)
        heavy = min(left[1], right[1]) / 2 >= 0.5
        gains.append(first + second - leaf(*total)[1] if heavy and (high - low) * sign >= 0 else 0.0)
    assert found[0] == pytest.approx(max(0.0, *gains), rel=1e-12, abs=1e-12)
    if found[1] == 0:
        assert gains[found[2]] == pytest.approx(found[0], rel=1e-12)


NONE = (1.0, 0.0, 0.0, math.inf)


def test_best_split_of_levels_parts_those_with_low_leaf_values_from_the_others():
    # By value: levels 1, 3 (of -G / H: -4/2, -1/1), then 2 without rows, then 0 and 4.
    histogram = np.array([6, 3, 4, 1, 0, 0, 3, 2, -8, 2], np.int64)
    found = compare_best_split(histogram, [5], [0], (1.0, 1.0), (0.0, 0.0, 0.0, math.inf), (5, 8), True)
    assert found[1:] == (0, 2, True, -8, 2)
    order = categories_right(histogram, 4, False, (1.0, 1.0), (0.0, 0.0, 0.0, math.inf))
    assert order.tolist() == [1, 0, 3, 2, 4]


def test_levels_below_min_child_weight_have_the_value_of_those_without_rows():
    histogram = np.array([9, 1, -4, 4, 0, 0, 4, 4, -9, 1], np.int64)
    order = categories_right(histogram, 4, False, (1.0, 1.0), (1.0, 0.0, 2.0, math.inf))
    assert order.tolist() == [3, 0, 2, 4, 1]


def test_best_split_of_few_levels_parts_one_from_the_others():
    histogram = np.array([-4, 4, 4, 4, -4, 4], np.int64)
    assert compare_best_split(histogram, [3], [0], (1.0, 1.0), NONE, (-4, 12), True)[1:] == (
        0,
        1,
        True,
        -8,
        8,
    )


@pytest.mark.parametrize("one_hot", [0, 9])
def test_best_split_of_levels_parts_the_present_from_the_missing(one_hot):
    histogram = np.array([-2, 3, -2, 3, -2, 3, -2, 3, 8, 12], np.int64)
    found = compare_best_split(
        histogram, [4], [1], (1.0, 1.0), NONE, (0, 24), True, most_levels=(one_hot, 64)
    )
    assert found[1:] == (0, 4 if one_hot else 3, True, 8, 12)


# ---- cut points and bins ----------------------------------------------------------------------------


def extreme_floats():
    info = np.finfo(np.float32)
    positive = [0.0, info.smallest_subnormal, 1e-40, info.tiny, 1e-20, 0.5, 1, np.nextafter(np.float32(1), 2)]
    positive += [255, 256, 1e30, info.max, np.inf]
    both = np.array([*positive, *(-np.array(positive))], np.float32)
    return np.concatenate([both, NAN_PAYLOADS.view(np.float32)])


def test_float_keys():
    rng = np.random.default_rng(2)
    any_bits = rng.integers(0, 1 << 32, 3000, dtype=np.uint32).view(np.float32)
    values = np.concatenate([extreme_floats(), any_bits])
    keys = float_keys(values)
    assert keys.dtype == np.uint32
    assert keys.tolist() == reference.float_keys(values)
    assert float_keys(np.zeros(0, np.float32)).size == 0


@given(st.floats(width=32, allow_nan=False), st.floats(width=32, allow_nan=False))
def test_float_keys_keep_the_order(a, b):
    key_a, key_b, missing = float_keys(np.array([a, b, math.nan], np.float32)).tolist()
    assert (a < b) == (key_a < key_b)
    assert (a == b) == (key_a == key_b)
    assert max(key_a, key_b) < missing


@given(seed=st.integers(0, 2**32), cells=st.integers(0, 8), keys=st.sampled_from([0, 1, 200]))
def test_count_cells(seed, cells, keys):
    rng = np.random.default_rng(seed)
    places = np.sort(rng.choice(16, cells, replace=False)).astype(np.uint32)  # 16 places of 2**28 keys
    widths = rng.choice([0, 1, 5, 20, 28], cells)
    subdivisions = np.minimum(rng.integers(0, 7, cells), widths)
    starts = places << np.uint32(28)
    some = rng.integers(0, 1 << 32, keys, dtype=np.uint32)
    if cells and keys:  # most keys into a cell, the edges of cells above all
        home = rng.integers(0, cells, keys)
        into = rng.integers(0, 1 << widths[home])
        some[1::2] = (starts[home] + into.astype(np.uint32))[1::2]
        some[0] = starts[0] + np.uint32((1 << int(widths[0])) - 1)
    out = np.zeros(int((1 << subdivisions).sum()), np.int64)
    count_cells(some, starts, widths, subdivisions, out)
    assert out.tolist() == reference.count_cells(some, starts, widths, subdivisions)


def test_count_cells_at_the_edges_of_cells():
    starts, widths = np.array([8, 32, 48], np.uint32), np.array([3, 4, 0])
    keys = np.array([7, 8, 15, 16, 31, 32, 47, 48, 49], np.uint32)
    out = np.zeros(2 + 4 + 1 + 1, np.int64)
    count_cells(keys, starts, widths, np.array([1, 2, 0]), out)
    assert out.tolist() == [1, 1, 1, 0, 0, 1, 1, 0]  # nothing beyond the last cell is touched


def test_count_cells_over_all_keys_at_once():
    keys = np.array([0, 1, 2**21 - 1, 2**21, 2**31, 2**32 - 1, 2**32 - 1], np.uint32)
    out = np.zeros(2048, np.int64)
    count_cells(keys, np.zeros(1, np.uint32), np.array([32]), np.array([11]), out)
    assert {int(i): int(out[i]) for i in np.flatnonzero(out)} == {0: 3, 1: 1, 1024: 1, 2047: 2}


@pytest.mark.parametrize("count", [0, 1, 2, 17, 255])
def test_bin_column(count):
    rng = np.random.default_rng(count)
    cuts = np.unique(rng.normal(0, 10, count).astype(np.float32))
    if count > 10:
        cuts = np.unique(np.concatenate([cuts[2:], [np.float32(0), np.float32(-1e-42)]]).astype(np.float32))
    values = np.concatenate([extreme_floats(), cuts, np.nextafter(cuts, np.float32(-np.inf))])
    values = np.concatenate([values, rng.normal(0, 10, 300).astype(np.float32)])
    codes = np.zeros(values.size, np.uint8)
    bin_column(values, cuts, 255, codes)
    assert codes.tolist() == reference.bin_column(values, cuts, 255)


@pytest.mark.parametrize("width", [1e-3, 1.0, 1e30])
@pytest.mark.parametrize("count", [0, 1, 100, 255])
def test_bin_column_of_many_values(count, width):
    """So many that the search has a large table; close together, and over all numbers."""
    rng = np.random.default_rng(count)
    values = (1 + width * rng.normal(size=1 << 15)).astype(np.float32)
    cuts = np.unique(rng.choice(values, count))
    codes = np.zeros(values.size, np.uint8)
    bin_column(values, cuts, 255, codes)
    assert codes.tolist() == np.searchsorted(cuts, values, side="right").tolist()


@pytest.mark.parametrize("spread", [2**12, 2**20, 2**31])
def test_count_cells_of_many_keys(spread):
    rng = np.random.default_rng(spread)
    starts = np.unique(rng.integers(2**10, spread, 300)).astype(np.uint32)
    widths = np.zeros(starts.size, np.int64)
    keys = np.concatenate([rng.integers(0, 2 * spread, 1 << 15), np.repeat(starts, 3)]).astype(np.uint32)
    out = np.zeros(starts.size, np.int64)
    count_cells(keys, starts, widths, widths, out)
    found, counts = np.unique(keys[np.isin(keys, starts)], return_counts=True)
    assert (found == starts).all()
    assert out.tolist() == counts.tolist()


@pytest.mark.parametrize("shape", [(1, 0), (1, 1), (3, 255), (5, 256), (2, 1000)])
def test_transpose(shape):
    by_feature = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    for features in (np.arange(shape[0]), np.arange(shape[0])[::-2].copy()):
        by_row = np.zeros((shape[1], features.size), np.uint8)
        transpose(by_feature, features, by_row)
        assert by_row.tolist() == by_feature[features].T.tolist()


# ---- prediction -------------------------------------------------------------------------------------


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


LEVELS = [0.5, 1.7, 63, 64, 200, 255, 256, 1e30, np.inf, -np.inf, -0.5]


@pytest.mark.parametrize("by_level", [0.0, 0.4])
@pytest.mark.parametrize("count", [0, 1, 12])
def test_predict_margins(count, by_level):
    rng = np.random.default_rng(count)
    trees = [random_tree(rng, 4, 4, by_level) for _ in range(count)]
    found = [-2, -1, -0.0, 0, 0.1, 0.25, 1, 3, np.nan, *(LEVELS if by_level else [])]
    features = rng.choice(np.array(found, np.float32), (200, 4))
    columns = list(zip(*[one for tree in trees for one in tree], strict=True)) or [()] * 6
    sets = [one if isinstance(one, set) else None for one in columns[3]]
    columns[3] = [math.nan if isinstance(one, set) else one for one in columns[3]]
    kinds = (np.int64, np.int64, np.int64, np.float32, np.bool_, np.float64)
    arrays = [np.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    roots = np.cumsum([0, *map(len, trees)])[:-1].astype(np.int64)
    is_set = np.array([one is not None for one in sets], np.bool_)
    bits = [[level in one for level in range(256)] for one in (set(), *sets) if one is not None]
    words = np.packbits(np.array(bits, np.bool_).reshape(-1, 256), axis=1, bitorder="little")
    arrays += [np.where(is_set, np.cumsum(is_set), 0).astype(np.uint64), words.view(np.uint64)]
    for values in (
        features,
        np.nan_to_num(features, nan=1.0),
    ):  # a block without missing values is another loop
        margin = rng.normal(size=200)
        due = reference.predict_margins(values, trees, margin)
        predict_margins(values, roots, *arrays, margin)
        assert margin.tolist() == due
