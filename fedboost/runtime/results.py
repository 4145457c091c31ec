"""Results as an analyst gets them: descriptions, evaluations, drift, tuning, and the terms of such sessions.

Promises: nothing but what the session ended with.
Refuses: models, which are no description (PeerError).
"""

import logging
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from fedboost.boosting.programs.tasks import rows_of_bin, unit_of
from fedboost.errors import ConfigError, PeerError
from fedboost.gbdt.drift import by_chance, joined, runs, stability_index
from fedboost.runtime.files import saved, write_atomically
from fedboost.runtime.model import Model, read_file, text_of
from fedboost.runtime.party_model import PartyModel
from fedboost.runtime.signed_model import SignedModel
from fedboost.runtime.summaries import is_counted, is_description, is_evaluation, is_tuning
from fedboost.runtime.terms_file import terms_to_toml
from fedboost.terms.objective import MAX_CANDIDATES
from fedboost.terms.reading import require_known
from fedboost.terms.session import TASKS
from fedboost.terms.tasks import terms_to_drift, terms_to_evaluate
from fedboost.terms.terms import TUNED, Terms
from fedboost.views.as_html import ResultFacts, SessionFacts
from fedboost.views.result_pages import description_page, drift_page, evaluation_page
from fedboost.views.tasks import advice, rows_in_words


@dataclass(frozen=True)
class Description:
    """Counts and quantiles over the rows of all parties.

    rows: their number; columns: for each feature in order `name`, `kind` and `missing`, for a numeric one
    `quantiles` (share to the interval [low, high] that it lies in), `constant` and `gap`, for a categorical
    one `levels` (level to rows) and `undeclared`; label: `name`, and `levels` or `quantiles`. A count is
    to the nearest unit, the smallest of 1, 2, 5, 10, 20, ... that is not less than `min_count`. signed_by:
    parties that signed what they were asked; traffic: party to (bytes sent, bytes received); noise: the
    standard deviation of the noise in a count, in rows, where the terms have noise: then counts are not
    rounded, and None stands for what is lost in it.
    """

    terms: Terms = field(repr=False)
    rows: int
    min_count: int
    columns: tuple[Mapping[str, Any], ...] = field(repr=False)
    label: Mapping[str, Any] = field(repr=False)
    signed_by: tuple[str, ...] = field(repr=False)
    traffic: Mapping[str, tuple[int, int]] = field(repr=False)
    noise: float | None = None

    @classmethod
    def of(cls, model: SignedModel, traffic: Mapping[str, tuple[int, int]]) -> "Description":
        """The description that a session ended with. PeerError if it is none."""
        summary = model.summary
        if not is_description(summary, model.terms):
            raise PeerError("the aggregator ended the session without a description of these columns")
        rows, floor = summary["rows"], summary["min_count"]
        columns, label = tuple(summary["columns"]), summary["label"]
        known = columns, label, tuple(model.attestations), traffic
        return cls(model.terms, rows, floor, *known, summary.get("noise"))

    @property
    def advice(self) -> tuple[str, ...]:
        """What to change in the terms or the tables, a sentence each."""
        return tuple(advice(self.summary))

    @property
    def summary(self) -> dict[str, Any]:
        """The description as JSON."""
        head: dict[str, Any] = {"rows": self.rows, "min_count": self.min_count}
        head |= {} if self.noise is None else {"noise": self.noise}
        return {**head, "columns": [*self.columns], "label": self.label}

    def report(self, path: Path | str | None = None) -> str:
        """The report of the description, a page of HTML, which is also written to `path` if one is given."""
        session = SessionFacts(self.traffic)
        return saved(description_page(ResultFacts(self.summary, self.terms, self.signed_by, session)), path)


# ---- The evaluation of a model on all parties' rows, as an analyst asks for it and gets it --------------
# Promises: counts of fewer rows than `min_count` are None.
# Refuses: files that are no model, and models without terms (ConfigError); what is no evaluation
# (PeerError).


@dataclass(frozen=True, repr=False)
class Evaluation:
    """Metrics of a model over the rows of all parties.

    rows: how many; about: which they are; metrics: name to value; summary: all there is, as JSON: for two
    classes also `auc`, `confusion`, `rates`, `roc` and `bins`, for several `confusion`, and `subgroups` and
    `sites` where they were asked for (docs/lifecycle-evaluate.md). Figures are coarse, and None where there
    are too few rows. signed_by: parties that signed what they were asked; the aggregator computes the
    figures, and no signature covers them; traffic: party to (bytes sent, bytes received).
    """

    terms: Terms = field(repr=False)
    rows: int
    min_count: int
    metrics: Mapping[str, float | None]
    summary: Mapping[str, Any] = field(repr=False)
    signed_by: tuple[str, ...] = field(repr=False)
    traffic: Mapping[str, tuple[int, int]] = field(repr=False)

    @classmethod
    def of(cls, model: SignedModel, traffic: Mapping[str, tuple[int, int]]) -> "Evaluation":
        """The evaluation that a session ended with. PeerError if it is none."""
        summary = model.summary
        if not is_evaluation(summary, model.terms):
            raise PeerError("the aggregator ended the session without an evaluation under these terms")
        known: dict[str, Any] = {key: summary[key] for key in ("rows", "min_count", "metrics")}
        signed_by = tuple(model.attestations)
        return cls(model.terms, **known, summary=summary, signed_by=signed_by, traffic=traffic)

    @property
    def subgroups(self) -> Mapping[str, Any]:
        """For each column of subgroups `sets` (level to its rows, metrics and rates), `gaps`, `left_out`."""
        found: Mapping[str, Any] = self.summary.get("subgroups", {})
        return found

    @property
    def sites(self) -> Mapping[str, Any]:
        """The same by site: `sets`, `gaps`, `left_out`; empty where no site's own was asked for."""
        found: Mapping[str, Any] = self.summary.get("sites", {})
        return found

    @property
    def about(self) -> str:
        """Which rows these are, such as "held-out rows" or "80% training rows"."""
        return rows_in_words(self.summary)

    def __repr__(self) -> str:
        figures = ", ".join(f"{name} {value}" for name, value in self.metrics.items())
        return f"Evaluation({self.rows} rows, {self.about}: {figures})"

    def report(self, path: Path | str | None = None) -> str:
        """The report of the evaluation, a page of HTML, which is also written to `path` if one is given."""
        session = SessionFacts(self.traffic)
        return saved(evaluation_page(ResultFacts(self.summary, self.terms, self.signed_by, session)), path)


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
        raise ConfigError("a part of a model: put the parts together (fedboost assemble)")
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


# ---- Rows held against those that a model was trained on, as an analyst asks for it and gets it ---------
# Promises: counts of fewer rows than `min_count` are not in it; columns stand in the order of the features.
# Refuses: models without a reference (ConfigError); what is no such result (PeerError).


STABLE, SLIGHT, MOVED, SHIFTED, UNKNOWN = "stable", "slight", "moved", "shifted", "unknown"
LIMITS = (0.1, 0.25)
"""Stability indices from which rows moved, and shifted (Siddiqi, Credit Risk Scorecards, Wiley 2006)."""
SCORE = "score"


@dataclass(frozen=True)
class Drift:
    """Where the rows of all parties lie, against those that a model was trained on.

    rows, reference_rows: their numbers; columns: for each feature in order and last the score `name`, `kind`
    (numeric, categorical or score), `psi` (population stability index, None where nothing but one bin has
    rows enough), `by_chance` (what draws of so many of the same rows stay below 999 times in 1,000),
    `verdict` (stable below `by_chance`, slight below 0.1, moved, shifted from 0.25 on), and `bins`: each with
    `edges` or `levels`, `reference` and `rows`. signed_by: parties that signed what they were asked;
    traffic: party to (bytes sent, bytes received).
    """

    terms: Terms = field(repr=False)
    rows: int
    reference_rows: int
    columns: tuple[Mapping[str, Any], ...] = field(repr=False)
    signed_by: tuple[str, ...] = field(repr=False)
    traffic: Mapping[str, tuple[int, int]] = field(repr=False)

    @classmethod
    def of(
        cls, model: SignedModel, reference: Mapping[str, Any], traffic: Mapping[str, tuple[int, int]]
    ) -> "Drift":
        """The result that a session ended with. reference: of the model. PeerError if it is none."""
        present: Any = model.summary.get("present")
        if not model.terms.task.uses_reference or not is_counted(present, model.terms):
            raise PeerError("the aggregator ended the session without counts of these bins")
        columns, signed_by = tuple(_columns(reference, present)), tuple(model.attestations)
        return cls(model.terms, present["rows"], reference["rows"], columns, signed_by, traffic)

    @property
    def moved(self) -> tuple[str, ...]:
        """The names of the columns that moved or shifted, and `score`."""
        return tuple(str(each["name"]) for each in self.columns if each["verdict"] in (MOVED, SHIFTED))

    @property
    def summary(self) -> dict[str, Any]:
        """The result as JSON."""
        head = {"rows": self.rows, "reference_rows": self.reference_rows}
        return {**head, "min_count": self.terms.evaluation.min_count, "columns": [*self.columns]}

    def report(self, path: Path | str | None = None) -> str:
        """The report of the result, a page of HTML, which is also written to `path` if one is given."""
        session = SessionFacts(self.traffic)
        return saved(drift_page(ResultFacts(self.summary, self.terms, self.signed_by, session)), path)


def _columns(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Each column, then the score."""
    least = rows_of_bin(unit_of(max(before["min_count"], after["min_count"])))
    for then, now in zip(before["columns"], after["columns"], strict=True):
        kind = "numeric" if "edges" in then else "categorical"
        yield {"name": str(then["name"]), "kind": kind, **_compared(then, now, least)}
    yield {"name": SCORE, "kind": SCORE, **_compared(before["score"], after["score"], least)}


def _compared(then: Mapping[str, Any], now: Mapping[str, Any], least: int) -> dict[str, Any]:
    """The stability index of a column, over groups of bins that have `least` rows, or should have them by the
    shares of then: counts are coarse, and an index of fewer would be that of their rounding."""
    groups = joined(then["groups"], now["groups"])
    before, after = (_by_group(each, groups) for each in (then, now))
    expected = before * (after.sum() / before.sum())
    wide = runs(np.maximum(after, expected).astype(np.int64), least, empty=False)
    groups = [[place for number in run for place in groups[number]] for run in wide]
    counts = [_by_group(each, groups) for each in (then, now)]
    chance = by_chance(int(counts[0].sum()), int(counts[1].sum()), len(groups))
    psi = stability_index(*counts) if len(groups) > 1 else None
    verdict = UNKNOWN
    if psi is not None:
        passed = sum(psi >= limit for limit in LIMITS)
        verdict = STABLE if psi < chance else (SLIGHT, MOVED, SHIFTED)[passed]
    names = [_name(then, group) for group in groups]
    pairs = zip(names, *(each.tolist() for each in counts), strict=True)
    bins = [{**name, "reference": first, "rows": second} for name, first, second in pairs]
    return {"psi": psi, "by_chance": chance, "verdict": verdict, "bins": bins}


def _by_group(counted: Mapping[str, Any], groups: list[list[int]]) -> Any:
    """The rows of each of these groups, each of which has whole groups of the column."""
    at = {place: number for number, group in enumerate(groups) for place in group}
    out = np.zeros(len(groups), np.int64)
    for group, rows in zip(counted["groups"], counted["counts"], strict=True):
        out[at[group[0]]] += int(rows)
    return out


def _name(column: Mapping[str, Any], group: list[int]) -> dict[str, Any]:
    """The values in a group: `levels`, or `low` and `high`, None where there is no end; and `missing`."""
    if "edges" not in column:
        levels = [*column["levels"], "missing"]
        return {"levels": [levels[place] for place in group]}
    ends, missing = [None, *column["edges"], None], len(column["edges"]) + 1
    places = [place for place in group if place != missing]
    known = {"missing": True} if missing in group else {}
    if not places:
        return known
    return {"low": ends[min(places)], "high": ends[max(places) + 1], **known}


def drift_terms(
    model: Model | Path | str, terms: Terms | None = None, min_count: int | None = None
) -> tuple[Terms, Mapping[str, Any]]:
    """The terms by which rows are held against the reference of a model, and that reference. model: or the
    path of its file; terms: those that say columns and parties, in place of those in the model."""
    if isinstance(model, PartyModel):
        raise ConfigError("a part of a model: put the parts together (fedboost assemble)")
    if not isinstance(model, Model):
        read_file(Path(model), str(model), TASKS["drift"])  # says what is wrong with other files
        model = Model.load(model)
    agreed = terms_to_drift(terms or model.terms, str(text_of(model, task=TASKS["drift"])), min_count)
    if not is_counted(model.summary["reference"], agreed):
        raise ConfigError("the model's reference is not of its columns, or was changed")
    return agreed, model.summary["reference"]


# ---- Candidates drawn by a sampler of Optuna, which is an extra -----------------------------------------
# Refuses: samplers that are none (ConfigError).


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
# Refuses: spaces of other settings than candidates may differ in, and intervals that are none
# (ConfigError).


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
    each setting once from each of as many parts of its range, or by a sampler (`samplers`). ConfigError."""
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


@dataclass(frozen=True)
class Tuning:
    """What a session that tried candidates found.

    metric: the one that was watched, of the validation rows; trials: of each candidate its `settings`, the
    `rounds` it was trained for, the `best_round`, and the metric there; best: the number of the best of those
    that were trained longest; traffic: party to (bytes sent, bytes received).
    """

    tuned: Terms = field(repr=False)
    metric: str
    trials: tuple[Mapping[str, Any], ...]
    best: int
    traffic: Mapping[str, tuple[int, int]] = field(repr=False)

    @classmethod
    def of(cls, terms: Terms, model: SignedModel, traffic: Mapping[str, tuple[int, int]]) -> "Tuning":
        """What a session under these terms ended with. PeerError if it is nothing of the kind."""
        summary = model.summary
        if not is_tuning(summary, terms):
            raise PeerError("the aggregator ended the session without a result of its trials")
        return cls(terms, summary["metric"], tuple(summary["trials"]), summary["best"], traffic)

    @property
    def terms(self) -> Terms:
        """The terms of a training with the best settings, for as many rounds as were best."""
        return self.tuned.candidate(self.best).changed(rounds=self.trials[self.best]["best_round"])

    def save(self, path: Path | str) -> None:
        """Write these terms to a TOML file, whole or not at all."""
        write_atomically(Path(path), terms_to_toml(self.terms).encode())
