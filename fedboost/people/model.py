"""A model in words: the features it goes by.

Promises: it says where noise makes importances worthless.
Refuses: nothing.
"""

from collections.abc import Iterator, Mapping, Sequence

from fedboost.gbdt.booster import Booster
from fedboost.people.text import Block, cell, table
from fedboost.protocol.terms import Terms


def importances(
    booster: Booster, terms: Terms, kinds: Sequence[str], by_feature: Mapping[str, Sequence[float]]
) -> Iterator[Block]:
    """Yield a table of importances of each kind, by feature."""
    yield (
        f"{booster.objective}, {len(booster.trees)} trees; "
        f"{len(by_feature)} of {len(booster.features)} features split"
    )
    if terms.noise is not None and terms.noise.method != "hist":
        yield (
            "trained with noise: splits are drawn, not chosen by gain, so these figures do not say what "
            "counts; --shap and --partial-dependence do"
        )
    lines = table("feature", *kinds, whole=True)
    lines.columns[0].overflow = "fold"
    for name, values in by_feature.items():
        lines.add_row(cell(name), *(f"{value:.6g}" for value in values))
    yield lines
