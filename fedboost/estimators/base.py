"""The base of the estimators: their parameters, and a training in this process.

Promises: the model is that of `simulate` over the same rows, so that of the pooled rows, bit for bit, at
whichever sites they are; no tree grows on rows to evaluate on, though cut points are those of all rows.
Refuses: what the terms cannot have (ConfigError); parameters that do not exist, naming ours (TypeError).
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from joblib import effective_n_jobs
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d

from fedboost.errors import ConfigError
from fedboost.estimators.rows import (
    Collected,
    Rows,
    as_pandas,
    checked,
    checked_features,
    collected,
    has_words,
    is_frame,
    joined,
    names_of,
    refuse_beside,
)
from fedboost.fixedpoint import Float64
from fedboost.gbdt import metrics
from fedboost.protocol.run import Callback
from fedboost.runtime.data.draft import draft_features, split_by_site
from fedboost.runtime.data.sparse import SparseTable
from fedboost.runtime.data.table import as_table
from fedboost.runtime.local.simulation import simulate
from fedboost.runtime.model import text_of
from fedboost.terms.reading import setting_hint
from fedboost.terms.terms import Terms

ONE_SITE = "all"
"""What the party is called where no sites are named."""
_BESIDE = ("label", "weight", "row", "validation", "group", "sites")
"""What the columns are called that are no features, unless a feature is."""
_IN_TERMS = {"n_estimators": "rounds", "random_state": "seed"}
_WATCHED = f"{metrics.VALIDATION}-"
_ACCOUNTED = ("round", "seconds", "bytes")


def names_others(init: Callable[..., None]) -> Callable[..., None]:
    """Let a constructor say what a parameter that it does not have is called here."""
    known = [name for name in inspect.signature(init).parameters if name != "self"]

    @functools.wraps(init)
    def checked_init(self: Any, **parameters: Any) -> None:
        for name in parameters:
            if name not in known:
                here = {_IN_TERMS.get(own, own): own for own in known}
                hint = setting_hint(name, [*known, *here])
                for in_terms, own in here.items():
                    hint = hint.replace(f"mean {in_terms}?", f"mean {own}?")
                raise TypeError(f"{type(self).__name__} has no parameter {name!r}{hint}")
        init(self, **parameters)

    return checked_init


@dataclass(frozen=True)
class Options:
    """Arguments of `fit` beside rows: the sites of the rows, a model to continue, rows to evaluate on with
    the names of the metrics they get, and after how many rounds a line is printed (0: never)."""

    sites: Any = None
    xgb_model: Any = None
    held_out: Rows | None = None
    evaluated: tuple[tuple[str, str], ...] = ()
    verbose: int = 0


class Federated(BaseEstimator):  # type: ignore[misc]
    """The base of the estimators: parameters, and training on a table."""

    @names_others
    def __init__(
        self,
        *,
        n_estimators: int = 100,
        max_depth: int = 6,
        learning_rate: float = 0.3,
        objective: str | None = None,
        objective_params: Mapping[str, int | float | str] | None = None,
        max_bin: int = 256,
        max_cat_to_onehot: int = 4,
        max_cat_threshold: int = 64,
        reg_lambda: float = 1.0,
        reg_alpha: float = 0.0,
        gamma: float = 0.0,
        min_child_weight: float = 1.0,
        grow_policy: str = "depthwise",
        max_leaves: int = 0,
        num_parallel_tree: int = 1,
        subsample: float = 1.0,
        sampling_method: str = "uniform",
        colsample_bytree: float = 1.0,
        colsample_bylevel: float = 1.0,
        colsample_bynode: float = 1.0,
        monotone_constraints: Mapping[str, int] | None = None,
        interaction_constraints: Sequence[Sequence[str]] | None = None,
        random_state: int | np.random.RandomState | None = None,
        max_delta_step: float | None = None,
        base_score: float | None = None,
        scale_pos_weight: float | None = None,
        tweedie_variance_power: float | None = None,
        huber_slope: float | None = None,
        quantile_alpha: float | None = None,
        lambdarank_num_pair_per_sample: int | None = None,
        lambdarank_normalization: bool | None = None,
        lambdarank_score_normalization: bool | None = None,
        ndcg_exp_gain: bool | None = None,
        eval_metric: str | Sequence[str] | None = None,
        party_metrics: bool = False,
        validation_fraction: float = 0.0,
        early_stopping_rounds: int | None = None,
        cut_points: str = "grid",
        gradient_bits: int | None = None,
        vote_top_k: int = 0,
        protection: str = "plain",
        colluding: int | None = None,
        allow_two_parties: bool = False,
        n_jobs: int | None = None,
        callbacks: Sequence[Callback] | None = None,
    ) -> None:
        self.n_estimators = n_estimators
        self.max_depth = max_depth
        self.learning_rate = learning_rate
        self.objective = objective
        self.objective_params = objective_params
        self.max_bin = max_bin
        self.max_cat_to_onehot = max_cat_to_onehot
        self.max_cat_threshold = max_cat_threshold
        self.reg_lambda = reg_lambda
        self.reg_alpha = reg_alpha
        self.gamma = gamma
        self.min_child_weight = min_child_weight
        self.grow_policy = grow_policy
        self.max_leaves = max_leaves
        self.num_parallel_tree = num_parallel_tree
        self.subsample = subsample
        self.sampling_method = sampling_method
        self.colsample_bytree = colsample_bytree
        self.colsample_bylevel = colsample_bylevel
        self.colsample_bynode = colsample_bynode
        self.monotone_constraints = monotone_constraints
        self.interaction_constraints = interaction_constraints
        self.random_state = random_state
        self.max_delta_step = max_delta_step
        self.base_score = base_score
        self.scale_pos_weight = scale_pos_weight
        self.tweedie_variance_power = tweedie_variance_power
        self.huber_slope = huber_slope
        self.quantile_alpha = quantile_alpha
        self.lambdarank_num_pair_per_sample = lambdarank_num_pair_per_sample
        self.lambdarank_normalization = lambdarank_normalization
        self.lambdarank_score_normalization = lambdarank_score_normalization
        self.ndcg_exp_gain = ndcg_exp_gain
        self.eval_metric = eval_metric
        self.party_metrics = party_metrics
        self.validation_fraction = validation_fraction
        self.early_stopping_rounds = early_stopping_rounds
        self.cut_points = cut_points
        self.gradient_bits = gradient_bits
        self.vote_top_k = vote_top_k
        self.protection = protection
        self.colluding = colluding
        self.allow_two_parties = allow_two_parties
        self.n_jobs = n_jobs
        self.callbacks = callbacks

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.sparse = True
        return tags

    @property
    def feature_importances_(self) -> Float64:
        """Mean gain of the splits of each feature, as shares of 1: float64 [features]."""
        check_is_fitted(self)
        gains = self.model_.importance()
        out = np.array([gains.get(name, 0.0) for name in names_of(self)])
        return out / out.sum() if out.any() else out

    @property
    def best_iteration(self) -> int:
        """The round that early stopping kept as the last, counted from 0; AttributeError without it."""
        model = getattr(self, "model_", None)
        if model is None or model.terms.evaluation.early_stopping_rounds is None:
            raise AttributeError("best_iteration is of trainings with early_stopping_rounds")
        return int(model.kept - 1)

    def _options(
        self, rows: Rows, sites: Any, xgb_model: Any, eval_set: Any, weights: Any, verbose: bool | int
    ) -> Options:
        """The options of `fit`, checked."""
        pairs = [*(eval_set or ())]
        if any(not isinstance(pair, (tuple, list)) or len(pair) != 2 for pair in pairs):
            raise ValueError("eval_set must be a list of pairs (X, y)")
        names = [f"validation_{number}" for number in range(len(pairs))]
        is_train = [X is rows.X and y is rows.y for X, y in pairs]
        others = [number for number, train in enumerate(is_train) if not train]
        if len(others) > 1:
            raise ConfigError(
                f"{type(self).__name__}: eval_set has {len(others)} pairs beside the training rows: there is "
                f"one set of validation rows; join them, or give the training rows as the same X and y as fit"
            )
        evaluated = tuple(zip(names, ("" if train else _WATCHED for train in is_train), strict=True))
        held_out = None
        if others:
            X, y = pairs[others[0]]
            if has_words(X) != has_words(rows.X):
                raise ValueError("X and the X of eval_set must both be DataFrames with words, or neither")
            weight = None if weights is None else weights[others[0]]
            held_out = checked(self, X, y, weight, rows.numbers, reset=False)
        return Options(sites, text_of(xgb_model), held_out, evaluated, int(verbose))

    def _fit(
        self,
        rows: Rows,
        label: Callable[[npt.NDArray[Any]], pa.Array],
        follows: dict[str, Any],
        options: Options,
    ) -> Self:
        """Train. label: the column of labels in the terms; follows: the settings of the terms, and of the
        schema, that follow from it."""
        everything = rows if options.held_out is None else joined(rows, options.held_out)
        names, size, all_rows = names_of(self), len(rows.label), len(everything.label)
        label_name, weight_name, row_name, held_out_name, group_name, site_name = (
            _unused(name, names) for name in _BESIDE
        )
        numeric, categorical = self._drafted(rows)
        columns = {"label": label_name, "numeric": numeric, "categorical": categorical}
        beside: dict[str, pa.Array] = {label_name: label(everything.label)}
        if everything.weight is not None:
            beside[weight_name], columns["weight"] = pa.array(everything.weight), weight_name
        if everything.group is not None:
            beside[group_name], columns["group"] = pa.array(everything.group), group_name
        if options.held_out is not None:
            held_out = np.arange(all_rows) >= size
            beside[held_out_name], columns["validation"] = pa.array(held_out), held_out_name
        if self._draws:  # the same rows are drawn wherever they are
            beside[row_name], columns["row_id"] = pa.array(np.arange(all_rows)), row_name
        terms = self._terms({**follows, "columns": columns | follows.pop("columns", {})}, options.xgb_model)
        if options.sites is not None:
            check_consistent_length(rows.label, options.sites)
            sites = column_or_1d(options.sites)  # where rows to evaluate on are changes nothing
            sites = np.concatenate([sites, np.repeat(sites[:1], all_rows - size)])
            named = as_table({site_name: sites})
            if not isinstance(named, pa.Table):
                raise ConfigError("sites must be the name of each row's site, [rows]")
            beside[site_name] = named.column(0)
        table = self._table(everything.features, beside)
        parties = {ONE_SITE: table} if options.sites is None else split_by_site(table, site_name)
        self._train(terms, parties, options)
        return self

    def _fit_collected(
        self, rows: Collected, follows: dict[str, Any], xgb_model: Any, verbose: bool | int
    ) -> Self:
        """Train on rows of Dask. follows: as of `_fit`."""
        label, weight, row, *_ = _BESIDE
        columns = {"label": label, "numeric": rows.numeric, "categorical": rows.categorical}
        beside = {"weight": weight, "row_id": row}
        columns |= {key: name for key, name in beside.items() if name in rows.frame.columns}
        options = Options(xgb_model=text_of(xgb_model), verbose=int(verbose))
        terms = self._terms({**follows, "columns": columns | follows.pop("columns", {})}, options.xgb_model)
        self._train(terms, {ONE_SITE: rows.frame}, options)
        return self

    def _collected(self, X: Any, y: Any, weight: Any, **given: Any) -> Collected:
        """Rows of Dask, checked. given: arguments of `fit` that are for others."""
        refuse_beside(self, **given)
        return collected(self, X, y, weight, _BESIDE[:3], self._draws)

    @property
    def _draws(self) -> bool:
        """True if rows are drawn."""
        return bool(self.subsample != 1 or self.sampling_method != "uniform" or self.validation_fraction)

    def _train(self, terms: Terms, parties: Mapping[str, Any], options: Options) -> None:
        """Train, and keep what came of it."""
        results: dict[str, dict[str, list[float]]] = {name: {} for name, _ in options.evaluated}

        def record(number: int, values: Mapping[str, float]) -> None:
            own = metrics.of_all(values)
            for name, prefix in options.evaluated:
                for metric in terms.metrics:
                    if prefix + metric in own:
                        results[name].setdefault(metric, []).append(own[prefix + metric])

        def show(row: Mapping[str, float]) -> None:
            number = int(row["round"])
            if options.verbose and (number % options.verbose == 0 or number == terms.trees.rounds - 1):
                values = (f"{name}:{row[name]:.5f}" for name in metrics.of_all(row) if name not in _ACCOUNTED)
                print("\t".join((f"[{number}]", *values)), flush=True)

        result = simulate(
            terms,
            parties,
            nthread=effective_n_jobs(self.n_jobs),
            callbacks=(*(self.callbacks or ()), record),
            on_round=show,
        )
        self.model_, self.history_, self.traffic_ = result.model, result.history, result.traffic
        self.evals_result_ = results

    def _terms(self, follows: dict[str, Any], xgb_model: str | None) -> Terms:
        """The terms of the parameters, and of what follows from the labels."""
        settings = {**self._settings(), **follows, **({} if xgb_model is None else {"xgb_model": xgb_model})}
        try:
            return Terms.read(settings, type(self).__name__)
        except ConfigError as error:
            fault = str(error).replace(*_VALIDATION_ROWS)
            for name, in_terms in _IN_TERMS.items():
                fault = fault.replace(f": {in_terms}: ", f": {name}: ")
            raise ConfigError(fault) from None

    def _settings(self) -> dict[str, Any]:
        """The parameters as the terms have them."""
        settings = {_IN_TERMS.get(name, name): value for name, value in self.get_params(deep=False).items()}
        del settings["n_jobs"], settings["callbacks"]
        if isinstance(self.random_state, np.random.RandomState):
            settings["seed"] = self.random_state.randint(1 << 31)
        # Searches over parameters draw numpy's numbers.
        plain = {
            name: value.item() if isinstance(value, np.generic) else value for name, value in settings.items()
        }
        return {name: value for name, value in plain.items() if value is not None}

    def _drafted(self, rows: Rows) -> tuple[list[str], dict[str, list[str]]]:
        """The numeric features, and the categories of the others, of the rows that trees grow on."""
        if not has_words(rows.features):
            return names_of(self), {}
        table = as_table(rows.features.set_axis(names_of(self), axis="columns"))
        drafted = draft_features(table)
        for name, reason in drafted.left_out.items():
            raise ConfigError(f"X: column {name!r} can be no feature, change it or drop it: it {reason}")
        return drafted.numeric, drafted.categorical

    def _table(self, features: Any, beside: Mapping[str, pa.Array]) -> pa.Table | SparseTable:
        """The table of features and other columns."""
        names = names_of(self)
        if hasattr(features, "tocsc"):
            return SparseTable.from_matrices(pa.table(dict(beside)), {"x": features})
        table: Any
        if is_frame(features):
            table = as_table(features.set_axis(names, axis="columns"))
        else:
            table = pa.table(list(features.T), names)
        for name, column in beside.items():
            table = table.append_column(name, column)
        return table

    def _predicted(self, X: Any) -> Float64:
        """The model's prediction for each row."""
        check_is_fitted(self)
        categorical = list(self.model_.terms.columns.categorical)
        X = as_pandas(X)
        if categorical and not is_frame(X):
            raise ValueError(
                f"X must be a pandas or polars DataFrame, as in fit: {categorical[0]!r} has categories"
            )
        features = checked_features(self, X, as_words=bool(categorical))
        if is_frame(features) or hasattr(features, "tocsc"):
            return self.model_.predict(self._table(features, {}))
        return self.model_.predict(features)


_VALIDATION_ROWS = (
    "set validation_fraction, or columns.validation",
    "give fit an eval_set of other rows than X, or set validation_fraction",
)
"""Advice of the terms, and that of an estimator in its place."""


def _unused(name: str, names: Sequence[str]) -> str:
    while name in names:
        name += "_"
    return name
