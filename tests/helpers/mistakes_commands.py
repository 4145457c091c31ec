"""Mistakes at the command line: options, names of other tools, one file for another, what is written."""

from datetime import UTC, datetime

from mistakes import Mistake
from pyarrow import csv, table
from sites import terms

from fedboost.privacy.identity import new_root
from fedboost.runtime.net.keys import write_root
from fedboost.runtime.tasks import terms_to_toml

SIMULATE, TRAIN = "simulate terms.toml --data rows.csv", "train terms.toml"


def named(line):
    """A simulation under terms with one more line."""
    text = f"{line}\n{terms_to_toml(terms(['north', 'south']))}"
    return Mistake("simulate mine.toml --data rows.csv --out new.json", {"mine.toml": text})


def config(role, line):
    """The start of an aggregator or a party whose file has one more line."""
    text = "" if role == "aggregator" else 'party = "a"\naggregator = "a:1"\n'
    text += "" if role == "aggregator" or "data" in line else 'data = "x"\n'
    return Mistake(f"{role} --config bad.toml --insecure-loopback", {"bad.toml": text + line})


def asked(folder):
    """A folder with a request, as `fedboost keys request` leaves it."""
    (folder / "asked").mkdir()
    (folder / "asked" / "request.pem").write_text("a request")
    (folder / "asked" / "key.pem").write_text("a key")


NAMED = 'party = "a"\naggregator = "localhost:1"\ndata = "rows.csv"\nnames = "names.toml"\n'
"""A site's file that points to names."""


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


TOO_MANY = ("1001", "1000 parties", "plain", "train as one party")
VERIFY = "verify model.json --consortium"
COMPARE = "compare alone.toml --data rows.csv --site site"
ESTIMATE = "estimate terms.toml --rows 900"
EXISTS = ("already exists", "--force to replace it")
MISTAKES = {
    "a table that is not there": Mistake("simulate terms.toml --data nowhere.csv --out new.json"),
    "terms that are not there": Mistake("simulate nowhere.toml --data rows.csv --out new.json"),
    "a site's file to simulate": Mistake("simulate party.toml --data rows.csv --parties 3"),
    "a site's file to train": Mistake(
        "train party.toml --aggregator localhost:1 --insecure-loopback --out new.json",
    ),
    "a site's file to show": Mistake("terms party.toml --digest"),
    "a table to show": Mistake("terms rows.csv --digest"),
    "terms to show with a label": Mistake("terms terms.toml --digest --label y"),
    "terms to show and an offer": Mistake("terms terms.toml --digest --with offer.toml"),
    "terms to show with a separator": Mistake("terms terms.toml --digest --separator ;"),
    "terms to show to a file": Mistake("terms terms.toml --digest --out new.toml"),
    "a draft without a label": Mistake("terms rows.csv"),
    "a draft of terms": Mistake("terms terms.toml"),
    "a site's file to check at the sites": Mistake(
        "preflight party.toml --aggregator localhost:1 --insecure-loopback",
    ),
    "terms to start a party": Mistake("party --config terms.toml"),
    "terms to back up": Mistake("backup --config terms.toml --out new.tar.gz"),
    "terms to start an aggregator": Mistake("aggregator --config terms.toml"),
    "the aggregator's file to start a party": Mistake(
        "party --config mine.toml",
        {"mine.toml": 'listen = "127.0.0.1:0"\n'},
    ),
    "the aggregator's file as terms": Mistake(
        "approve mine.toml --config party.toml",
        {"mine.toml": 'listen = "127.0.0.1:0"\n'},
    ),
    "a site's names to start a party": Mistake(
        "party --config names.toml",
        {"names.toml": '[names]\n"a.1" = "age"\n'},
    ),
    "an offer of columns as terms": Mistake(
        "terms offer.toml --digest",
        {"offer.toml": 'holder = "a"\nnumeric = ["a.1"]\n'},
    ),
    "names for columns that are not there": Mistake(
        "check --config named.toml",
        {
            "names.toml": '[names]\n"a.1" = "agee"\n',
            "named.toml": NAMED,
        },
    ),
    "an adder without an aggregator": Mistake(
        "adder --config adder.toml --insecure-loopback", {"adder.toml": "# listen = '127.0.0.1:0'\n"}
    ),
    "a site's file to start an adder": Mistake("adder --config party.toml"),
    "an adder that has a state": Mistake(
        "adder --config adder.toml --insecure-loopback",
        {"adder.toml": 'upstream = "localhost:1"\nstate = "folder"\n'},
    ),
    "keys that are not there": Mistake("keys show nowhere"),
    "a model against keys that are not there": Mistake("verify model.json --keys nowhere"),
    "a bundle that waits for its certificate": Mistake(
        "keys show asked",
        prepare=asked,
    ),
    "a party whose certificate is still requested": Mistake(
        "status --aggregator localhost:1 --keys asked",
        prepare=asked,
    ),
    "a text without an end to audit": Mistake("audit note.txt", {"note.txt": "a note"}),
    "nothing to check": Mistake("check"),
    "a table and a site's file": Mistake("check rows.csv --config party.toml"),
    "terms for a table": Mistake("check terms.toml --label y"),
    "a label beside terms": Mistake("check rows.csv --label y --terms terms.toml"),
    "a column to exclude that is not there": Mistake("check rows.csv --label y --exclude wards"),
    "a site's table that is gone": Mistake(
        "check --config party.toml --terms terms.toml",
        prepare=lambda folder: (folder / "rows.csv").unlink(),
    ),
    "simulate over an older model": Mistake(
        "simulate terms.toml --data rows.csv --out old.json", {"old.json": "{}"}
    ),
    "train over an older model": Mistake(
        "train terms.toml --aggregator localhost:1 --insecure-loopback --out old.json",
        {"old.json": "{}"},
    ),
    "predictions over older ones": Mistake(
        "predict model.json rows.csv --out old.csv", {"old.csv": "prediction\n"}
    ),
    "terms over edited ones": Mistake("terms rows.csv --label y --out terms.toml"),
    "a picture over an older one": Mistake(
        "explain model.json --tree 0 --svg old.svg", {"old.svg": "<svg/>"}
    ),
    "contributions over older ones": Mistake(
        "explain model.json --shap rows.csv --out old.csv", {"old.csv": "bias\n"}
    ),
    "a report to no file": Mistake("report model.json"),
    "a report as JSON": Mistake("report model.json --json --out new.html"),
    "a privacy card to a file": Mistake("report model.json --privacy --out new.html"),
    "a privacy card of a table": Mistake("report model.json --privacy --sheet one"),
    "a report over an older one": Mistake("report model.json --out old.html", {"old.html": "<html>"}),
    "a model over its own terms, by force": Mistake(
        "simulate terms.toml --data rows.csv --out terms.toml --force",
    ),
    "option in Python's spelling": Mistake("terms rows.csv --label y --base_margin x"),
    "command of XGBoost": Mistake("fit terms.toml --data rows.csv"),
    "eta": named("eta = 0.1"),
    "n_jobs": named("n_jobs = 4"),
    "qid": named('qid = "ward"'),
    "metric of LightGBM": named('eval_metric = "binary_logloss"'),
    "a model verified without a root": Mistake("verify model.json"),
    "a model verified with two roots": Mistake("verify model.json --keys folder --consortium rows.csv"),
    "a model that is not there": Mistake("verify nowhere.json --keys keys", prepare=_root),
    "a root that is none": Mistake(f"{VERIFY} rows.csv"),
    "a session that is none beside the model": Mistake(
        "predict model.json rows.csv", prepare=_unsigned_but_beside
    ),
    "train over a folder of the session's name": Mistake(
        "train terms.toml --aggregator localhost:1 --out new.json --reproducible",
        prepare=lambda folder: (folder / "new.session.json").mkdir(),
    ),
    "more sites than masks take": Mistake(
        "terms many.csv --label y --site site --out new.toml", prepare=_many
    ),
    "more parties than masks take": Mistake(
        "simulate masked.toml --data many.csv --site site --out new.json", prepare=_many
    ),
    "more parties than masks take, by number": Mistake(
        "simulate hidden.toml --data many.csv --parties 1001 --out new.json",
        files={"hidden.toml": "[columns]\nlabel = 'y'\nnumeric = ['age']\n"},
        prepare=_many,
    ),
    "a protection that does not exist": Mistake("terms rows.csv --label y --protection mask --out new.toml"),
    "a round trip below 0": Mistake(f"{ESTIMATE} --rtt -1"),
    "a round trip of no number": Mistake(f"{ESTIMATE} --rtt nan"),
    "a round trip that never ends": Mistake(f"{ESTIMATE} --rtt inf"),
    "a round trip with its unit": Mistake(f"{ESTIMATE} --rtt 20ms"),
    "no bandwidth": Mistake(f"{ESTIMATE} --bandwidth 0"),
    "a bandwidth of no number": Mistake(f"{ESTIMATE} --bandwidth nan"),
    "compare to a file in no folder": Mistake(f"{COMPARE} --report nowhere/each.html"),
    "compare over the rows": Mistake(f"{COMPARE} --report rows.csv"),
    "out is a folder": Mistake(f"{SIMULATE} --out folder"),
    "out over the data": Mistake(f"{SIMULATE} --out ./rows.csv"),
    "terms are a folder": Mistake("simulate folder --data rows.csv"),
    "site column missing": Mistake(f"{SIMULATE} --site sites"),
    "sites that are not the parties": Mistake(
        f"{SIMULATE} --site site",
    ),
    "site and party": Mistake("terms rows.csv --label y --site site --party north"),
    "site and parties": Mistake(f"{SIMULATE} --site site --parties 2"),
    "a seed below 0": Mistake(f"{SIMULATE} --parties 3 --seed -1"),
    "more parties than rows": Mistake(f"{SIMULATE} --parties 200"),
    "train over the terms": Mistake(f"{TRAIN} --aggregator localhost:1 --out terms.toml"),
    "train to a folder": Mistake(f"{TRAIN} --aggregator localhost:1 --out folder"),
    "a URL for an address": Mistake(
        f"{TRAIN} --out new.json --aggregator http://127.0.0.1:1",
    ),
    "terms without parties": Mistake(
        "train alone.toml --aggregator localhost:1 --out new.json --insecure-loopback"
    ),
    "predictions over the rows": Mistake("predict model.json rows.csv --out rows.csv"),
    "predictions over the model": Mistake("predict model.json rows.csv --out model.json"),
    "model is a folder": Mistake("predict folder rows.csv --out new.csv"),
    "model is a table": Mistake("predict rows.csv rows.csv --out new.csv"),
    "model that is cut off": Mistake(
        "predict bad.json rows.csv --out new.csv",
        prepare=lambda folder: (folder / "bad.json").write_text((folder / "model.json").read_text()[:-40]),
    ),
    "predicting without a column the model needs": Mistake(
        "predict model.json few.csv --out new.csv",
        {"few.csv": "age,ward\n50,a\n"},
    ),
    "draft without its label": Mistake("terms rows.csv --label yy --out new.toml"),
    "draft without its weight": Mistake("terms rows.csv --label y --weight w --out new.toml"),
    "draft without what to exclude": Mistake("terms rows.csv --label y --exclude agee --out new.toml"),
    "draft of a category": Mistake(
        "terms rows.csv --label ward --objective binary:logistic --out new.toml",
    ),
    "draft of the same party twice": Mistake("terms rows.csv --label y --party a --party a --out new.toml"),
    "no config of a party": Mistake("party --config nowhere.toml"),
    "no config of an aggregator": Mistake("aggregator --config nowhere.toml"),
    "nobody listens for a party": Mistake(
        "party --config party.toml --wait 0.1 --insecure-loopback",
    ),
    "unknown key of a party": config("party", 'agregator = "a:1"'),
    "missing key of a party": Mistake("party --config bad.toml", {"bad.toml": ""}),
    "null byte in a path": config("party", 'data = "x\\u0000.csv"'),
    "unknown key of an aggregator": config("aggregator", 'listn = "a:1"'),
    "program of an aggregator": config("aggregator", 'programs = ["nowhere:train"]'),
    "configuration that is no TOML": config("aggregator", "listen"),
    "terms that are no text": Mistake(SIMULATE, {"terms.toml": b"rounds = 3 # \xff\n"}),
    "a line feed in a key": named('"a\\nb" = 1'),
    "program of this process": Mistake(
        "simulate mine.toml --data rows.csv",
        named("program = 'lab:own'").files,
    ),
}
