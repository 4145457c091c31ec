"""What a turn writes to the disk, and what it does not do."""

import asyncio
import math
import os
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from sites import consortium, shared_out, terms

import fedboost as fb
from fedboost.runtime.aggregator import parties
from fedboost.runtime.site.audit import read_log
from fedboost.runtime.site.store import NAME, Store

ROUNDS, SITES = 4, 2


@pytest.fixture
def writes(monkeypatch):
    """Counts of calls that wait for the disk, and of a memory's transactions by whether they do."""
    counts = Counter()

    def count(name):
        sync = getattr(os, name)

        def counted(handle):
            counts[name] += 1
            sync(handle)

        monkeypatch.setattr(os, name, counted)

    transaction = Store.transaction

    def counted(memory, durable=True):
        counts["durable" if durable else "transaction"] += 1
        return transaction(memory, durable)

    count("fsync")
    count("fdatasync")
    monkeypatch.setattr(Store, "transaction", counted)
    # Which parties were here is written every two seconds, whatever the turns.
    monkeypatch.setattr(parties, "WRITE_SECONDS", math.inf)
    return counts


def turns_of(folder, tables, rounds):
    """Train over the network: the answers of all sites. Each writes to a folder of its own, as they keep the
    terms beside the log, once."""

    async def train():
        async with consortium(folder, {}, state=folder / "journals") as one:
            for name, table in tables.items():
                (folder / name).mkdir(parents=True)
                one.start_party(name, table, state=name)
            await one.train(terms(tables, rounds=rounds))

    asyncio.run(train())
    entries = [entry for name in tables for entry in read_log(folder / name / name / NAME)]
    return sum(entry.event.kind == "released" for entry in entries)


@pytest.mark.slow
def test_a_round_waits_for_the_disk_once_at_the_aggregator_and_never_at_a_site(tmp_path, writes):
    tables, counts = shared_out(SITES), []
    for rounds in (ROUNDS, 2 * ROUNDS):
        writes.clear()
        answers = turns_of(tmp_path / f"{rounds}", tables, rounds)
        counts.append(Counter(answers=answers, **writes))
    more = counts[1] - counts[0]
    assert more == {"answers": more["answers"], "transaction": more["answers"], "fdatasync": ROUNDS}


def calls_of(tree, work):
    """Calls by name of Python functions from the end of this tree on: of pydantic, of JSON, and `replace`."""
    calls = Counter()

    def count(frame, event, argument):
        code = frame.f_code
        counts = any(f"/{folder}/" in code.co_filename for folder in ("pydantic", "json"))
        counts = event == "call" and (counts or code is replace.__code__)
        if counts:
            calls[f"{code.co_filename}: {code.co_name}"] += 1

    def on_round(row):
        if row["round"] == tree:
            sys.setprofile(count)

    try:
        work(on_round)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("protection", ["plain", "masked"])
def test_a_turn_validates_encodes_and_copies_no_models(protection):
    x = np.random.default_rng(0).normal(size=(90, 2)).astype(np.float32)
    tables = [{"a": part[:, 0], "y": (part.sum(axis=1) > 0).astype(np.float32)} for part in np.split(x, 3)]
    settings = {"rounds": 4, "max_depth": 3, "protection": protection}
    agreed = fb.Terms.read({"columns": {"label": "y", "numeric": ["a"]}, **settings})

    def stop_after(number, metrics):
        if number == 2:
            sys.setprofile(None)  # the end of a session does all that

    def train(on_round):
        fb.simulate(agreed, tables, on_round=on_round, callbacks=[stop_after])

    assert calls_of(0, train) == {}
