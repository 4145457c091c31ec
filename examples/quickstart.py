"""The SDK in five lines: draft terms from one site's table, train over all sites, save, predict.

Run: python examples/quickstart.py
"""

from sklearn.datasets import load_breast_cancer

import fedboost as fb

table = load_breast_cancer(as_frame=True).frame
north, south = table.iloc[:400], table.iloc[400:]

terms = fb.Terms.draft(north, label="target", rounds=20)
result = fb.simulate(terms, {"north": north, "south": south})
result.model.save("model.json")
print(result.history[-1])
print(fb.Model.load("model.json").predict(south)[:5])
