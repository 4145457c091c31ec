"""Queries a party does not answer: out of order, or not what the terms allow."""

import dataclasses
import math

import numpy as np
import pytest
from answers import CONSTANT, CUTS, LEVEL_CUTS, LEVELS_OF, ROOT, SPLIT, START, party_after
from inprocess import terms_of
from raised import raised

from fedboost.boosting.queries.base import CONSTANT_TREE, check_splits
from fedboost.boosting.queries.columns import QuantileQuery
from fedboost.boosting.queries.labels import START_BITS, ResidualQuery, RowsQuery, StartQuery
from fedboost.errors import PeerError, Refused
from fedboost.fixedpoint import UNIT, Scale
from fedboost.gbdt import threads
from fedboost.gbdt.cut_points import CutPoints, Grids
from fedboost.gbdt.tree import Split, Splits


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(threads, "BLOCK", 64)


RESIDUALS = ResidualQuery(4, CONSTANT_TREE, (), (0,), (0,), 32, UNIT)
COUNT = QuantileQuery(4, Grids.first(1))
BYTE = np.array([8], np.uint8)
FINE = Grids(np.arange(2), np.zeros(1, np.uint32), BYTE, BYTE)
LEVELS = [
    dataclasses.replace(ROOT, splits=(Split(max(2 * i - 1, 0), 0, 0, True, 2 * i + 1),), nodes=(2 * i + 1,))
    for i in range(6)
]


@pytest.mark.parametrize(
    ("before", "query", "says"),
    [
        ((), ROOT, "the query came before the cut points were sent"),
        ((), CONSTANT, "the query came before the cut points were sent"),
        ((START,), START, "the cut points are already known"),
        ((START,), ROOT, "tree 0, but tree -1"),
        ((START, CONSTANT), CONSTANT, "tree -1, but tree 0"),
        ((START, CONSTANT), dataclasses.replace(ROOT, tree=1), "tree 1, but tree 0"),
        ((START, CONSTANT), dataclasses.replace(ROOT, bins=5), "5 bins, but the cut points define 4"),
        ((START, CONSTANT, ROOT), dataclasses.replace(ROOT, nodes=(1,)), "node 1 is not a leaf"),
        (
            (START, CONSTANT, ROOT),
            dataclasses.replace(ROOT, nodes=(1,), splits=(SPLIT, SPLIT)),
            "node 0 is not a leaf",
        ),
        ((START, CONSTANT, ROOT), ROOT, "the root must be queried first, and only once"),
        (
            (START, CONSTANT),
            dataclasses.replace(ROOT, nodes=(1,)),
            "the root must be queried first, and only once",
        ),
        ((START,), dataclasses.replace(CONSTANT, values=()), "leaf values"),
        ((START,), dataclasses.replace(CONSTANT, values=((0, 0.0), (1, 0.0))), "leaf values"),
        ((COUNT,) * 5, COUNT, "grids may be counted at most 5 times"),
        ((START,), COUNT, "before the cut points"),
        ((), QuantileQuery(4, FINE), "the first grid must be the coarse grid"),
        (
            (START, CONSTANT, ROOT, *LEVELS[:5]),
            LEVELS[5],
            "the tree already has as many levels as the terms allow",
        ),
        ((START,), RowsQuery(), "before the cut points"),
    ],
)
def test_queries_out_of_order(before, query, says):
    with pytest.raises(PeerError, match=says):
        party_after(*before).answer(query)


FULL = 2 << 6  # the nodes of a tree of depth 6, and one


@pytest.mark.parametrize(
    ("query", "says"),
    [
        (dataclasses.replace(ROOT, nodes=(2, 2)), "or names a node twice"),
        (dataclasses.replace(ROOT, widths=bytes(4 * [20])), r"\(4\) is not twice the number of nodes \(1\)"),
        (dataclasses.replace(ROOT, widths=bytes((0, 20))), "cell widths must be between 1 and 64 bits"),
        (dataclasses.replace(ROOT, widths=bytes((20, 0))), "cell widths must be between 1 and 64 bits"),
        (dataclasses.replace(ROOT, widths=bytes((65, 1))), "cell widths must be between 1 and 64 bits"),
        (dataclasses.replace(ROOT, widths=bytes((1, 64))), "cell widths must be between 1 and 64 bits"),
        (
            dataclasses.replace(ROOT, splits=(Split(0, 0, 0, True, FULL),)),
            "a tree of depth 6 cannot have these splits",
        ),
        (
            dataclasses.replace(ROOT, splits=(Split(0, 0, 0, True, 0),)),
            "a tree of depth 6 cannot have these splits",
        ),
        (
            dataclasses.replace(ROOT, splits=(SPLIT,) * (FULL + 1)),
            "a tree of depth 6 cannot have these splits",
        ),
        (
            dataclasses.replace(CONSTANT, splits=(SPLIT,) * (FULL + 1)),
            "a tree of depth 6 cannot have these splits",
        ),
        (dataclasses.replace(CONSTANT, values=((0, 0.0),) * 65), "65 leaves"),
        (dataclasses.replace(CONSTANT, exponents=True), "asks for exponent counts, but"),
        (dataclasses.replace(ROOT, bins=1 << 27), "at most 134217728 are allowed"),
        (RESIDUALS, "residuals, which objective binary:logistic does not need"),
        (
            dataclasses.replace(ROOT, threshold=0.5),
            "samples rows with gradient threshold 0.5, which the terms do not allow",
        ),
        (dataclasses.replace(CONSTANT, sizes=True), "asks for gradient norms, but"),
    ],
)
def test_queries_the_terms_do_not_allow(query, says):
    with pytest.raises(Refused, match=says):
        query.check(terms_of(np.zeros((1, 1)), 1))


@pytest.mark.parametrize("threshold", [0.0, -1.0, math.nan, math.inf])
def test_thresholds_that_cannot_be(threshold):
    terms = terms_of(np.zeros((1, 1)), 1, sampling_method="gradient_based", subsample=0.5)
    dataclasses.replace(ROOT, threshold=1e-30).check(terms)
    with raised(Refused, "query-sampling"):
        dataclasses.replace(ROOT, threshold=threshold).check(terms)


@pytest.mark.parametrize(
    "cut_points",
    [
        CUTS.with_categories((5, 3)),
        CUTS.with_categories((3, 6)),
        dataclasses.replace(LEVEL_CUTS, categorical=()),
        dataclasses.replace(LEVEL_CUTS, categorical=(0, 1, 2)),
        dataclasses.replace(LEVEL_CUTS, missing=np.array([True, True, False])),
        CutPoints.of((*LEVEL_CUTS.cuts[:2], CUTS.cuts[0]), LEVEL_CUTS.missing, (1, 2)),
    ],
)
def test_bins_that_are_not_the_levels_of_the_terms(cut_points):
    fine = Scale(0, START_BITS)
    StartQuery(4, LEVEL_CUTS, fine, fine).check(LEVELS_OF)
    with raised(Refused, "query-cuts"):
        StartQuery(4, cut_points, fine, fine).check(LEVELS_OF)


@pytest.mark.parametrize(
    "split",
    [
        Split(0, 0, 0, True, 1, 0b1),
        Split(0, 1, 0, True, 1),
        Split(0, 1, 1, True, 1),
        Split(0, 1, 1, True, 1, 0b1),
        Split(0, 1, 0, True, 1, 0b1000),
        Split(0, 3, 0, True, 1),
        Split(0, -1, 0, True, 1),
    ],
)
def test_splits_that_do_not_fit_the_kind_of_their_feature(split):
    fitting = Split(0, 0, 1, True, 1), Split(1, 1, 0, True, 3, 0b110), Split(3, 2, 0, True, 5, 31)
    check_splits(LEVELS_OF, Splits.of(fitting))
    with raised(Refused, "query-splits", naming=[split.feature]):
        check_splits(LEVELS_OF, Splits.of([split]))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"nodes": (1,)}, "before the first tree, the query must be about the residuals of all rows"),
        ({"width": 8}, "cannot be 8 bits"),
        ({"width": 31}, "cannot be 31 bits"),
        ({"starts": (0, 0)}, r"residual cells in the query \(2\) differs from the number of nodes \(1\)"),
        ({"starts": (1,), "width": 24}, "does not start at a multiple of its size"),
        ({"starts": (1 << 32,), "width": 24}, "does not start at a multiple of its size"),
        ({"weight": Scale(0, 24)}, "must use 16-bit weights"),
        ({"tree": 0, "nodes": (0, 0), "starts": (0, 0)}, "or names a node twice"),
        ({"splits": (Split(0, 0, 0, False, 1),)}, "constant that boosting starts from cannot have splits"),
    ],
)
def test_residuals_the_terms_do_not_allow(change, says):
    of = terms_of(np.zeros((1, 1)), 1, objective="reg:absoluteerror", rounds=2)
    RESIDUALS.check(of)
    dataclasses.replace(RESIDUALS, tree=0, nodes=(1, 2), starts=(0, 1 << 24), width=24).check(of)
    with pytest.raises(Refused, match=says):
        dataclasses.replace(RESIDUALS, **change).check(of)
