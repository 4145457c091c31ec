"""Compares the reference of the tests for survival times (tests/gbdt/reference/survival_figures.py), computed
by numpy alone, with lifelines and scikit-survival. Needs both: pip install lifelines scikit-survival

    PYTHONPATH=tests/gbdt python benchmarks/quality/survival.py
"""

import numpy as np
from lifelines import KaplanMeierFitter
from lifelines.utils import concordance_index
from reference import survival_figures as own
from sksurv.metrics import brier_score, concordance_index_censored, cumulative_dynamic_auc
from sksurv.util import Surv

largest = dict.fromkeys(("C-index", "C-index (lifelines)", "AUC", "Brier", "Kaplan-Meier"), 0.0)
for seed in range(20):
    draw = np.random.default_rng(seed)
    risk = np.round(draw.normal(size=400), 1)
    time = np.ceil(100 * np.exp(-risk) * draw.exponential(size=400))
    censored = np.ceil(draw.uniform(0, 300, size=400))
    event, time = time <= censored, np.minimum(time, censored)
    rows, at = Surv.from_arrays(event, time), np.quantile(time, [0.3, 0.6])
    chance = np.exp(-np.outer(np.exp(risk), at / 100))
    auc = cumulative_dynamic_auc(rows, rows, risk, at)[0]
    brier = brier_score(rows, rows, chance, at)[1]
    curve = KaplanMeierFitter().fit(time, event).survival_function_at_times(at).to_numpy()
    pairs = {
        "C-index": (concordance_index_censored(event, time, risk)[0], own.concordance(time, event, risk)),
        "C-index (lifelines)": (concordance_index(time, -risk, event), own.concordance(time, event, risk)),
        "AUC": (auc, [own.area(time, event, risk, t) for t in at]),
        "Brier": (brier, [own.brier(time, event, chance[:, n], t) for n, t in enumerate(at)]),
        "Kaplan-Meier": (curve, own.kaplan_meier(time, event, at)),
    }
    for name, (theirs, ours) in pairs.items():
        largest[name] = max(largest[name], float(np.abs(np.subtract(theirs, ours)).max()))
for name, value in largest.items():
    print(f"{name}: differs by at most {value:.2g}")
