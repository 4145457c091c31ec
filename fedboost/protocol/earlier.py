"""The model that a training continues, as it stands in the terms: XGBoost's JSON, and what its numbers stand
for.

Promises: the same model is the same text, so that terms that continue it have the same digest everywhere;
what the text says is held to the terms in one place, for the analyst, the aggregator and the parties alike.
Refuses: a text that is not such a model or was written otherwise, one that is too long, and a model that the
terms cannot continue (ConfigError with what differs).
"""

import dataclasses
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from fedboost.errors import ConfigError
from fedboost.gbdt.booster import Booster

if TYPE_CHECKING:
    from fedboost.protocol.terms import Schema, Terms

MAX_MODEL = 3 << 20
"""Bytes of the text as it travels: terms have to fit into one message."""
_COLUMNS = "fedboost.columns"
_MEANINGS = ("positive", "classes", "categorical", "base_margin")
"""What of a schema the trees do not say: what the labels, and the numbers of levels, stand for."""


def written(booster: Booster, columns: "Schema | None") -> str:
    """A model as terms hold it; columns: those it was trained on, if they are known. ConfigError if it is too
    long."""
    said = {} if columns is None else columns.model_dump(mode="json", include={*_MEANINGS})
    with np.errstate(over="ignore"):  # an infinite one is refused when the text is read
        rounded = dataclasses.replace(booster, base_score=float(np.float32(booster.base_score)))
    text = rounded.to_xgboost({_COLUMNS: json.dumps(said, separators=(",", ":"))} if said else {})
    _check_length(text)
    return text


@lru_cache(maxsize=8)
def read(text: str) -> Booster:
    """The model. ConfigError for a text that `written` did not write."""
    _check_length(text)
    booster, attributes = Booster.from_any_xgboost(text, "xgb_model")
    if set(attributes) - {_COLUMNS} or booster.to_xgboost(attributes) != text:
        raise ConfigError("xgb_model: not as fedboost writes it; give the path of the model's file")
    return booster


def check(text: str, terms: "Terms") -> None:
    """ConfigError unless these terms can continue the model."""
    booster = read(text)
    differs = _of_model(booster, terms) or _of_columns(booster, _said(text), terms)
    if differs:
        raise ConfigError(f"xgb_model cannot be continued: {differs}")


def _check_length(text: str) -> None:
    size = len(json.dumps(text))
    if size > MAX_MODEL:
        raise ConfigError(
            f"xgb_model: the model takes {size:,} bytes, of {MAX_MODEL:,} that fit into terms; continue one "
            f"of fewer rounds"
        )


@lru_cache(maxsize=8)
def _said(text: str) -> Mapping[str, Any] | None:
    """What the model's numbers stand for, if it says so."""
    said = json.loads(text)["learner"]["attributes"].get(_COLUMNS)
    try:
        found = {} if said is None else {name: json.loads(said)[name] for name in _MEANINGS}
        if found and not isinstance(found["categorical"], dict):
            raise TypeError("levels that are no table")
    except (LookupError, TypeError, ValueError, RecursionError):
        raise ConfigError(f"xgb_model: its attribute {_COLUMNS} is not as fedboost writes it") from None
    return found or None


def _of_model(booster: Booster, terms: "Terms") -> str:
    """What differs between the model and the terms, of that which XGBoost knows; '' if nothing does."""
    if booster.objective != terms.loss.xgboost_equivalent.name:
        return f"its objective is {booster.objective}, that of the terms {terms.objective}"
    if booster.loss.outputs != terms.loss.outputs:
        return f"it has {booster.loss.outputs} classes, the terms have {terms.loss.outputs}"
    if booster.num_parallel_tree != terms.num_parallel_tree:
        return f"its num_parallel_tree is {booster.num_parallel_tree}, in the terms {terms.num_parallel_tree}"
    own, others = booster.features, terms.columns.features
    for number, (name, other) in enumerate(zip(own, others, strict=False), 1):
        if name != other:
            return f"its feature {number} is {name[:100]!r}, that of the terms {other!r}"
    if len(own) != len(others):
        return f"it has {len(own)} features, the terms have {len(others)}"
    odd = {*booster.categorical} ^ {*terms.columns.categorical}
    if odd:
        name = next(name for name in own if name in odd)
        has, has_not = ("it", "the terms") if name in booster.categorical else ("the terms", "it")
        return f"feature {name!r} has levels in {has}, and is numeric in {has_not}"
    return ""


def _of_columns(booster: Booster, said: Mapping[str, Any] | None, terms: "Terms") -> str:
    """What else differs: the meaning of its numbers."""
    columns = terms.columns.model_dump(mode="json", include={*_MEANINGS})
    based = columns["base_margin"] is not None
    if (based and not booster.begins_with_a_leaf) or (said and (said["base_margin"] is not None) != based):
        with_margins, without = ("the terms", "it") if based else ("it", "the terms")
        return f"columns.base_margin is in {with_margins}, and not in {without}"
    if terms.base_score is not None:
        constant = booster.trees[0].value[0] if based else booster.constant
        if terms.loss.margin(float(np.float32(terms.base_score))) != constant:
            return f"it does not start from base_score {terms.base_score:g}: leave that out"
    if said is None:
        return ""
    for name, levels in columns["categorical"].items():
        if said["categorical"].get(name) != levels:
            return f"the levels of {name!r} are not those of the terms, in their order"
    for name in ("positive", "classes"):
        if said[name] != columns[name]:
            return f"its columns.{name} is {json.dumps(said[name])[:100]}, in the terms another"
    return ""
