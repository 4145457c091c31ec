"""The five hospitals in one process: read by recipe and map, train, evaluate on patients that were held out.

Run in this folder, after `python make_hospitals.py .`: python example.py
"""

from pathlib import Path

import fedboost as fb
from fedboost.runtime.site.config import read_party
from fedboost.runtime.site.rows import site_rows

terms = fb.Terms.load("terms.toml")
tables = {name: site_rows(read_party(Path(f"{name}.toml"))).under(terms.columns) for name in terms.parties}
model = fb.simulate(terms, tables).model
model.save("simulated.json")

found = fb.evaluate(model, tables, at=[365])  # on the quarter that training held out
found.report("simulated.html")
for name, value in found.summary["metrics"].items():
    print(f"{name:9} {value:.3f}, at most {found.summary['resolution'][name]:.3f} from the exact value")
for curve in found.summary["survival"]:
    (year,) = (point for point in curve["points"] if point["time"] == 365)
    print(f"{curve['name']:9} alive after a year: {year['survival']:.0%}, still followed: {year['at_risk']}")
