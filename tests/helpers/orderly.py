"""A folder with everything in order, for commands that are then given something else."""

from functools import cache

from pyarrow import csv
from sites import rows, terms

from fedboost.runtime.local.simulation import simulate
from fedboost.runtime.tasks import terms_to_toml


@cache
def model():
    """A small model, of all rows."""
    return simulate(terms(rounds=1), {"north": rows()}).model


def write_all(folder):
    """rows.csv, site-1.csv, terms.toml, alone.toml, party.toml, aggregator.toml, model.json, a folder."""
    csv.write_csv(rows(), folder / "rows.csv")
    csv.write_csv(rows(), folder / "site-1.csv")
    (folder / "terms.toml").write_text(terms_to_toml(terms(["north", "south"])))
    (folder / "alone.toml").write_text(terms_to_toml(terms()))
    site = 'party = "north"\naggregator = "localhost:1"\ndata = "rows.csv"\n'
    (folder / "party.toml").write_text(site + 'policy = { parties = "any", columns = "any" }\n')
    (folder / "aggregator.toml").write_text('listen = "127.0.0.1:0"\n')
    (folder / "folder").mkdir()
    model().save(folder / "model.json")
    return folder
