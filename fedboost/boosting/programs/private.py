"""Differentially private training: cut points, trees and leaf values from noisy sums.

Guarantees: all results are pure functions of the terms and the noisy sums. The larger the share of noise in a
sum, the smaller the step. Sums are never rejected as inconsistent, since noise makes any sum possible.

Privacy budget. `Terms.plan` (`terms.hiding.plan_of`) fixes the noise of each kind of release before the first
query. The programs below send at most as many queries as the plan contains:

- CUT_POINTS: one RangeQuery, if there are numeric features; 6% of the total cost.
- LEVELS: one LevelSumsQuery, if there are target means; half of the total cost.
- START and TREES: one StartQuery, and one SumsQuery per round. The rest of the cost is divided equally among
  these queries.

Under terms with noise, an EndRoundQuery has no metrics, so its answer is empty and costs nothing. Everything
else that is published (structure, means, leaf values) is computed from these releases and the terms, at no
cost."""

import math
from collections.abc import Generator, Sequence
from dataclasses import replace

import numpy as np

from fedboost.boosting.programs.additive import Effects, Release, cuts_of, shrunken
from fedboost.boosting.programs.initialisation import Levels, by_column, lay_cut_points, model_of, parts_of
from fedboost.boosting.queries import Query
from fedboost.boosting.queries.base import CONSTANT_TREE
from fedboost.boosting.queries.columns import RangeQuery
from fedboost.boosting.queries.labels import LevelSumsQuery, StartQuery
from fedboost.boosting.queries.trees import EndRoundQuery, SumsQuery
from fedboost.errors import TrainingStopped
from fedboost.fixedpoint import UNIT, Float32, Float64, Int64
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.cut_points import FINE_PARTS, CutPoints, Quantiles
from fedboost.gbdt.objectives.objective import IDENTITY, SCALE, UNITS
from fedboost.gbdt.tree import NO_SPLITS, LeafValues, merged
from fedboost.protocol.contracts import GrownTrees
from fedboost.terms.hiding import CUT_POINTS, LEVELS, MAX_NOISY_BINS, ROWS, START
from fedboost.terms.tasks import slots_of
from fedboost.terms.terms import Terms

NOISE_ALONE = 2.0
"""Counts that do not exceed this many standard deviations of their noise are set to 0."""
STEP_SPREAD = 0.5
"""Prior standard deviation of steps (tau). A smaller one shrinks noisy steps more toward 0."""
MAX_STEP = 2.0
"""Maximum magnitude of a step."""


def newton_steps(terms: Terms, sums: Int64, sigma: float) -> Float64:
    """Return the steps -G H / (H**2 + (sigma_G / tau)**2), where tau is `STEP_SPREAD`. The noisier the sums
    are, the closer the steps are to 0. If the link is the identity, tau and the maximum step are multiplied
    by the bound to which gradients are clipped.

    sums: sums of gradients and hessians, int64 [steps, 2]; sigma: standard deviation of their noise."""
    bound, unit = terms.bound, terms.bound.clip if terms.objective.loss.link == IDENTITY else 1.0
    G, H = bound.gradient(1.0) * sums[:, 0], np.maximum(bound.hessian(1.0) * sums[:, 1], 0.0)
    spread = bound.gradient(sigma) / (STEP_SPREAD * unit)
    steps: Float64 = -G * H / (H * H + spread * spread)
    return steps.clip(-MAX_STEP * unit, MAX_STEP * unit)


# ---- Target means from noisy sums: one release, without folds -------------------------------------------
# Noise already hides what a row adds to the mean of its own level, so no fold has to leave it out. And each
# fold would need its own noise: with 20,000 levels of ten rows each, one sum per level was better as soon as
# the noise was that of two rows.


def find_noisy_levels(terms: Terms, bins: int) -> Generator[LevelSumsQuery, Int64, Levels]:
    """Find target means and cut points as in `find_levels`, but from noisy sums. bins: maximum number of bins
    per column, excluding the missing-value bin."""
    slots = slots_of(terms)
    if not slots:
        return Levels()
    query = LevelSumsQuery(ROWS, tuple(each.with_missing for each in slots.values()), SCALE, SCALE, False)
    (sums,) = parts_of(query, (yield query))
    means, cut_points = [], []
    for own in by_column(query, sums):
        means.append(_noisy_means(terms, own))
        # Row counts come from the released hessians as well: a slot whose hessian may be all noise counts 0.
        clear = own[:, 1] > NOISE_ALONE * terms.plan.releases[LEVELS].sigma
        units = np.where(clear, own[:, 1] // UNITS, 0)
        quantiles = Quantiles(bins, max(int(units.sum()), 1))
        cut_points.append(lay_cut_points(means[-1], units, quantiles))
    every = tuple(replace(own, missing=np.ones(1, np.bool_)) for own in cut_points)
    return Levels(tuple(means), every)


def _noisy_means(terms: Terms, sums: Int64) -> Float32:
    """Return the target means of a column, float32 [buckets, 1]: for each bucket, the prediction after a
    Newton step from the overall mean, as in a leaf with the bucket's rows.

    Gradients at the overall mean are approximately those at the start of boosting, plus hessian x step."""
    loss, sigma, bound = terms.objective.loss, terms.plan.releases[LEVELS].sigma, terms.bound
    overall = newton_steps(terms, sums.sum(axis=0, keepdims=True), sigma * math.sqrt(len(sums)))
    per_unit, at_overall = bound.hessian(1.0) / bound.gradient(1.0) * overall, sums[:-1].copy()
    at_overall[:, 0] = np.rint(sums[:-1, 0] + per_unit * sums[:-1, 1].clip(0))
    means = loss.predict(loss.margin(bound.start) + overall + newton_steps(terms, at_overall, sigma))
    return means.astype(np.float32).reshape(-1, 1)


# ---- Boosting with noise --------------------------------------------------------------------------------


def train(terms: Terms, grown: GrownTrees) -> Generator[Query, Int64, Booster]:
    """Train all rounds and return the model. grown: rounds whose trees were grown before a restart. These
    rounds are not queried again, because each query costs privacy."""
    assert terms.noise is not None
    most = min(terms.histograms.max_bin, MAX_NOISY_BINS, (1 << terms.trees.max_depth) - 1)
    cut_points, rows = yield from lay_noisy_cut_points(terms, most)
    levels = yield from find_noisy_levels(terms, most)
    cut_points = levels.among(cut_points, terms)
    total = yield StartQuery(ROWS, cut_points, SCALE, SCALE, levels.means)
    score = base_score(terms, total)
    constant = terms.objective.loss.margin(score)
    values = LeafValues.of((root, constant) for root in terms.roots)
    yield EndRoundQuery(ROWS, CONSTANT_TREE, NO_SPLITS, values, (), UNIT, False, ())
    known = terms.bound.hessian(int(total[1])) / hessians_at(terms, terms.bound.start, of_start=True)[0]
    effects = Effects(terms, cut_points, rows, hessians_at(terms, score), float(known))
    for number in range(terms.trees.rounds):
        release = effects.release(number)
        if number == len(grown):
            try:
                sums = yield from ask(release, number)
            except TrainingStopped:
                break
            grown.append((effects.grown(release, sums), release.further))
        tree, splits = grown[number]
        tree = effects.learn(release, tree)
        grown[number] = tree, splits
        yield EndRoundQuery(ROWS, number, splits, tree.leaf_values, (), UNIT, False, ())
    parts = [part for tree, _ in grown for part in tree.parts(len(terms.roots))]
    return model_of(terms, score, merged(parts, len(terms.roots)), levels.of_model(terms))


def ask(release: Release, number: int) -> Generator[Query, Int64, Int64]:
    """Ask for the noisy sums in the groups of a round. Returns int64 [roots, groups, 2]."""
    leaves = [leaf for of_root in release.leaves for leaf in of_root]
    nodes = sorted(leaves)
    sums = (yield SumsQuery(ROWS, number, release.splits, tuple(nodes))).reshape(-1, 2)
    return sums[np.searchsorted(nodes, leaves)].reshape(len(release.leaves), -1, 2)


def hessians_at(terms: Terms, score: float, of_start: bool = False) -> Float64:
    """Return a row's hessian where the prediction is the constant `score`, as a row adds it to sums: float64
    [outputs]. of_start: True for the hessian from which the constant is computed."""
    loss, label = terms.objective.loss, np.zeros(1, np.float32)
    margin = np.full((loss.outputs, 1), loss.margin(score))
    slopes = loss.start if of_start else loss
    found = slopes.gradients(margin if loss.outputs > 1 else margin[0], label, np.ones(1, np.float32))
    units = np.empty((loss.outputs, 1), np.int64)
    for gradient, hessian, out in zip(*map(np.atleast_2d, found), units, strict=True):
        terms.bound.quantise(gradient, hessian, out)
    return terms.bound.hessian(1.0) * (units[:, 0] & 0xFFFFFFFF).astype(np.float64)


def lay_noisy_cut_points(
    terms: Terms, bins: int
) -> Generator[Query, Int64, tuple[CutPoints, Sequence[Float64]]]:
    """Choose at most `bins` bins within each numeric feature's declared range, at quantiles of noisy row
    counts. Every feature gets a bin for missing values. Also returns the estimated rows in the bins."""
    ranges, found = [terms.columns.ranges[name] for name in terms.columns.numeric], []
    if ranges:
        noisy = (yield RangeQuery(ROWS, len(ranges), FINE_PARTS)).reshape(len(ranges), FINE_PARTS)
        sigma = terms.plan.releases[CUT_POINTS].sigma
        found = [cuts_of(shrunken(own, sigma), each, bins) for own, each in zip(noisy, ranges, strict=True)]
    cut_points = CutPoints.of(tuple(cuts for cuts, _ in found), (True,) * len(found))
    return cut_points.with_categories(terms.columns.category_counts), [rows for _, rows in found]


def base_score(terms: Terms, total: Int64) -> float:
    """Return the base score (constant prediction) in the terms, if set. Otherwise, return the prediction
    after a Newton step from the default start, or the default start if there are several outputs."""
    bound = terms.bound
    if terms.objective.base_score is not None:
        return float(np.float32(terms.objective.base_score))
    if terms.objective.loss.outputs > 1:
        return bound.start
    start = terms.objective.loss.margin(bound.start)
    step = newton_steps(terms, total.reshape(1, 2), terms.plan.releases[START].sigma)
    return float(np.float32(terms.objective.loss.predict(start + step)[0]))
