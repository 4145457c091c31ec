"""The canary audit: how well do all releases of a session reveal whether it had one more row?

`privacy.py` runs it. A session runs many times over the same few rows, in half of the runs with one more
row. The attacker knows every other row, the seed and each question, and thus each sum with and without the
row. Its statistic is the log likelihood ratio of all noisy sums, which is optimal. Noise shares that the
attacker draws itself are left out.

The first half of the runs chooses a threshold. The other half gives the rates at which the statistic is
above it with and without the row, with 97.5 % Clopper-Pearson bounds, 95 % for both. They imply a lower
bound on epsilon without assumptions, and a sharper one that assumes Gaussian privacy.

Noise, bounds, program and sums of a party are those of real sessions. The same seed gives the same runs.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

import fedboost as fb
from fedboost.boosting.programs import private
from fedboost.holders.shard import Shard
from fedboost.holders.whole_rows import HorizontalHolder
from fedboost.privacy import noise
from fedboost.privacy.protection import Tag
from fedboost.protocol.site import Limits, SessionOffer, Spending, TransientMemory
from fedboost.terms.hiding import Release

Float64 = npt.NDArray[np.float64]
ROWS = 12
PARTIES = ("north", "south", "west")
CONFIDENCE = 0.95
DELTA = 1e-5


@dataclass(frozen=True)
class Found:
    """Lower bounds of an audit and the stated epsilon, at the same delta."""

    stated: float
    epsilon: float
    """Lower bound without assumptions."""
    gaussian: float
    """Lower bound that assumes Gaussian privacy."""
    above: tuple[float, float]
    """Rates of the statistic above the threshold without and with the row."""
    runs: int

    @property
    def holds(self) -> bool:
        """Whether neither bound is above the stated epsilon."""
        return max(self.epsilon, self.gaussian) <= self.stated


def terms_of(epsilon: float, placement: str = "local", rounds: int = 2) -> fb.Terms:
    """One numeric feature, few trees."""
    columns = {"label": "y", "numeric": ["x"], "ranges": {"x": [0.0, 1.0]}}
    alone = placement == "local"
    return fb.Terms.read(
        {
            "columns": columns,
            "noise": {"epsilon": epsilon, "delta": DELTA, "placement": placement},
            "parties": PARTIES[: 1 if alone else 3],
            "protection": "plain" if alone else "masked",
            "rounds": rounds,
            "max_depth": 2,
        }
    )


def shards() -> tuple[Shard, Shard]:
    """Rows without the canary, half of each label, so that margins stay near 0; and with it."""
    values = np.linspace(0.0, 1.0, ROWS, dtype=np.float32)
    labels = (np.arange(ROWS) % 2).astype(np.float32)
    with_row = np.append(values, np.float32(0.3)), np.append(labels, np.float32(1.0))
    return of_rows(values, labels), of_rows(*with_row)


def of_rows(values: npt.NDArray[np.float32], labels: npt.NDArray[np.float32]) -> Shard:
    """Rows of weight 1."""
    return Shard((values,), labels, np.ones_like(labels))


def play(terms: fb.Terms, session: str, present: bool, draw: Callable[[int], bytes]) -> float:
    """Run a session and compute the attacker's statistic: larger values favour the row."""
    without, with_row = (HorizontalHolder(lambda shard=shard: shard, terms) for shard in shards())
    offer = SessionOffer(session, terms)
    memories = [TransientMemory(draw).begin(offer, Limits()) for _ in range(shares_of(terms))]
    secret = [Spending(terms, memory) for memory in memories]
    program = private.train(terms, [])
    tag = Tag(0, 0, terms.parties, b"", ())
    ratio, query = 0.0, next(program)
    while True:
        state = without.state
        known, other = without.answer(query), with_row.answer(query)
        answer = other if present else known
        for spending in secret:
            answer = spending.release(query, state, tag, answer)[0]
        if (release := query.release(terms)) is not None:
            moved = (other - known).astype(np.float64)
            ratio += float(moved @ (answer - known) - moved @ moved / 2.0) / variance(release)
        try:
            query = program.send(answer)
        except StopIteration:
            return ratio


def shares_of(terms: fb.Terms) -> int:
    """Number of noise shares that the attacker does not know."""
    return next(iter(terms.plan.releases.values())).honest


def variance(release: Release) -> float:
    """Variance of the noise that the attacker does not know."""
    return float(release.share) ** 2 * release.honest


def audit(terms: fb.Terms, runs: int, seed: int = 0) -> Found:
    """Run this many sessions with the row, and as many without."""
    draw = random.Random(seed).randbytes
    statistics = {
        present: np.array([play(terms, f"{present} {run}", present, draw) for run in range(runs)])
        for present in (False, True)
    }
    return judge(terms, statistics[False], statistics[True])


def judge(terms: fb.Terms, without: Float64, with_row: Float64) -> Found:
    """Compute the lower bounds from the statistics of the runs."""
    assert terms.noise is not None
    epsilon, delta, half = terms.noise.epsilon, terms.noise.delta, without.size // 2
    thresholds = np.sort(without[:half])[:: max(half // 200, 1)]
    bounds, at = [], 0.0
    for of in (of_anything, of_gaussian):
        at = max(thresholds, key=lambda at, of=of: of(*pair(without[:half], with_row[:half], at), delta))
        bounds.append(of(*pair(without[half:], with_row[half:], at), delta))
    plain, gaussian = bounds
    above = share(without[half:], at), share(with_row[half:], at)
    return Found(epsilon, plain, gaussian, above, 2 * without.size)


def share(values: Float64, threshold: float) -> float:
    """Share of the statistics above the threshold."""
    return float(np.mean(values > threshold))


def pair(without: Float64, with_row: Float64, threshold: float) -> tuple[float, float]:
    """The greatest share without the row and the least with it that fit what was counted."""
    tail = (1.0 - CONFIDENCE) / 2.0
    hits, false = (int(np.count_nonzero(values > threshold)) for values in (with_row, without))
    lowest = float(stats.beta.ppf(tail, hits, with_row.size - hits + 1)) if hits else 0.0
    rest = without.size - false
    highest = float(stats.beta.ppf(1.0 - tail, false + 1, rest)) if rest else 1.0
    return highest, lowest


def of_anything(false: float, hits: float, delta: float) -> float:
    """The least epsilon that allows these shares: hits <= exp(epsilon) false + delta, and the rest, too."""
    both = [(hits, false), (1.0 - false, 1.0 - hits)]
    return max(0.0, *(math.log((more - delta) / less) for more, less in both if more > delta and less > 0.0))


def of_gaussian(false: float, hits: float, delta: float) -> float:
    """Epsilon of the least mu that allows these shares."""
    if not (0.0 < false < 1.0 and 0.0 < hits < 1.0):
        return 0.0
    mu = float(stats.norm.ppf(hits) - stats.norm.ppf(false))
    return noise.epsilon_of(mu, delta) if mu > 0.0 else 0.0
