"""What is drawn: the share that was asked for, the same wherever a row is held, another for each round."""

import math

import numpy as np
import pytest

from fedboost.gbdt import sampling

KEYS = np.arange(20_000, dtype=np.uint64)


def split_mix(key, salt):
    """SplitMix64's output for a state, in Python's integers."""
    mask = (1 << 64) - 1
    z = (key + salt + 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def test_the_mix_is_that_of_splitmix64():
    keys = np.array([0, 1, 12345, (1 << 64) - 1], np.uint64)
    salt = sampling.key_of("('a', 1)")
    assert sampling.mixed(keys, "a", 1).tolist() == [split_mix(key, salt) for key in keys.tolist()]


@pytest.mark.parametrize("share", [0.05, 0.3, 0.5, 0.999])
def test_about_the_share_is_drawn(share):
    found = sampling.sampled(KEYS, share, 1, "subsample", 0)
    deviation = (share * (1 - share) / KEYS.size) ** 0.5
    assert abs(found.mean() - share) < 5 * deviation
    assert sampling.sampled(KEYS, 1.0, 1).all()


def test_a_row_is_drawn_wherever_it_is_held():
    whole = sampling.sampled(KEYS, 0.4, 1, "subsample", 3)
    order = np.random.default_rng(0).permutation(KEYS.size)
    assert (sampling.sampled(KEYS[order], 0.4, 1, "subsample", 3) == whole[order]).all()


def test_draws_of_other_rounds_seeds_and_kinds_are_others():
    salts = [(1, "subsample", 0), (1, "subsample", 1), (2, "subsample", 0), (1, "validation")]
    drawn = [sampling.sampled(KEYS, 0.5, *salt) for salt in salts]
    for i, one in enumerate(drawn):
        for other in drawn[i + 1 :]:
            assert abs((one & other).mean() - 0.25) < 0.02


def test_rows_without_ids_are_told_apart_by_site_and_place():
    north, south = (sampling.keys_of(site, np.arange(100, dtype=np.uint64)) for site in ("north", "south"))
    assert len({*north.tolist(), *south.tolist()}) == 200
    assert (sampling.keys_of("north", np.arange(10, dtype=np.uint64)) == north[:10]).all()


def test_some_of_the_features_at_least_one():
    features = (2, 5, 7, 11, 13)
    assert sampling.sampled_features(features, 1.0, 0) == features
    assert len(sampling.sampled_features(features, 0.01, 0)) == 1
    chosen = {sampling.sampled_features(features, 0.4, 0, "tree", n) for n in range(200)}
    assert all(len(some) == 2 and some == tuple(sorted(some)) for some in chosen)
    assert len(chosen) == 10


# ---- rows drawn by the sizes of their gradients -----------------------------------------------------


def sizes_like(kind):
    rng = np.random.default_rng(4)
    return {
        "spread": np.exp(2 * rng.normal(size=KEYS.size)),
        "probabilities": rng.random(KEYS.size) ** 3,
        "all alike": np.full(KEYS.size, 0.3),
        "mostly none": np.where(rng.random(KEYS.size) < 0.9, 0.0, 1.0 + rng.random(KEYS.size)),
        "a few far off": np.where(np.arange(KEYS.size) < 5, 1e12, 1e-3 * rng.random(KEYS.size)),
    }[kind]


KINDS = "spread", "probabilities", "all alike", "mostly none", "a few far off"


def test_the_size_of_a_gradient_is_that_of_all_its_outputs():
    rng = np.random.default_rng(1)
    gradient, hessian = rng.normal(size=(3, 50)), rng.random((3, 50))
    due = []
    for row in range(50):
        squares = 0.0
        for output in range(3):
            g, h = float(gradient[output, row]), float(hessian[output, row])
            squares += g * g + 0.7 * (h * h)
        due.append(math.sqrt(squares))
    assert sampling.gradient_norms(gradient, hessian, 0.7).tolist() == due
    assert sampling.gradient_norms(gradient[0], hessian[0], 0.0).tolist() == np.abs(gradient[0]).tolist()


def test_sizes_are_counted_in_eighths_of_octaves():
    of_rows = [1.0, 1.124, 1.125, 1.9, 2.0, 0.0, 1e-30, 1e30, math.inf, 2.0**-64, 0.3]
    due = np.zeros(sampling.NORM_CELLS, int)
    for size in of_rows:
        fraction, exponent = math.frexp(size if math.isfinite(size) else 1e300)
        cell = 8 * (exponent - 1 + 64) + math.floor(8 * (2 * fraction - 1)) if size else -1
        due[min(max(cell, 0), sampling.NORM_CELLS - 1)] += 1
    assert sampling.count_norms(np.array(of_rows)).tolist() == due.tolist()
    assert due[0] == 3  # 0, 1e-30 and the smallest size of all
    assert due[-1] == 2


@pytest.mark.parametrize("share", [0.05, 0.3, 0.9])
@pytest.mark.parametrize("kind", KINDS)
def test_the_threshold_draws_the_share_that_was_asked_for(kind, share):
    sizes = sizes_like(kind)
    threshold = sampling.mvs_threshold(sampling.count_norms(sizes), share)
    chances = sampling.sampling_probabilities(sizes, threshold, share)
    assert sampling.MIN_PROBABILITY_FACTOR * share <= chances.min()
    assert chances.max() <= 1.0
    if kind != "mostly none":  # where the rest is nothing a tenth is enough
        assert chances.mean() == pytest.approx(share, rel=0.05)
    else:
        assert chances.mean() <= share * 1.05
    assert (np.diff(chances[np.argsort(sizes)]) >= 0).all()


def test_the_threshold_depends_on_sums_of_counts_alone():
    sizes = sizes_like("spread")
    parts = np.array_split(np.random.default_rng(2).permutation(sizes), 7)
    together = sum(sampling.count_norms(part) for part in parts)
    assert (together == sampling.count_norms(sizes)).all()
    assert sampling.mvs_threshold(np.zeros(sampling.NORM_CELLS, np.int64), 0.3) == 1.0


def test_divided_by_their_chances_drawn_rows_sum_to_all_with_less_variance_than_drawn_alike():
    sizes = sizes_like("spread")
    chances = sampling.sampling_probabilities(
        sizes, sampling.mvs_threshold(sampling.count_norms(sizes), 0.1), 0.1
    )
    values = sizes * np.where(np.arange(KEYS.size) % 3, 1.0, -1.0)
    sums, alike = [], []
    for number in range(200):
        drawn = sampling.sampled_with(KEYS, chances, 5, "subsample", number)
        assert abs(drawn.mean() - 0.1) < 0.015
        sums.append((values / chances)[drawn].sum())
        alike.append(values[sampling.sampled(KEYS, 0.1, 5, "subsample", number)].sum() / 0.1)
    assert abs(np.mean(sums) - values.sum()) < 4 * np.std(sums) / math.sqrt(200)
    assert np.std(sums) < np.std(alike) / 3


def test_chances_of_one_and_none():
    assert sampling.sampled_with(KEYS, np.ones(KEYS.size), 1).all()
    assert not sampling.sampled_with(KEYS, np.zeros(KEYS.size), 1).any()


# ---- rows drawn several times -----------------------------------------------------------------------


@pytest.mark.parametrize("mean", [0.05, 0.5, 1.0])
def test_rows_are_drawn_poisson_many_times(mean):
    found = sampling.bootstrap_counts(KEYS, mean, 1, "subsample", 0, 3)
    counts = np.bincount(found, minlength=4)
    for number in range(4):
        due = math.exp(-mean) * mean**number / math.factorial(number)
        assert abs(counts[number] / KEYS.size - due) < 5 * math.sqrt(due / KEYS.size)
    order = np.random.default_rng(0).permutation(KEYS.size)
    assert (sampling.bootstrap_counts(KEYS[order], mean, 1, "subsample", 0, 3) == found[order]).all()
    other = sampling.bootstrap_counts(KEYS, mean, 1, "subsample", 0, 4)
    assert abs(np.corrcoef(found, other)[0, 1]) < 0.03


def test_no_row_is_drawn_more_often_than_cells_are_made_for(monkeypatch):
    monkeypatch.setattr(sampling, "mixed", lambda keys, *_: np.full(keys.size, (1 << 64) - 1, np.uint64))
    assert set(sampling.bootstrap_counts(KEYS[:3], 1.0, 0).tolist()) == {sampling.MAX_BOOTSTRAP_COUNT}


@pytest.mark.parametrize("threshold", [5e-324, 1e-300, 1e300])
def test_a_threshold_of_any_size_gives_probabilities(threshold):
    """It comes from outside, and a warning of numpy's is an error here."""
    sizes = np.array([0.0, 5e-324, 1.0, 1e300])
    chances = sampling.sampling_probabilities(sizes, threshold, 0.5)
    assert ((chances > 0) & (chances <= 1)).all()
    assert chances[sizes >= threshold].tolist() == [1.0] * int((sizes >= threshold).sum())
