"""Additive effects of features, and of pairs of features, from noisy sums.

Each round releases noisy sums of gradients and hessians by groups of one feature's bins. A row is in one
group, so it changes the release by at most its own bound. From an answer (G, H) and the effect v that the
bins have at the time, y = H v - G has the mean H f, where f is the effect that the feature should have:

    answers about a feature     y = A f + noise     A: H of each group, spread over its bins by their rows
    before the first one        f ~ N(0, tau**2 K)  K: bins that are close to each other are alike
    after each                  v := posterior mean of f, given all answers, averaged over tau by the evidence

What an answer says of f stays true while other features change, so noise averages out over the rounds. The
last rounds do the same for pairs of features, in grids of cells: for the pairs with the largest products of
evidence.

Guarantees: a feature's effect is a pure function of the terms and the noisy sums. What groups a release has,
and which pairs are used, depends only on the terms and on earlier releases.

Source of posterior and evidence: Rasmussen and Williams, "Gaussian Processes for Machine Learning", sections
2.2 and 5.4."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np

from fedboost.boosting.state import tree_of
from fedboost.fixedpoint import Float32, Float64, Int64
from fedboost.gbdt.cut_points import CutPoints, range_edges
from fedboost.gbdt.objectives.objective import IDENTITY
from fedboost.gbdt.tree import NO_CHILD, NO_SPLITS, NO_VALUES, Split, Splits, Tree
from fedboost.terms.hiding import ROUNDS_A_PAIR, TREES, groups_of
from fedboost.terms.terms import Terms

# ---- Cut points from noisy counts -----------------------------------------------------------------------

HEAVY = 4.0
"""Counts above this many standard deviations of their noise are kept as they are."""
BRANCHES = 4
"""Number of children of a node, in the tree of parts along which counts are shrunk."""


def shrunken(counts: Int64, sigma: float) -> Float64:
    """Estimate the rows in each part of a range from noisy counts, float64 [parts].

    Counts far above the noise are kept. Those of the other parts are shrunk toward equal counts within each
    node of a tree of parts, level by level: the fewer of the differences at a level are above the noise, the
    more. sigma: standard deviation of a count's noise."""
    alone = counts > HEAVY * sigma
    left, weight = np.where(alone, 0.0, counts), (~alone).astype(np.float64)
    estimate = np.array([left.sum()])
    while (parents := estimate.size) < counts.size:
        nodes = min(max(parents * BRANCHES, 8), counts.size)
        times = nodes // parents
        sums, own = (part.reshape(nodes, -1).sum(axis=1) for part in (left, weight))
        above, around = (np.repeat(part.reshape(parents, -1).sum(axis=1), times) for part in (sums, own))
        share = np.divide(own, around, out=np.zeros(nodes), where=around > 0.0)
        difference, noise = sums - share * above, sigma**2 * own * (1.0 - share)
        power = (difference * difference).sum()
        kept = max(0.0, 1.0 - noise.sum() / power) if power else 0.0
        estimate = share * np.repeat(estimate, times) + kept * difference
    found: Float64 = np.where(alone, counts, np.maximum(estimate, 0.0))
    return found


def cuts_of(rows: Float64, declared: tuple[float, float], bins: int) -> tuple[Float32, Float64]:
    """Choose the cut points of at most `bins` bins. A part of the range that has as many rows as an average
    bin is a bin of its own; between those, bins have about equally many rows.

    rows: estimated rows in each part of the range. Returns the cut points, and the rows in each bin."""
    edges = range_edges(declared, rows.size)
    rows = rows if rows.any() else np.ones(rows.size)
    alone = rows >= rows.sum() / bins
    others = np.where(alone, 0.0, rows)
    for wanted in range(bins, 0, -1):
        ends, inside, least = list[int](), 0.0, others.sum() / wanted
        for part, count in enumerate(others.tolist()):
            if alone[part] or inside + count / 2.0 > least:
                ends.append(part)
                inside = 0.0
            inside += count
            if alone[part]:
                ends.append(part + 1)
        cuts = np.unique(edges[[end - 1 for end in ends if 0 < end < rows.size]])
        if cuts.size < bins:
            break
    cuts = cuts[: bins - 1]
    of_part = np.append(0, np.searchsorted(cuts, edges, side="right"))
    return cuts, np.bincount(of_part, rows, minlength=cuts.size + 1).astype(np.float64)


# ---- The posterior mean of an effect --------------------------------------------------------------------

FADE = 0.85
"""Factor by which an answer counts less for each later answer about the same features: the gradients' slope
has changed."""
TAUS = np.geomspace(0.01, 2.0, 11)
"""Prior standard deviations of an effect, over which the posterior is averaged."""
PRIOR_WIDTH = 0.7
"""Standard deviation of the logarithm of tau, before the answers."""
ALONE = 0.1
"""Share of an effect's prior variance that neighbouring bins do not share."""


def posterior(
    spread: Float64, y: Float64, variance: Float64, factor: Float64, center: float, unit: float
) -> tuple[Float64, float]:
    """Return the posterior mean of an effect, float64 [cells], and the logarithm of the evidence for it,
    beyond that for no effect.

    Args:
        spread: A, float64 [answers, cells].
        y: the answers, float64 [answers].
        variance: variance of the noise of each answer.
        factor: Cholesky factor of K, float64 [cells, cells].
        center: most likely tau before the answers, in units of `unit`.
        unit: unit of effects, in margins."""
    scale = 1.0 / np.sqrt(variance)
    known = scale[:, None] * spread @ factor
    values, vectors = np.linalg.eigh(known.T @ known)
    parts, squares = vectors.T @ (known.T @ (scale * y)), (unit * TAUS[:, None]) ** 2
    ratio = 1.0 + np.maximum(values, 0.0) * squares  # [taus, cells]
    likely = 0.5 * (parts * parts * squares / ratio - np.log(ratio)).sum(axis=1)
    before = np.exp(-0.5 * (np.log(TAUS / center) / PRIOR_WIDTH) ** 2)
    weight = np.exp(likely - likely.max()) * before
    mean = (weight[:, None] / weight.sum() * squares / ratio).sum(axis=0) * parts
    evidence = float(likely.max() + np.log(weight.sum() / before.sum()))
    return factor @ (vectors @ mean), evidence


def alike(cells: int, reach: float) -> Float64:
    """Return the prior correlation between cells in a row. reach: distance, as a share of the row, at which
    it is 1 / e."""
    at = np.arange(cells) / max(cells - 1, 1)
    near: Float64 = np.exp(-np.abs(at[:, None] - at) / reach)
    return (1.0 - ALONE) * near + ALONE * np.eye(cells)


# ---- Groups of bins, and the trees that lead to them ----------------------------------------------------


@dataclass(frozen=True)
class Group:
    """Bins of a feature whose rows are summed together. missing: also the rows without a value."""

    bins: tuple[int, ...] = ()
    missing: bool = False


MISSING = Group((), True)


def joined(groups: Iterable[Group]) -> Group:
    every = [*groups]
    return Group(tuple(bin_ for each in every for bin_ in each.bins), any(each.missing for each in every))


class Grower:
    """Splits of one round's trees, which all have the same structure. by_bins: True if groups are themselves
    divided into bins, so that it is bins whose leaves should not be deep."""

    def __init__(self, roots: int, categorical: tuple[int, ...], by_bins: bool) -> None:
        self._roots, self._categorical, self._by_bins = roots, categorical, by_bins
        self.splits = list[Split]()

    def divide(self, node: int, feature: int, groups: Sequence[Group]) -> list[int]:
        """Split a node by a feature until each group has a leaf. Returns the leaves, in the order of the
        groups. Groups of a numeric feature are in the order of its values. Missing values alone come after
        them, and before groups of categories, as a set of categories on the right must not be empty."""
        if len(groups) == 1:
            return [node]
        # By bins, a leaf of n is less than log2(n) + LOPSIDED deep, whatever the groups are.
        until = np.cumsum([max(len(group.bins), 1) if self._by_bins else 1 for group in groups])
        middle = 1 + int(np.argmin(np.abs(until[:-1] - until[-1] / 2.0)))
        halves = groups[:middle], groups[middle:]
        left, right = map(joined, halves)
        child = self._roots + 2 * len(self.splits)
        if feature in self._categorical:
            split = Split(node, feature, 0, left.missing, child, sum(1 << level for level in right.bins))
        else:
            split = Split(node, feature, left.bins[-1], left.missing, child)
        self.splits.append(split)
        return [leaf for side, half in enumerate(halves) for leaf in self.divide(child + side, feature, half)]


def equal_parts(weight: Float64, count: int) -> list[range]:
    """Divide a row of cells into at most `count` ranges of about equal weight."""
    until = np.cumsum(weight) - weight / 2.0
    ranks = np.arange(1, count) / count * weight.sum()
    inner = [end for end in np.unique(np.searchsorted(until, ranks)).tolist() if 0 < end < weight.size]
    return [range(*ends) for ends in pairwise([0, *inner, weight.size])]


# ---- Effects, and what is known of them -----------------------------------------------------------------


class Answer(NamedTuple):
    """One answer about an effect: sums of hessians, and the groups' values at the time, float64 [roots,
    groups]; A, float64 [roots, groups, cells]; y, float64 [roots, groups]."""

    hessian: Float64
    value: Float64
    spread: Float64
    y: Float64


@dataclass
class Effect:
    """The effect of one or two features on the margins.

    cells: the groups of bins that have a value each, or none for a pair; rows: estimated relative numbers of
    rows in the cells, float64 [cells]; factor, center: as in `posterior`; value: float64 [roots, cells];
    answers: oldest first; evidence: of all answers, at least 0."""

    cells: list[Group]
    rows: Float64
    factor: Float64
    center: float
    value: Float64
    answers: list[Answer] = field(default_factory=list)
    evidence: float = 0.0

    def learn(self, answer: Answer, variances: tuple[float, float], ratio: float, unit: float) -> Float64:
        """Update the value, and return by how much it has moved. variances: of the noise in sums of gradients
        and of hessians; ratio: variance of a row's gradient, in units of its hessian; unit: of effects, in
        margins."""
        self.answers.append(answer)
        count, sizes = len(self.answers), [each.y.shape[1] for each in self.answers]
        fading = np.repeat(FADE ** np.arange(count - 1, -1, -1), sizes)
        moved, evidence = np.empty_like(self.value), 0.0
        for root, before in enumerate(self.value):
            hessian, value, spread, y = (
                np.concatenate([part[root] for part in parts]) for parts in zip(*self.answers, strict=True)
            )
            mean, known = before, 0.0
            for _ in range(2):
                # Noise in the hessian changes y by as much for each unit that the value was away from f. And
                # the same rows answer each time: what their labels add by chance does not average out.
                away = value - spread @ mean / hessian
                noise = (variances[0] + variances[1] * away**2) / fading + count * ratio * hessian
                mean, known = posterior(spread, y, noise, self.factor, self.center, unit)
            moved[root] = np.clip(mean - before, -MAX_MOVE * unit, MAX_MOVE * unit).astype(np.float32)
            evidence += known
        self.value += moved
        self.evidence = max(evidence, 0.0)
        return moved


# ---- Which groups each round asks for, and what its answer says -----------------------------------------


REACH, PAIR_REACH = 0.3, 0.5
"""As in `alike`, between the bins of a feature, and between groups of them in a pair."""
CENTER, PAIR_CENTER = 0.4, 0.15
"""Most likely tau of an effect of one feature, and of what a pair adds to it."""
MAX_MOVE = 2.0
"""Largest magnitude of a move of an effect in one round, in units of margins."""
LEAST = 0.1
"""Smallest sum of hessians of a group, in standard deviations of its noise."""
MAX_SIDE, CELL_SIGMAS = 10, 2.0
"""Maximum number of groups of each feature of a pair; sum of hessians in a group's cell, in standard
deviations."""


class Release(NamedTuple):
    """The groups of a round. splits: lead to the groups; further: lead from these to the cells; cells: of
    each group; leaves, ends: nodes of the groups and of their cells, [roots, groups] and [roots, cells]."""

    effect: Effect
    splits: Splits
    further: Splits
    cells: list[list[int]]
    leaves: list[list[int]]
    ends: list[list[int]]


class Effects:
    """Effects of all features and of the chosen pairs: what each round asks for, and what an answer tells."""

    def __init__(
        self, terms: Terms, cut_points: CutPoints, rows: Sequence[Float64], hessian: Float64, total: float
    ) -> None:
        """rows: estimated rows in each bin of the numeric features, as far as they were counted; hessian:
        mean hessian of a row at the constant, by root; total: estimated number of rows."""
        self._terms, self._cut_points, self._rows = terms, cut_points, rows
        self._hessian, self._total, bound = hessian, max(total, 1.0), terms.bound
        sigma = terms.plan.releases[TREES].sigma
        self._hessian_sigma = bound.hessian(sigma)
        self._variances = bound.gradient(sigma) ** 2, self._hessian_sigma**2
        self._unit, self._ratio = 1.0, 1.0
        if terms.objective.loss.link == IDENTITY:
            spread, per_row = terms.objective.loss.typical_row(bound)
            self._unit, self._ratio = bound.clip, spread**2 / per_row
        self._features = range(cut_points.sizes.size)
        self._most_cells = 1 << terms.trees.max_depth
        self._effects: dict[tuple[int, ...], Effect] = {
            (feature,): self._of_feature(feature) for feature in self._features
        }
        self._sides = dict[tuple[int, ...], list[list[Group]]]()

    def _of_feature(self, feature: int) -> Effect:
        bins = int(self._cut_points.sizes[feature]) + 1
        if feature in self._cut_points.categorical:
            levels = np.array_split(np.arange(bins), min(bins, self._most_cells - 1))
            cells = [MISSING, *(Group((*part.tolist(),)) for part in levels)]
            prior = np.eye(len(cells))
        else:
            cells = [*(Group((bin_,)) for bin_ in range(bins)), MISSING]
            prior = np.eye(len(cells))
            prior[:bins, :bins] = alike(bins, REACH)
        counted = np.append(self._rows[feature], 0.0) if feature < len(self._rows) else np.ones(len(cells))
        return self._effect(cells, counted, prior, CENTER)

    def _effect(self, cells: list[Group], rows: Float64, prior: Float64, center: float) -> Effect:
        value = np.zeros((len(self._terms.roots), len(prior)))
        return Effect(cells, rows, np.linalg.cholesky(prior).astype(np.float64), center, value)

    def release(self, number: int) -> Release:
        """Choose the groups of a round."""
        pair_rounds = ROUNDS_A_PAIR * self._terms.pairs
        if number < (main := self._terms.trees.rounds - pair_rounds):
            return self._of_one(self._features[number % len(self._features)])
        if not self._sides:
            self._choose_pairs()
        return self._of_two([*self._sides][(number - main) % len(self._sides)])

    def _of_one(self, feature: int) -> Release:
        effect = self._effects[feature,]
        grower = Grower(len(self._terms.roots), self._cut_points.categorical, by_bins=True)
        cells = [[cell] for cell in range(len(effect.cells))]
        if feature not in self._cut_points.categorical:
            count = groups_of(float(self._hessian[0]) * self._total, self._hessian_sigma)
            cells[:-1] = map(list, equal_parts(effect.rows[:-1] + 1e-9, count))
        parts = [[effect.cells[cell] for cell in part] for part in cells]
        groups = [*map(joined, parts)]
        leaves = [grower.divide(root, feature, groups) for root in self._terms.roots]
        first, ends = len(grower.splits), list[list[int]]()
        for of_root in leaves:
            fine = zip(of_root, parts, strict=True)
            ends.append([end for leaf, part in fine for end in grower.divide(leaf, feature, part)])
        every = Splits.of(grower.splits)
        return Release(effect, every[:first], every[first:], cells, leaves, ends)

    def _of_two(self, pair: tuple[int, ...]) -> Release:
        effect, (a, b), (first, second) = self._effects[pair], pair, self._sides[pair]
        grower = Grower(len(self._terms.roots), self._cut_points.categorical, by_bins=False)
        leaves = [
            [leaf for row in grower.divide(root, a, first) for leaf in grower.divide(row, b, second)]
            for root in self._terms.roots
        ]
        cells = [[cell] for cell in range(effect.rows.size)]
        return Release(effect, Splits.of(grower.splits), NO_SPLITS, cells, leaves, leaves)

    def _choose_pairs(self) -> None:
        known = [math.sqrt(self._effects[feature,].evidence) for feature in self._features]
        pairs = sorted(combinations(self._features, 2), key=lambda pair: -known[pair[0]] * known[pair[1]])
        weight = float(self._hessian[0]) * self._total
        count = math.sqrt(max(weight, 0.0) / (CELL_SIGMAS * self._hessian_sigma))
        side = min(max(int(count), 2), MAX_SIDE, math.isqrt(1 << self._terms.trees.max_depth))
        for pair in pairs[: self._terms.pairs]:
            sides = self._sides[pair] = [self._side(feature, side) for feature in pair]
            prior = np.kron(*(alike(len(groups), PAIR_REACH) for groups in sides)).astype(np.float64)
            self._effects[pair] = self._effect([], np.ones(len(prior)), prior, PAIR_CENTER)

    def _side(self, feature: int, count: int) -> list[Group]:
        """Join the cells of a feature to groups of about equal weight: neighbouring bins, or categories with
        similar effects. Missing values join the group with the most similar effect."""
        effect = self._effects[feature,]
        value, present = effect.value[0], [cell for cell, group in enumerate(effect.cells) if group.bins]
        if feature in self._cut_points.categorical:
            present.sort(key=lambda cell: float(value[cell]))
        weight = effect.answers[-1].spread[0].sum(axis=0)[present] + 1e-9
        parts = [[present[place] for place in part] for part in equal_parts(weight, min(count, len(present)))]
        groups = [joined(effect.cells[cell] for cell in part) for part in parts]
        absent = value[effect.cells.index(MISSING)]
        nearest = int(np.argmin([abs(value[part].mean() - absent) for part in parts]))
        groups[nearest] = replace(groups[nearest], missing=True)
        return groups

    def grown(self, release: Release, sums: Int64) -> Tree:
        """Return the trees of a round from the noisy sums in its groups, int64 [roots, groups, 2]. The node
        of a group keeps its sum of gradients as `gain`, and that of hessians as `cover`."""
        bound, every = self._terms.bound, release.splits + release.further
        tree = tree_of(every, NO_VALUES, self._cut_points.cuts, len(release.leaves))
        gain, cover = np.zeros((2, len(tree)), np.float32)
        gain[release.leaves] = [[bound.gradient(units) for units in own] for own in sums[:, :, 0].tolist()]
        hessian = bound.hessian(1.0) * sums[:, :, 1]
        cover[release.leaves] = np.maximum(hessian, LEAST * self._hessian_sigma)
        return tree.changed(gain=gain, cover=cover)

    def learn(self, release: Release, tree: Tree) -> Tree:
        """Learn from the answer that a round's trees keep, and return the trees with the values of their
        leaves."""
        effect = release.effect
        gradient, hessian = tree.gain[release.leaves], tree.cover[release.leaves]
        spread = np.zeros((*hessian.shape, effect.rows.size))
        for group, cells in enumerate(release.cells):
            rows = effect.rows[cells] + 1e-9
            spread[:, group, cells] = hessian[:, group, None] * (rows / rows.sum())
        value = (spread @ effect.value[:, :, None])[:, :, 0] / hessian
        answer = Answer(hessian, value, spread, hessian * value - gradient)
        moved = effect.learn(answer, self._variances, self._ratio, self._unit)
        self._hessian = hessian.sum(axis=1) / self._total
        order = [cell for cells in release.cells for cell in cells]
        value, cover = tree.value.copy(), tree.cover.copy()
        value[release.ends] = moved[:, order]
        cover[release.ends] = spread.sum(axis=1)[:, order].astype(np.float32)
        kept = {leaf for leaves in release.leaves for leaf in leaves}
        for node, left in reversed([*enumerate(tree.left.tolist())]):
            if left != NO_CHILD and node not in kept:
                cover[node] = np.float32(math.fsum(cover[left : left + 2]))
        return tree.changed(value=value, cover=cover)
