"""A limit that nothing here removes, with its figure: docs/threat-model.md, "A party that adds wrong rows".

`min_child_weight`, and with it a site's `min_rows_per_leaf`, counts the rows of all parties, those of a party
that lies among them. If this test fails, the limit is gone: say so there.
"""

import numpy as np
import pytest

import fedboost as fb

WRONG = 120
FEATURES = [f"f{i}" for i in range(4)]


def guessed(seed):
    """True if a party that adds wrong rows around another party's row reads its label from the finished
    model. It knows the row's features, and no sum of the session."""
    draw = np.random.default_rng(seed)
    X = draw.normal(size=(600, len(FEATURES))).astype(np.float32)
    y = (X[:, 0] + draw.normal(size=600) > 0).astype(int)
    target = int(draw.integers(0, 400))
    wrong, half = np.repeat(X[target][None], WRONG, 0), WRONG // 2
    wrong[half:, 0] += np.where(np.arange(half) % 2, 1e-4, -1e-4).astype(np.float32)
    labels = np.repeat([1, 0], half)  # the row's twins are all positive, those just beside it negative
    rows = {
        "north": (X[:200], y[:200]),
        "south": (X[200:400], y[200:400]),
        "east": (np.r_[X[400:], wrong], np.r_[y[400:], labels]),
    }
    tables = {
        name: {**dict(zip(FEATURES, features.T, strict=True)), "y": label}
        for name, (features, label) in rows.items()
    }
    terms = fb.Terms.read(
        {
            "columns": {"label": "y", "numeric": FEATURES},
            "parties": list(tables),
            "rounds": 1,
            "learning_rate": 1.0,
            "base_score": 0.5,
            "min_child_weight": 2.5,  # ten rows a leaf, which the default policy wants
        }
    )
    predicted = fb.simulate(terms, tables).model.predict(X[target][None])[0]
    margin = np.log(predicted / (1 - predicted))
    with_label = {label: (0.5 * half + label - 0.5) / (0.25 * (half + 1) + 1) for label in (0, 1)}
    return min(with_label, key=lambda label: abs(with_label[label] - margin)) == y[target]


@pytest.mark.slow
def test_a_party_that_adds_wrong_rows_around_a_row_reads_its_label():
    assert [guessed(seed) for seed in range(8)] == [True] * 8
