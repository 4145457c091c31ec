"""Candidates drawn from a space of settings, and what a session that tried them side by side found.

Refuses: spaces of other settings than candidates may differ in, and intervals that are none (ConfigError).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedboost.errors import ConfigError, PeerError
from fedboost.runtime.files import write_atomically
from fedboost.runtime.samplers import sampled
from fedboost.runtime.signed_model import SignedModel
from fedboost.runtime.summaries import is_tuning
from fedboost.runtime.terms_file import terms_to_toml
from fedboost.terms.objective import MAX_CANDIDATES
from fedboost.terms.reading import require_known
from fedboost.terms.session import TO_TUNE, TUNED, terms_of
from fedboost.terms.terms import Terms

SPACE: dict[str, list[float]] = {
    "learning_rate": [0.02, 0.3],
    "max_depth": [3, 8],
    "reg_lambda": [0.1, 30],
    "colsample_bytree": [0.5, 1.0],
}
"""The space unless one is given: the usual settings of XGBoost and their usual ranges; and min_child_weight
from that of the terms on, which sites go by."""
TRIALS = 27
_BY_RATIO = frozenset({"learning_rate", "min_child_weight", "reg_lambda", "reg_alpha", "gamma"})
"""Settings of which the logarithm is drawn evenly."""
_WHOLE = frozenset({"max_depth", "max_leaves"})
_NOT_WHILE_TUNING = ("early_stopping_rounds", "party_metrics")
"""Settings of a training that are left out where candidates are tried, and of the terms that come of it."""
_DIGITS = 3


def terms_to_tune(
    terms: Terms,
    space: Mapping[str, Sequence[float]] | None = None,
    trials: int | None = None,
    sampler: Any = None,
) -> Terms:
    """The terms by which so many candidates of a space are tried side by side, or those themselves if they
    name candidates. The first candidate has the settings of the terms; the others are drawn by their seed,
    each setting once from each of as many parts of its range, or by a sampler (`samplers`). ConfigError."""
    if terms.task == TO_TUNE:
        if (space, trials, sampler) != (None, None, None):
            raise ConfigError("the terms name candidates: leave --space, --trials and --sampler out")
        return terms
    fewest = max(terms.trees.min_child_weight, 1.0)
    usual = {**SPACE, "min_child_weight": [fewest, 12 * fewest]}
    ranges = _checked(usual if space is None else space)
    number = TRIALS if trials is None else trials
    if not 2 <= number <= MAX_CANDIDATES:
        raise ConfigError(f"{number} trials: give 2 to {MAX_CANDIDATES}")
    others, seed = number - 1, terms.draws.seed
    drawn = (
        draw(ranges, others, seed)
        if sampler is None
        else sampled(ranges, others, seed, sampler, _WHOLE, _BY_RATIO)
    )
    names = dict.fromkeys((*ranges, "max_depth", "min_child_weight"))
    own = {name: terms.flat[name] for name in names if terms.flat[name] is not None}
    candidates = [own, *({**own, **settings} for settings in drawn)]
    bounds = {
        "max_depth": max(int(each["max_depth"]) for each in candidates),
        "min_child_weight": min(float(each["min_child_weight"]) for each in candidates),
    }
    if "max_leaves" in ranges:
        bounds["max_leaves"] = max(int(each["max_leaves"]) for each in candidates)
    if not terms.validates:
        bounds["validation_fraction"] = 0.2
    values = terms.model_dump(mode="json", exclude_unset=True) | bounds
    for name in _NOT_WHILE_TUNING:
        values.pop(name, None)
    return type(terms).read({**values, "program": TO_TUNE, "candidates": candidates})


def draw(space: Mapping[str, Sequence[float]], number: int, seed: int) -> list[dict[str, float]]:
    """So many points of a space: a Latin hypercube."""
    draws = np.random.default_rng(seed)
    columns = {}
    for name, values in space.items():
        parts = (draws.permutation(number) + draws.random(number)) / max(number, 1)
        columns[name] = [_value(name, values, float(part)) for part in parts]
    return [{name: column[place] for name, column in columns.items()} for place in range(number)]


def _value(name: str, values: Sequence[float], part: float) -> float:
    """The value of a setting at this part of its range: of two values an interval, of more one of them."""
    if len(values) != 2:
        return values[min(int(part * len(values)), len(values) - 1)]
    low, high = values
    if name in _WHOLE:
        return min(int(low + part * (high - low + 1)), int(high))
    if name in _BY_RATIO and low > 0:
        value = math.exp(math.log(low) + part * (math.log(high) - math.log(low)))
    else:
        value = low + part * (high - low)
    return min(max(float(f"{value:.{_DIGITS}g}"), low), high)


def _checked(space: Mapping[str, Sequence[float]]) -> Mapping[str, Sequence[float]]:
    if not space:
        raise ConfigError("the space has no settings")
    for name, values in space.items():
        try:
            require_known(name, TUNED, "space")
        except ValueError as error:
            raise ConfigError(str(error)) from None
        is_list = isinstance(values, list | tuple) and len(values) > 1
        if not is_list or not all(map(_is_number, values)):
            raise ConfigError(f"space: {name} takes [low, high], or a list of three values and more")
        if len(values) == 2 and values[0] >= values[1]:
            raise ConfigError(f"space: {name} = {list(values)}: the first is not below the second")
    return space


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300


@dataclass(frozen=True)
class Tuning:
    """What a session that tried candidates found.

    metric: the one that was watched, of the validation rows; trials: of each candidate its `settings`, the
    `rounds` it was trained for, the `best_round`, and the metric there; best: the number of the best of those
    that were trained longest; traffic: party to (bytes sent, bytes received).
    """

    tuned: Terms = field(repr=False)
    metric: str
    trials: tuple[Mapping[str, Any], ...]
    best: int
    traffic: Mapping[str, tuple[int, int]] = field(repr=False)

    @classmethod
    def of(cls, terms: Terms, model: SignedModel, traffic: Mapping[str, tuple[int, int]]) -> "Tuning":
        """What a session under these terms ended with. PeerError if it is nothing of the kind."""
        summary = model.summary
        if not is_tuning(summary, terms):
            raise PeerError("the aggregator ended the session without a result of its trials")
        return cls(terms, summary["metric"], tuple(summary["trials"]), summary["best"], traffic)

    @property
    def terms(self) -> Terms:
        """The terms of a training with the best settings, for as many rounds as were best."""
        return terms_of(self.tuned, self.best).changed(rounds=self.trials[self.best]["best_round"])

    def save(self, path: Path | str) -> None:
        """Write these terms to a TOML file, whole or not at all."""
        write_atomically(Path(path), terms_to_toml(self.terms).encode())
