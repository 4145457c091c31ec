"""The SDK in five lines: draft terms from one site's table, train over all sites, save, predict.

Run: python examples/quickstart.py
"""

import pyarrow as pa
from sklearn.datasets import load_breast_cancer

import fedboost as fb

bunch = load_breast_cancer()
table = pa.table({**dict(zip(bunch.feature_names, bunch.data.T, strict=True)), "benign": bunch.target})
north, south, east = table.slice(0, 300), table.slice(300, 200), table.slice(500)

terms = fb.Terms.draft(north, label="benign", rounds=20)
result = fb.simulate(terms, {"north": north, "south": south, "east": east})
result.model.save("model.json")  # in this folder; an ordinary XGBoost file
print(result.history[-1])
print(fb.Model.load("model.json").predict(south)[:5])
