"""The simulator of faults (`faults`) where parties hold different columns: what they relay to each other is
delayed, said twice and cut with everything else.

In every third seed rows are matched by their ids, of tables that have some rows each in an order of its own.

What must hold besides: every sum that is opened is exactly what one party with all rows in common, and all
columns, answers, and the model is the one that it trains; tokens are those of all ids.
"""

import os
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from unittest import mock

import faults
import numpy as np

import fedboost as fb
from fedboost.boosting.queries.ids import AlignQuery, IdCountQuery, PlacesQuery
from fedboost.holders.alignment import Alignment
from fedboost.holders.column_rows import RowSets
from fedboost.holders.columns import holder_for
from fedboost.privacy.identity import in_memory
from fedboost.privacy.points import multiply, tokens_of
from fedboost.protocol import relaying
from fedboost.protocol.contracts import Send
from fedboost.protocol.key_exchange import Credentials
from fedboost.protocol.messages import Relay
from fedboost.protocol.site import Site
from fedboost.runtime.data.shard import to_shard
from tests.helpers.columns_apart import LAYOUTS, NUMERIC, left_joined, of_people, pooled, scattered, terms_of

ROWS, FEATURES, FEWEST = 60, len(NUMERIC) + 1, 5
SMALL = {"rounds": 3, "max_depth": 3, "max_bin": 8}
TIMES = {"turn_timeout": 50.0, "rejoin_timeout": 20.0}
LAYOUT_NAMES = ("two holders", "three holders", "blocks", "ragged blocks")
SETTINGS = {
    "logistic": ("binary", {}),
    "absolute": ("number", {"objective": "reg:absoluteerror"}),
    "lossguide": ("binary", {"grow_policy": "lossguide", "max_leaves": 5}),
    "classes": ("classes", {"objective": "multi:softprob", "num_class": 3, "rounds": 2}),
    "sampled": (
        "binary",
        {"num_parallel_tree": 2, "subsample": 0.6, "colsample_bytree": 0.7, "columns": {"row_id": "id"}},
    ),
}
DRAWN = tuple(SETTINGS)
"""Those that seeds choose from."""
SETTINGS["long"] = "binary", {"rounds": 12}
SETTINGS["drawn"] = "binary", {"subsample": 0.7, "columns": {"row_id": "id"}}
SETTINGS["continued"] = (
    "binary",
    {"xgb_model": fb.simulate(terms_of(**SMALL), {"pooled": pooled(ROWS)}).model},
)
LEFT, REPEATED, REPEATED_LEFT = "left", "repeated", "repeated, left"
"""What `by_id` is where all rows of the label holder take part, and where it has some of an id; else True
where rows are matched."""
PART_BYTES = (relaying.PART_BYTES, 100)
"""Bytes of a part of what is relayed: all in one, or in several."""


@lru_cache
def tables_of(layout, setting, by_id):
    """Each party's table, and the rows of all."""
    label, _ = SETTINGS[setting]
    table, layout = pooled(ROWS, label=label), LAYOUTS[layout]
    if not by_id:
        return layout.tables(table), table
    if by_id in (REPEATED, REPEATED_LEFT):
        tables, inner, left = of_people(layout, people=30, rows=ROWS, label=label)
        return tables, inner if by_id == REPEATED else left
    tables, common = scattered(layout, table)
    return tables, left_joined(layout, table, tables) if by_id == LEFT else common


def own_terms(layout, setting, by_id, **settings):
    """Terms of the parties."""
    own = {**SMALL, **SETTINGS[setting][1], **settings}
    if by_id:
        own |= {
            "rows": "label_holder" if by_id in (LEFT, REPEATED_LEFT) else "common",
            "repeated_ids": by_id in (REPEATED, REPEATED_LEFT),
            "min_common_rows": FEWEST,
            "columns": {"row_id": "id"},
        }
    return terms_of(LAYOUTS[layout], **own)


@lru_cache
def whole(layout, setting, by_id):
    """Terms of one party with all columns, its table, and the model it trains."""
    own, (_, table) = SETTINGS[setting][1], tables_of(layout, setting, by_id)
    terms = terms_of(**{**SMALL, **TIMES, **own}).with_parties(["pooled"])
    model = fb.simulate(terms, {"pooled": table}).model
    return terms, to_shard(table, terms, "pooled"), model.booster.to_xgboost()


@contextmanager
def noting(told):
    """Inside, each split of a party's own column that it relays the row set of is added to `told`, with the
    receiver."""
    split = RowSets.split

    def spy(row_sets, rows, splits, to_all):
        steps, content = split(row_sets, rows, splits, to_all), None
        while True:
            try:
                step = steps.send(content)
            except StopIteration:
                return
            if isinstance(step, Send):
                own = splits.columns[:, splits.feature < FEATURES].T.tolist()
                told.update((receiver, *columns) for receiver in step.to for columns in own)
            content = yield step

    with mock.patch.object(RowSets, "split", spy):
        yield


@lru_cache
def told_without_faults(layout, setting, by_id):
    """The splits whose row sets each party is told."""
    told = set()
    with noting(told):
        fb.simulate(own_terms(layout, setting, by_id), tables_of(layout, setting, by_id)[0])
    return told


@lru_cache
def apart(layout, setting, on_loss, by_id=False, **settings):
    """Terms, and a place for each party to run at."""
    tables, _ = tables_of(layout, setting, by_id)
    settings |= {**TIMES, "on_loss": on_loss}
    terms = own_terms(layout, setting, by_id, **settings).with_parties(list(tables))
    now = datetime.now(UTC)
    signers, roots = in_memory(terms.parties, now)
    sites = {}
    for name, rows in tables.items():
        shard = to_shard(rows, terms, name)
        credentials = Credentials(signers[name], roots, (), lambda: now)
        sites[name] = Site(name, holder_for(lambda _, own=shard: own, name), os.urandom, credentials)
    return terms, sites


def ids_in(table):
    """How many ids there are."""
    return len(set(table["id"].to_pylist()))


@lru_cache
def due_tokens(terms, layout, setting, by_id):
    """The tokens of all ids, where every party has the secret that worlds draw: int64 [integers]."""
    answers = []
    for name, table in tables_of(layout, setting, by_id)[0].items():
        own = Alignment(terms, name, to_shard(table, terms, name).ids, bytes(32))
        points = own._blinded()
        for _ in terms.blocks.of(name).parties[1:]:
            points = multiply(points, own._scalar)
        answers.append(tokens_of(points).view(np.int32).reshape(-1))
    return np.concatenate(answers).astype(np.int64)


class World(faults.World):
    """One session of parties with different columns."""

    def choose(self, seed):
        self.layout, self.setting = self.draw.choice(LAYOUT_NAMES), self.draw.choice(DRAWN)
        on_loss = self.draw.choice(["wait", "wait", "wait", "stop"])
        self.aim = self.draw.choice([0.0, 0.02, 0.1])
        """How often a fault hits where something relayed is about to arrive."""
        self.by_id = seed % 3 == 2
        return apart(self.layout, self.setting, on_loss, self.by_id)

    @property
    def due_model(self):
        return whole(self.layout, self.setting, self.by_id)[2]

    def step(self):
        """As ever, or something goes wrong with what is relayed."""
        relays = [(name, line) for name, line in self.lines() if isinstance(line[0], Relay)]
        if not relays or self.draw.random() >= self.aim:
            super().step()
            return
        name, line = self.draw.choice(relays)
        kind = self.draw.choice(["drop", "twice", "restart", "restart two", "crash"])
        self.faults[f"{kind} at a relay"] += 1
        match kind:
            case "twice":
                line.appendleft(line[0])
            case "crash":
                self.crash()
            case "drop":
                self.drop(name)
            case _:
                others = sorted(self.connected - {name}) if kind == "restart two" else []
                self.restart(name)
                if others:
                    self.restart(self.draw.choice(others))

    def holders(self):
        terms, shard, _ = whole(self.layout, self.setting, self.by_id)
        return {"pooled": holder_for(lambda _: shard, "pooled")(terms, bytes(32))}

    def due_sum(self, run, roster):
        match run.pending:
            case IdCountQuery():
                tables, _ = tables_of(self.layout, self.setting, self.by_id)
                return np.array([ids_in(table) for table in tables.values()])
            case AlignQuery():
                return due_tokens(self.terms, self.layout, self.setting, self.by_id)
            case PlacesQuery():
                return np.array([ids_in(tables_of(self.layout, self.setting, self.by_id)[1])])
        holder = self.references["pooled"]
        holder.go_to(replace(run.state, places=None))
        return holder.answer(run.pending)


def play(seed, world=World):
    """One seed to its end; the invariants hold or raise AssertionError."""
    told, worlds = set(), []
    parts = mock.patch.object(relaying, "PART_BYTES", PART_BYTES[seed % len(PART_BYTES)])
    with parts, noting(told):
        outcome = faults.play(seed, lambda seed: worlds.append(world(seed)) or worlds[0])
    due = told_without_faults(worlds[0].layout, worlds[0].setting, worlds[0].by_id)
    assert told <= due, f"seed {seed}: a row set that nobody was told before"
    return outcome
