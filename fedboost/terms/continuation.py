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
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from fedboost.errors import ConfigError
from fedboost.fixedpoint import Float32, Float64
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.drift import BINS, edges_of, score_edges
from fedboost.terms.session import Task

if TYPE_CHECKING:
    from fedboost.terms.columns import Schema
    from fedboost.terms.training import Evaluation

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
MEANINGS = ("positive", "classes", "categorical", "base_margin")
"""Keys of a schema that trees do not contain: the meaning of labels and of the codes of categories."""


def written(
    booster: Booster,
    columns: "Schema | None",
    bins: BinEdges | None = None,
    facts: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """A model as terms hold it; columns: those of its training, if they are known; bins: as `attached`;
    facts: of its training, where it is measured (`FACTS`). ConfigError if it is too long."""
    meanings = {} if columns is None else columns.model_dump(mode="json", include={*MEANINGS})
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


def edges_beside(trained: "Evaluation", cuts: Sequence[Float32]) -> list[Float64]:
    """Bin edges of the numeric features, which parties sign beside the trees of a training."""
    return [edges_of(own) for own in cuts] if trained.reference else []


def edges_in(trained: "Evaluation", summary: Mapping[str, Any]) -> list[list[float]]:
    """The edges that parties sign beside the trees, as the program reported them: of the bins of the model's
    reference, where its training has one."""
    columns = summary.get("reference", {}).get("columns", ()) if trained.reference else ()
    return [column["edges"] for column in columns if "edges" in column]


def training_rows(summary: Mapping[str, Any]) -> int | None:
    """Rows of the training, where the program reported how many."""
    rows: int | None = summary.get("reference", {}).get("rows")
    return rows


def attached(summary: Any, trained: "Evaluation | None", task: Task, source: str) -> BinEdges | None:
    """What a model has beside its trees in the terms of a task: the edges of the bins of its reference.
    summary: what the program reported beside the trees; trained: of the terms of its training; source: how
    errors name the model. ConfigError if the task needs a reference and there is none."""
    signed = task.measures and trained is not None and trained.reference
    if not (signed or task.uses_reference):
        return None
    try:
        known = summary["reference"]
        numeric = [column["edges"] for column in known["columns"] if "edges" in column]
        return numeric, known["score"].get("edges", [])
    except (AttributeError, KeyError, TypeError):
        raise ConfigError(
            f"{source}: the model has no reference: train it with reference = true in the terms"
        ) from None


def signed_beside(text: str) -> dict[str, Any]:
    """As much of the summary of the model in a text as its parties signed with the trees."""
    try:
        numeric, _ = bins_of(text)
    except ConfigError:
        return {}
    return {"reference": {"columns": [{"edges": edges} for edges in numeric]}}


def check_attached(text: str, task: Task) -> None:
    """Raise ConfigError for edges of the score that no training gives: between those of free choice there
    could be single rows."""
    if not task.uses_reference:
        return
    score, booster = np.array(bins_of(text)[1]), read(text)
    if booster.loss.outputs == 1:
        known = score_edges(booster.constant, booster.trees)
        near = known[np.abs(known[None, :] - score[:, None]).argmin(axis=1)]
        if not np.allclose(near, score, atol=1e-3 * float(known[1] - known[0])):
            raise ConfigError("xgb_model: the bins of its score are not those of its reference")


def _check_length(text: str) -> None:
    size = len(json.dumps(text))
    if size > MAX_MODEL:
        raise ConfigError(
            f"xgb_model: the model takes {size:,} bytes, of {MAX_MODEL:,} that fit into terms; continue one "
            f"of fewer rounds"
        )


@lru_cache(maxsize=8)
def trained_columns(text: str) -> Mapping[str, Any] | None:
    """Meaning of the model's numbers, if the text has it."""
    attribute = json.loads(text)["learner"]["attributes"].get(_COLUMNS)
    try:
        columns = {} if attribute is None else {name: json.loads(attribute)[name] for name in MEANINGS}
        if columns and not isinstance(columns["categorical"], dict):
            raise TypeError("levels that are no table")
    except (LookupError, TypeError, ValueError, RecursionError):
        raise ConfigError(f"xgb_model: its attribute {_COLUMNS} is not as fedboost writes it") from None
    return columns or None
