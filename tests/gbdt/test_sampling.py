"""What is drawn: the share that was asked for, the same wherever a row is held, another for each round."""

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
    found = sampling.drawn(KEYS, share, 1, "subsample", 0)
    deviation = (share * (1 - share) / KEYS.size) ** 0.5
    assert abs(found.mean() - share) < 5 * deviation
    assert sampling.drawn(KEYS, 1.0, 1).all()


def test_a_row_is_drawn_wherever_it_is_held():
    whole = sampling.drawn(KEYS, 0.4, 1, "subsample", 3)
    order = np.random.default_rng(0).permutation(KEYS.size)
    assert (sampling.drawn(KEYS[order], 0.4, 1, "subsample", 3) == whole[order]).all()


def test_draws_of_other_rounds_seeds_and_kinds_are_others():
    salts = [(1, "subsample", 0), (1, "subsample", 1), (2, "subsample", 0), (1, "validation")]
    drawn = [sampling.drawn(KEYS, 0.5, *salt) for salt in salts]
    for i, one in enumerate(drawn):
        for other in drawn[i + 1 :]:
            assert abs((one & other).mean() - 0.25) < 0.02


def test_rows_without_ids_are_told_apart_by_site_and_place():
    north, south = sampling.keys_of("north", 100), sampling.keys_of("south", 100)
    assert len({*north.tolist(), *south.tolist()}) == 200
    assert (sampling.keys_of("north", 10) == north[:10]).all()


def test_some_of_the_features_at_least_one():
    features = (2, 5, 7, 11, 13)
    assert sampling.some_of(features, 1.0, 0) == features
    assert len(sampling.some_of(features, 0.01, 0)) == 1
    chosen = {sampling.some_of(features, 0.4, 0, "tree", n) for n in range(200)}
    assert all(len(some) == 2 and some == tuple(sorted(some)) for some in chosen)
    assert len(chosen) == 10
