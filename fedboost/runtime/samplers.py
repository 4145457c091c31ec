"""Candidates drawn by a sampler of Optuna, which is an extra.

Refuses: samplers that are none (ConfigError).
"""

import logging
import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from fedboost.errors import ConfigError

NAMES = {"random": "RandomSampler", "qmc": "QMCSampler", "tpe": "TPESampler"}
"""Samplers by the names that the command takes. No trial is reported to them: candidates stand in the terms
before any is tried, so of TPE these are its random first ones."""


def sampled(
    space: Mapping[str, Sequence[float]],
    number: int,
    seed: int,
    sampler: Any,
    whole: frozenset[str],
    by_ratio: frozenset[str],
) -> list[dict[str, float]]:
    """So many points of a space. sampler: a name in NAMES, or a sampler of Optuna; whole, by_ratio: settings
    that are whole numbers, and those whose logarithm is drawn evenly. ConfigError."""
    if find_spec("optuna") is None:
        raise ConfigError('samplers are those of Optuna: pip install "fedboost[optuna]"')
    import optuna

    if isinstance(sampler, str):
        if sampler not in NAMES:
            raise ConfigError(f"sampler {sampler!r}: take {', '.join(NAMES)}, or give a sampler of Optuna")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = getattr(optuna.samplers, NAMES[sampler])(seed=seed)
    if not isinstance(sampler, optuna.samplers.BaseSampler):
        raise ConfigError(f"sampler: a {type(sampler).__name__} is no sampler of Optuna")
    distributions = optuna.distributions
    ranges: dict[str, Any] = {}
    for name, values in space.items():
        if len(values) != 2:
            ranges[name] = distributions.CategoricalDistribution(list(values))
        elif name in whole:
            ranges[name] = distributions.IntDistribution(int(values[0]), int(values[1]))
        else:
            low, high = map(float, values)
            ranges[name] = distributions.FloatDistribution(low, high, log=name in by_ratio and low > 0)
    logger = logging.getLogger("optuna")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        study = optuna.create_study(sampler=sampler)
        points = [study.ask(ranges).params for _ in range(number)]
    finally:
        logger.setLevel(level)
    return [{name: _short(value, space[name]) for name, value in point.items()} for point in points]


def _short(value: float, values: Sequence[float]) -> float:
    """A number of few digits, within the range."""
    if len(values) != 2 or isinstance(value, int):
        return value
    return min(max(float(f"{value:.4g}"), values[0]), values[1])
