"""Rows with a column of many levels; and target means by numpy alone, the twin of what fedboost does."""

import hashlib

import numpy as np
import pyarrow as pa

import fedboost as fb
from fedboost.gbdt.sampling import key_of, keys_of, mixed
from fedboost.terms.terms import Terms

FOLDS, SMOOTHING = 5, 10.0


def level_rows(count=2400, levels=40, seed=0, missing=0.05):
    """A table with a column of many levels, of some few rows each, that the label depends on; and row ids."""
    draw = np.random.default_rng(seed)
    share = 1.0 / np.arange(1, levels + 1)
    level = draw.choice(levels, count, p=share / share.sum())
    effect, x = draw.normal(0, 1.5, levels), draw.normal(size=count).astype(np.float32)
    label = (x + effect[level] + draw.logistic(size=count) > 0).astype(np.int64)
    shop = np.array([f"shop {number}" for number in range(levels)], object)[level]
    shop[draw.random(count) < missing] = None
    return pa.table(
        {
            "x": x,
            "shop": pa.array(shop, pa.string()),
            "ward": np.array(["a", "b", "c"])[draw.integers(0, 3, count)],
            "w": draw.integers(1, 4, count).astype(np.float64),
            "amount": np.round(np.exp(effect[level] / 2 + x / 2) * 3).astype(np.float64) + 1,
            "y": label,
            "id": [f"row {number}" for number in range(count)],
        }
    )


TABLE = level_rows()
BUCKETS = 64
COLUMNS = {
    "label": "y",
    "numeric": ["x"],
    "target_means": {"shop": BUCKETS},
    "categorical": {"ward": ["a", "b", "c"]},
    "row_id": "id",
}
BEFOREHAND = {**COLUMNS, "numeric": ["x", "shop"], "target_means": {}}
"""The same columns where levels are means in the table."""


def agreed(columns=(), **settings):
    small = {"rounds": 4, "max_depth": 3, "max_bin": 32, "protection": "plain"}
    return Terms.read({"columns": {**COLUMNS, **dict(columns)}, **small, **settings})


def among(parties, table=TABLE, seed=3):
    """The rows shared out among so many parties."""
    owner = np.random.default_rng(seed).integers(0, parties, table.num_rows)
    return {f"p{number}": table.filter(pa.array(owner == number)) for number in range(parties)}


def trained(tables=None, columns=(), **settings):
    return fb.simulate(agreed(columns, **settings), tables or {"all": TABLE}).model


def buckets_of(texts, buckets):
    """The bucket of each text, -1 for None."""
    return np.array(
        [
            -1
            if text is None
            else int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) % buckets
            for text in texts
        ]
    )


def folds_of(table, seed=0, site=None):
    """The fold of each row, by its id or by its place at a site."""
    if site is not None:
        return mixed(keys_of(site, table.num_rows), seed, "fold") % np.uint64(FOLDS)
    keys = np.array([key_of(text) for text in table["id"].to_pylist()], np.uint64)
    return (mixed(keys, seed, "fold") % np.uint64(FOLDS)).astype(np.int64)


def groups_of(rows, floor):
    """Folds of a bucket joined until each group has `floor` rows: a list of lists."""
    groups, held = [[]], 0
    for fold in range(FOLDS):
        if held >= floor:
            groups, held = [*groups, []], 0
        groups[-1].append(fold)
        held += rows[fold]
    if held < floor and len(groups) > 1:
        last = groups.pop()
        groups[-1] += last
    return groups


def means_of(label, weight, bucket, fold, trained, buckets, floor=10):
    """The mean of each bucket over the other folds, and over all: float32 [buckets, FOLDS + 1]. Labels and
    weights such that all sums are exact."""
    own = trained & (bucket >= 0)
    overall = (label * weight)[trained].sum() / weight[trained].sum()
    prior = SMOOTHING * weight[trained].sum() / trained.sum()
    rows, sums, weights = np.zeros((3, buckets, FOLDS))
    np.add.at(rows, (bucket[own], fold[own]), 1)
    np.add.at(sums, (bucket[own], fold[own]), (label * weight)[own])
    np.add.at(weights, (bucket[own], fold[own]), weight[own])
    told = [*np.flatnonzero(rows.sum(axis=1) >= floor)]
    if 0 < trained.sum() - rows[told].sum() < floor:
        told.pop(0)
    out = np.full((buckets, FOLDS + 1), overall)
    for each in told:
        for group in [*groups_of(rows[each], floor), []]:
            others = [other for other in range(FOLDS) if other not in group]
            total = sums[each][others].sum() + prior * overall
            mean = total / (weights[each][others].sum() + prior)
            out[each, group or [FOLDS]] = overall + float(f"{mean - overall:.4g}")
    return out.astype(np.float32)


def encoded(table, buckets, label="y", weight=None, trained=None, seed=0, floor=10, fold=None):
    """The table with means in place of its shops."""
    trained = np.ones(table.num_rows, bool) if trained is None else trained
    weights = np.ones(table.num_rows) if weight is None else table[weight].to_numpy()
    bucket = buckets_of(table["shop"].to_pylist(), buckets)
    fold = folds_of(table, seed) if fold is None else fold
    labels = table[label].to_numpy().astype(np.float64)
    means = means_of(labels, weights, bucket, fold, trained, buckets, floor)
    values = np.where(bucket < 0, np.float32(np.nan), means[bucket, np.where(trained, fold, FOLDS)])
    place = table.schema.get_field_index("shop")
    return table.set_column(place, "shop", pa.array(values, from_pandas=True)), means
