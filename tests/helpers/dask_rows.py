"""Rows on workers of Dask: in this process, so that a cluster starts in a blink."""

from functools import cache
from itertools import pairwise

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client, LocalCluster

import fedboost as fb

ROWS, GROUPS = 400, 40
FEATURES = {"numeric": ["age", "dose"], "categorical": {"ward": ["a", "b", "c", "d"]}}
SMALL = {"rounds": 3, "max_depth": 3, "max_bin": 16, "protection": "plain"}


_CLIENTS = []
dask.config.set({"distributed.worker.profile.enabled": False})  # may deadlock in Python 3.11, see hold.py


@cache
def cluster(workers, **settings):
    """A client of a cluster in this process."""
    shape = {"n_workers": workers, "threads_per_worker": 1, "processes": False, "dashboard_address": ":0"}
    _CLIENTS.append(Client(LocalCluster(**shape, **settings), set_as_default=False))
    return _CLIENTS[-1]


def networked(workers):
    """A client of a cluster in this process, which parties dial."""
    return cluster(workers, protocol="tcp://", host="127.0.0.1")


def close_clusters():
    """End all clusters in this process: their loops draw from Python's random numbers, whatever else runs."""
    while _CLIENTS:
        client = _CLIENTS.pop()
        client.close()
        client.cluster.close()
    cluster.cache_clear()


def table(rows=ROWS, seed=0):
    """Rows with missing values, levels, and a label of each kind; rows of a group stand together."""
    draw = np.random.default_rng(seed)
    age, dose = draw.normal(50, 10, rows), draw.normal(size=rows)
    days = draw.exponential(1 + np.abs(age) / 50) + 0.1
    return pd.DataFrame(
        {
            "age": np.where(draw.random(rows) < 0.1, np.nan, age),
            "dose": dose,
            "ward": np.array(list("abcde"))[draw.integers(0, 5, rows)],
            "benign": (age / 10 + dose + draw.normal(size=rows) > 5).astype(int),
            "word": np.where(draw.random(rows) < 0.4, "yes", "no"),
            "classes": draw.integers(0, 3, rows),
            "days": days,
            "count": draw.poisson(1 + np.abs(dose)),
            "until": np.where(draw.random(rows) < 0.3, np.inf, days),
            "query": np.arange(rows) // (rows // GROUPS),
            "id": draw.permutation(rows),
            "weight": draw.random(rows),
            "margin": draw.normal(size=rows) / 10,
            "held_out": draw.random(rows) < 0.2,
        }
    )


def shared_out(frame, cuts):
    """The rows as a DataFrame of Dask, whose partitions begin and end there."""
    edges = [0, *cuts, len(frame)]
    parts = [dask.delayed(frame.iloc[first:last]) for first, last in pairwise(edges)]
    return dd.from_delayed(parts, meta=frame.iloc[:0])


def cuts_of(frame, parts, seed=0):
    """So many uneven partitions; a group of rows that are ranked is whole."""
    size = len(frame) // GROUPS
    places = np.random.default_rng(seed).choice(np.arange(1, GROUPS), parts - 1, replace=False)
    return sorted(int(place) * size for place in places)


def terms(**settings):
    columns = {"label": "benign", **FEATURES, **settings.pop("columns", {})}
    return fb.Terms.read({"columns": columns, **SMALL, **settings})


def on_workers(agreed, frames, workers, **options):
    """The model of a training of these DataFrames of Dask, or others."""
    with cluster(workers).as_current():
        return fb.simulate(agreed, frames, **options).model
