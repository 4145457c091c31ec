"""The simulator of faults (`faults_apart`) where gradients and cut points are hidden.

A label holder that is restarted has another key than before: two take turns, since to make one takes longer
than a seed. Beside what `faults_apart` holds, every sum that is opened is that of pooled rows, whose cut
points no party and no aggregator of the session knows together.
"""

from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from itertools import cycle
from unittest import mock

import faults
import faults_apart
import numpy as np

import fedboost as fb
from fedboost.boosting.queries.columns import BinsQuery
from fedboost.boosting.queries.labels import StartQuery
from fedboost.privacy.paillier import Paillier
from fedboost.protocol import relaying
from tests.helpers.columns_apart import terms_of

LAYOUT_NAMES = ("two holders", "three holders")
HIDDEN = {"protection": "paillier", "key_bits": 2048, "model": "whole"}
PART_BYTES = (relaying.PART_BYTES, 5_000)
"""Bytes of a part of what is relayed: all in one, or in several."""


@lru_cache
def keys():
    """Two label holders' keys."""
    return [Paillier().new_secret(2048) for _ in range(2)]


@lru_cache
def cut_points(layout, setting, by_id):
    """Those of pooled rows."""
    found, applied_to = [], StartQuery.applied_to

    def noted(self, state):
        found.append(self.cut_points)
        return applied_to(self, state)

    own = {**faults_apart.SMALL, **faults_apart.SETTINGS[setting][1]}
    table = faults_apart.tables_of(layout, setting, by_id)[1]
    with mock.patch.object(StartQuery, "applied_to", noted):
        fb.simulate(terms_of(**own), {"pooled": table})
    return found[-1]


def told_cuts(query, cuts):
    """The query with these cut points, if it has any."""
    return replace(query, cut_points=cuts) if isinstance(query, StartQuery) else query


class World(faults_apart.World):
    """One session of parties with different columns, whose gradients are hidden."""

    def choose(self, seed):
        self.layout, self.setting = self.draw.choice(LAYOUT_NAMES), self.draw.choice(faults_apart.DRAWN)
        on_loss = self.draw.choice(["wait", "wait", "wait", "stop"])
        self.aim = self.draw.choice([0.0, 0.02, 0.1])
        self.by_id = seed % 3 == 2
        return faults_apart.apart(self.layout, self.setting, on_loss, self.by_id, **HIDDEN)

    def due_sum(self, run, roster):
        cuts = cut_points(self.layout, self.setting, self.by_id)
        if isinstance(run.pending, BinsQuery):
            numeric = cuts.head(run.pending.features)
            return np.concatenate([numeric.sizes, numeric.missing])
        state, parts = run.state, [told_cuts(part, cuts) for part in run.pending.parts]
        if state.start is not None:
            state = replace(state, start=told_cuts(state.start, cuts))
        query = parts[0] if len(parts) == 1 else replace(run.pending, parts=tuple(parts))
        return super().due_sum(mock.Mock(pending=query, state=state), roster)


@contextmanager
def two_keys():
    """Inside, label holders take these keys, in turn."""
    made = cycle(keys())
    with mock.patch.object(Paillier, "new_secret", side_effect=lambda bits: next(made)):
        yield


def play(seed, world=World):
    """One seed to its end; the invariants hold or raise AssertionError."""
    worlds, told = [], set()
    parts = mock.patch.object(relaying, "PART_BYTES", PART_BYTES[seed % len(PART_BYTES)])
    with parts, two_keys(), faults_apart.noting(told):
        outcome = faults.play(seed, lambda seed: worlds.append(world(seed)) or worlds[0])
    due = faults_apart.told_without_faults(worlds[0].layout, worlds[0].setting, worlds[0].by_id)
    assert told <= due, f"seed {seed}: a row set that nobody was told before"
    return outcome
