"""Write the tables of the demos' hospitals, clinic and laboratory as CSV files, and create all keys.

Run: python examples/make_sites.py TABLES KEYS

In production, each member creates its own key: see docs/identity.md.
"""

import sys
from pathlib import Path

from pyarrow import csv

from fedboost.cli.demo import hospitals, patients
from fedboost.runtime.local.cluster import write_consortium

tables, keys = Path(sys.argv[1]), Path(sys.argv[2])
tables.mkdir(parents=True, exist_ok=True)
sites = {**hospitals().tables, **patients().tables}
for name, table in sites.items():
    csv.write_csv(table, tables / f"{name}.csv")
    print(tables / f"{name}.csv", table.num_rows, "rows")
if not (keys / "aggregator").exists():
    keys.mkdir(parents=True, exist_ok=True)
    write_consortium(keys, {name: name for name in (*sites, "keyholder")}, days=365, adders=["eu"])
    print(keys, "keys of the aggregator, an adder, the analyst, the sites and a key holder")
