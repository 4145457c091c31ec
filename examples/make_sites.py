"""Write the demo's three hospitals as CSV files: python examples/make_sites.py FOLDER"""

import sys
from pathlib import Path

from pyarrow import csv

from fedboost.cli.demo import hospitals

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
for name, table in hospitals().tables.items():
    csv.write_csv(table, folder / f"{name}.csv")
    print(folder / f"{name}.csv", table.num_rows, "rows")
