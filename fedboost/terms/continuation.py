"""The model that a training continues, as text in the terms: XGBoost's JSON, and the meaning of its numbers.

Promises: the same model is the same text, so that terms that continue it have the same digest everywhere;
the text is checked against the terms in one place, for the analyst, the aggregator and the parties.
Refuses: a text that is not such a model or was written otherwise, one that is too long, and a model that the
terms cannot continue (ConfigError with what differs).
"""

import dataclasses
import itertools
import json
import math
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from fedboost.errors import ConfigError
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.drift import BINS, score_edges
from fedboost.terms.session import TO_DRIFT, TO_TRAIN

if TYPE_CHECKING:
    from fedboost.terms.columns import Schema
    from fedboost.terms.terms import Terms

MAX_MODEL = 3 << 20
"""Bytes of the text as it travels: terms have to fit into one message."""
MAX_EDGES = BINS - 1
_COLUMNS = "fedboost.columns"
_BINS = "fedboost.bins"
TRAINED_UNDER = "fedboost.terms"
"""The terms of the training, in a model that is measured: canonical JSON."""
FACTS = frozenset({TRAINED_UNDER, "fedboost.attestations", "fedboost.session", "fedboost.request"})
"""Attributes of a model that is measured, as its file has them: by them a site finds its own signature, and
the rows that were held out."""
BinEdges = tuple[list[list[float]], list[float]]
"""The edges of bins of each numeric feature, and of the score."""
_MEANINGS = ("positive", "classes", "categorical", "base_margin")
"""Keys of a schema that trees do not contain: the meaning of labels and of the codes of categories."""


def written(
    booster: Booster,
    columns: "Schema | None",
    bins: BinEdges | None = None,
    facts: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """A model as terms hold it; columns: those of its training, if they are known; bins: those of its
    reference, where rows are held against it; facts: of its training, where it is measured (`FACTS`).
    ConfigError if it is too long."""
    meanings = {} if columns is None else columns.model_dump(mode="json", include={*_MEANINGS})
    with np.errstate(over="ignore"):  # an infinite score is refused when the text is read
        rounded = dataclasses.replace(booster, base_score=float(np.float32(booster.base_score)))
    attributes: dict[str, Any] = {_COLUMNS: meanings} if meanings else {}
    attributes |= {} if bins is None else {_BINS: bins}
    own = {key: json.dumps(value, separators=(",", ":")) for key, value in attributes.items()}
    text = rounded.to_xgboost(own | {key: facts[key] for key in sorted(FACTS & {*facts})})
    _check_length(text)
    return text


@lru_cache(maxsize=8)
def read(text: str) -> Booster:
    """The model in a text. ConfigError if `written` did not write it."""
    _check_length(text)
    booster, attributes = Booster.from_any_xgboost(text, "xgb_model")
    if set(attributes) - {_COLUMNS, _BINS, *FACTS} or booster.to_xgboost(attributes) != text:
        raise ConfigError("xgb_model: not as fedboost writes it; give the path of the model's file")
    return booster


@lru_cache(maxsize=8)
def facts_of(text: str) -> Mapping[str, str]:
    """The facts of a model's training in a text; empty where it has none."""
    attributes = json.loads(text)["learner"]["attributes"]
    return {key: attributes[key] for key in FACTS if key in attributes}


@lru_cache(maxsize=8)
def bins_of(text: str) -> BinEdges:
    """The bins of the reference in a text. ConfigError if there are none."""
    attribute = json.loads(text)["learner"]["attributes"].get(_BINS)
    if attribute is None:
        raise ConfigError("xgb_model has no reference: train it with reference = true in the terms")
    try:
        numeric, score = json.loads(attribute)
        for edges in (*numeric, score):
            increases = all(low < high for low, high in itertools.pairwise(edges))
            if len(edges) > MAX_EDGES or not increases or not all(map(math.isfinite, edges)):
                raise ValueError("edges that are none")
    except (TypeError, ValueError, RecursionError):
        raise ConfigError(f"xgb_model: its attribute {_BINS} is not as fedboost writes it") from None
    return numeric, score


def check_bins(text: str, booster: Booster) -> None:
    """Raise ConfigError for edges of the score that no training gives: between those of free choice there
    could be single rows."""
    score = np.array(bins_of(text)[1])
    if booster.loss.outputs == 1:
        known = score_edges(booster.constant, booster.trees)
        near = known[np.abs(known[None, :] - score[:, None]).argmin(axis=1)]
        if not np.allclose(near, score, atol=1e-3 * float(known[1] - known[0])):
            raise ConfigError("xgb_model: the bins of its score are not those of its reference")


def check(text: str, terms: "Terms") -> None:
    """Raise ConfigError unless these terms can continue the model."""
    booster = read(text)
    if terms.task == TO_TRAIN and facts_of(text):
        raise ConfigError("xgb_model: a model that is continued has no facts of its training in the terms")
    differs = _model_difference(booster, terms) or _column_difference(booster, _trained_columns(text), terms)
    if differs:
        does = {TO_TRAIN: "continued", TO_DRIFT: "held against these rows"}.get(terms.task, "evaluated")
        raise ConfigError(f"xgb_model cannot be {does}: {differs}")


def _check_length(text: str) -> None:
    size = len(json.dumps(text))
    if size > MAX_MODEL:
        raise ConfigError(
            f"xgb_model: the model takes {size:,} bytes, of {MAX_MODEL:,} that fit into terms; continue one "
            f"of fewer rounds"
        )


@lru_cache(maxsize=8)
def _trained_columns(text: str) -> Mapping[str, Any] | None:
    """Meaning of the model's numbers, if the text has it."""
    attribute = json.loads(text)["learner"]["attributes"].get(_COLUMNS)
    try:
        columns = {} if attribute is None else {name: json.loads(attribute)[name] for name in _MEANINGS}
        if columns and not isinstance(columns["categorical"], dict):
            raise TypeError("levels that are no table")
    except (LookupError, TypeError, ValueError, RecursionError):
        raise ConfigError(f"xgb_model: its attribute {_COLUMNS} is not as fedboost writes it") from None
    return columns or None


def _model_difference(booster: Booster, terms: "Terms") -> str:
    """The first difference between model and terms in what XGBoost stores; '' if there is none."""
    if booster.objective != terms.objective.loss.xgboost_equivalent.name:
        return f"its objective is {booster.objective}, that of the terms {terms.objective.name}"
    if booster.loss.outputs != terms.objective.loss.outputs:
        return f"it has {booster.loss.outputs} classes, the terms have {terms.objective.loss.outputs}"
    if booster.num_parallel_tree != terms.trees.num_parallel_tree:
        own, other = booster.num_parallel_tree, terms.trees.num_parallel_tree
        return f"its num_parallel_tree is {own}, in the terms {other}"
    features, others = booster.features, terms.columns.features
    for number, (name, wanted) in enumerate(zip(features, others, strict=False), 1):
        if name != wanted:
            return f"its feature {number} is {name[:100]!r}, that of the terms {wanted!r}"
    if len(features) != len(others):
        return f"it has {len(features)} features, the terms have {len(others)}"
    odd = {*booster.categorical} ^ {*terms.columns.categorical}
    if odd:
        name = next(name for name in features if name in odd)
        has, has_not = ("it", "the terms") if name in booster.categorical else ("the terms", "it")
        return f"feature {name!r} has levels in {has}, and is numeric in {has_not}"
    if booster.buckets != terms.columns.target_means:
        shown, due = str(booster.buckets)[:100], str(dict(terms.columns.target_means))[:100]
        return f"its columns.target_means are {shown}, in the terms {due}"
    return ""


def _column_difference(booster: Booster, trained: Mapping[str, Any] | None, terms: "Terms") -> str:
    """The first difference in the meaning of the model's numbers; '' if there is none."""
    columns = terms.columns.model_dump(mode="json", include={*_MEANINGS})
    based = columns["base_margin"] is not None
    if (based and not booster.begins_with_a_leaf) or (
        trained and (trained["base_margin"] is not None) != based
    ):
        with_margins, without = ("the terms", "it") if based else ("it", "the terms")
        return f"columns.base_margin is in {with_margins}, and not in {without}"
    if terms.objective.base_score is not None:
        constant = booster.trees[0].value[0] if based else booster.constant
        if terms.objective.loss.margin(float(np.float32(terms.objective.base_score))) != constant:
            return f"it does not start from base_score {terms.objective.base_score:g}: leave that out"
    if trained is None:
        return ""
    for name, levels in columns["categorical"].items():
        if trained["categorical"].get(name) != levels:
            return f"the levels of {name!r} are not those of the terms, in their order"
    for name in ("positive", "classes"):
        if trained[name] != columns[name]:
            return f"its columns.{name} is {json.dumps(trained[name])[:100]}, in the terms another"
    return ""
