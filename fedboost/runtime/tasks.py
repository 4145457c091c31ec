"""Sessions that end with a result: their terms, and the results as Python has them."""

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
from fedboost.runtime.model import Model, read_file, text_of
from fedboost.runtime.signed_model import PartyModel, SignedModel, signed_model_of
from fedboost.terms.reading import require_known
from fedboost.terms.session import TASKS, task_of
from fedboost.terms.tasks import terms_to_describe, terms_to_drift, terms_to_evaluate
from fedboost.terms.terms import TUNED, Terms
from fedboost.terms.training import MAX_CANDIDATES
from fedboost.views.as_html import report
from fedboost.views.results import document, hints


class Reported(Result):
    """A result with a report."""

    @classmethod
    def from_model(cls, model: SignedModel, traffic: Traffic) -> Self:
        """The result that a session ended with. PeerError if it is another one."""
        return cls.read(model.summary, _session(model, traffic))

    def report(self, path: Path | str | None = None) -> str:
        """The report of the result, a page of HTML, which is also written to `path` if one is given."""
        return saved(report(document(self)), path)


def _session(model: SignedModel, traffic: Traffic) -> Ended:
    return Ended(model.terms, tuple(model.attestations), traffic)


class Description(Reported, tasks.Description):
    __doc__ = tasks.Description.__doc__

    @property
    def advice(self) -> tuple[str, ...]:
        """What to change in the terms or the tables, a sentence each."""
        return tuple(map(str, hints(self)))


class Evaluation(Reported, tasks.Evaluation):
    __doc__ = tasks.Evaluation.__doc__


class Drift(Reported, tasks.Drift):
    __doc__ = tasks.Drift.__doc__

    @classmethod
    def held_against(cls, reference: BinCounts, model: SignedModel, traffic: Traffic) -> Self:
        """The result that a session ended with. reference: of the model whose rows they are held against.
        PeerError if it is another one."""
        return cls.compared(model.summary, reference, _session(model, traffic))


class Tuning(Reported, tasks.Tuning):
    __doc__ = tasks.Tuning.__doc__

    @property
    def terms(self) -> Terms:
        """The terms of a training with the best settings, for as many rounds as were best."""
        best_round = self.trials[self.best].best_round
        return self.session.terms.candidate(self.best).changed(rounds=best_round)

    def save(self, path: Path | str) -> None:
        """Write these terms to a TOML file, whole or not at all."""
        write_atomically(Path(path), terms_to_toml(self.terms).encode())


# ---- The terms of sessions with a model -----------------------------------------------------------------


_A_PART = "a part of a model: put the parts together (fedboost assemble)"


def evaluation_terms(
    model: Model | Path | str,
    terms: Terms | None = None,
    by: Iterable[str] = (),
    by_site: bool = False,
    threshold: float | None = None,
    min_count: int | None = None,
    rows: str | None = None,
) -> Terms:
    """The terms of an evaluation. model: or the path of its file, of fedboost or XGBoost; terms: those that
    say columns and parties, in place of those in the model; the others in place of those of the terms."""
    if isinstance(model, PartyModel):
        raise ConfigError(_A_PART)
    own: Terms | None
    if isinstance(model, Model):
        text, own = str(text_of(model, task=TASKS["evaluate"])), model.terms
    else:
        text, own = read_file(Path(model), str(model), TASKS["evaluate"])
        if own is None and terms is None:
            raise ConfigError(
                f"{model}: an XGBoost model without fedboost's terms: give terms with its columns (--terms)"
            )
    given = terms or own
    assert given is not None
    return terms_to_evaluate(given, text, by, by_site, threshold, min_count, rows)


def drift_terms(
    model: Model | Path | str, terms: Terms | None = None, min_count: int | None = None
) -> tuple[Terms, BinCounts]:
    """The terms by which rows are held against the reference of a model, and that reference. model: or the
    path of its file; terms: those that say columns and parties, in place of those in the model."""
    if isinstance(model, PartyModel):
        raise ConfigError(_A_PART)
    if not isinstance(model, Model):
        read_file(Path(model), str(model), TASKS["drift"])  # says what is wrong with other files
        model = Model.load(model)
    agreed = terms_to_drift(terms or model.terms, str(text_of(model, task=TASKS["drift"])), min_count)
    try:
        reference = BinCounts.model_validate(model.summary["reference"])
    except ValidationError:
        reference = None
    if reference is None or not reference.fits(agreed):
        raise ConfigError("the model's reference is not of its columns, or was changed")
    return agreed, reference


# ---- Candidates drawn by a sampler of Optuna, which is an extra -----------------------------------------


NAMES = {"random": "RandomSampler", "qmc": "QMCSampler", "tpe": "TPESampler"}
"""Samplers by the names that the command takes. No trial is reported to them: candidates stand in the terms
before any is tried, so of TPE these are its random first ones."""


def sampled(
    space: Mapping[str, Sequence[float]],
    number: int,
    seed: int,
    sampler: Any,
    whole: frozenset[str],
    by_ratio: frozenset[str],
) -> list[dict[str, float]]:
    """So many points of a space. sampler: a name in NAMES, or a sampler of Optuna; whole, by_ratio: settings
    that are whole numbers, and those whose logarithm is drawn evenly. ConfigError."""
    if find_spec("optuna") is None:
        raise ConfigError('samplers are those of Optuna: pip install "fedboost[optuna]"')
    import optuna

    if isinstance(sampler, str):
        if sampler not in NAMES:
            raise ConfigError(f"sampler {sampler!r}: take {', '.join(NAMES)}, or give a sampler of Optuna")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = getattr(optuna.samplers, NAMES[sampler])(seed=seed)
    if not isinstance(sampler, optuna.samplers.BaseSampler):
        raise ConfigError(f"sampler: a {type(sampler).__name__} is no sampler of Optuna")
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
    """A number of few digits, within the range."""
    if len(values) != 2 or isinstance(value, int):
        return value
    return min(max(float(f"{value:.4g}"), values[0]), values[1])


# ---- Candidates drawn from a space of settings, and what a session that tried them side by side found ----


SPACE: dict[str, list[float]] = {
    "learning_rate": [0.02, 0.3],
    "max_depth": [3, 8],
    "reg_lambda": [0.1, 30],
    "colsample_bytree": [0.5, 1.0],
}
"""The space unless one is given: the usual settings of XGBoost and their usual ranges; and min_child_weight
from that of the terms on, which sites go by."""
TRIALS = 27
_BY_RATIO = frozenset({"learning_rate", "min_child_weight", "reg_lambda", "reg_alpha", "gamma"})
"""Settings of which the logarithm is drawn evenly."""
_WHOLE = frozenset({"max_depth", "max_leaves"})
_NOT_WHILE_TUNING = ("early_stopping_rounds", "party_metrics")
"""Settings of a training that are left out where candidates are tried, and of the terms that come of it."""
_DIGITS = 3


def terms_to_tune(
    terms: Terms,
    space: Mapping[str, Sequence[float]] | None = None,
    trials: int | None = None,
    sampler: Any = None,
) -> Terms:
    """The terms by which so many candidates of a space are tried side by side, or those themselves if they
    name candidates. The first candidate has the settings of the terms; the others are drawn by their seed,
    each setting once from each of as many parts of its range, or by a sampler (`sampled`). ConfigError."""
    if terms.task.takes_candidates:
        if (space, trials, sampler) != (None, None, None):
            raise ConfigError("the terms name candidates: leave --space, --trials and --sampler out")
        return terms
    fewest = max(terms.trees.min_child_weight, 1.0)
    usual = {**SPACE, "min_child_weight": [fewest, 12 * fewest]}
    ranges = _checked(usual if space is None else space)
    number = TRIALS if trials is None else trials
    if not 2 <= number <= MAX_CANDIDATES:
        raise ConfigError(f"{number} trials: give 2 to {MAX_CANDIDATES}")
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
    """So many points of a space: a Latin hypercube."""
    draws = np.random.default_rng(seed)
    columns = {}
    for name, values in space.items():
        parts = (draws.permutation(number) + draws.random(number)) / max(number, 1)
        columns[name] = [_value(name, values, float(part)) for part in parts]
    return [{name: column[place] for name, column in columns.items()} for place in range(number)]


def _value(name: str, values: Sequence[float], part: float) -> float:
    """The value of a setting at this part of its range: of two values an interval, of more one of them."""
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
        raise ConfigError("the space has no settings")
    for name, values in space.items():
        try:
            require_known(name, TUNED, "space")
        except ValueError as error:
            raise ConfigError(str(error)) from None
        is_list = isinstance(values, list | tuple) and len(values) > 1
        if not is_list or not all(map(_is_number, values)):
            raise ConfigError(f"space: {name} takes [low, high], or a list of three values and more")
        if len(values) == 2 and values[0] >= values[1]:
            raise ConfigError(f"space: {name} = {list(values)}: the first is not below the second")
    return space


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300


# ---- Terms in TOML files --------------------------------------------------------------------------------

# ---- What an analyst requests of an aggregator, beside a training ---------------------------------------


OnWaiting = Callable[[tuple[str, ...]], None]


class TaskRequests(ABC):
    """Sessions that end with a result, as an analyst requests them."""

    def describe(
        self,
        terms: Terms,
        min_count: int | None = None,
        wait: float = 60.0,
        on_waiting: OnWaiting | None = None,
    ) -> Description:
        """Have the rows of all parties counted, and wait for the description. The other arguments are those
        of `fedboost.describe`."""
        return Description.from_model(*self._result(terms_to_describe(terms, min_count), wait, on_waiting))

    def tune(
        self,
        terms: Terms,
        space: Mapping[str, Sequence[float]] | None = None,
        trials: int | None = None,
        sampler: Any = None,
        wait: float = 60.0,
        on_waiting: OnWaiting | None = None,
    ) -> Tuning:
        """Have candidates tried side by side, and wait for the result. The other arguments are those of
        `fedboost.tune`."""
        agreed = terms_to_tune(terms, space, trials, sampler)
        return Tuning.from_model(*self._result(agreed, wait, on_waiting))

    def evaluate(
        self,
        model: Model | Path | str,
        terms: Terms | None = None,
        by: Iterable[str] = (),
        by_site: bool = False,
        threshold: float | None = None,
        min_count: int | None = None,
        wait: float = 60.0,
        on_waiting: OnWaiting | None = None,
        rows: str | None = None,
    ) -> Evaluation:
        """Have a model measured on the rows of all parties, and wait for the result. The other arguments are
        those of `fedboost.evaluate`; rows may also be "new", the rows that were added since. Parties are
        those of the terms, or of the model's own."""
        agreed = evaluation_terms(model, terms, by, by_site, threshold, min_count, rows)
        return Evaluation.from_model(*self._result(agreed, wait, on_waiting))

    def drift(
        self,
        model: Model | Path | str,
        terms: Terms | None = None,
        min_count: int | None = None,
        wait: float = 60.0,
        on_waiting: OnWaiting | None = None,
    ) -> Drift:
        """Hold the rows of all parties against those that a model was trained on. The other arguments are
        those of `fedboost.drift`."""
        agreed, reference = drift_terms(model, terms, min_count)
        return Drift.held_against(reference, *self._result(agreed, wait, on_waiting))

    @abstractmethod
    def _result(self, terms: Terms, wait: float, on_waiting: OnWaiting | None) -> tuple[SignedModel, Traffic]:
        """The model that a session ends with, and its traffic."""


# ---- The same in this process ---------------------------------------------------------------------------


def _simulated(
    terms: Terms, shards: Any, seed: int, nthread: int, site: str | None, by_tables: bool = False
) -> tuple[SignedModel, Traffic]:
    """The model that a session ends with, and its traffic. by_tables: the parties are those of the tables,
    not those that the terms of a model name."""
    from fedboost.runtime.local import simulation  # which an analyst of an aggregator does not wait for

    agreed = simulation.terms_for_tables(terms, shards) if by_tables else terms
    session, meter, _ = simulation.run_session(agreed, shards, seed=seed, nthread=nthread, site=site)
    return signed_model_of(session), meter.traffic


def describe(
    terms: Terms,
    shards: Mapping[str, Any] | Sequence[Any],
    min_count: int | None = None,
    seed: int = 0,
    nthread: int = 1,
    site: str | None = None,
) -> Description:
    """Count the rows of all parties in this process: missing values, levels, labels, quantiles.

    terms: those of a training, or with `program = "describe"`; shards, seed, nthread, site: as for
    `simulate`; min_count: fewest rows of a count that is given, in place of that of the terms. Over the
    network: `fedboost describe`, or `connect(...).describe(terms)`. Raises ConfigError, SessionFailed.
    """
    agreed = terms_to_describe(terms, min_count)
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
    """Hold the rows of all parties in this process against those that a model was trained on.

    model: trained with `reference = true`, or the path of its file; shards, seed, nthread, site: as for
    `simulate`, labels are not needed; terms: those that say the columns, in place of those in the model;
    min_count: fewest rows of a count that is given. Over the network: `fedboost drift`, or
    `connect(...).drift(model)`. Raises ConfigError, SessionFailed.
    """
    agreed, reference = drift_terms(model, terms, min_count)
    return Drift.held_against(reference, *_simulated(agreed, shards, seed, nthread, site, terms is None))


def evaluate(
    model: Model | Path | str,
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
) -> Evaluation:
    """Measure a model on the rows of all parties in this process.

    model: or the path of its file, of fedboost or XGBoost; shards, seed, nthread, site: as for `simulate`;
    terms: those that say the columns, which XGBoost's own files need; the parties of a model's own terms may
    be others, and so few that only `plain` takes them. by: categorical features, by whose levels results are
    split; by_site: also by site; threshold: probability above which a row counts as predicted positive;
    min_count: fewest rows of a count that is given; rows: "held-out", those that no tree was grown on, which
    is the default where the training held rows out, or "all". Held-out rows are drawn again as in the
    training: the tables have to be those of the training, under the same names. Over the network:
    `fedboost evaluate`, or `connect(...).evaluate(model)`. Raises ConfigError, SessionFailed.
    """
    agreed = evaluation_terms(model, terms, by, by_site, threshold, min_count, rows)
    return Evaluation.from_model(*_simulated(agreed, shards, seed, nthread, site, terms is None))


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
    """Try settings of trees side by side in this process, dropping the worst by validation rows.

    terms: those of a training, or with `program = "tune"` and `candidates`; space: setting to [low, high], or
    to a list of three values and more, `tasks.SPACE` unless given; trials: candidates, 27 unless given, of
    which the first has the settings of the terms; sampler: a sampler of Optuna (the extra optuna), or its
    name, in place of a Latin hypercube; shards, seed, nthread, site: as for `simulate`. Over the network:
    `fedboost tune`, or `connect(...).tune(terms)`. Raises ConfigError, SessionFailed.
    """
    agreed = terms_to_tune(terms, space, trials, sampler)
    model, traffic = _simulated(agreed, shards, seed, nthread, site)
    return Tuning.from_model(replace(model, terms=agreed), traffic)  # which need not name the parties


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
