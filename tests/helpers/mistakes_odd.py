"""Mistakes with `fedboost check`."""

from mistakes import Mistake

MISTAKES = {
    "nothing to check": Mistake("check", ("give a table", "--config")),
    "a table and a site's file": Mistake(
        "check rows.csv --config party.toml", ("rows.csv", "party.toml", "one of the two")
    ),
    "a label that is not there": Mistake(
        "check rows.csv --label yy", ("column 'yy' is missing", "did you mean y?")
    ),
    "a table that is not there": Mistake("check nowhere.csv --label y", ("nowhere.csv", "no such file")),
    "terms for a table": Mistake(
        "check terms.toml --label y", ("terms.toml: is no table", "--terms", "--aggregator")
    ),
    "a table for terms": Mistake("check rows.csv --terms rows.csv", ("rows.csv", "not TOML")),
    "a site's file for terms": Mistake(
        "check rows.csv --terms party.toml", ("party.toml: is a site's file", "give terms")
    ),
    "terms for a site's file": Mistake(
        "check --config terms.toml", ("terms.toml: is terms", "give a site's file")
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
    "a column named twice": Mistake(
        "check twice.csv --label y",
        ("twice.csv", "two columns named 'age'"),
        {"twice.csv": "age,age,y\n1,2,0\n"},
    ),
    "semicolons between columns": Mistake(
        "check excel.csv --label y", ("excel.csv", "semicolons"), {"excel.csv": "age;y\n1;0\n2;1\n"}
    ),
    "a header alone": Mistake(
        "check header.csv --label y", ("header.csv", "no rows"), {"header.csv": "age,y\n"}
    ),
    "a folder": Mistake("check folder --label y", ("folder", "holds no Parquet file")),
}
