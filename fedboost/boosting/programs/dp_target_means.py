"""Levels as means of the label, from sums with noise: one release, without folds.

Noise hides what a row adds to the mean of its own level, so that no fold needs to leave it out, and a fold
would have noise of its own: where 20,000 levels had ten rows each, one sum a level was better from the noise
of two rows on.

Promises: pure functions of the terms and the noisy sums, so that they tell nothing of rows that these do not.
Refuses nothing: noise can make no sum impossible.
"""

from collections.abc import Generator
from dataclasses import replace

import numpy as np

from fedboost.boosting.programs.noisy_sums import NOISE_ALONE, Sums, newton_step
from fedboost.boosting.programs.target_means import Levels, by_column, lay_cut_points, parts_of
from fedboost.boosting.queries.target_means import LevelSumsQuery
from fedboost.fixedpoint import Float32, Int64
from fedboost.gbdt.cut_points import Quantiles
from fedboost.gbdt.objectives.objective import SCALE, UNITS
from fedboost.terms.noise import LEVELS, ROWS
from fedboost.terms.terms import Terms, slots_of


def find_noisy_levels(terms: Terms, bins: int) -> Generator[LevelSumsQuery, Int64, Levels]:
    """The same from sums with noise. bins: most of a column; missing values have one more."""
    slots = slots_of(terms)
    if not slots:
        return Levels()
    query = LevelSumsQuery(ROWS, tuple(each.with_missing for each in slots.values()), SCALE, SCALE, False)
    (sums,) = parts_of(query, (yield query))
    means, cut_points = [], []
    for own in by_column(query, sums):
        means.append(_noisy_means(terms, own))
        clear = own[:, 1] > NOISE_ALONE * terms.plan.releases[LEVELS].sigma
        units = np.where(clear, own[:, 1] // UNITS, 0)
        quantiles = Quantiles(bins, max(int(units.sum()), 1))
        cut_points.append(lay_cut_points(means[-1], units, quantiles))
    every = tuple(replace(own, missing=np.ones(1, np.bool_)) for own in cut_points)
    return Levels(tuple(means), every)


def _noisy_means(terms: Terms, sums: Int64) -> Float32:
    """The means of a column, float32 [buckets, 1]: a step from the overall mean, as a leaf of these rows
    would take it; gradients there are about those where boosting would start, plus hessian times step."""
    loss, sigma, bound = terms.objective.loss, terms.plan.releases[LEVELS].sigma, terms.bound
    start = loss.margin(bound.start)
    total, every = sums.sum(axis=0).tolist(), sigma * np.sqrt(len(sums))
    overall = newton_step(terms, Sums(total[0], total[1], every))
    per_unit = bound.hessian(1.0) / bound.gradient(1.0) * overall
    steps = [
        newton_step(terms, Sums(round(gradient + per_unit * max(hessian, 0)), hessian, sigma))
        for gradient, hessian in sums[:-1].tolist()
    ]
    means = loss.predict(start + overall + np.array(steps))
    return means.astype(np.float32).reshape(-1, 1)
