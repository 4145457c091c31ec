"""Candidates: settings of trees that one session tries side by side.

Refuses: candidates of other settings, and beyond the bounds that the terms have themselves (ConfigError).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedboost.errors import ConfigError
from fedboost.gbdt.objectives.registry import OBJECTIVES
from fedboost.terms.reading import require_known
from fedboost.terms.session import TO_TUNE

if TYPE_CHECKING:
    from fedboost.terms.terms import Terms

TUNED = (
    *("learning_rate", "max_depth", "max_leaves", "min_child_weight", "gamma", "reg_lambda", "reg_alpha"),
    *("max_delta_step", "colsample_bytree", "colsample_bylevel", "colsample_bynode"),
)
"""The settings that candidates differ in: what the aggregator alone goes by, so that all share one set of
bins, and one set of rows that trees grow on."""
MAX_COLUMNS_TRIED = 1 << 20
"""Candidates times features. At 256 bins the sums of one node of each are 4 GiB then, all that an aggregator
gives to a session by default."""
SHARES = (0.1, 0.2, 0.4, 0.6)
"""The shares of all rounds after which candidates are dropped."""
KEPT = (2, 3)
"""Two of three candidates go on each time: fewer would be those that learn fast, and not those that learn
well (decision 0028)."""


def terms_of(terms: "Terms", number: int) -> "Terms":
    """The terms of a training with the settings of a candidate."""
    return terms.altered(terms.objective.candidates[number], without=("program", "candidates"))


def stages(terms: "Terms") -> dict[int, int]:
    """The number of rounds after which candidates are dropped, to the number of those that go on."""
    left, ends = len(terms.objective.candidates), {}
    for share in SHARES:
        if rounds := int(share * terms.trees.rounds):
            ends[rounds] = left = -(-left * KEPT[0] // KEPT[1])
    return ends


def check(terms: "Terms") -> None:
    """ValueError unless the candidates can be tried side by side."""
    candidates, tunes = terms.objective.candidates, terms.session.program == TO_TUNE
    if tunes != bool(candidates):
        raise ValueError('program tune needs candidates, and candidates need program = "tune"')
    if not tunes:
        return
    for is_so, setting, reason in _refused(terms):
        if is_so:
            raise ValueError(f"program tune with {setting}: {reason}")
    for number, candidate in enumerate(candidates):
        _check_candidate(terms, number, candidate)


def _refused(terms: "Terms") -> tuple[tuple[bool, str, str], ...]:
    name, features = terms.objective.name, len(terms.columns.features)
    plain = name in OBJECTIVES and terms.objective.loss.quantile is None and terms.columns.group is None
    return (
        (len(terms.objective.candidates) < 2, "one candidate", "name two or more"),
        (
            len(terms.objective.candidates) * features > MAX_COLUMNS_TRIED,
            f"{len(terms.objective.candidates)} candidates of {features} columns",
            f"they are looked at one by one, and {MAX_COLUMNS_TRIED} can be; name fewer of either",
        ),
        (
            not plain or terms.objective.num_class is not None,
            name,
            "it is for objectives of one tree a round",
        ),
        (not terms.validates, "no validation rows", "set validation_fraction, or columns.validation"),
        (terms.noise is not None, "noise", "the choice among candidates would need noise, too; take it away"),
        (terms.vertical.is_used, terms.vertical.key, "it is for parties that have all columns"),
        (terms.xgb_model is not None, "xgb_model", "candidates start from nothing"),
        (terms.trees.num_parallel_tree > 1, "num_parallel_tree", "it is for one tree a round"),
        (terms.histograms.vote_top_k > 0, "vote_top_k", "candidates would vote apart; set 0"),
        (terms.draws.by_gradient_norm, "sampling_method gradient_based", "rows differ by candidate"),
        (terms.session.on_loss == "shrink", 'on_loss = "shrink"', "set wait or stop"),
        (terms.evaluation.party_metrics, "party_metrics", "leave it out"),
        (terms.evaluation.early_stopping_rounds is not None, "early_stopping_rounds", "leave it out"),
    )


def _check_candidate(terms: "Terms", number: int, candidate: Mapping[str, Any]) -> None:
    """ValueError unless a training may have these settings, and needs no more than the terms allow."""
    for key in candidate:
        require_known(key, TUNED, f"candidates[{number}]")
    try:
        own = terms_of(terms, number)
    except ConfigError as error:
        raise ValueError(f"candidates[{number}]: {str(error).removeprefix('terms: ')}") from None
    if own.trees.max_depth > terms.trees.max_depth or own.max_leaves_per_round > _leaves(terms):
        raise ValueError(f"candidates[{number}]: larger trees than max_depth and max_leaves of the terms")
    if own.trees.min_child_weight < terms.trees.min_child_weight:
        raise ValueError(
            f"candidates[{number}]: min_child_weight is below that of the terms, which sites go by"
        )


def _leaves(terms: "Terms") -> int:
    return terms.max_leaves_per_round // len(terms.roots)
