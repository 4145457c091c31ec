"""The model in the terms (`xgb_model`), stored as text: XGBoost's JSON, with attributes that explain the
numbers in the model.

Guarantees: a model always has the same text, so terms that contain it have the same digest everywhere. The
analyst, the aggregator and the parties use the same code to check the text against the terms. Rejects: text
that `written` did not write, text that is too long, and a model that does not match the terms (the
ConfigError states the difference)."""

import dataclasses
import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from fedboost.errors import ConfigError
from fedboost.fixedpoint import Float32, Float64
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.drift import BINS, edges_of, score_edges
from fedboost.terms.session import MAX_PARTIES, Task

if TYPE_CHECKING:
    from fedboost.terms.columns import Schema
    from fedboost.terms.training import Evaluation

MAX_MODEL = 3 << 20
"""Maximum size in bytes of the text, encoded as a JSON string. Terms must fit in one message."""
MAX_EDGES = BINS - 1
_COLUMNS = "fedboost.columns"
_BINS = "fedboost.bins"
PARTS = "fedboost.parts"
"""Attribute with the id of a model whose parts the parties keep. The trees are then only its structure."""
_KEPT = re.compile(rf'"{PARTS}":"([0-9a-f]{{64}})"')  # quotes in names are escaped, so this is the attribute
TRAINED_UNDER = "fedboost.terms"
"""Attribute with the terms under which the model was trained, as canonical JSON. Stored if a session
evaluates the model or compares rows with it."""
FACTS = frozenset({TRAINED_UNDER, "fedboost.attestations", "fedboost.session", "fedboost.request"})
"""Attributes that are kept in the model if a session evaluates it or compares rows with it. A site needs
these attributes to find its signature and the held-out rows."""
BinEdges = tuple[list[list[float]], list[float]]
"""Bin edges of each numeric feature, and of the score."""
MEANINGS = ("positive", "classes", "categorical", "base_margin")
"""Keys of `columns` for facts that trees do not contain, such as the meaning of labels and codes."""


def written(
    booster: Booster,
    columns: "Schema | None",
    bins: BinEdges | None = None,
    facts: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Return a model as text, to store in the terms.

    Args:
        columns: the columns on which the model was trained, if known.
        bins: bin edges from `attached`.
        facts: attributes of the model; only `PARTS` and attributes in `FACTS` are kept.

    Raises ConfigError if the text is too long."""
    meanings = {} if columns is None else columns.model_dump(mode="json", include={*MEANINGS})
    with np.errstate(over="ignore"):  # an infinite score is refused when the text is read
        rounded = dataclasses.replace(booster, base_score=float(np.float32(booster.base_score)))
    attributes: dict[str, Any] = {_COLUMNS: meanings} if meanings else {}
    attributes |= {} if bins is None else {_BINS: bins}
    own = {key: json.dumps(value, separators=(",", ":")) for key, value in attributes.items()}
    text = rounded.to_xgboost(own | {key: facts[key] for key in sorted({PARTS, *FACTS} & {*facts})})
    _check_length(text)
    return text


@lru_cache(maxsize=8)
def read(text: str, parties: int = MAX_PARTIES) -> Booster:
    """Read the model in a text. Raises ConfigError if `written` did not write the text."""
    _check_length(text)
    holders, known = (parties, {PARTS}) if id_of(text) else (0, set[str]())
    booster, attributes = Booster.from_any_xgboost(text, "xgb_model", holders)
    if {*attributes} - {_COLUMNS, _BINS, *FACTS, *known} or booster.to_xgboost(attributes) != text:
        raise ConfigError(
            "model-not-canonical", "xgb_model is not text that fedboost wrote; use the path of a model file"
        )
    return booster


def id_of(text: str | None) -> str:
    """Return the id of the model in a text, if the parties keep its parts, else ''."""
    found = _KEPT.search(text or "")
    return found[1] if found else ""


@lru_cache(maxsize=8)
def leaf_bytes(text: str | None) -> int:
    """Return the size in bytes of a row's leaf bits (`gbdt.reach`) in the model in a text; 0 without one."""
    return sum(-(-len(tree.leaves) // 8) for tree in (read(text).trees if text else ()))


@lru_cache(maxsize=8)
def facts_of(text: str) -> Mapping[str, str]:
    """Return the attributes about the training (`FACTS`) from a model's text. Empty if there are none."""
    attributes = json.loads(text)["learner"]["attributes"]
    return {key: attributes[key] for key in FACTS if key in attributes}


@lru_cache(maxsize=8)
def bins_of(text: str) -> BinEdges:
    """Return the reference distribution's bin edges in a model's text. Raises ConfigError if it has none."""
    attribute = json.loads(text)["learner"]["attributes"].get(_BINS)
    if attribute is None:
        raise ConfigError(
            "model-no-reference",
            "xgb_model has no reference distribution: train it with reference = true in the terms",
        )
    try:
        numeric, score = json.loads(attribute)
        for edges in (*numeric, score):
            increases = all(low < high for low, high in itertools.pairwise(edges))
            if len(edges) > MAX_EDGES or not increases or not all(map(math.isfinite, edges)):
                raise ValueError("not bin edges")
    except (TypeError, ValueError, RecursionError):
        raise ConfigError(
            "model-not-canonical", f"the attribute {_BINS} of xgb_model is malformed or altered"
        ) from None
    return numeric, score


def edges_beside(trained: "Evaluation", cuts: Sequence[Float32]) -> list[Float64]:
    """Return the bin edges of each numeric feature, float64, which parties sign together with the trees.
    Empty unless training stores a reference distribution. cuts: cut points of each feature."""
    return [edges_of(own) for own in cuts] if trained.reference else []


def edges_in(trained: "Evaluation", summary: Mapping[str, Any]) -> list[list[float]]:
    """Return the bin edges that parties sign together with the trees, taken from the program's summary. The
    list is empty if the summary contains none."""
    columns = summary.get("reference", {}).get("columns", ()) if trained.reference else ()
    return [column["edges"] for column in columns if "edges" in column]


def training_rows(summary: Mapping[str, Any]) -> int | None:
    """Return the number of training rows from the program's summary, or None if it is missing."""
    rows: int | None = summary.get("reference", {}).get("rows")
    return rows


def attached(summary: Any, trained: "Evaluation | None", task: Task, source: str) -> BinEdges | None:
    """Return the bin edges to store in the terms of `task`, taken from a trained model, or None if the task
    needs none.

    Args:
        summary: the summary that the training reported in addition to the trees.
        trained: the `Evaluation` settings with which the model was trained.
        source: name of the model in error messages.

    Raises ConfigError if the model has no reference distribution although the task uses it or the parties
    signed it."""
    signed = task.measures and trained is not None and trained.reference
    if not (signed or task.uses_reference):
        return None
    try:
        known = summary["reference"]
        numeric = [column["edges"] for column in known["columns"] if "edges" in column]
        return numeric, known["score"].get("edges", [])
    except (AttributeError, KeyError, TypeError):
        raise ConfigError(
            "model-no-reference",
            f"{source} has no reference distribution: train it with reference = true in the terms",
        ) from None


def signed_summary(text: str) -> dict[str, Any]:
    """Return the signed part of a model's summary. text: the model as in `xgb_model`."""
    try:
        numeric, _ = bins_of(text)
    except ConfigError:
        return {}
    return {"reference": {"columns": [{"edges": edges} for edges in numeric]}}


def check_attached(text: str, task: Task) -> None:
    """Raise ConfigError if the score's bin edges in a model's text differ from the edges that training would
    produce. Other edges could isolate individual rows."""
    if not task.uses_reference:
        return
    score, booster = np.array(bins_of(text)[1]), read(text)
    if booster.loss.outputs == 1:
        known = score_edges(booster.constant, booster.trees)
        near = known[np.abs(known[None, :] - score[:, None]).argmin(axis=1)]
        if not np.allclose(near, score, atol=1e-3 * float(known[1] - known[0])):
            raise ConfigError(
                "model-altered", "the score bins of xgb_model do not match its reference distribution"
            )


def _check_length(text: str) -> None:
    size = len(json.dumps(text))
    if size > MAX_MODEL:
        raise ConfigError(
            "model-too-large",
            f"the model in xgb_model takes {size:,} bytes, but at most {MAX_MODEL:,} fit into terms; use a "
            f"model with fewer rounds",
        )


@lru_cache(maxsize=8)
def trained_columns(text: str) -> Mapping[str, Any] | None:
    """Return the settings in `MEANINGS` with which a model was trained, or None if its text does not contain
    them. Raises ConfigError if they are malformed."""
    attribute = json.loads(text)["learner"]["attributes"].get(_COLUMNS)
    try:
        columns = {} if attribute is None else {name: json.loads(attribute)[name] for name in MEANINGS}
        if columns and not isinstance(columns["categorical"], dict):
            raise TypeError("levels are not a table")
    except (LookupError, TypeError, ValueError, RecursionError):
        raise ConfigError(
            "model-not-canonical", f"the attribute {_COLUMNS} of xgb_model is malformed or altered"
        ) from None
    return columns or None
