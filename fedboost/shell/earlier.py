"""A model to continue, as users name it: a model, or the path of its file, which fedboost or XGBoost wrote.

Refuses: files that are no such model (ConfigError that names the file).
"""

from pathlib import Path

from fedboost.errors import ConfigError
from fedboost.gbdt.model import Booster
from fedboost.protocol import earlier
from fedboost.protocol.terms import Terms
from fedboost.shell.model import TERMS, Model


def text_of(model: object, folder: Path = Path()) -> object:
    """What stands in the terms for a model or a path, which counts from `folder`; what is neither, and the
    text itself, stays what it is."""
    if isinstance(model, Model):
        return earlier.written(model.booster, model.terms.columns)
    if not isinstance(model, (str, Path)) or str(model).startswith("{"):
        return model
    path = folder / model
    try:
        text = path.read_text("utf-8")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "not text; save it as JSON"
        raise ConfigError(f"xgb_model {path}: cannot read the model: {why}") from None
    booster, attributes = Booster.from_any_xgboost(text, str(path))
    columns = Terms.from_canonical(attributes[TERMS]).columns if TERMS in attributes else None
    try:
        return earlier.written(booster, columns)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
