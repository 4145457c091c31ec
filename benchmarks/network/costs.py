"""The model of `fedboost estimate` for parties in one process, and fits of its constants."""

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.optimize import nnls

from fedboost.results.estimate import CONSTANTS, EFFECT_SECONDS, NETWORK, ROWS, Case, load_of, total


def parties_seconds(case: Case, layout: str, constants: Mapping[str, float]) -> float:
    """CPU seconds of all parties in a round, without encryption and the network."""
    load = load_of(case, layout)
    return case.parties * total(load.party | load.masks, constants)


def session_counts(case: Case, layout: str = ROWS) -> dict[str, float]:
    """Multiples of the constants of the aggregator's session, without the network."""
    counts = load_of(case, layout).aggregator(case.parties)
    return {name: count for name, count in counts.items() if name not in NETWORK}


def simulated(case: Case, layout: str = ROWS, constants: Mapping[str, float] = CONSTANTS) -> float:
    """Seconds of a round with all parties and the aggregator in one thread (`fb.simulate`)."""
    parties = parties_seconds(case, layout, constants) + load_of(case, layout).encryption
    return (
        parties + total(session_counts(case, layout), constants) + EFFECT_SECONDS * (case.groups_of_bins > 0)
    )


def fit(counts: Sequence[Mapping[str, float]], seconds: Sequence[float]) -> dict[str, float]:
    """Fit nonnegative constants that minimise the relative errors."""
    names = list(counts[0])
    table = np.array([[one[name] for name in names] for one in counts])
    measured = np.array(seconds)
    scaled = table / measured[:, None]
    sizes = np.where(scaled.max(axis=0) > 0, scaled.max(axis=0), 1.0)
    found, _ = nnls(scaled / sizes, np.ones(len(measured)))
    return dict(zip(names, (found / sizes).tolist(), strict=True))
