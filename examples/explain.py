"""Explain a model: importance, SHAP values, partial dependence, and a tree as text and as a picture.

Run: python examples/explain.py
"""

from pathlib import Path

import numpy as np
from pyarrow import csv

import fedboost as fb

table = csv.read_csv(Path(fb.__file__).parent / "runtime" / "local" / "hospitals.csv")  # the demo's table
terms = fb.Terms.draft(table, label="benign", rounds=20, max_depth=3)
model = fb.simulate(terms, {"north": table[:300], "south": table[300:500], "east": table[500:]}).model

values = model.shap_values(table)  # [rows, features + 1]; the last column is the bias
strength = np.abs(values[:, :-1]).mean(axis=0)
gains = model.importance("gain")
print("feature                  mean |SHAP|     gain")
for place in np.argsort(-strength)[:5]:
    name = model.booster.features[place]
    print(f"{name:24} {strength[place]:11.4f} {gains[name]:8.2f}")
probability = 1 / (1 + np.exp(-values.sum(axis=1)))
print("they add up to the prediction:", bool(np.allclose(probability, model.predict(table))))

grid, means = model.partial_dependence(table, "worst_area", [400, 800, 1200, 1600])
for area, mean in zip(grid, means, strict=True):
    print(f"worst area {area:5}: benign with probability {mean:.3f} on average")

print(model.tree_text(0))
Path("tree.svg").write_text(model.tree_svg(0), encoding="utf-8")  # open it in a browser
