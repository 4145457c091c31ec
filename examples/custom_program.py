"""A custom training program: boosting with a learning rate that decreases in each round.

A program is a generator that yields queries, receives sums over all parties, and returns the model. It runs
unchanged in one process and over gRPC, where the terms select it by name. The parties never run it; they only
answer a fixed set of queries. `grown` contains the trees so far, so that training can continue after the
aggregator crashes.

Run: python examples/custom_program.py
"""

import tempfile
from collections.abc import Generator
from pathlib import Path

import numpy as np

import fedboost as fb
from fedboost.boosting.programs.boosting import end_query, grow_tree, split_end
from fedboost.boosting.programs.initialisation import Scales, find_base_score, find_cut_points, model_of
from fedboost.boosting.queries import Query
from fedboost.boosting.queries.base import CONSTANT_TREE
from fedboost.boosting.queries.labels import RowsQuery
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.tree import NO_SPLITS
from fedboost.protocol.contracts import GrownTrees
from fedboost.runtime.local.cluster import LocalCluster

SHRINK = 0.95


def train(terms: fb.Terms, grown: GrownTrees) -> Generator[Query, np.ndarray, Booster]:
    """Boost with learning rate eta, .95 eta, .95^2 eta, ..."""
    counts = yield RowsQuery()
    rows, scales = int(counts[0]), Scales.of(terms, counts[1:])
    cut_points = yield from find_cut_points(terms, rows, counts[1:])
    score = yield from find_base_score(terms, rows, cut_points, scales)
    constant = tuple((root, terms.objective.loss.margin(score)) for root in terms.roots)
    end = end_query(terms, rows, CONSTANT_TREE, NO_SPLITS, constant, scales)
    exponents, *_ = split_end(terms, end, (yield end))
    trees = []
    for number in range(terms.trees.rounds):
        scales = Scales.of(terms, exponents) if terms.needs_exponent_counts else scales
        slower = terms.changed(learning_rate=terms.trees.learning_rate * SHRINK**number)
        tree, splits = yield from grow_tree(slower, rows, number, cut_points, scales, grown)
        values = tree.leaf_values
        end = end_query(terms, rows, number, splits, values, scales)
        exponents, *_ = split_end(terms, end, (yield end))
        trees += tree.parts(len(terms.roots))  # one tree per output
    return model_of(terms, score, trees)


def main() -> None:
    """Train in this process, then over gRPC with three processes, and compare the models."""
    generator = np.random.default_rng(0)
    table = {name: generator.normal(size=300) for name in "abc"}
    table["y"] = (table["a"] + table["b"] ** 2 > 1).astype(float)
    shards = {
        "north": {name: column[:200] for name, column in table.items()},
        "south": {name: column[200:260] for name, column in table.items()},
        "east": {name: column[260:] for name, column in table.items()},
    }
    terms = fb.Terms.draft(table, label="y", rounds=20, parties=list(shards))
    simulated = fb.simulate(terms, shards, program=train).model

    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for name, shard in shards.items():
            files[name] = Path(folder) / f"{name}.csv"
            columns = np.column_stack(list(shard.values()))
            np.savetxt(files[name], columns, delimiter=",", header=",".join(shard), comments="", fmt="%.17g")
        with LocalCluster(Path(folder), files, programs=["custom_program:train"]) as consortium:
            named = terms.changed(program="custom_program:train")
            consortium.approve(named)
            over_grpc = consortium.analyst.train(named).model
    print("simulated == over gRPC:", simulated.fingerprint == over_grpc.fingerprint)


if __name__ == "__main__":
    main()
