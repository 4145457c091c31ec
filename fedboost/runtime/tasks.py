"""Tasks other than training (describe, tune, evaluate, drift): their terms, how they run, their results."""

import logging
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from pydantic import ValidationError

from fedboost.errors import ConfigError
from fedboost.results import tasks
from fedboost.results.base import Ended, Result, Traffic
from fedboost.results.tasks import BinCounts
from fedboost.runtime.config import TERMS, read_toml, to_toml
from fedboost.runtime.files import saved, write_atomically
from fedboost.runtime.model import Model, is_part, read_file, text_of
from fedboost.runtime.signed_model import PartyModel, SignedModel, signed_model_of
from fedboost.terms.reading import require_known
from fedboost.terms.session import TASKS, task_of
from fedboost.terms.tasks import terms_to_describe, terms_to_drift, terms_to_evaluate
from fedboost.terms.terms import TUNED, Terms
from fedboost.terms.training import MAX_CANDIDATES
from fedboost.terms.vertical import MOST_IDS
from fedboost.views.as_html import report
from fedboost.views.results import document, hints


class Reported(Result):
    @classmethod
    def from_model(cls, model: SignedModel, traffic: Traffic) -> Self:
        """Create the result of a session from the signed model that the session returned. Raises PeerError if
        the model does not contain a valid result of this kind."""
        return cls.read(model.summary, _session(model, traffic))

    def report(self, path: Path | str | None = None) -> str:
        """Return a report about the result as an HTML page. path: file to write it to, if any."""
        return saved(report(document(self)), path)


def _session(model: SignedModel, traffic: Traffic) -> Ended:
    return Ended(model.terms, tuple(model.attestations), traffic)


class Description(Reported, tasks.Description):
    __doc__ = tasks.Description.__doc__

    @property
    def advice(self) -> tuple[str, ...]:
        """Suggested changes to the terms or tables. Each is one sentence."""
        return tuple(map(str, hints(self)))


class Evaluation(Reported, tasks.Evaluation):
    __doc__ = tasks.Evaluation.__doc__


class Drift(Reported, tasks.Drift):
    __doc__ = tasks.Drift.__doc__

    @classmethod
    def held_against(cls, reference: BinCounts, model: SignedModel, traffic: Traffic) -> Self:
        """Create the result of a session from the signed model that the session returned. reference: number
        of training rows in each bin, with which the current rows are compared. Raises PeerError if the model
        does not contain a valid result of this kind."""
        return cls.compared(model.summary, reference, _session(model, traffic))


class Tuning(Reported, tasks.Tuning):
    __doc__ = tasks.Tuning.__doc__

    @property
    def terms(self) -> Terms:
        """Terms for training with the best settings and the best number of rounds."""
        best_round = self.trials[self.best].best_round
        return self.session.terms.candidate(self.best).changed(rounds=best_round)

    def save(self, path: Path | str) -> None:
        """Write `terms` to a TOML file, atomically."""
        write_atomically(Path(path), terms_to_toml(self.terms).encode())


# ---- The terms of sessions with a model -----------------------------------------------------------------


_A_PART = "this is only a part of a model; run fedboost assemble on all parts"


def evaluation_terms(
    model: Model | PartyModel | Path | str,
    terms: Terms | None = None,
    by: Iterable[str] = (),
    by_site: bool = False,
    threshold: float | None = None,
    min_count: int | None = None,
    rows: str | None = None,
    predict_rows: int | None = None,
    most_rows: int | None = None,
    at: Iterable[float] = (),
) -> Terms:
    """Return the terms of a session that evaluates a model. Arguments are as for `evaluate`, and override
    settings of `terms`. most_rows: `predict_rows` if it is not specified but needed. Raises ConfigError if
    the model cannot be evaluated."""
    own: Terms | None
    text: str | None = None
    if isinstance(model, str | Path) and is_part(Path(model)):
        model = PartyModel.load(model)
    if isinstance(model, PartyModel):
        own = model.terms
        if not (terms or own).vertical.is_used:
            raise ConfigError("model-is-part", _A_PART)
    elif isinstance(model, Model):
        text, own = str(text_of(model, task=TASKS["evaluate"])), model.terms
    else:
        text, own = read_file(Path(model), str(model), TASKS["evaluate"])
        if own is None and terms is None:
            raise ConfigError(
                "model-without-terms",
                f"{model} is an XGBoost model without fedboost's terms; specify terms with its columns "
                "(--terms)",
            )
    given = terms or own
    assert given is not None
    id = model.id if isinstance(model, PartyModel) else None
    if predict_rows is None and given.vertical.is_used:
        predict_rows = most_rows
    return terms_to_evaluate(given, text, by, by_site, threshold, min_count, rows, id, predict_rows, at)


def drift_terms(
    model: Model | Path | str, terms: Terms | None = None, min_count: int | None = None
) -> tuple[Terms, BinCounts]:
    """Return the terms of a drift session and the model's reference distribution, with which the parties'
    rows are compared. Arguments are as for `drift`. Raises ConfigError if the model has no usable reference
    distribution."""
    if isinstance(model, PartyModel):
        raise ConfigError("model-is-part", _A_PART)
    if not isinstance(model, Model):
        read_file(Path(model), str(model), TASKS["drift"])  # explains what is wrong with other files
        model = Model.load(model)
    agreed = terms_to_drift(terms or model.terms, str(text_of(model, task=TASKS["drift"])), min_count)
    try:
        reference = BinCounts.model_validate(model.summary["reference"])
    except ValidationError:
        reference = None
    if reference is None or not reference.fits(agreed):
        raise ConfigError(
            "model-reference-unfit",
            "the model's reference distribution is damaged, or has different columns from the terms",
        )
    return agreed, reference


# ---- Candidates drawn by an Optuna sampler (an extra) ---------------------------------------------------


NAMES = {"random": "RandomSampler", "qmc": "QMCSampler", "tpe": "TPESampler"}
"""Maps a sampler's name on the command line -> its Optuna class. The terms contain all candidates before any
is tried, so samplers receive no results. Therefore, TPE only draws random initial candidates."""


def sampled(
    space: Mapping[str, Sequence[float]],
    number: int,
    seed: int,
    sampler: Any,
    whole: frozenset[str],
    by_ratio: frozenset[str],
) -> list[dict[str, float]]:
    """Draw points from a search space with an Optuna sampler.

    Args:
        space: setting -> [low, high], or a list of values.
        number: number of points.
        seed: random seed, if the sampler is given by name.
        sampler: a name in NAMES, or an Optuna sampler.
        whole: names of integer settings.
        by_ratio: names of settings drawn on a logarithmic scale.

    Returns:
        For each point, a dict: setting -> value.

    Raises:
        ConfigError: the sampler is unknown, or Optuna is not installed.
    """
    if find_spec("optuna") is None:
        raise ConfigError("extra-missing", 'samplers need Optuna: pip install "fedboost[optuna]"')
    import optuna

    if isinstance(sampler, str):
        if sampler not in NAMES:
            raise ConfigError(
                "tune-sampler-unknown",
                f"unknown sampler {sampler!r}; use {', '.join(NAMES)}, or an Optuna sampler",
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = getattr(optuna.samplers, NAMES[sampler])(seed=seed)
    if not isinstance(sampler, optuna.samplers.BaseSampler):
        raise ConfigError(
            "tune-sampler-unknown",
            f"the sampler must be an Optuna sampler or a name, not a {type(sampler).__name__}",
        )
    distributions = optuna.distributions
    ranges: dict[str, Any] = {}
    for name, values in space.items():
        if len(values) != 2:
            ranges[name] = distributions.CategoricalDistribution(list(values))
        elif name in whole:
            ranges[name] = distributions.IntDistribution(int(values[0]), int(values[1]))
        else:
            low, high = map(float, values)
            ranges[name] = distributions.FloatDistribution(low, high, log=name in by_ratio and low > 0)
    logger = logging.getLogger("optuna")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        study = optuna.create_study(sampler=sampler)
        points = [study.ask(ranges).params for _ in range(number)]
    finally:
        logger.setLevel(level)
    return [{name: _short(value, space[name]) for name, value in point.items()} for point in points]


def _short(value: float, values: Sequence[float]) -> float:
    """Return a number rounded to four significant digits, but within the range of `values`."""
    if len(values) != 2 or isinstance(value, int):
        return value
    return min(max(float(f"{value:.4g}"), values[0]), values[1])


# ---- Candidates drawn from a space of settings ----------------------------------------------------------


SPACE: dict[str, list[float]] = {
    "learning_rate": [0.02, 0.3],
    "max_depth": [3, 8],
    "reg_lambda": [0.1, 30],
    "colsample_bytree": [0.5, 1.0],
}
"""The default search space: common settings of XGBoost and their ranges. min_child_weight is added
separately: its range starts at its value in the terms, because sites may require a minimum."""
TRIALS = 27
_BY_RATIO = frozenset({"learning_rate", "min_child_weight", "reg_lambda", "reg_alpha", "gamma"})
"""Settings drawn on a logarithmic scale."""
_WHOLE = frozenset({"max_depth", "max_leaves"})
_NOT_WHILE_TUNING = ("early_stopping_rounds", "party_metrics")
"""Settings that are omitted from the terms of a tuning session, and from the terms that result from it."""
_DIGITS = 3


def terms_to_tune(
    terms: Terms,
    space: Mapping[str, Sequence[float]] | None = None,
    trials: int | None = None,
    sampler: Any = None,
) -> Terms:
    """Return the terms of a tuning session, which trains all candidates in parallel.

    The first candidate has the terms' own settings. Without a sampler, the others are drawn as a Latin
    hypercube with the seed in the terms. Terms that already have candidates are returned unchanged.

    Args:
        terms: terms for training or tuning.
        space, trials, sampler: as for `tune`.

    Raises:
        ConfigError: an argument is invalid, or is combined with terms that already have candidates.
    """
    if terms.task.takes_candidates:
        if (space, trials, sampler) != (None, None, None):
            raise ConfigError(
                "tune-candidates-fixed",
                "the terms already have candidates; omit --space, --trials and --sampler",
            )
        return terms
    fewest = max(terms.trees.min_child_weight, 1.0)
    usual = {**SPACE, "min_child_weight": [fewest, 12 * fewest]}
    ranges = _checked(usual if space is None else space)
    number = TRIALS if trials is None else trials
    if not 2 <= number <= MAX_CANDIDATES:
        raise ConfigError("tune-trials-range", f"trials is {number}, but must be from 2 to {MAX_CANDIDATES}")
    others, seed = number - 1, terms.draws.seed
    drawn = (
        draw(ranges, others, seed)
        if sampler is None
        else sampled(ranges, others, seed, sampler, _WHOLE, _BY_RATIO)
    )
    names = dict.fromkeys((*ranges, "max_depth", "min_child_weight"))
    own = {name: terms.flat[name] for name in names if terms.flat[name] is not None}
    candidates = [own, *({**own, **settings} for settings in drawn)]
    bounds = {
        "max_depth": max(int(each["max_depth"]) for each in candidates),
        "min_child_weight": min(float(each["min_child_weight"]) for each in candidates),
    }
    if "max_leaves" in ranges:
        bounds["max_leaves"] = max(int(each["max_leaves"]) for each in candidates)
    if not terms.validates:
        bounds["validation_fraction"] = 0.2
    values = terms.model_dump(mode="json", exclude_unset=True) | bounds
    for name in _NOT_WHILE_TUNING:
        values.pop(name, None)
    return type(terms).read({**values, "program": TASKS["tune"].program, "candidates": candidates})


def draw(space: Mapping[str, Sequence[float]], number: int, seed: int) -> list[dict[str, float]]:
    """Draw points from a search space as a Latin hypercube: the range of each setting is divided into as many
    equal parts as there are points, and each part contains one value. space: setting -> [low, high], or a
    list of values; number: number of points. Returns, for each point, a dict: setting -> value."""
    draws = np.random.default_rng(seed)
    columns = {}
    for name, values in space.items():
        parts = (draws.permutation(number) + draws.random(number)) / max(number, 1)
        columns[name] = [_value(name, values, float(part)) for part in parts]
    return [{name: column[place] for name, column in columns.items()} for place in range(number)]


def _value(name: str, values: Sequence[float], part: float) -> float:
    """Return a setting's value at a position from 0 to 1 (`part`) in its interval or list of values."""
    if len(values) != 2:
        return values[min(int(part * len(values)), len(values) - 1)]
    low, high = values
    if name in _WHOLE:
        return min(int(low + part * (high - low + 1)), int(high))
    if name in _BY_RATIO and low > 0:
        value = math.exp(math.log(low) + part * (math.log(high) - math.log(low)))
    else:
        value = low + part * (high - low)
    return min(max(float(f"{value:.{_DIGITS}g}"), low), high)


def _checked(space: Mapping[str, Sequence[float]]) -> Mapping[str, Sequence[float]]:
    if not space:
        raise ConfigError("tune-space-empty", "the search space has no settings; specify at least one")
    for name, values in space.items():
        try:
            require_known(name, TUNED, "space")
        except ValueError as error:
            raise ConfigError("tune-setting-unknown", str(error)) from None
        is_list = isinstance(values, list | tuple) and len(values) > 1
        if not is_list or not all(map(_is_number, values)):
            raise ConfigError(
                "tune-space-range", f"space: {name} must be [low, high], or a list of at least three values"
            )
        if len(values) == 2 and values[0] >= values[1]:
            raise ConfigError(
                "tune-space-range",
                f"space: {name} = {list(values)}, but the first value must be less than the second",
            )
    return space


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300


# ---- Requests of an analyst to an aggregator, other than a training -------------------------------------


OnWaiting = Callable[[tuple[str, ...]], None]


class TaskRequests(ABC):
    def describe(
        self,
        terms: Terms,
        min_count: int | None = None,
        wait: float = 60.0,
        on_waiting: OnWaiting | None = None,
        by_site: bool = False,
        levels: Iterable[str] = (),
    ) -> Description:
        """Describe the rows of all parties and wait for the result. terms, min_count, by_site, levels: as for
        `fedboost.describe`; wait, on_waiting: as for `Connection.train`."""
        agreed = terms_to_describe(terms, min_count, by_site, levels)
        return Description.from_model(*self._result(agreed, wait, on_waiting))

    def tune(
        self,
        terms: Terms,
        space: Mapping[str, Sequence[float]] | None = None,
        trials: int | None = None,
        sampler: Any = None,
        wait: float = 60.0,
        on_waiting: OnWaiting | None = None,
    ) -> Tuning:
        """Try candidates in parallel and wait for the result. terms, space, trials, sampler: as for
        `fedboost.tune`; wait, on_waiting: as for `Connection.train`."""
        agreed = terms_to_tune(terms, space, trials, sampler)
        return Tuning.from_model(*self._result(agreed, wait, on_waiting))

    def evaluate(
        self,
        model: Model | PartyModel | Path | str,
        terms: Terms | None = None,
        by: Iterable[str] = (),
        by_site: bool = False,
        threshold: float | None = None,
        min_count: int | None = None,
        wait: float = 60.0,
        on_waiting: OnWaiting | None = None,
        rows: str | None = None,
        predict_rows: int | None = None,
        at: Iterable[float] = (),
    ) -> Evaluation:
        """Evaluate a model on the rows of all parties, and wait for the result. The parties are those named
        in `terms`, or else in the model's terms. `rows` may also be "new", for rows added since the training.
        If parties hold different columns, `model` may be the analyst's part, and `predict_rows` is the
        maximum number of ids of the label holder. Other arguments are as for `fedboost.evaluate`."""
        settings = by, by_site, threshold, min_count, rows, predict_rows
        agreed = evaluation_terms(model, terms, *settings, at=at)
        return Evaluation.from_model(*self._result(agreed, wait, on_waiting))

    def drift(
        self,
        model: Model | Path | str,
        terms: Terms | None = None,
        min_count: int | None = None,
        wait: float = 60.0,
        on_waiting: OnWaiting | None = None,
    ) -> Drift:
        """Compare the rows of all parties with the rows on which a model was trained, and wait for the
        result. Other arguments are as for `fedboost.drift`."""
        agreed, reference = drift_terms(model, terms, min_count)
        return Drift.held_against(reference, *self._result(agreed, wait, on_waiting))

    @abstractmethod
    def _result(self, terms: Terms, wait: float, on_waiting: OnWaiting | None) -> tuple[SignedModel, Traffic]:
        """Run a session under these terms and return its signed model and its traffic."""


# ---- The same in this process ---------------------------------------------------------------------------


def _simulated(
    terms: Terms,
    shards: Any,
    seed: int,
    nthread: int,
    site: str | None,
    by_tables: bool = False,
    models: Mapping[str, PartyModel] | None = None,
) -> tuple[SignedModel, Traffic]:
    """Run a session in this process and return its signed model and its traffic. by_tables: the parties are
    the tables rather than those in the terms; models: as for `run_session`."""
    # Late, as it is slow and an aggregator's analyst needs none.
    from fedboost.runtime.local import simulation

    agreed = simulation.terms_for_tables(terms, shards) if by_tables else terms
    session, meter, _ = simulation.run_session(
        agreed, shards, seed=seed, nthread=nthread, site=site, models=models
    )
    return signed_model_of(session), meter.traffic


def describe(
    terms: Terms,
    shards: Mapping[str, Any] | Sequence[Any],
    min_count: int | None = None,
    seed: int = 0,
    nthread: int = 1,
    site: str | None = None,
    by_site: bool = False,
    levels: Iterable[str] = (),
) -> Description:
    """Describe the rows of all parties in this process: missing values, levels, labels and quantiles.

    Over the network, use `fedboost describe` or `connect(...).describe(terms)`.

    Args:
        terms: terms for training, or with `program = "describe"`.
        shards, seed, nthread, site: as for `simulate`.
        min_count: counts of fewer rows than this are hidden (default: as in the terms).
        by_site: also describe each site's rows, so that one sees which site lacks a column.
        levels: categorical features of which the sites name all frequent levels, also undeclared ones.

    Raises:
        ConfigError: an argument is invalid, or a table does not match the terms.
        SessionFailed: the session ended without a result.
    """
    agreed = terms_to_describe(terms, min_count, by_site, levels)
    return Description.from_model(*_simulated(agreed, shards, seed, nthread, site))


def drift(
    model: Model | Path | str,
    shards: Mapping[str, Any] | Sequence[Any],
    terms: Terms | None = None,
    min_count: int | None = None,
    seed: int = 0,
    nthread: int = 1,
    site: str | None = None,
) -> Drift:
    """Compare the rows of all parties in this process with the rows on which a model was trained.

    Over the network, use `fedboost drift` or `connect(...).drift(model)`.

    Args:
        model: a model trained with `reference = true`, or the path of its file.
        shards, seed, nthread, site: as for `simulate`; no labels are needed.
        terms: use the columns of these terms instead of the model's.
        min_count: counts of fewer rows than this are hidden (default: as in the terms).

    Raises:
        ConfigError: an argument is invalid, or a table does not match the terms.
        SessionFailed: the session ended without a result.
    """
    agreed, reference = drift_terms(model, terms, min_count)
    return Drift.held_against(reference, *_simulated(agreed, shards, seed, nthread, site, terms is None))


def evaluate(
    model: Model | Mapping[str, PartyModel] | Path | str,
    shards: Mapping[str, Any] | Sequence[Any],
    terms: Terms | None = None,
    by: Iterable[str] = (),
    by_site: bool = False,
    threshold: float | None = None,
    min_count: int | None = None,
    seed: int = 0,
    nthread: int = 1,
    site: str | None = None,
    rows: str | None = None,
    at: Iterable[float] = (),
) -> Evaluation:
    """Evaluate a model on the rows of all parties in this process.

    Over the network, use `fedboost evaluate` or `connect(...).evaluate(model)`.

    Args:
        model: a model, or the path of a file from fedboost or XGBoost. If parties keep parts of the model:
            party -> its part (`Result.party_models`).
        shards, seed, nthread, site: as for `simulate`.
        terms: terms that define the columns and parties; required for files written by XGBoost. Without
            terms, each table is a party. If there are only a few parties, they may be allowed only with the
            protection `plain`.
        by: categorical features. Results are also reported for each of their levels.
        by_site: also split results by site.
        threshold: probability above which a row is predicted positive.
        min_count: counts of fewer rows than this are hidden (default: as in the terms).
        rows: "held-out" for rows that were not used to train trees (default if rows were held out during
            training), or "all". Held-out rows are selected again in the same way as for training, so tables
            and party names must be the same.
        at: for survival times, times for which `auc@t` and `brier@t` are reported, e.g. [365, 730].

    Raises:
        ConfigError: an argument is invalid, or a table does not match the terms.
        SessionFailed: the session ended without a result.
    """
    parts: Mapping[str, PartyModel] = {}
    if isinstance(model, Mapping) and not (parts := model):
        raise ConfigError("model-parts-missing", "there are no model parts; pass the part of each party")
    first = next(iter(parts.values())) if isinstance(model, Mapping) else model
    settings = by, by_site, threshold, min_count, rows
    agreed = evaluation_terms(first, terms, *settings, most_rows=MOST_IDS, at=at)
    if not agreed.evaluates_jointly:
        return Evaluation.from_model(*_simulated(agreed, shards, seed, nthread, site, terms is None))
    for what, given in (("model", parts if agreed.vertical.predict_with else shards), ("table", shards)):
        if missing := [party for party in agreed.parties if party not in given]:
            raise ConfigError(
                "predict-input-missing",
                f"the {what} of party {missing[0]} is missing; pass one for each party",
            )
    if isinstance(shards, Mapping):  # parts name other parties by their places in the terms
        shards = {party: shards[party] for party in agreed.parties or shards}
    return Evaluation.from_model(*_simulated(agreed, shards, seed, nthread, site, models=parts))


def tune(
    terms: Terms,
    shards: Mapping[str, Any] | Sequence[Any],
    space: Mapping[str, Sequence[float]] | None = None,
    trials: int | None = None,
    sampler: Any = None,
    seed: int = 0,
    nthread: int = 1,
    site: str | None = None,
) -> Tuning:
    """Train models with candidate settings in parallel in this process. The candidates with the worst results
    on the validation rows are dropped along the way.

    Over the network, use `fedboost tune` or `connect(...).tune(terms)`.

    Args:
        terms: terms for training, or with `program = "tune"` and `candidates`.
        shards, seed, nthread, site: as for `simulate`.
        space: setting -> [low, high], or a list of at least three values (default: `tasks.SPACE`).
        trials: number of candidates (default: 27), including the terms' own settings.
        sampler: an Optuna sampler or its name, to use instead of a Latin hypercube (requires the extra
            optuna).

    Raises:
        ConfigError: an argument is invalid, or a table does not match the terms.
        SessionFailed: the session ended without a result.
    """
    agreed = terms_to_tune(terms, space, trials, sampler)
    model, traffic = _simulated(agreed, shards, seed, nthread, site)
    return Tuning.from_model(replace(model, terms=agreed), traffic)  # `agreed` need not name parties


def read_terms(path: Path) -> Terms:
    """Read an analyst's terms file. Raises ConfigError if it cannot be read or is invalid."""
    return Terms.read(read_settings(path), str(path))


def read_training(path: Path) -> Terms:
    """Like `read_terms`, but also raises ConfigError if the terms are not for training a model."""
    terms = read_terms(path)
    if not terms.task.makes_model:
        name = terms.task.name
        raise ConfigError(
            "terms-not-training",
            f"{path} has program = {name!r}, which does not train a model; use fedboost {name}",
        )
    return terms


def read_settings(path: Path) -> dict[str, Any]:
    """Read the settings in a terms file. If xgb_model is the path of a model, it is replaced with the model's
    text. Raises ConfigError if a file cannot be read."""
    settings = read_toml(path, TERMS)
    if "xgb_model" in settings:
        task = task_of(settings.get("program", "boosting"))
        settings["xgb_model"] = text_of(settings["xgb_model"], path.parent, task)
    return settings


_ALWAYS_WRITTEN = {"parties", "objective", "rounds", "max_depth", "learning_rate", "protection"}


def terms_to_toml(
    terms: Terms, comments: Mapping[str, str] = MappingProxyType({}), model: str | None = None
) -> str:
    """Format terms as TOML for an analyst to edit. The result contains the most common settings and all
    settings that were set; `columns` comes last. comments: key -> comment above it; model: path for
    xgb_model, relative to the file."""
    values = terms.model_dump(mode="json") | {
        "noise": terms.noise and terms.noise.model_dump(exclude_none=True)
    }
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
