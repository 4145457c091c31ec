"""The Python SDK in five lines: draft terms from one site's table, train on all sites, save, and predict.

Run: python examples/quickstart.py
"""

from pathlib import Path

from pyarrow import csv

import fedboost as fb

table = csv.read_csv(Path(fb.__file__).parent / "runtime" / "local" / "hospitals.csv")  # the demo's table
north, south, east = table.slice(0, 300), table.slice(300, 200), table.slice(500)

terms = fb.Terms.draft(north, label="benign", rounds=20)
result = fb.simulate(terms, {"north": north, "south": south, "east": east})
result.model.save("model.json")  # in this folder; an ordinary XGBoost file
print(result.history[-1])
print(fb.Model.load("model.json").predict(south)[:5])
