"""Mistakes about models that are verified, sites that are compared, estimates, and too many parties."""

from datetime import UTC, datetime

from mistakes import Mistake
from pyarrow import csv, table

from fedboost.privacy.identity import new_root
from fedboost.runtime.net.keys import write_root


def _many(folder):
    """many.csv: 1,001 sites; masked.toml: terms that name them."""
    names = [f"s{number:04d}" for number in range(1001)]
    rows = {"site": names * 2, "age": [row % 7 for row in range(2002)], "y": [0, 1] * 1001}
    csv.write_csv(table(rows), folder / "many.csv")
    columns = "[columns]\nlabel = 'y'\nnumeric = ['age']\n"
    (folder / "masked.toml").write_text(f"parties = {names}\n{columns}")


def _unsigned_but_beside(folder):
    (folder / "model.session.json").write_text("no session")


def _root(folder):
    """keys/: the root of a consortium."""
    key, root = new_root("study", datetime.now(UTC), 1)
    write_root(folder / "keys", key, root)


TOO_MANY = ("1001", "1000 parties at most", "plain", "train as one party")
VERIFY = "verify model.json --consortium"
COMPARE = "compare alone.toml --data rows.csv --site site"
ESTIMATE = "estimate terms.toml --rows 900"
MISTAKES = {
    "a model verified without a root": Mistake("verify model.json", ("--keys FOLDER", "--consortium FILE")),
    "a model verified with two roots": Mistake(
        "verify model.json --keys folder --consortium rows.csv", ("--keys FOLDER or --consortium FILE",)
    ),
    "a model that is not there": Mistake(
        "verify nowhere.json --keys keys", ("nowhere.json", "cannot read"), prepare=_root
    ),
    "a root that is none": Mistake(f"{VERIFY} rows.csv", ("rows.csv", "not an X.509 certificate")),
    "keys that are not there": Mistake("verify model.json --keys folder", ("consortium.pem", "cannot read")),
    "a session that is none beside the model": Mistake(
        "predict model.json rows.csv", ("model.session.json", "move it away"), prepare=_unsigned_but_beside
    ),
    "train over a folder of the session's name": Mistake(
        "train terms.toml --aggregator localhost:1 --out new.json --reproducible",
        ("new.session.json", "directory"),
        prepare=lambda folder: (folder / "new.session.json").mkdir(),
    ),
    "more sites than masks take": Mistake(
        "terms many.csv --label y --site site --out new.toml", TOO_MANY, prepare=_many
    ),
    "more parties than masks take": Mistake(
        "simulate masked.toml --data many.csv --site site --out new.json", TOO_MANY, prepare=_many
    ),
    "more parties than masks take, by number": Mistake(
        "simulate hidden.toml --data many.csv --parties 1001 --out new.json",
        TOO_MANY,
        files={"hidden.toml": "[columns]\nlabel = 'y'\nnumeric = ['age']\n"},
        prepare=_many,
    ),
    "a demo of too many sites": Mistake(
        "demo --data many.csv --label y --site site --protection plain --out new",
        ("sites, 50 at most", "50 at most", "fedboost simulate"),
        prepare=_many,
    ),
    "a demo of too many parties": Mistake(
        "demo --data many.csv --label y --parties 101 --out new",
        ("101 sites", "50 at most", "fedboost simulate"),
        prepare=_many,
    ),
    "a protection that does not exist": Mistake(
        "terms rows.csv --label y --protection mask --out new.toml", ("'mask'", "masked", "plain")
    ),
    "a round trip below 0": Mistake(f"{ESTIMATE} --rtt -1", ("--rtt", "-1", "0 to 60,000")),
    "a round trip of no number": Mistake(f"{ESTIMATE} --rtt nan", ("--rtt", "nan", "milliseconds")),
    "a round trip that never ends": Mistake(f"{ESTIMATE} --rtt inf", ("--rtt", "inf", "milliseconds")),
    "a round trip with its unit": Mistake(f"{ESTIMATE} --rtt 20ms", ("--rtt", "20ms")),
    "no bandwidth": Mistake(f"{ESTIMATE} --bandwidth 0", ("--bandwidth", "Mbit/s from 0.001")),
    "a bandwidth below 0": Mistake(f"{ESTIMATE} --bandwidth -5", ("--bandwidth", "-5", "Mbit/s")),
    "a bandwidth of no number": Mistake(f"{ESTIMATE} --bandwidth nan", ("--bandwidth", "nan", "Mbit/s")),
    "compare to a file in no folder": Mistake(
        f"{COMPARE} --csv nowhere/each.csv", ("nowhere", "does not exist")
    ),
    "compare over the rows": Mistake(f"{COMPARE} --csv rows.csv", ("rows.csv", "read by this very command")),
}
