"""Mistakes at the command line that every command knows."""

from mistakes import Mistake

MISTAKES = {
    "a table that is not there": Mistake(
        "simulate terms.toml --data nowhere.csv --out new.json", ("nowhere.csv", "no such file")
    ),
    "terms that are not there": Mistake(
        "simulate nowhere.toml --data rows.csv --out new.json", ("nowhere.toml", "cannot read")
    ),
}
