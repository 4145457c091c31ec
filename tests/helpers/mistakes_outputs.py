"""Mistakes about files that commands write: nothing is replaced that was not meant to be."""

from mistakes import Mistake

EXISTS = ("exists already", "--force to replace it")
MISTAKES = {
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
    "a model into a folder that is not there": Mistake(
        "simulate terms.toml --data rows.csv --out nowhere/new.json", ("nowhere", "does not exist")
    ),
}
