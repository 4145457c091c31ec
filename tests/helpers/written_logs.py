"""Audit logs written line by line, of what no session of ours would do."""

import hashlib
import json

SESSION, TERMS = "session-1a2b3c4d", "1e7e0eb64d83d73ac450e75d1517d94c45745fa9686085ff2a37ff1f855d255b"
PARTIES = ("p0", "p1", "p2")
BEFORE_TREES = [
    ("RowsQuery", 385),
    *(("QuantileQuery", cells) for cells in (4096, 392, 448)),
    ("StartQuery", 2),
]
SIZES = {0: 32, 12: 40}
"""Bytes of help, and of a histogram most of whose cells are 0."""


def write(path, events):
    """A log of these events, chained."""
    previous, lines = "0" * 64, []
    for number, event in enumerate(events, 1):
        entry = {"n": number, "time": "2026-11-22T10:07:02Z", "event": event, "previous": previous}
        previous = hashlib.sha256(_canonical(entry)).hexdigest()
        lines.append(_canonical({**entry, "hash": previous}) + b"\n")
    path.write_bytes(b"".join(lines))


def _canonical(entry):
    return json.dumps(entry, separators=(",", ":")).encode()


def admitted(protection, rounds, attempt=1):
    about = {"terms": TERMS, "protection": protection, "parties": PARTIES, "objective": "binary:logistic"}
    columns = ["y", "f0", "f1"]
    return {
        "kind": "admitted",
        "session": SESSION,
        **about,
        "rounds": rounds,
        "columns": columns,
        "attempt": attempt,
    }


def released(protection, turn, attempt, what, cells):
    size = SIZES.get(cells, 8 * cells)
    answer = {"turn": turn, "attempt": attempt, "what": what, "cells": cells, "bytes": size}
    return {"kind": "released", "session": SESSION, **answer, "protection": protection, "roster": PARTIES}


ENDED = {"kind": "ended", "session": SESSION, "reason": ""}


def again_after_bye(path):
    """A training of one tree; then eight more attempts of the session that had ended, each with a histogram
    of one row's cells instead of the root's."""
    tree = [("EndRoundQuery", 2), ("HistogramQuery", 34), ("EndRoundQuery", 2)]
    events = [admitted("plain", 1)]
    events += [released("plain", turn, 1, *asked) for turn, asked in enumerate([*BEFORE_TREES, *tree], 1)]
    events.append(ENDED)
    for attempt in range(2, 10):
        events += [admitted("plain", 1, attempt), released("plain", 7, attempt, "HistogramQuery", 12)]
    write(path, [*events, ENDED])
