"""Noisy sums of gradients, and the step that they are worth.

Promises: pure functions; a step is the shorter the more of the sums may be noise.
Refuses nothing.
"""

from dataclasses import dataclass

from fedboost.gbdt.objectives.objective import IDENTITY
from fedboost.terms.terms import Terms

NOISE_ALONE = 2.0
"""Standard deviations of noise below which a count is set to 0."""
LEAF_SPREAD = 0.5
"""Prior standard deviation of leaf values (tau), by which noisy ones are shrunk toward 0."""
MAX_LEAF_STEP = 2.0
"""Longest step of a leaf, before the learning rate."""


@dataclass(frozen=True)
class Sums:
    """Noisy sums of a node, in units, and the standard deviation of their noise."""

    gradient: int
    hessian: int
    sigma: float


def newton_step(terms: Terms, sums: Sums) -> float:
    """-G H / (H**2 + lambda H + (sigma_G / tau)**2): of noisy sums, shrunk toward 0 by their noise.
    Where margins are in the unit of the label, the clip is the unit of tau and of the longest step."""
    bound, unit = terms.bound, terms.bound.clip if terms.objective.loss.link == IDENTITY else 1.0
    G, H = bound.gradient(sums.gradient), max(bound.hessian(sums.hessian), 0.0)
    spread = bound.gradient(sums.sigma) / (LEAF_SPREAD * unit)
    below = H * H + terms.trees.reg_lambda * H + spread * spread
    step = -G * H / below if below > 0.0 else 0.0
    return max(-MAX_LEAF_STEP * unit, min(MAX_LEAF_STEP * unit, step))
