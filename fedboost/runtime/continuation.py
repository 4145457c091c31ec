"""A model to continue, as users name it: a model, or the path of its file, which fedboost or XGBoost wrote.

Refuses: files that are no such model, devices and pipes, and files too large to hold a model that fits into
terms (ConfigError that names the file).
"""

import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedboost.errors import ConfigError, quoted
from fedboost.gbdt.booster import Booster
from fedboost.runtime.model_facts import SUMMARY, TERMS
from fedboost.runtime.model_file import Model
from fedboost.runtime.signed_model import PART_BEGINS
from fedboost.terms import continuation
from fedboost.terms.session import TO_DRIFT, TO_EVALUATE, TO_TRAIN
from fedboost.terms.terms import Terms

MAX_FILE_BYTES = 4 * continuation.MAX_MODEL
"""Bytes of a model's file: the model, which may be spelled at more length than in terms, and what is stored
with it, such as its own terms with a model of their own."""


def text_of(model: object, folder: Path = Path(), task: str = TO_TRAIN) -> object:
    """The text in the terms for a model or for a path, which counts from `folder`; such a text, and a value
    of another kind, are returned as they are. task: as for `read_file`."""
    if isinstance(model, Model):
        bins = _bins(model.terms, model.summary, "the model", task)
        facts = {} if task == TO_TRAIN else model.attributes
        return continuation.written(model.booster, model.terms.columns, bins, facts)
    if not isinstance(model, (str, Path)) or str(model).startswith("{"):
        return model
    path = folder / model
    return read_file(path, f"xgb_model {quoted(str(path))}", task)[0]


def read_file(path: Path, source: str, task: str = TO_TRAIN) -> tuple[str, Terms | None]:
    """The model in a file as terms of a task hold it, and the terms of its training where the file has them:
    a model that is measured with the facts of its training and the bins of its reference.
    source: how errors name the file."""
    text = _read(path, source)
    if text.startswith(PART_BEGINS):
        raise ConfigError(f"{path}: a part of a model: put the parts together (fedboost assemble)")
    booster, attributes = Booster.from_any_xgboost(text, str(path))
    terms = Terms.from_canonical(attributes[TERMS]) if TERMS in attributes else None
    bins = _bins(terms, _summary(attributes), str(path), task)
    facts = {} if task == TO_TRAIN or terms is None else Model.load(path).attributes
    columns = None if terms is None else terms.columns
    try:
        return continuation.written(booster, columns, bins, facts), terms
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _bins(
    terms: Terms | None, summary: Mapping[str, Any], source: str, task: str
) -> continuation.BinEdges | None:
    """The bins of a model's reference, where it is measured: the parties signed them with its trees."""
    has_them = task == TO_EVALUATE and terms is not None and terms.evaluation.reference
    return edges_in(summary, source) if has_them or task == TO_DRIFT else None


def edges_in(summary: Mapping[str, Any], source: str) -> continuation.BinEdges:
    """The edges of the bins of a model's reference. ConfigError if it has none."""
    try:
        known = summary["reference"]
        numeric = [column["edges"] for column in known["columns"] if "edges" in column]
        return numeric, known["score"].get("edges", [])
    except (AttributeError, KeyError, TypeError):
        raise ConfigError(
            f"{source}: the model has no reference: train it with reference = true in the terms"
        ) from None


def _summary(attributes: Mapping[str, str]) -> Any:
    """What the program said beside the trees."""
    try:
        return json.loads(attributes.get(SUMMARY, "{}"))
    except (ValueError, RecursionError):
        return {}


def _read(path: Path, source: str) -> str:
    """The text in a file. What is no regular file is not opened: it may have no end, or wait for ever."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ValueError("not a regular file")
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise ValueError(f"more than {MAX_FILE_BYTES:,} bytes, and no model of that size fits into terms")
        return data.decode()
    except OSError as error:
        why = error.strerror or str(error)
    except UnicodeDecodeError:
        why = "not text; save it as JSON"
    except ValueError as error:  # the above, or a null byte in the path
        why = str(error)
    raise ConfigError(f"{source}: cannot read the model: {why}")
