"""Mistakes at the command line: options, names of other tools, one file for another, what is written."""

from datetime import UTC, datetime

from mistakes import Mistake
from pyarrow import csv, table
from sites import terms

from fedboost.privacy.identity import new_root
from fedboost.runtime.net.keys import write_root
from fedboost.runtime.tasks import terms_to_toml

SIMULATE, TRAIN = "simulate terms.toml --data rows.csv", "train terms.toml"


def named(line, *says):
    """A simulation under terms with one more line."""
    text = f"{line}\n{terms_to_toml(terms(['north', 'south']))}"
    return Mistake(
        "simulate mine.toml --data rows.csv --out new.json", ("mine.toml: ", *says), {"mine.toml": text}
    )


def config(role, line, *says):
    """The start of an aggregator or a party whose file has one more line."""
    text = "" if role == "aggregator" else 'party = "a"\naggregator = "a:1"\n'
    text += "" if role == "aggregator" or "data" in line else 'data = "x"\n'
    return Mistake(f"{role} --config bad.toml --insecure-loopback", says, {"bad.toml": text + line})


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


TOO_MANY = ("1001", "1000 parties at most", "plain", "train as one party")
VERIFY = "verify model.json --consortium"
COMPARE = "compare alone.toml --data rows.csv --site site"
ESTIMATE = "estimate terms.toml --rows 900"
EXISTS = ("exists already", "--force to replace it")
MISTAKES = {
    "a table that is not there": Mistake(
        "simulate terms.toml --data nowhere.csv --out new.json", ("nowhere.csv", "no such file")
    ),
    "terms that are not there": Mistake(
        "simulate nowhere.toml --data rows.csv --out new.json", ("nowhere.toml", "cannot read")
    ),
    "a site's file to simulate": Mistake(
        "simulate party.toml --data rows.csv --parties 3", ("party.toml: is a site's file", "give terms")
    ),
    "a site's file to train": Mistake(
        "train party.toml --aggregator localhost:1 --insecure-loopback --out new.json",
        ("party.toml: is a site's file", "give terms"),
    ),
    "a site's file to digest": Mistake("digest party.toml", ("party.toml: is a site's file", "give terms")),
    "a site's file to check at the sites": Mistake(
        "check party.toml --aggregator localhost:1 --insecure-loopback",
        ("party.toml: is a site's file", "give terms"),
    ),
    "terms to start a party": Mistake(
        "party --config terms.toml", ("terms.toml: is terms", "give a site's file")
    ),
    "terms to back up": Mistake(
        "backup --config terms.toml --out new.tar.gz", ("terms.toml: is terms", "give a site's file")
    ),
    "terms to start an aggregator": Mistake(
        "aggregator --config terms.toml", ("terms.toml: is terms", "give the aggregator's file")
    ),
    "the aggregator's file to start a party": Mistake(
        "party --config mine.toml",
        ("mine.toml: is the aggregator's file", "give a site's file"),
        {"mine.toml": 'listen = "127.0.0.1:0"\n'},
    ),
    "the aggregator's file as terms": Mistake(
        "approve mine.toml --config party.toml",
        ("mine.toml: is the aggregator's file", "give terms"),
        {"mine.toml": 'listen = "127.0.0.1:0"\n'},
    ),
    "a site's names to start a party": Mistake(
        "party --config names.toml",
        ("names.toml: is a site's names", "give a site's file"),
        {"names.toml": '[names]\n"a.1" = "age"\n'},
    ),
    "an offer of columns as terms": Mistake(
        "digest offer.toml",
        ("offer.toml: is an offer of columns", "give terms"),
        {"offer.toml": 'holder = "a"\nnumeric = ["a.1"]\n'},
    ),
    "names for columns that are not there": Mistake(
        "check --config named.toml",
        ("names.toml: column 'agee' is missing", "did you mean age?"),
        {
            "names.toml": '[names]\n"a.1" = "agee"\n',
            "named.toml": NAMED,
        },
    ),
    "keys that are not there": Mistake(
        "keys show nowhere", ("nowhere: no such folder", "keys init-consortium")
    ),
    "a model against keys that are not there": Mistake(
        "verify model.json --keys nowhere", ("nowhere: no such folder", "consortium.pem")
    ),
    "a bundle that waits for its certificate": Mistake(
        "keys show asked",
        ("asked: its certificate is still asked for", "fedboost keys accept"),
        prepare=asked,
    ),
    "a party whose certificate is still asked for": Mistake(
        "status --aggregator localhost:1 --keys asked", ("still asked for", "keys accept"), prepare=asked
    ),
    "a text without an end to audit": Mistake(
        "audit note.txt", ("note.txt, line 1: not an entry of an audit log",), {"note.txt": "a note"}
    ),
    "nothing to check": Mistake("check", ("give a table", "--config")),
    "a table and a site's file": Mistake(
        "check rows.csv --config party.toml", ("rows.csv", "party.toml", "one of the two")
    ),
    "terms for a table": Mistake(
        "check terms.toml --label y", ("terms.toml: is no table", "--terms", "--aggregator")
    ),
    "a label beside terms": Mistake(
        "check rows.csv --label y --terms terms.toml", ("terms.toml names the columns already", "--label")
    ),
    "a column to exclude that is not there": Mistake(
        "check rows.csv --label y --exclude wards", ("column 'wards' is missing", "did you mean ward?")
    ),
    "a site's table that is gone": Mistake(
        "check --config party.toml --terms terms.toml",
        ("rows.csv", "no such file"),
        prepare=lambda folder: (folder / "rows.csv").unlink(),
    ),
    "simulate over an older model": Mistake(
        "simulate terms.toml --data rows.csv --out old.json", ("old.json", *EXISTS), {"old.json": "{}"}
    ),
    "train over an older model": Mistake(
        "train terms.toml --aggregator localhost:1 --insecure-loopback --out old.json",
        ("old.json", *EXISTS),
        {"old.json": "{}"},
    ),
    "predictions over older ones": Mistake(
        "predict model.json rows.csv --out old.csv", ("old.csv", *EXISTS), {"old.csv": "prediction\n"}
    ),
    "terms over edited ones": Mistake("terms rows.csv --label y --out terms.toml", ("terms.toml", *EXISTS)),
    "a picture over an older one": Mistake(
        "explain model.json --tree 0 --svg old.svg", ("old.svg", *EXISTS), {"old.svg": "<svg/>"}
    ),
    "contributions over older ones": Mistake(
        "explain model.json --shap rows.csv --out old.csv", ("old.csv", *EXISTS), {"old.csv": "bias\n"}
    ),
    "a report over an older one": Mistake(
        "report model.json --out old.html", ("old.html", *EXISTS), {"old.html": "<html>"}
    ),
    "a model over its own terms, by force": Mistake(
        "simulate terms.toml --data rows.csv --out terms.toml --force",
        ("terms.toml", "read by this very command"),
    ),
    "option in Python's spelling": Mistake(
        "terms rows.csv --label y --base_margin x", ("--base_margin", "(Possible options: --base-margin")
    ),
    "command of XGBoost": Mistake(
        "fit terms.toml --data rows.csv", ("No such command 'fit'", "see fedboost --help")
    ),
    "eta": named("eta = 0.1", "'eta'", "did you mean learning_rate?"),
    "n_jobs": named("n_jobs = 4", "'n_jobs'", "nthread in its file"),
    "qid": named('qid = "ward"', "'qid'", "did you mean columns.group?"),
    "metric of LightGBM": named('eval_metric = "binary_logloss"', "did you mean logloss?"),
    "a model verified without a root": Mistake("verify model.json", ("--keys FOLDER", "--consortium FILE")),
    "a model verified with two roots": Mistake(
        "verify model.json --keys folder --consortium rows.csv", ("--keys FOLDER or --consortium FILE",)
    ),
    "a model that is not there": Mistake(
        "verify nowhere.json --keys keys", ("nowhere.json", "cannot read"), prepare=_root
    ),
    "a root that is none": Mistake(f"{VERIFY} rows.csv", ("rows.csv", "not an X.509 certificate")),
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
    "a protection that does not exist": Mistake(
        "terms rows.csv --label y --protection mask --out new.toml", ("'mask'", "masked", "plain")
    ),
    "a round trip below 0": Mistake(f"{ESTIMATE} --rtt -1", ("--rtt", "-1", "0 to 60,000")),
    "a round trip of no number": Mistake(f"{ESTIMATE} --rtt nan", ("--rtt", "nan", "milliseconds")),
    "a round trip that never ends": Mistake(f"{ESTIMATE} --rtt inf", ("--rtt", "inf", "milliseconds")),
    "a round trip with its unit": Mistake(f"{ESTIMATE} --rtt 20ms", ("--rtt", "valid number")),
    "no bandwidth": Mistake(f"{ESTIMATE} --bandwidth 0", ("--bandwidth", "Mbit/s from 0.001")),
    "a bandwidth of no number": Mistake(f"{ESTIMATE} --bandwidth nan", ("--bandwidth", "nan", "Mbit/s")),
    "compare to a file in no folder": Mistake(
        f"{COMPARE} --report nowhere/each.html", ("nowhere", "does not exist")
    ),
    "compare over the rows": Mistake(
        f"{COMPARE} --report rows.csv", ("rows.csv", "read by this very command")
    ),
    "out is a folder": Mistake(f"{SIMULATE} --out folder", ("folder", "is a directory")),
    "out over the data": Mistake(f"{SIMULATE} --out ./rows.csv", ("rows.csv", "read by this very command")),
    "terms are a folder": Mistake("simulate folder --data rows.csv", ("folder", "directory")),
    "site column missing": Mistake(f"{SIMULATE} --site sites", ("'sites'", "missing", "site")),
    "sites that are not the parties": Mistake(
        f"{SIMULATE} --site site",
        ("terms.toml names the parties 'north', 'south'", "names 'east', 'north', 'south'"),
    ),
    "site and party": Mistake("terms rows.csv --label y --site site --party north", ("--site or --party",)),
    "site and parties": Mistake(f"{SIMULATE} --site site --parties 2", ("--site or --parties",)),
    "a seed below 0": Mistake(f"{SIMULATE} --parties 3 --seed -1", ("seed", "0 or more", "-1")),
    "more parties than rows": Mistake(f"{SIMULATE} --parties 200", ("180 rows", "200 parties")),
    "train over the terms": Mistake(
        f"{TRAIN} --aggregator localhost:1 --out terms.toml", ("terms.toml", "read by this very command")
    ),
    "train to a folder": Mistake(
        f"{TRAIN} --aggregator localhost:1 --out folder", ("folder", "is a directory")
    ),
    "a URL for an address": Mistake(
        f"{TRAIN} --out new.json --aggregator http://127.0.0.1:1",
        ("--aggregator", "'http://127.0.0.1:1'", "HOST:PORT"),
    ),
    "terms without parties": Mistake(
        "train alone.toml --aggregator localhost:1 --out new.json --insecure-loopback", ("parties",)
    ),
    "predictions over the rows": Mistake(
        "predict model.json rows.csv --out rows.csv", ("rows.csv", "read by this very command")
    ),
    "predictions over the model": Mistake(
        "predict model.json rows.csv --out model.json", ("model.json", "read by this very command")
    ),
    "model is a folder": Mistake("predict folder rows.csv --out new.csv", ("folder",)),
    "model is a table": Mistake("predict rows.csv rows.csv --out new.csv", ("rows.csv", "not a")),
    "model that is cut off": Mistake(
        "predict bad.json rows.csv --out new.csv",
        ("bad.json",),
        prepare=lambda folder: (folder / "bad.json").write_text((folder / "model.json").read_text()[:-40]),
    ),
    "predicting without a column the model needs": Mistake(
        "predict model.json few.csv --out new.csv",
        ("few.csv", "'dose'", "missing"),
        {"few.csv": "age,ward\n50,a\n"},
    ),
    "draft without its label": Mistake("terms rows.csv --label yy --out new.toml", ("'yy'", "y")),
    "draft without its weight": Mistake(
        "terms rows.csv --label y --weight w --out new.toml", ("'w'", "missing")
    ),
    "draft without what to exclude": Mistake(
        "terms rows.csv --label y --exclude agee --out new.toml", ("'agee'", "age")
    ),
    "draft of a category": Mistake(
        "terms rows.csv --label ward --objective binary:logistic --out new.toml",
        ("'ward'", "multi:softprob is for more"),
    ),
    "draft of the same party twice": Mistake(
        "terms rows.csv --label y --party a --party a --out new.toml", ("more than once",)
    ),
    "no config of a party": Mistake("party --config nowhere.toml", ("nowhere.toml",)),
    "no config of an aggregator": Mistake("aggregator --config nowhere.toml", ("nowhere.toml",)),
    "nobody listens for a party": Mistake(
        "party --config party.toml --wait 0.1 --insecure-loopback",
        ("localhost:1", "no aggregator answers", "0.1 s"),
    ),
    "unknown key of a party": config("party", 'agregator = "a:1"', "'agregator'", "did you mean aggregator?"),
    "missing key of a party": Mistake("party --config bad.toml", ("missing",), {"bad.toml": ""}),
    "null byte in a path": config("party", 'data = "x\\u0000.csv"', "bad.toml", "data", "null byte"),
    "unknown key of an aggregator": config("aggregator", 'listn = "a:1"', "'listn'", "did you mean listen?"),
    "program of an aggregator": config("aggregator", 'programs = ["nowhere:train"]', "'nowhere:train'"),
    "configuration that is no TOML": config("aggregator", "listen", "not TOML"),
    "terms that are no text": Mistake(
        SIMULATE, ("terms.toml", "not TOML"), {"terms.toml": b"rounds = 3 # \xff\n"}
    ),
    "a line feed in a key": named('"a\\nb" = 1', "a\\nb"),
    "program of this process": Mistake(
        "simulate mine.toml --data rows.csv",
        ("program 'lab:own': give it as simulate(..., program=...)",),
        named("program = 'lab:own'").files,
    ),
}
