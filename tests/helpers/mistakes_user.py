"""Mistakes of people who mistake one file for another."""

from mistakes import Mistake


def asked(folder):
    """A folder with a request, as `fedboost keys request` leaves it."""
    (folder / "asked").mkdir()
    (folder / "asked" / "request.pem").write_text("a request")
    (folder / "asked" / "key.pem").write_text("a key")


NAMED = 'party = "a"\naggregator = "localhost:1"\ndata = "rows.csv"\nnames = "names.toml"\n'
"""A site's file that points to names."""

MISTAKES = {
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
    "terms as an offer of columns": Mistake(
        "terms rows.csv --label y --with terms.toml --out new.toml",
        ("terms.toml: is terms", "give an offer of columns"),
    ),
    "the names of a site where its offer is wanted": Mistake(
        "terms rows.csv --label y --with names.toml --out new.toml",
        ("names.toml: is a site's names", "give an offer of columns"),
        {"names.toml": '[names]\n"a.1" = "age"\n'},
    ),
    "names for columns that are not there": Mistake(
        "check --config named.toml",
        ("names.toml: column 'agee' is missing", "did you mean age?"),
        {
            "names.toml": '[names]\n"a.1" = "agee"\n',
            "named.toml": NAMED,
        },
    ),
    "names that are nowhere": Mistake(
        "check --config named.toml",
        ("names.toml: cannot read: No such file",),
        {"named.toml": NAMED},
    ),
    "columns of nobody": Mistake("columns rows.csv", ("whose columns are these?", "--party NAME")),
    "an offer in the place of its table": Mistake(
        "columns rows.csv --alias a --out rows.csv --force", ("rows.csv: is read by this very command",)
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
}
