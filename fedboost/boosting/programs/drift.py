"""Rows by bin of each feature and of the score: at the end of a training, and of other rows later.

Promises: a pure function of the terms and the sums; counts in the result are coarse (`coarse`), and bins of
few rows are merged.
Refuses: counts that contradict each other (PeerError), and fewer rows than `min_count` (ConfigError).
"""

from collections.abc import Generator
from typing import Any

import numpy as np

from fedboost.boosting.programs.coarse import coarse, rows_of_bin, unit_of
from fedboost.boosting.queries.base import MAX_ROWS
from fedboost.boosting.queries.bin_counts import BinCountsQuery
from fedboost.boosting.queries.union import OfTurn
from fedboost.errors import ConfigError, PeerError, TrainingStopped
from fedboost.fixedpoint import Int64
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.cut_points import CutPoints
from fedboost.gbdt.drift import BINS, Bins, bins_of, runs
from fedboost.protocol.contracts import GrownTrees, Outcome
from fedboost.terms.tasks import bins_in, class_names
from fedboost.terms.terms import Terms

Json = dict[str, Any]


def with_reference(
    terms: Terms, model: Booster, cut_points: CutPoints, rounds: int
) -> Generator[OfTurn, Int64, Outcome]:
    """A trained model with the counts of its rows by bin. rounds: those that the model keeps."""
    shape = len(terms.columns.ordered), terms.columns.category_counts
    bins = bins_of(cut_points, *shape, model.constant, model.trees, model.loss.outputs)
    query = BinCountsQuery(bins.sizes, bins.of_score, rounds)
    try:
        total = yield query
    except TrainingStopped:  # after the last round
        total = yield query
    parts, rows = _counts(terms, bins, total)
    *features, score = parts
    if not bins.classes:
        told = _told(terms, score)
        chosen = runs(told, max(terms.evaluation.min_count, -(-rows // BINS)), empty=False)
        edges = bins.score[[group[-1] for group in chosen[:-1]]]
        bins = Bins(bins.numeric, bins.levels, edges)
        score = np.array([score[group].sum() for group in chosen])
    return Outcome(model, {"reference": _summary(terms, bins, [*features, score], rows)})


def drift(terms: Terms, grown: GrownTrees) -> Generator[OfTurn, Int64, Outcome]:
    """Count the rows of all parties by the bins of a model's reference."""
    bins = bins_in(terms)
    parts, rows = _counts(terms, bins, (yield BinCountsQuery(bins.sizes, bins.of_score, 0)))
    assert terms.earlier is not None
    return Outcome(terms.earlier, {"present": _summary(terms, bins, parts, rows)})


def _counts(terms: Terms, bins: Bins, total: Int64) -> tuple[list[Int64], int]:
    """The counts of each feature and of the score, and the number of rows."""
    parts, floor = bins.parts(total), terms.evaluation.min_count
    rows = int(parts[0].sum())
    if not 0 < rows < MAX_ROWS or (total < 0).any() or any(part.sum() != rows for part in parts):
        raise PeerError("rows by bin of one column are others than by bin of another, or none")
    if rows < floor:
        raise ConfigError(f"the parties have fewer rows than min_count = {floor}")
    return parts, rows


def _summary(terms: Terms, bins: Bins, parts: list[Int64], rows: int) -> Json:
    """The result, as JSON: what it says stands in docs/lifecycle-evaluate.md."""
    floor, columns = terms.evaluation.min_count, terms.columns
    least = rows_of_bin(unit_of(floor))
    *features, score = (_told(terms, part) for part in parts)
    numeric = zip(columns.ordered, bins.numeric, features, strict=False)
    found: list[Json] = [
        {"name": name, "edges": edges.tolist(), **_grouped(_along(counts, least), counts)}
        for name, edges, counts in numeric
    ]
    categorical = zip(columns.categorical.items(), features[len(columns.ordered) :], strict=True)
    found += [
        {"name": name, "levels": [*levels], **_grouped(_apart(counts, least), counts)}
        for (name, levels), counts in categorical
    ]
    if bins.classes:
        of_score: Json = {"levels": [*class_names(terms)], **_grouped(_apart(score, least), score)}
    else:
        of_score = {"edges": bins.score.tolist(), **_grouped(runs(score, least), score)}
    return {"rows": rows, "min_count": floor, "columns": found, "score": of_score}


def _told(terms: Terms, counts: Int64) -> Int64:
    """What is told of the rows in each bin."""
    unit, rows = unit_of(terms.evaluation.min_count), int(counts.sum())
    return np.array(coarse(counts.tolist(), unit, rows) or [*[0] * (counts.size - 1), rows], np.int64)


def _grouped(groups: list[list[int]], counts: Int64) -> Json:
    return {"groups": groups, "counts": [int(counts[group].sum()) for group in groups]}


def _along(counts: Int64, least: int) -> list[list[int]]:
    """Groups of neighbouring bins, and the bin of missing values, by itself if it can."""
    groups, missing = runs(counts[:-1], least), counts.size - 1
    if 0 < counts[missing] < least or any(0 < counts[group].sum() < least for group in groups):
        return [*groups[:-1], [*groups[-1], missing]]
    return [*groups, [missing]]


def _apart(counts: Int64, least: int) -> list[list[int]]:
    """A group for each bin, and one for those of few rows, with the next one where they are few together."""
    few = [place for place, count in enumerate(counts.tolist()) if 0 < count < least]
    others = [place for place in range(counts.size) if place not in few]
    while others and 0 < counts[few].sum() < least:
        few.append(others.pop(0))
    return [*([place] for place in others), *([few] if few else [])]
