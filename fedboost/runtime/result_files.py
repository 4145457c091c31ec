"""Results of compare, describe, evaluate and drift as files: what `--json` printed, read for a report.

Promises: what passes has the shape that these commands write, counts that are counts, and finite numbers.
Refuses: files of another kind (ConfigError); nothing of such a file is taken as fact about who made it.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedboost.errors import ConfigError
from fedboost.gbdt.metrics.registry import OUTCOMES
from fedboost.people.facts import (
    ALONE,
    FEDERATED,
    ONLY_JOINED,
    POOLED,
    TOO_FEW,
    VERDICTS,
    ComparisonFacts,
    Figure,
    SiteComparison,
)
from fedboost.people.report.markup import ResultFacts
from fedboost.people.report.results import comparison_page, description_page, drift_page, evaluation_page
from fedboost.runtime.results import MOVED, SCORE, SHIFTED, SLIGHT, STABLE, UNKNOWN
from fedboost.runtime.signed_model import SignedModel
from fedboost.runtime.summaries import (
    IS_SHARES,
    Check,
    each_of,
    exactly,
    having,
    is_count,
    is_description,
    is_evaluation,
    is_interval,
    is_number,
    maybe,
    named,
    one_of,
)
from fedboost.terms.session import TO_DESCRIBE, TO_EVALUATE, TO_TRAIN
from fedboost.terms.tasks import MISSING, SHARES, UNDECLARED
from fedboost.terms.terms import Terms

MAX_BYTES = 64_000_000
"""A larger file is none of these results."""
WRITERS = "compare, describe, evaluate or drift"


def result_of(path: Path) -> tuple[str, str] | None:
    """The command whose result a file has, and the page of it; None for a file that may be a model.
    ConfigError for JSON that is neither."""
    objects = _objects(path)
    if not objects or any("learner" in one for one in objects):
        return None
    for command, (fits, page) in _KINDS.items():
        if fits(objects):
            return command, page(objects)
    raise ConfigError(f"{path}: neither a model nor the result of {WRITERS} --json")


def result_in(model: SignedModel, source: Path) -> tuple[str, str] | None:
    """The command whose result a model file has in place of trees, and the page of it; None for a model."""
    task = model.terms.task
    if task == TO_TRAIN:
        return None
    if task not in _IN_MODELS:
        raise ConfigError(f"{source}: the result of a session to {task}, of which there is no report")
    fits, page = _IN_MODELS[task]
    if not fits(model.summary, model.terms):
        raise ConfigError(f"{source}: not the result of a session under its terms")
    return task, page(ResultFacts(model.summary, model.terms, tuple(model.attestations)))


def _objects(path: Path) -> list[Any]:
    """The JSON objects in a file, one or one a line; none where there is something else."""
    try:
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            return []
        text = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError):
        return []  # the model is read next, and says why it cannot be
    try:
        found = [json.loads(text)]
    except (ValueError, RecursionError):
        try:
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
        except (ValueError, RecursionError):
            return []
    return found if all(type(one) is dict for one in found) else []


# ---- shapes ------------------------------------------------------------------------------------------


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_bool(value: Any) -> bool:
    return type(value) is bool


def _of_any(check: Check) -> Check:
    """An object of any names, each with what passes."""
    return lambda value: type(value) is dict and all(map(check, value.values()))


def _with(checks: dict[str, Check], optional: dict[str, Check]) -> Check:
    """An object that has the first, and of the others what passes, if it has them."""
    whole = having(checks)
    return lambda value: (
        whole(value) and all(check(value[name]) for name, check in optional.items() if name in value)
    )


_COUNT, _NUMBER = maybe(is_count), maybe(is_number)
_RATES = ("positive_rate", "selection_rate", "true_positive_rate", "false_positive_rate", "precision")
_METRICS: Check = _of_any(_NUMBER)
_SET = _with(
    {"rows": is_count, "metrics": _METRICS},
    {"rates": named(_RATES, _NUMBER), "confusion": named(OUTCOMES, _COUNT)},
)
_SPLIT = having({"sets": _of_any(_SET), "gaps": _of_any(is_number), "left_out": each_of(_is_text)})


def _is_bin_of_scores(value: Any) -> bool:
    numbers = dict.fromkeys(("low", "high", "mean_prediction", "rate"), is_number)
    known = having({"rows": is_count, "positives": is_count, **numbers})
    return known(value) and value["rows"] > 0 and value["positives"] <= value["rows"]


def _are_bins_of_scores(value: Any) -> bool:
    """Bins of which some row has label 1: recall is a share of these."""
    return each_of(_is_bin_of_scores)(value) and (not value or sum(one["positives"] for one in value) > 0)


_BINARY = having(
    {
        "threshold": is_number,
        "confusion": named(OUTCOMES, _COUNT),
        "rates": named(_RATES, _NUMBER),
        "auc": maybe(named(("value", "resolution"), is_number)),
        "bins": _are_bins_of_scores,
        "roc": each_of(named(("threshold", "false_positive_rate", "true_positive_rate"), is_number)),
    }
)


_OF_ROWS = having({"of": one_of(("all", "held-out", "new")), "shares": IS_SHARES, "caps": _of_any(is_number)})


def _is_evaluation(summary: Any) -> bool:
    whole = _with(
        {
            "rows": is_count,
            "min_count": is_count,
            "unit": is_count,
            "metrics": _METRICS,
            "resolution": _METRICS,
        },
        {"subgroups": _of_any(_SPLIT), "sites": _SPLIT, "classes": each_of(_is_text)},
    )
    if (
        not whole(summary)
        or not _OF_ROWS(summary)
        or summary["metrics"].keys() != summary["resolution"].keys()
    ):
        return False
    if "threshold" in summary and not _BINARY(summary):
        return False
    size = len(summary.get("classes", ()))
    return "classes" not in summary or having({"confusion": each_of(each_of(_COUNT, size), size)})(summary)


_NUMBERS: dict[str, Check] = {
    "quantiles": named([f"{share:g}" for share in SHARES], maybe(is_interval)),
    "constant": _is_bool,
}
_GAP: dict[str, Check] = {"gap": maybe(is_interval)}
_NUMERIC = _with({"name": _is_text, "kind": exactly("numeric"), MISSING: _COUNT, **_NUMBERS}, _GAP)
_CATEGORICAL = having(
    {
        "name": _is_text,
        "kind": exactly("categorical"),
        MISSING: _COUNT,
        UNDECLARED: _COUNT,
        "levels": _of_any(_COUNT),
    }
)
_DESCRIPTION = _with(
    {
        "rows": is_count,
        "min_count": is_count,
        "columns": each_of(lambda value: _NUMERIC(value) or _CATEGORICAL(value)),
        "label": _with({"name": _is_text}, {"levels": _of_any(_COUNT), **_NUMBERS, **_GAP}),
    },
    {"noise": is_number},
)
_MOVED_BIN = _with(
    {"reference": is_count, "rows": is_count},
    {
        "levels": lambda value: each_of(_is_text)(value) and value,
        "low": _NUMBER,
        "high": _NUMBER,
        "missing": exactly(True),
    },
)
_MOVED_COLUMN = having(
    {
        "name": _is_text,
        "kind": one_of(("numeric", "categorical", SCORE)),
        "psi": _NUMBER,
        "by_chance": is_number,
        "verdict": one_of((STABLE, SLIGHT, MOVED, SHIFTED, UNKNOWN)),
        "bins": each_of(lambda value: _MOVED_BIN(value) and ("low" in value) == ("high" in value)),
    }
)


def _is_drift(summary: Any) -> bool:
    counts = dict.fromkeys(("rows", "reference_rows", "min_count"), is_count)
    if not having({**counts, "columns": each_of(_MOVED_COLUMN)})(summary) or not summary["columns"]:
        return False
    columns = summary["columns"]
    known = [each["bins"] for each in columns if each["psi"] is not None]
    has_rows = all(sum(one[key] for one in bins) > 0 for bins in known for key in ("reference", "rows"))
    return columns[-1]["kind"] == SCORE and has_rows


# ---- comparisons -------------------------------------------------------------------------------------

_FIGURES: Check = _of_any(named(("value", "low", "high"), _NUMBER))
_SITE = _with(
    {
        "site": _is_text,
        **dict.fromkeys(("rows", "held_out", "different_held_out"), is_count),
        "models": _of_any(_FIGURES),
        "better_by": _FIGURES,
        "decided_by": _is_text,
        "verdict": one_of(VERDICTS),
    },
    {"cannot": _is_text},
)
_DONE = having({"splits": is_count, "held_out": is_number, "equal": _is_bool, "together": _SITE})


def _is_comparison(objects: Sequence[Any]) -> bool:
    *sites, last = objects
    if not sites or not all(map(_SITE, sites)) or not _DONE(last):
        return False
    facts, every = _comparison(objects), (*sites, last["together"])
    names = {*facts.metrics}
    return all(
        one["decided_by"] == facts.metrics[0]
        and all(own.keys() == names for own in (*one["models"].values(), *filter(None, [one["better_by"]])))
        and _site(one).verdict == one["verdict"]
        and _has_figures(one)
        for one in every
    )


def _has_figures(one: Mapping[str, Any]) -> bool:
    """True for a site with the figures that its verdict is about."""
    needed: dict[str, set[str]] = {TOO_FEW: set(), ONLY_JOINED: {FEDERATED, POOLED}}
    has: set[str] = {*one["models"]}
    return needed.get(one["verdict"], {ALONE, FEDERATED, POOLED}) <= has


def _comparison(objects: Sequence[Any]) -> ComparisonFacts:
    *sites, last = objects
    together = last["together"]
    metrics = tuple(together["models"].get(FEDERATED, {together["decided_by"]: None}))
    of_sites = [_site(one) for one in sites]
    return ComparisonFacts(
        of_sites, _site(together), metrics, last["splits"], last["held_out"], last["equal"]
    )


def _site(one: Mapping[str, Any]) -> SiteComparison:
    counts = one["rows"], one["held_out"], one["different_held_out"]
    models = {model: _figures(figures) for model, figures in one["models"].items()}
    cannot = one.get("cannot", "")
    if not cannot and not one["better_by"]:
        cannot = "the file does not say why"
    return SiteComparison(one["site"], *counts, models, _figures(one["better_by"]), cannot)


def _figures(figures: Mapping[str, Any]) -> dict[str, Figure]:
    return {
        name: Figure(*(_known(one[end]) for end in ("value", "low", "high"))) for name, one in figures.items()
    }


def _known(value: float | None) -> float:
    return math.nan if value is None else value


_KINDS: dict[str, tuple[Callable[[Sequence[Any]], bool], Callable[[Sequence[Any]], str]]] = {
    "compare": (_is_comparison, lambda objects: comparison_page(_comparison(objects))),
    "evaluate": (
        lambda objects: len(objects) == 1 and _is_evaluation(objects[0]),
        lambda objects: evaluation_page(ResultFacts(objects[0])),
    ),
    "describe": (
        lambda objects: len(objects) == 1 and _DESCRIPTION(objects[0]),
        lambda objects: description_page(ResultFacts(objects[0])),
    ),
    "drift": (
        lambda objects: len(objects) == 1 and _is_drift(objects[0]),
        lambda objects: drift_page(ResultFacts(objects[0])),
    ),
}
"""The results, by the command that writes them: what tells them, and their page."""
_IN_MODELS: dict[str, tuple[Callable[[Any, Terms], bool], Callable[[ResultFacts], str]]] = {
    TO_DESCRIBE: (is_description, description_page),
    TO_EVALUATE: (is_evaluation, evaluation_page),
}
"""The same of those that a model file may have, by the task of its terms."""
