"""Base classes of settings that people write, and one-line messages about the first error in them.

Guarantees: the first error becomes a one-line ConfigError that contains the key as spelt in the file.
Rejects: unknown keys (suggesting the nearest known one), and text or booleans in place of numbers."""

import difflib
import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache, cached_property
from itertools import islice
from typing import Annotated, Any, ClassVar, Self, TypeVar, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo

from fedboost.errors import ConfigError, quoted

# ---- Parameter names of XGBoost, LightGBM and scikit-learn ----------------------------------------------
# `_OURS` maps fedboost's names to names in other libraries; `_WHY_NOT` maps an explanation to the names that
# have no equivalent. A name may be in both: the explanation is used if the table that is read lacks the key.

_OURS = {
    "learning_rate": "eta shrinkage_rate",
    "rounds": "n_estimators num_boost_round num_round num_rounds nrounds iterations n_iter num_iteration "
    "num_iterations num_tree num_trees max_iter",
    "max_leaves": "num_leaves num_leaf max_leaf max_leaf_nodes",
    "reg_lambda": "lambda lambda_l2 l2_regularization l2",
    "reg_alpha": "alpha lambda_l1 l1_regularization l1",
    "gamma": "min_split_loss min_split_gain min_gain_to_split",
    "min_child_weight": "min_sum_hessian_in_leaf min_sum_hessian_per_leaf min_sum_hessian min_hessian",
    "max_delta_step": "max_leaf_output max_tree_output poisson_max_delta_step",
    "max_bin": "max_bins",
    "alone_rounds": "complete_secure",
    "key_bits": "he_param",
    "colsample_bytree": "feature_fraction sub_feature",
    "colsample_bynode": "feature_fraction_bynode sub_feature_bynode max_features",
    "subsample": "bagging_fraction bagging sub_row",
    "sampling_method": "data_sample_strategy",
    "monotone_constraints": "monotonic_cst monotone_constraint mc",
    "interaction_constraints": "interaction_cst",
    "seed": "random_state random_seed",
    "early_stopping_rounds": "early_stopping_round early_stopping n_iter_no_change",
    "eval_metric": "metric metrics metric_types scoring",
    "objective": "loss app application objective_type",
    "quantile_alpha": "alpha quantile",
    "num_class": "num_classes",
    "vote_top_k": "top_k topk",
    "xgb_model": "warm_start init_model input_model model_in",
    "lambdarank_num_pair_per_sample": "lambdarank_truncation_level",
    "lambdarank_normalization": "lambdarank_norm",
    "label": "target label_column",
    "weight": "weight_column sample_weight",
    "group": "qid query query_id query_column group_id group_column",
    "categorical": "categorical_feature categorical_features cat_features cat_feature",
    "base_margin": "init_score",
    "validation": "eval_set valid valid_data evals",
    "validation_fraction": "eval_set test_size test_fraction",
    "nthread": "n_jobs nthreads num_thread num_threads n_threads",
    "n_jobs": "nthread nthreads num_thread num_threads n_threads",
    # objectives
    "binary:logistic": "binary logistic log_loss logloss binary_crossentropy cross_entropy bernoulli",
    "multi:softprob": "multiclass softmax multiclassova multi:softmax",
    "reg:squarederror": "regression regression_l2 l2 mse squared_error mean_squared_error rmse reg:linear ls",
    "reg:absoluteerror": "regression_l1 l1 mae absolute_error mean_absolute_error lad",
    "reg:pseudohubererror": "huber",
    "reg:quantileerror": "quantile",
    "count:poisson": "poisson",
    "reg:tweedie": "tweedie",
    "rank:ndcg": "lambdarank rank_xendcg",
    # metrics
    "logloss": "binary_logloss log_loss neg_log_loss binary_crossentropy binary",
    "error": "binary_error accuracy",
    "mlogloss": "multi_logloss multiclass softmax",
    "merror": "multi_error",
    "auc": "roc_auc",
    "aucpr": "average_precision",
    "mae": "l1 mean_absolute_error absolute_error neg_mean_absolute_error",
    "rmse": "l2 mse l2_root root_mean_squared_error squared_error mean_squared_error",
    "mphe": "huber",
    "poisson-nloglik": "poisson",
}
_WHY_NOT = {
    "the booster is always gbtree (gbdt); remove it": "booster boosting boosting_type boost",
    "trees are always built from histograms (hist); remove it": "tree_method tree_learner updater "
    "process_type refresh_leaf enable_bundle force_col_wise force_row_wise histogram_pool_size",
    "trees are trained on the sites' processors; remove it": "device device_type gpu_id predictor "
    "gpu_device_id gpu_platform_id gpu_use_dp num_gpu max_cached_hist_node",
    "each site sets its own number of threads: use nthread in its file, or in fedboost.simulate": "n_jobs "
    "nthread nthreads num_thread num_threads n_threads",
    "verbosity is not part of the terms; remove it": "verbose verbosity verbose_eval silent metric_freq",
    "leaves have a minimum sum of hessians instead of a minimum row count; set min_child_weight (a row adds "
    "at most 0.25 for binary:logistic, 1 for reg:squarederror)": "min_data_in_leaf min_child_samples "
    "min_samples_leaf min_data min_data_per_leaf min_weight_fraction_leaf min_samples_split min_leaf_node",
    "splits have a minimum gain instead; set gamma": "min_impurity_decrease min_impurity_split ccp_alpha",
    "splits are chosen by gain, as in XGBoost; remove it": "criterion extra_trees extra_tree path_smooth "
    "feature_weights feature_contri cegb_tradeoff cegb_penalty_split linear_tree forcedsplits_filename",
    "rows are sampled again for each tree; set only subsample": "subsample_freq bagging_freq",
    'set sampling_method = "gradient_based" and subsample': "top_rate other_rate goss",
    "name an objective or metric that all sites have": "obj fobj feval custom_metric maximize",
    "cut points are computed from all rows; set only max_bin": "subsample_for_bin bin_construct_sample_cnt "
    "min_data_in_bin",
    "dart is not supported; remove it": "rate_drop drop_rate skip_drop one_drop max_drop sample_type "
    "normalize_type uniform_drop drop_seed xgboost_dart_mode",
    "set max_cat_to_onehot, max_cat_threshold, reg_lambda instead": "cat_l2 cat_smooth min_data_per_group",
    "columns.categorical names the categorical features; estimators detect text and category columns of a "
    "DataFrame": "enable_categorical feature_types categorical_feature categorical_features",
    "pass it to fit": "eval_set sample_weight qid",
    "the same rows and terms always give the same model; remove it": "deterministic",
    "empty fields and NaN are missing values; remove it": "missing use_missing zero_as_missing",
    "set scale_pos_weight, or name a column of row weights in columns.weight": "class_weight is_unbalance "
    "unbalance pos_bagging_fraction neg_bagging_fraction",
    "each class or output has its own trees; remove it": "multi_strategy",
    "`fedboost explain` and Model.importance show feature importance": "importance_type",
    "set base_score for all rows, or columns.base_margin for each": "init boost_from_average",
    "set label_holder if the parties hold different columns": "data_split_mode label_owner",
    "early stopping has no minimum improvement; set early_stopping_rounds": "tol early_stopping_min_delta",
    "early stopping uses the last metric in eval_metric": "first_metric_only",
    "pass callbacks to fedboost.simulate": "callbacks",
    "terms are always validated; remove it": "validate_parameters disable_default_eval_metric",
    "one seed controls all random sampling; set seed": "bagging_seed feature_fraction_seed data_random_seed "
    "extra_seed objective_seed data_seed seed_per_iteration",
    "fedboost train writes the model, an ordinary XGBoost file, to --out": "output_model model_out",
}
OTHER_NAMES = {
    name: tuple(ours for ours, names in _OURS.items() if name in names.split())
    for names in _OURS.values()
    for name in names.split()
}
"""Name in another library -> fedboost's names with the same meaning."""
WHY_NOT = {name: why for why, names in _WHY_NOT.items() for name in names.split()}
"""Name in another library -> why fedboost has no such setting, or what to use instead."""


def name_here(word: str, known: Collection[str]) -> str | None:
    """Return the name in `known` that `word`, a name from another library, means, or None. Only the last part
    of a dotted name counts: `columns.label` is compared as `label`."""
    ends = {name.rpartition(".")[2]: name for name in known}
    return next((ends[name] for name in OTHER_NAMES.get(word, ()) if name in ends), None)


# ---- Types of values, and the message about the first fault ---------------------------------------------

MAX_CHARS = 100
"""Maximum number of characters of a key or value in an error message."""
MAX_FEATURES = 1 << 16
MAX_NEAR = 256
"""Maximum number of known names that are compared with an unknown one: each comparison takes 0.5 ms."""
_ENTRIES_AT_ONCE = 1 << 10
M = TypeVar("M", bound="Frozen")
T = TypeVar("T")
Location = tuple[int | str, ...]

Name = Annotated[str, Field(min_length=1, max_length=256)]
Several = Annotated[tuple[T, ...], FailFast()]
"""List that is validated only up to its first error: each takes 0.5 KB, and millions are possible."""
OrNone = Annotated[T | None, Field(default=None)]
"""Value of a setting that is None by default."""


def one_or_several(value: object) -> object:
    """Return the value of a setting as a tuple if it is a single text."""
    return (value,) if isinstance(value, str) else value


def _validate_in_parts(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """Validate a table in parts and stop at the first part with an error, as FailFast does for lists."""
    if not isinstance(value, dict) or not _ENTRIES_AT_ONCE < len(value) <= MAX_FEATURES:
        return validate(value)
    entries = iter(value.items())
    out: dict[str, Any] = {}
    while part := dict(islice(entries, _ENTRIES_AT_ONCE)):
        out |= validate(part)
    return out


Table = Annotated[Mapping[Name, T], WrapValidator(_validate_in_parts)]
"""Mapping by name, validated in parts and only up to the first part with an error."""

_SHOULD_BE = {
    "tuple_type": "expected a list in brackets",
    "dict_type": "expected a table, { key = value }",
    "mapping_type": "expected a table, { key = value }",
    "model_type": "expected a table, { key = value }",
    "path_type": "expected a path in quotes",
}
"""Pydantic's error type -> description of the expected TOML input."""


class Frozen(BaseModel):
    """Base class of settings. Instances are immutable. Unknown keys, infinities and NaN are rejected."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def file_keys(cls) -> Mapping[str, FieldInfo]:
        """Return a dict: key, as spelt in the file -> its field."""
        return cls.model_fields

    @classmethod
    def location_in_file(cls, location: Location) -> Location:
        """Translate the location of an error from the object to the file."""
        return location

    def check(self) -> None:
        """Raise ValueError for the first combination of values that is not allowed."""
        for fault in self._faults():
            raise ValueError(fault)

    def _faults(self) -> Iterator[str]:
        """Yield an error message for each combination of values that is not allowed."""
        yield from ()

    @model_validator(mode="after")
    def _holds_together(self) -> Self:
        self.check()
        return self


class UntrustedTable(Frozen):
    """Base class of tables from untrusted sources, which may have any number of keys."""

    @model_validator(mode="before")
    @classmethod
    def _drop_most_unknown(cls, values: Any) -> Any:
        """Keep only one unknown key: each would cause a separate error, but only one is reported."""
        if not isinstance(values, dict) or len(values) <= len(cls.model_fields):
            return values
        known = {name: value for name, value in values.items() if name in cls.model_fields}
        unknown = next(name for name in values if name not in cls.model_fields)
        return known | {unknown: values[unknown]}


def require_known(value: str, known: Iterable[str], what: str) -> str:
    """Return `value` if it is one of the known values, otherwise raise ValueError with a list of them. what:
    noun for the value in the message."""
    names = list(known)
    if value not in names:
        raise ValueError(unknown(value, names, names, what))
    return value


def refused(what: str, *settings: tuple[bool, str, str]) -> Iterator[str]:
    """Yield "`what` with SETTING: REASON" for each (condition, setting, reason) whose condition is true."""
    yield from (f"{what} with {setting}: {reason}" for is_so, setting, reason in settings if is_so)


def unknown(value: str, near: Iterable[str], known: Iterable[str], what: str) -> str:
    return f"unknown {what} {value[:MAX_CHARS]!r}{nearest(value, near)}; known: {', '.join(known)}"


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ' (did you mean X?)' with the known word that is most similar, or '' if none is close. Only the
    first MAX_NEAR known words are compared."""
    names, word = [name[:MAX_CHARS] for name in islice(known, MAX_NEAR)], word[:MAX_CHARS]
    here = name_here(word, names)
    close = [here] if here else difflib.get_close_matches(word, names, 1)
    return f" (did you mean {close[0]}?)" if close else ""


def setting_hint(word: str, settings: Collection[str]) -> str:
    """Return a hint about an unknown setting: the nearest known setting, or the reason why fedboost has no
    such setting. Returns '' if there is no hint."""
    if word in WHY_NOT and name_here(word, settings) is None:
        return f": {WHY_NOT[word]}"
    return nearest(word, settings)


def read_model(model: type[M], values: Mapping[str, Any], source: str) -> M:
    """Validate values that a user wrote and return them as an instance of `model`. The first error is raised
    as a one-line ConfigError that starts with `source`, e.g. the file's path."""
    try:
        read = model.model_validate(values)
    except ValidationError as error:
        raise first_fault(model, error, source) from None
    if no_number := _no_number(model, values):
        raise ConfigError("settings-invalid", f"{source}: {quoted(no_number)}")
    return read


def first_fault(model: type[Frozen], error: ValidationError, source: str) -> ConfigError:
    """Return the one-line error for a failed validation of `model`. source: start, e.g. the file's path."""
    faults = error.errors(include_url=False)
    # A missing key is often a misspelt one, so an unknown key makes the more helpful message.
    fault = next((each for each in faults if each["type"] == "extra_forbidden"), faults[0])
    location = [str(part) for part in model.location_in_file(fault["loc"])]
    owner = model
    for part in location[:-1]:
        owner = _table_of(owner.file_keys().get(part)) or owner
    key = ".".join(location)[:MAX_CHARS]
    if fault["type"] == "extra_forbidden":
        tables = ((name, _table_of(field)) for name, field in model.file_keys().items())
        homes = (name for name, table in tables if table is not None and key in table.file_keys())
        home = next(homes, None) if len(location) == 1 else None
        known = [*owner.file_keys(), *(_keys_of_tables(owner) if len(location) == 1 else ())]
        hint = f": it belongs under [{home}]" if home else setting_hint(location[-1], known)
        if len(location) > 1 and location[-1] in model.file_keys():
            hint = ": it belongs at the top of the file, above all tables"
        message = f"unknown key {key!r}{hint}"
    elif fault["type"] == "missing":
        message = f"key {key!r} is missing"
    elif fault["type"] == "value_error":
        message = f"{key + ': ' if key else ''}{fault['ctx']['error']}"
    else:
        got = fault["input"]
        shown = f", got {got!r}"[:MAX_CHARS] if isinstance(got, (str, int, float, bool)) else ""
        expected = _SHOULD_BE.get(fault["type"], fault["msg"])
        message = f"{key}: {expected[0].lower()}{expected[1:]}{shown}"
    return ConfigError("settings-invalid", f"{source}: {quoted(message)}")


def _keys_of_tables(model: type[Frozen]) -> Iterator[str]:
    """Yield the keys of a model's tables, as `table.key`."""
    for name, field in model.file_keys().items():
        if table := _table_of(field):
            yield from (f"{name}.{key}" for key in table.file_keys())


def _table_of(field: FieldInfo | None) -> type[Frozen] | None:
    annotation = None if field is None else field.annotation
    kinds = (annotation, *get_args(annotation))  # `X | None` has X in it
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Frozen)), None)


def _no_number(model: type[Frozen], values: Mapping[str, Any]) -> str | None:
    """Return a message about the first boolean or text that pydantic would convert to a number, or None."""
    for key, value in values.items():
        field = model.file_keys()[key]
        kinds = [kind for kind in get_args(field.annotation) or (field.annotation,) if kind is not type(None)]
        if isinstance(value, (bool, str)) and all(kind in (int, float) for kind in kinds):
            return f"{key}: expected a number, got {value!r}"[:MAX_CHARS]
        table = None if get_origin(field.annotation) is Mapping else _table_of(field)  # else several tables
        if table is not None and isinstance(value, Mapping) and (fault := _no_number(table, value)):
            return f"{key}.{fault}"
    return None


# ---- Settings that are one flat table in a file, and groups in code -------------------------------------
# Guarantees: input and the output of `model_dump` are flat, in the order of ORDER; errors name the flat key.


class Group(Frozen):
    """Base class of a group of settings. Its field names (or their aliases) are keys of the flat table."""

    @classmethod
    def file_keys(cls) -> Mapping[str, FieldInfo]:
        return {field.alias or name: field for name, field in cls.model_fields.items()}

    def replaced(self, **values: object) -> Self:
        """Return a copy with other values, which are not validated. Unset values stay unset."""
        return self._made(self.model_fields_set, values)

    def altered(self, settings: Mapping[str, object], without: Collection[str] = ()) -> Self:
        """Return a copy with these settings, given by key, and with defaults for the keys in `without`. Only
        the new values are validated, each separately. Raises ValidationError if one is invalid."""
        read = self.model_validate(settings)
        unset = {name for name, field in type(self).model_fields.items() if (field.alias or name) in without}
        values = {name: getattr(read, name) for name in read.model_fields_set | unset}
        return self._made((self.model_fields_set - unset) | read.model_fields_set, values)

    def _made(self, fields_set: set[str], values: Mapping[str, object]) -> Self:
        own = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self).model_construct(fields_set, **{**own, **values})


class Flat(Frozen):
    """Base class of settings in groups. A field that is not a group is itself a key of the flat table."""

    ORDER: ClassVar[tuple[str, ...]] = ()
    """Keys of the flat table that are always written, in the order that is hashed."""
    OMITTED: ClassVar[tuple[str, ...]] = ()
    """Keys that are written only if used, directly after those in `ORDER`. Keys in neither list come last, in
    the order of declaration, also only if used. Adding a new key therefore does not change the digest of
    settings without it."""

    @classmethod
    @cache
    def file_keys(cls) -> Mapping[str, FieldInfo]:
        return {key: field for key, (_, _, field) in cls._homes().items()}

    @classmethod
    def location_in_file(cls, location: Location) -> Location:
        first = str(location[0]) if location else ""
        return location[1:] if _group_of(cls.model_fields.get(first)) else location

    def canonical(self) -> str:
        """Return the settings as JSON with keys in canonical order: the text that is hashed and sent.

        Tables keep the order in which they are written, because features are ordered as in
        `columns.categorical`."""
        return self._canonical

    @cached_property
    def _canonical(self) -> str:
        return json.dumps(self.model_dump(mode="json"), separators=(",", ":"))

    @cached_property
    def digest(self) -> str:
        """SHA-256 hash of the canonical JSON, in hex."""
        return digest_of(self._canonical)

    @classmethod
    def groups(cls) -> Mapping[str, type[Group]]:
        """Return a dict: name of each field that is a group -> its class, in the order of the fields."""
        groups = {name: _group_of(field) for name, field in cls.model_fields.items()}
        return {name: group for name, group in groups.items() if group is not None}

    def altered(self, settings: Mapping[str, object], without: Collection[str] = ()) -> Self:
        """Return a copy with these settings, given by flat key, and with defaults for the keys in `without`.
        All these keys must belong to groups. The new combination of settings is checked, but unchanged
        settings are not parsed again. Raises ConfigError if the combination is not allowed."""
        homes, fields = self._homes(), {name: getattr(self, name) for name in type(self).model_fields}
        for home in dict.fromkeys(homes[key][0] for key in (*settings, *without)):
            own = {key: value for key, value in settings.items() if homes[key][0] == home}
            try:
                fields[home] = fields[home].altered(own, without)
            except ValidationError as error:
                raise first_fault(type(fields[home]), error, "terms") from None
        altered = type(self).model_construct(self.model_fields_set, **fields)
        try:
            altered.check()
        except ValueError as error:
            raise ConfigError("terms-invalid", f"terms: {quoted(str(error))}") from None
        return altered

    @property
    def flat(self) -> dict[str, Any]:
        """The settings as a dict: key of the flat table -> its value."""
        return {
            key: getattr(getattr(self, home), name) if name else getattr(self, home)
            for key, (home, name, _) in self._homes().items()
        }

    @classmethod
    @cache
    def _homes(cls) -> Mapping[str, tuple[str, str, FieldInfo]]:
        """Return a dict: flat key -> (field of this class, field in its group or '', definition of the inner
        field)."""
        homes: dict[str, tuple[str, str, FieldInfo]] = {}
        for home, own in cls.model_fields.items():
            group = _group_of(own)
            fields = {"": own} if group is None else group.model_fields
            homes |= {field.alias or name or home: (home, name, field) for name, field in fields.items()}
        return {key: homes[key] for key in (*cls.ORDER, *cls.OMITTED)} | homes

    @model_validator(mode="before")
    @classmethod
    def _into_groups(cls, values: Any) -> Any:
        """Sort flat values into groups. Only the first unknown key is passed on, for a group to reject."""
        if not isinstance(values, dict):
            return values
        homes = cls._homes()
        out: dict[str, Any] = {name: {} for name in cls.groups()}
        strangers = (key for key in values if key not in homes)
        for key in [*(key for key in values if key in homes), *islice(strangers, 1)]:
            home, name, *_ = homes.get(key, (next(iter(out)), key))
            if name:
                out[home][key] = values[key]
            else:
                out[home] = values[key]
        return out

    @model_serializer(mode="wrap")
    def _out_of_groups(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        nested = dump(self)
        out = {}
        for key, (home, name, field) in self._homes().items():
            table, own = (nested.get(home, {}), name) if name else (nested, home)
            if own in table:
                says_nothing = not table[own] or table[own] == field.default
                if key in self.ORDER or not says_nothing:
                    out[key] = table[own]
        return out


def digest_of(text: str) -> str:
    """Return the SHA-256 hash, in hex, of settings with this canonical text."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _group_of(field: FieldInfo | None) -> type[Group] | None:
    annotation = None if field is None else field.annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, Group) else None
