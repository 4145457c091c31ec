"""Five hospitals in one process: read each with its recipe and map, train, and compare survival by predicted risk.

Run in this folder, after `python make_hospitals.py .`: python example.py
"""

import numpy as np
import pyarrow as pa

import fedboost as fb
from fedboost.runtime.site.config import read_party
from fedboost.runtime.site.rows import site_rows
from fedboost.runtime.tasks import read_terms

terms = read_terms("terms.toml")
tables = {name: site_rows(read_party(f"{name}.toml")).under(terms.columns) for name in terms.parties}
model = fb.simulate(terms, tables).model
model.save("simulated.json")

print("hospital  patients  died  died within a year, by third of predicted risk")
for name, table in tables.items():
    if "albumin" not in table.column_names:
        table = table.append_column("albumin", pa.nulls(table.num_rows, pa.float64()))
    time, died = table["time"].to_numpy(), table["until"].is_valid().to_numpy()
    risk = model.predict(table)
    thirds = np.digitize(risk, np.quantile(risk, [1 / 3, 2 / 3]))
    known = (time > 365) | died  # those censored within a year are left out
    shares = [np.mean(died & (time <= 365), where=known & (thirds == third)) for third in range(3)]
    print(f"{name:9} {len(time):8} {died.mean():5.0%}  " + "  ".join(f"{share:.0%}" for share in shares))
