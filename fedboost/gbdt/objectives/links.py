"""Links: functions between the margin of a row and its prediction.

Promises: `margin` and `predict` give the same bits on every CPU; `margin` is the float32 that XGBoost makes
of a base score.
Refuses: scores that are the prediction of no margin (ConfigError).
"""

import math
from dataclasses import dataclass

import numpy as np

from fedboost.errors import ConfigError
from fedboost.fixedpoint import Float64
from fedboost.gbdt.kernels.elementwise import exps, logs, sigmoids
from fedboost.gbdt.kernels.objectives import softmaxes


@dataclass(frozen=True)
class Link:
    """The identity, and the base of the other links: the prediction is the margin."""

    def margin(self, score: float, objective: str) -> float:
        """The margin of a prediction; `objective` is named in an error."""
        return score

    def predict(self, margin: Float64) -> Float64:
        """The prediction of each row: float64 [N], or [N, outputs] of margins [outputs, N]."""
        return margin


class LogLink(Link):
    """The prediction is e**margin."""

    def margin(self, score: float, objective: str) -> float:
        if not 0.0 < score < math.inf:
            raise ConfigError(f"base_score {score} must be above 0 for {objective}")
        return _log(np.float32(score))

    def predict(self, margin: Float64) -> Float64:
        out: Float64 = exps(margin)
        return out


class LogitLink(Link):
    """The prediction is a probability, 1 / (1 + e**-margin)."""

    def margin(self, score: float, objective: str) -> float:
        if not 0.0 < score < 1.0:
            raise ConfigError(f"base_score {score} must lie strictly between 0 and 1 for {objective}")
        # XGBoost's own steps and bounds, each rounded to 32 bits: near 1 the exact logit is another number.
        near = np.clip(np.float32(score), np.float32(1e-6), np.float32(1.0) - np.float32(1e-6))
        return -_log(np.float32(1.0) / near - np.float32(1.0))

    def predict(self, margin: Float64) -> Float64:
        out: Float64 = sigmoids(margin)
        return out


class SoftmaxLink(Link):
    """The predictions of a row are probabilities that sum to 1."""

    def predict(self, margin: Float64) -> Float64:
        out: Float64 = softmaxes(margin)
        return out


IDENTITY, LOG, LOGIT, SOFTMAX = Link(), LogLink(), LogitLink(), SoftmaxLink()


def _log(value: np.float32) -> float:
    return float(np.float32(logs(np.array([value], np.float64))[0]))
