"""Sessions with their logs, and what `fedboost audit` warns of in them."""

import json

import numpy as np
from inprocess import randomly, terms_of
from sites import fedboost

from fedboost.protocol.site import Release

SMALL = {"protection": "masked", "rounds": 2, "max_depth": 2, "max_bin": 8}
WITH_NOISE = {"noise": {"epsilon": 4.0, "delta": 1e-5}, "ranges": [(-3, 3)] * 2}
ROWS = 90
DRAW = np.random.default_rng(3)
X = DRAW.normal(size=(ROWS, 2)).astype(np.float32)


def agreement(parties=3, **settings):
    """Terms over the rows of this module, and the rows of each party."""
    terms = terms_of(X, parties, **{**SMALL, **settings})
    return terms, dict(zip(terms.parties, randomly(ROWS, parties), strict=True))


def warnings(path):
    """The rules that `fedboost audit` warns by; what it prints says the same."""
    end = fedboost("audit", path, "--json")
    assert end.code == 0, end.err
    events = [json.loads(line) for line in end.out.splitlines()]
    rules = [event["rule"] for event in events if event["event"] == "warning"]
    assert events[-1]["warnings"] == len(rules)
    text = fedboost("audit", path).out
    assert ("WARNING" in text) == bool(rules) == ("No warnings" not in text)
    assert max(map(len, text.splitlines()[1:])) < 80
    assert fedboost("audit", path, "--strict").code == bool(rules)
    return rules


def answer(terms, turn, what, **settings):
    """An answer of session s1, to a question that is asked once."""
    shape = {"cells": 34, "size": 200, "protection": terms.hiding.protection, "roster": terms.parties}
    place = {"question": f"{turn:064x}", "position": f"{turn + 1000:064x}"}
    return Release(
        **{"session": "s1", "turn": turn, "attempt": 1, "what": what, **shape, **place, **settings}
    )
