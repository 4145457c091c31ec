"""Terms in TOML files."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedboost.errors import ConfigError
from fedboost.runtime.config import TERMS, read_toml, to_toml
from fedboost.runtime.model import text_of
from fedboost.terms.session import task_of
from fedboost.terms.terms import Terms


def read_terms(path: Path) -> Terms:
    """An analyst's terms."""
    return Terms.read(read_settings(path), str(path))


def read_training(path: Path) -> Terms:
    """An analyst's terms of a training. ConfigError for those of another session."""
    terms = read_terms(path)
    if not terms.task.makes_model:
        name = terms.task.name
        raise ConfigError(f"{path}: program = {name!r} trains nothing: use fedboost {name}")
    return terms


def read_settings(path: Path) -> dict[str, Any]:
    """The settings in a terms file; instead of the path of a model to continue, that model."""
    settings = read_toml(path, TERMS)
    if "xgb_model" in settings:
        task = task_of(settings.get("program"))
        settings["xgb_model"] = text_of(settings["xgb_model"], path.parent, task)
    return settings


_ALWAYS_WRITTEN = {"parties", "objective", "rounds", "max_depth", "learning_rate", "protection"}


def terms_to_toml(
    terms: Terms, comments: Mapping[str, str] = MappingProxyType({}), model: str | None = None
) -> str:
    """The terms as a TOML file for an analyst to edit: what is usually set and what was, columns last.
    comments: key to what stands above it; model: the path of the model in them, from the file's folder."""
    values = terms.model_dump(mode="json")
    values |= {} if model is None else {"xgb_model": model}
    keys = _ALWAYS_WRITTEN | terms.model_dump(exclude_unset=True).keys()
    lines = []
    for key, value in values.items():
        if key in keys and key != "columns" and value is not None:
            lines += [f"# {comments[key]}"] if key in comments else []
            lines.append(f"{key} = {to_toml(value)}")
    lines += ["", "[columns]"]
    chosen = terms.columns.model_dump(mode="json", exclude_defaults=True)
    lines += [f"{key} = {to_toml(value)}" for key, value in chosen.items()]
    return "\n".join(lines) + "\n"
