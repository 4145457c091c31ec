"""Queries, splits, leaf values and scales to protobuf and back.

Refuses: values outside their ranges, and longer lists than there can be (PeerError).
"""

from collections.abc import Iterable
from typing import Any, assert_never

import numpy as np

from fedboost.boosting.queries.base import CONSTANT_TREE, MAX_ROWS
from fedboost.boosting.queries.cut_points import QuantileQuery, RangeQuery
from fedboost.boosting.queries.leaves import ResidualQuery
from fedboost.boosting.queries.noisy import SumsQuery
from fedboost.boosting.queries.rounds import EndRoundQuery
from fedboost.boosting.queries.start import RowsQuery, StartQuery
from fedboost.boosting.queries.trees import Elected, HistogramQuery, VoteQuery
from fedboost.boosting.queries.union import Query
from fedboost.errors import PeerError
from fedboost.fixedpoint import Scale
from fedboost.gbdt.cut_points import KEY_BITS, CutPoints, Grid
from fedboost.gbdt.kernels.bins import MAX_CODES
from fedboost.gbdt.metrics.registry import is_metric
from fedboost.gbdt.tree import Split
from fedboost.protocol.terms import (
    MAX_DEPTH,
    MAX_FEATURES,
    MAX_METRICS,
    MAX_PARTIES,
)
from fedboost.wire.bounds import bounded, require
from fedboost.wire.v1 import fedboost_pb2 as pb

MAX_NODES = 2 << MAX_DEPTH
MAX_ELECTED = 1 << 20
"""Features that one question names, of all its nodes."""
MAX_SETS = 2 * (1 + MAX_PARTIES)


def query_to_pb(query: Query) -> dict[str, Any]:
    match query:
        case RowsQuery():
            return {"rows": pb.RowsQuery()}
        case QuantileQuery(rows, grids):
            return {"quantiles": pb.QuantileQuery(rows=rows, grids=map(_grid_to_pb, grids))}
        case RangeQuery(rows, features):
            return {"ranges": pb.RangeQuery(rows=rows, features=features)}
        case SumsQuery(rows, tree, splits, nodes):
            sums = pb.SumsQuery(rows=rows, tree=tree, splits=map(split_to_pb, splits), nodes=nodes)
            return {"sums": sums}
        case StartQuery(rows, cut_points, gradient, hessian):
            categorical = {*cut_points.categorical}
            cuts = [
                pb.Cuts(cuts=c.tolist(), missing=m, categorical=feature in categorical)
                for feature, (c, m) in enumerate(zip(cut_points.cuts, cut_points.missing, strict=True))
            ]
            start = pb.StartQuery(
                rows=rows, features=cuts, gradient=scale_to_pb(gradient), hessian=scale_to_pb(hessian)
            )
            return {"start": start}
        case VoteQuery(rows, tree, splits, nodes, features, parties, gradient, hessian):
            votes = pb.VoteQuery(
                rows=rows,
                tree=tree,
                splits=map(split_to_pb, splits),
                nodes=nodes,
                features=features,
                parties=parties,
                gradient=scale_to_pb(gradient),
                hessian=scale_to_pb(hessian),
            )
            return {"votes": votes}
        case HistogramQuery(rows, tree, splits, nodes, bins, gradient, hessian, widths, elected, threshold):
            histograms = pb.HistogramQuery(
                rows=rows,
                tree=tree,
                splits=map(split_to_pb, splits),
                nodes=nodes,
                bins=bins,
                gradient=scale_to_pb(gradient),
                hessian=scale_to_pb(hessian),
                widths=bytes(width for of_node in widths for width in of_node),
                elected=(pb.Elected(features=one.features, bins=one.bins) for one in elected),
                threshold=threshold,
            )
            return {"histograms": histograms}
        case ResidualQuery(rows, tree, splits, nodes, starts, width, weight):
            residuals = pb.ResidualQuery(
                rows=rows,
                tree=tree,
                splits=map(split_to_pb, splits),
                nodes=nodes,
                starts=starts,
                width=width,
                weight=scale_to_pb(weight),
            )
            return {"residuals": residuals}
        case EndRoundQuery(rows, tree, splits, values, metrics, weight, exponents, sets, sizes):
            end_round = pb.EndRoundQuery(
                rows=rows,
                tree=tree,
                splits=map(split_to_pb, splits),
                values=values_to_pb(values),
                metrics=metrics,
                weight=scale_to_pb(weight),
                exponents=exponents,
                sets=sets,
                sizes=sizes,
            )
            return {"end_round": end_round}
        case _:
            assert_never(query)


def query_from_pb(ask: Any) -> Query:
    match ask.WhichOneof("query"):
        case "rows":
            return RowsQuery()
        case "quantiles":
            q = ask.quantiles
            return QuantileQuery(_rows(q), tuple(map(_grid_from_pb, bounded(q.grids, MAX_FEATURES, "grids"))))
        case "start":
            return start_from_pb(ask.start)
        case "ranges":
            q = ask.ranges
            return RangeQuery(_rows(q), q.features)
        case "sums":
            q = ask.sums
            nodes = bounded(q.nodes, MAX_NODES, "nodes")
            return SumsQuery(_rows(q), q.tree, splits_from_pb(q.splits), nodes)
        case "histograms":
            q = ask.histograms
            return HistogramQuery(
                _rows(q),
                q.tree,
                splits_from_pb(q.splits),
                bounded(q.nodes, MAX_NODES, "nodes"),
                q.bins,
                scale_from_pb(q.gradient),
                scale_from_pb(q.hessian),
                _widths_from_pb(q.widths),
                _elected_from_pb(q.elected),
                q.threshold,
            )
        case "votes":
            q = ask.votes
            return VoteQuery(
                _rows(q),
                q.tree,
                splits_from_pb(q.splits),
                bounded(q.nodes, MAX_NODES, "nodes"),
                q.features,
                q.parties,
                scale_from_pb(q.gradient),
                scale_from_pb(q.hessian),
            )
        case "residuals":
            return residual_from_pb(ask.residuals)
        case "end_round":
            q = ask.end_round
            require(q.tree >= CONSTANT_TREE, f"tree {q.tree}")
            require(all(map(is_metric, q.metrics)), "a metric this version does not know")
            return EndRoundQuery(
                _rows(q),
                q.tree,
                splits_from_pb(q.splits),
                values_from_pb(q.values),
                bounded(q.metrics, MAX_METRICS, "metrics"),
                scale_from_pb(q.weight),
                q.exponents,
                bounded(q.sets, MAX_SETS, "sets of rows"),
                q.sizes,
            )
    raise PeerError("an empty query, or one of a newer version of fedboost")


def residual_from_pb(q: Any) -> ResidualQuery:
    require(q.tree >= CONSTANT_TREE, f"tree {q.tree}")
    return ResidualQuery(
        _rows(q),
        q.tree,
        splits_from_pb(q.splits),
        bounded(q.nodes, MAX_NODES, "nodes"),
        bounded(q.starts, MAX_NODES, "cells"),
        q.width,
        scale_from_pb(q.weight),
    )


def _widths_from_pb(widths: bytes) -> tuple[tuple[int, int], ...]:
    require(len(widths) % 2 == 0 and len(widths) <= 2 * MAX_NODES, f"{len(widths)} widths")
    return tuple(zip(widths[::2], widths[1::2], strict=True))


def _elected_from_pb(elected: Any) -> tuple[Elected, ...]:
    nodes = bounded(elected, MAX_NODES, "nodes")
    features = sum(len(one.features) for one in nodes)
    require(features <= MAX_ELECTED, f"{features} elected features; {MAX_ELECTED} are allowed")
    return tuple(Elected(tuple(one.features), one.bins) for one in nodes)


def _rows(query: Any) -> int:
    require(0 < query.rows < MAX_ROWS, f"{query.rows} rows")
    return int(query.rows)


def scale_to_pb(scale: Scale) -> Any:
    return pb.Scale(exponent=scale.exponent, bits=scale.bits)


def scale_from_pb(scale: Any) -> Scale:
    require(abs(scale.exponent) <= 256 and 1 <= scale.bits <= 32, "a scale out of range")
    return Scale(scale.exponent, scale.bits)


def split_to_pb(split: Split) -> Any:
    return pb.Split(
        node=split.node,
        feature=split.feature,
        bin=split.bin,
        missing_left=split.missing_left,
        left=split.left,
        categories=split.categories.to_bytes(-(-split.categories.bit_length() // 8), "little"),
    )


def splits_from_pb(splits: Any) -> tuple[Split, ...]:
    few = bounded(splits, MAX_NODES, "splits")
    return tuple(
        Split(s.node, s.feature, s.bin, s.missing_left, s.left, _categories_from_pb(s.categories))
        for s in few
    )


def _categories_from_pb(bitmap: bytes) -> int:
    require(len(bitmap) <= MAX_CODES // 8, f"{len(bitmap)} bytes of levels")
    return int.from_bytes(bitmap, "little")


def values_to_pb(values: Iterable[tuple[int, float]]) -> list[Any]:
    return [pb.LeafValue(node=node, value=value) for node, value in values]


def values_from_pb(values: Any) -> tuple[tuple[int, float], ...]:
    return tuple((value.node, value.value) for value in bounded(values, MAX_NODES, "leaves"))


def start_from_pb(q: Any) -> StartQuery:
    features = bounded(q.features, MAX_FEATURES, "features")
    categorical = tuple(number for number, feature in enumerate(features) if feature.categorical)
    cuts, missing = tuple(map(_cuts_from_pb, features)), tuple(f.missing for f in features)
    cut_points = CutPoints(cuts, missing, categorical)
    return StartQuery(_rows(q), cut_points, scale_from_pb(q.gradient), scale_from_pb(q.hessian))


def _cuts_from_pb(feature: Any) -> Any:
    cuts = np.array(feature.cuts, np.float32)
    require(bool(np.isfinite(cuts).all() and (cuts[1:] > cuts[:-1]).all()), "cut points that do not increase")
    return cuts


def _grid_to_pb(grid: Grid) -> Any:
    return pb.Grid(
        starts=grid.starts.tolist(), widths=grid.widths.tobytes(), subdivisions=grid.subdivisions.tobytes()
    )


def _grid_from_pb(grid: Any) -> Grid:
    starts = np.array(grid.starts, np.uint32)
    widths = np.frombuffer(grid.widths, np.uint8)
    subdivisions = np.frombuffer(grid.subdivisions, np.uint8)
    require(starts.size == widths.size == subdivisions.size, "a grid with columns of different lengths")
    require(bool((subdivisions <= widths).all() and (widths <= KEY_BITS).all()), "a grid out of range")
    first = starts.astype(np.int64)
    ends = first + (np.int64(1) << widths.astype(np.int64))
    require(bool((first[1:] >= ends[:-1]).all() and (ends <= 1 << KEY_BITS).all()), "overlapping cells")
    require(bool((subdivisions < 24).all()), "a grid with too many subcells")
    return Grid(starts, widths, subdivisions)
