"""The model as people hold it: trees, the terms they were trained under, a file, a report.

Promises: the file is an XGBoost model; fedboost's own facts ride in its attributes; saving replaces the
file at once or not at all; the same parties, rows and terms give the same trees and fingerprint, and the same
bytes but for the session and its signatures, which may be saved beside (`reproducible`).
"""

import json
import math
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedboost.boosting.programs.tasks import measuring_query, summary_of
from fedboost.boosting.queries.labels import MagnitudesQuery
from fedboost.errors import ConfigError, Refused, SchemaMismatch, quoted
from fedboost.fixedpoint import Float32, Float64
from fedboost.gbdt import booster as explain
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.gradients import Gradients
from fedboost.gbdt.threads import Threads
from fedboost.gbdt.tree import Tree
from fedboost.holders.other_tasks import magnitudes, measured
from fedboost.protocol.aggregator import AggregatorSession
from fedboost.protocol.parts import Part
from fedboost.results.base import Ended
from fedboost.results.model import Dependence, GivenRows, Verification
from fedboost.results.tasks import Evaluation
from fedboost.runtime.data.database import Database
from fedboost.runtime.data.locations import shown
from fedboost.runtime.data.shard import to_base_margin, to_features, to_shard
from fedboost.runtime.data.table import as_table
from fedboost.runtime.data.text import SparseTable
from fedboost.runtime.files import file_errors, saved
from fedboost.runtime.net.keys import read_trust
from fedboost.runtime.signed_model import (
    PART_BEGINS,
    SUMMARY,
    TERMS,
    PartyModel,
    SignedModel,
    assembled,
    classes_of,
    trained_model_of,
    tree_title,
    verified,
    written,
)
from fedboost.runtime.telemetry import Meter, Row
from fedboost.terms import continuation
from fedboost.terms.hiding import Hiding
from fedboost.terms.reading import nearest
from fedboost.terms.session import TASKS, Task
from fedboost.terms.tasks import settings_for
from fedboost.terms.terms import Terms
from fedboost.views import charts


@dataclass(frozen=True, repr=False)
class Model(SignedModel):
    """A trained model: predicts, and explains its predictions."""

    def predict(self, data: Any, base_margin: Any = None) -> Float64:
        """Predictions, float64 [rows] ([rows, classes] for multi:softprob), for a table (path, pandas, Arrow)
        or float32 [rows, features] array.

        A table needs the feature columns of the terms; values missing or never declared count as missing.
        base_margin: float32 [rows], the margins to add the trees to, as in XGBoost; where the terms name a
        column of them, a table has it, and an array of features needs it.
        """
        rows = self._rows(data, base_margin)
        return np.concatenate([self.booster.predict(part, base) for part, base in rows()])

    def features(self, data: Any) -> Float32:
        """The features of a table as the trees read them: float32 [rows, features], NaN for missing values.
        Categories are their numbers, levels of target means the means in the model. XGBoost predicts of these
        what `predict` does of the table."""
        return np.concatenate([part for part, _ in self._rows(data, None)()])

    @property
    def classes(self) -> tuple[str, ...] | tuple[int, ...]:
        """The labels: those of columns.classes, else 0, 1, ...; ConfigError for other objectives.

        With binary:logistic `predict` gives the probability of the second, which stands for columns.positive
        where labels are words; with multi:softprob a column for each.
        """
        return classes_of(self.terms)

    def predict_class(self, data: Any) -> npt.NDArray[Any]:
        """The most probable of `classes` for each row, [rows]: text or int64; of equal ones the first. `data`
        is what `predict` takes; ConfigError for objectives that have no classes."""
        classes, predictions = np.array(self.classes), self.predict(data)
        chosen: npt.NDArray[Any] = classes[
            np.argmax(predictions, axis=1) if predictions.ndim == 2 else (predictions > 0.5) + 0
        ]
        return chosen

    def shap_values(self, data: Any, base_margin: Any = None) -> Float64:
        """SHAP values of each row, for what `predict` takes: float64 [rows, features + 1], or [rows, outputs,
        features + 1] where a row has several outputs.

        What each feature adds to the row's margin (the prediction before the objective makes a probability or
        a count of it), and last the bias, which is what the margin is where no feature is known. A row's add
        up to its margin.
        """
        rows = self._rows(data, base_margin)
        return np.concatenate([self.booster.contributions(part, base) for part, base in rows()])

    def partial_dependence(
        self, data: Any, feature: str, grid: Iterable[Any] | None = None, base_margin: Any = None
    ) -> tuple[list[Any], Float64]:
        """A grid of values of a feature, and the mean prediction over the rows of `data` with each of them in
        the feature's column: float64 [grid], or [grid, outputs].

        data, base_margin: what `predict` takes. grid: numbers, or of a categorical feature categories; None
        counts as missing. Unless given, the declared categories, the distinct values, or where they are many
        100 numbers between the 5 % and 95 % quantiles.
        """
        names = self.booster.features
        if feature not in names:
            raise ConfigError(f"the model has no feature {feature!r}{nearest(feature, names)}")
        rows, column = self._rows(data, base_margin), names.index(feature)
        categories = self.terms.columns.categorical.get(feature)
        if grid is None:
            grid = categories or explain.usual_grid(np.concatenate([part[:, column] for part, _ in rows()]))
        values = list(grid)
        if not values:
            raise ConfigError(f"no value of {feature!r} to predict with: none in the rows, nor a grid")
        codes = np.array([_code(value, feature, categories) for value in values], np.float32)
        return values, explain.mean_predictions(self.booster.predict, rows(), column, codes)

    def tree_text(self, number: int) -> str:
        """Tree `number`, from 0, as text: the lines of XGBoost's `get_dump(with_stats=True)`."""
        return charts.tree_text(self._tree(number), self.booster.features)

    def tree_svg(self, number: int) -> str:
        """Tree `number`, from 0, as a picture: an SVG document."""
        tree, title = self._tree(number), self.tree_title(number)
        return charts.tree_svg(tree, self.booster.features, self.terms.columns.categorical, title)

    def tree_title(self, number: int) -> str:
        """Which tree that is, in words: its number, round, class, and place among parallel ones."""
        return tree_title(self, number)

    def report(
        self,
        path: Path | str | None = None,
        data: Any = None,
        keys: Path | str | None = None,
        min_count: int | None = None,
    ) -> str:
        """The report of the model, a page of HTML, which is also written to `path` if one is given.

        data: rows with labels, a table as `predict` takes it, for partial dependence, metrics and curves;
        keys: a folder of keys, to check the signatures by; min_count: fewest rows of a count that is
        shown, that of the terms unless given. ConfigError for rows that do not fit.
        """
        return saved(report_of(self, data, keys, min_count), path)

    def _tree(self, number: int) -> Tree:
        count = len(self.booster.trees)
        if not 0 <= number < count:
            raise ConfigError(f"there is no tree {number}: the model's {count} trees are numbered from 0")
        return self.booster.trees[number]

    def _rows(self, data: Any, base_margin: Any) -> Callable[[], Iterator[explain.Rows]]:
        """A function that yields the features of rows, and their base margins if they have any; the rows of a
        sparse table in parts."""
        if isinstance(data, np.ndarray):
            if data.ndim != 2 or data.shape[1] != len(self.booster.features):
                raise ConfigError(
                    f"an array of shape {data.shape}; the model has {len(self.booster.features)} features"
                )
            if base_margin is None and self.terms.columns.base_margin is not None:
                raise ConfigError(
                    "the model was trained with base margins: give base_margin with an array, column "
                    f"{self.terms.columns.base_margin!r} of its rows"
                )
            rows = data.astype(np.float32, copy=False), self._base(base_margin, len(data))
            return lambda: iter([rows])
        source = str(data) if isinstance(data, (str, Path)) else "table"
        table = as_table(data)
        if base_margin is None:
            base_margin = to_base_margin(table, self.terms, source)
        base = self._base(base_margin, table.num_rows)
        means = self.booster.target_means
        features = partial(to_features, schema=self.terms.columns, source=source, means=means)
        if base is None and isinstance(table, SparseTable):
            return lambda: ((features(part), None) for part in table.parts())
        rows = features(table), base
        return lambda: iter([rows])

    def _base(self, base_margin: Any, rows: int) -> Float32 | None:
        if base_margin is None:
            return None
        base = np.asarray(base_margin, np.float32)
        if base.shape != (rows,) or self.booster.loss.outputs > 1:
            raise ConfigError(f"base margins of shape {base.shape}; {rows} rows need one each")
        return base

    def importance(self, kind: str = "gain") -> dict[str, float]:
        """Feature name to importance, highest first: mean `gain`, mean `cover`, or splits by `weight`."""
        return self.booster.importance(kind)


def _code(value: Any, feature: str, categories: Sequence[str] | None) -> float:
    """A value of a grid as the number that stands for it."""
    if value is None:
        return math.nan
    if categories is not None:
        if value not in categories:
            raise ConfigError(f"{value!r} in the grid is no declared category of {feature!r}")
        return float(categories.index(value))
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(f"{value!r} in the grid is no number, which feature {feature!r} takes") from None
    if abs(number) > float(np.finfo(np.float32).max):
        raise ConfigError(f"{value!r} in the grid is infinite or too large for a 32-bit float")
    return number


# ---- A model to continue, as users name it: a model, or the path of its file ----------------------------


MAX_FILE_BYTES = 4 * continuation.MAX_MODEL
"""Bytes of a model's file: the model, which may be spelled at more length than in terms, and what is stored
with it, such as its own terms with a model of their own."""


def text_of(model: object, folder: Path = Path(), task: Task = TASKS["train"]) -> object:
    """The text in the terms for a model or for a path, which counts from `folder`; such a text, and a value
    of another kind, are returned as they are. task: as for `read_file`."""
    if isinstance(model, Model):
        bins = continuation.attached(model.summary, model.terms.evaluation, task, "the model")
        facts = model.attributes() if task.measures else {}
        return continuation.written(model.booster, model.terms.columns, bins, facts)
    if not isinstance(model, (str, Path)) or str(model).startswith("{"):
        return model
    path = folder / model
    return read_file(path, f"xgb_model {quoted(str(path))}", task)[0]


def read_file(path: Path, source: str, task: Task = TASKS["train"]) -> tuple[str, Terms | None]:
    """The model in a file as terms of a task hold it, and the terms of its training where the file has them:
    a model that is measured with the facts of its training and the bins of its reference.
    source: how errors name the file."""
    text = _read(path, source)
    if text.startswith(PART_BEGINS):
        raise ConfigError(f"{path}: a part of a model: put the parts together (fedboost assemble)")
    booster, attributes = Booster.from_any_xgboost(text, str(path))
    terms = Terms.from_canonical(attributes[TERMS]) if TERMS in attributes else None
    trained = None if terms is None else terms.evaluation
    bins = continuation.attached(_summary(attributes), trained, task, str(path))
    facts = Model.load(path).attributes() if task.measures and terms is not None else {}
    columns = None if terms is None else terms.columns
    try:
        return continuation.written(booster, columns, bins, facts), terms
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


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


# ---- Models and parts of models by their files ----------------------------------------------------------


def read_trained(data: bytes, source: str) -> Model | PartyModel:
    """What a training gave: a model, or its structure, or a party's part of it."""
    kind: type[Model | PartyModel] = PartyModel if data.startswith(PART_BEGINS.encode()) else Model
    return kind.from_bytes(data, source)


def load_trained(path: Path) -> Model | PartyModel:
    """The model, or the part of one, in a file, with the session's file beside it if there is one."""
    with file_errors(path, "cannot read the model"), path.open("rb") as file:
        begins = file.read(len(PART_BEGINS))
    return PartyModel.load(path) if begins == PART_BEGINS.encode() else Model.load(path)


def assemble(parts: Iterable[PartyModel | Path | str]) -> Model:
    """The model of these parts, or of those in these files: those of the label holder and of all parties
    that have splits in it. With the analyst's it has metrics and signatures, too. ConfigError for parts that
    do not belong together."""
    read = [part if isinstance(part, PartyModel) else PartyModel.load(part) for part in parts]
    return Model(**vars(assembled(read)))


# ---- The result of a training: the model, its metrics and traffic ---------------------------------------


@dataclass(frozen=True)
class Result:
    """The result of a training.

    history: a row a round with `round`, the metrics by name (as an analyst gets them,
    `metrics.published`), `seconds`, and `bytes` (sent and received by all parties in that round); traffic:
    party to (bytes sent, bytes received), all turns together; party_models: party to the part of the model
    that it would keep, with `model = "parties"` in the terms. As all parties are here, `model` is the whole
    one even so.
    """

    model: Model
    history: list[Row] = field(repr=False)
    traffic: dict[str, tuple[int, int]] = field(repr=False)
    party_models: dict[str, PartyModel] = field(default_factory=dict, repr=False)

    def report(
        self,
        path: Path | str | None = None,
        data: Any = None,
        keys: Path | str | None = None,
        min_count: int | None = None,
    ) -> str:
        """The report of the model as `Model.report` gives it, with traffic and time of each round."""
        session = Ended(self.model.terms, (), self.traffic, self.history)
        return saved(report_of(self.model, data, keys, min_count, session), path)


def finish(session: AggregatorSession, meter: Meter, parts: Iterable[Part] = ()) -> Result:
    """The result of a session that is over. parts: of the model, where parties keep them. Raises
    SessionFailed if it has no model."""
    model = trained_model_of(session)
    party_models = {part.party: PartyModel.of(part) for part in parts}
    if isinstance(model, PartyModel):
        model = assembled([model, *party_models.values()])
    return Result(Model(**vars(model)), meter.history, meter.traffic, party_models)


# ---- The report of a model: with the facts that need more than the model --------------------------------


_NOBODY = "party : "
"""How a refusal begins of rows that are no party's."""
MAX_FEATURES = 6
"""Features whose partial dependence is drawn."""
MAX_DEPENDENCE_ROWS = 10_000
"""Rows that partial dependence is a mean over: of more, so many in even steps."""


UNKNOWN = {"trained": 0.0, "unknown": 1.0}
"""Of rows that are given for a report it is not known whether trees were grown on them."""


def report_of(
    model: Model,
    data: Any,
    keys: Path | str | None,
    min_count: int | None,
    session: Ended | None = None,
) -> str:
    """Return the report of a model, as HTML, with rows, signatures and session where they are given."""
    rows = None if data is None else rows_facts(model, data, min_count)
    signatures = None if keys is None else signature_facts(model, Path(keys))
    return written(model, rows, signatures, session)


def signature_facts(model: Model, keys: Path) -> Verification:
    """Return what holds of a model's signatures, by the root in a folder of keys."""
    roots, denied = read_trust(keys)
    return verified(model, "model", roots, datetime.now(UTC), denied)


def rows_facts(model: Model, data: Any, min_count: int | None = None, source: str = "") -> GivenRows:
    """Return a model's figures on rows with labels. data: a table, as `Model.predict` takes it; min_count:
    in place of that of the terms; source: what to call the table, its own name unless given."""
    named = shown(data) if isinstance(data, (str, Path, Database)) else "the table"
    table, source = as_table(data), source or named
    terms = _unprotected(model.terms, min_count)
    try:
        shard = to_shard(table, terms, "")
    except SchemaMismatch as error:  # which says no more to other parties
        raise ConfigError(f"{source}: {error.detail}") from None
    except Refused as error:
        raise ConfigError(f"{source}: {error.public.removeprefix(_NOBODY)}", error.detail) from None
    if shard.rows < terms.evaluation.min_count:
        raise ConfigError(
            f"{source}: {shard.rows} rows; give {terms.evaluation.min_count} at least, or leave --data out"
        )
    features = np.column_stack([column[:] for column in shard.columns])
    gradients = Gradients(terms.objective.loss, shard.label, shard.weight, shard.group, Threads(1))
    gradients.margin[:] = model.booster.margins(features, shard.base_margin)
    first = MagnitudesQuery(terms.metrics)
    query = measuring_query(
        terms, first, shard.rows, magnitudes(first, gradients, (shard.rows, 0, shard.rows))
    )
    summary = summary_of(terms, query, measured(query, gradients, shard.rows)) | {
        "of": "all",
        "shares": UNKNOWN,
    }
    result = Evaluation.model_validate(summary)
    return GivenRows(Path(source).name, result, _dependence(model, features, shard.base_margin))


def _dependence(model: Model, features: Any, base_margin: Any) -> Sequence[Dependence]:
    step = -(-len(features) // MAX_DEPENDENCE_ROWS)
    rows, base = features[::step], None if base_margin is None else base_margin[::step]
    categorical = model.terms.columns.categorical
    out = []
    for name in [*model.importance()][:MAX_FEATURES]:
        if name not in categorical and np.isnan(rows[:, model.booster.features.index(name)]).all():
            continue
        grid, means = model.partial_dependence(rows, name, base_margin=base)
        out.append(Dependence(name, name in categorical, grid, np.reshape(means, (len(grid), -1))))
    return out


def _unprotected(terms: Terms, min_count: int | None) -> Terms:
    """The terms of rows that are all here, by which their labels are read and the metrics are chosen."""
    values = settings_for(terms, TASKS["evaluate"])
    hiding = {*Hiding.file_keys(), "parties", "party_metrics", "subgroups", "program"}
    values = {key: value for key, value in values.items() if key not in hiding} | {"protection": "plain"}
    values["columns"] = {
        key: value for key, value in values["columns"].items() if key not in ("held", "subgroups")
    }
    return Terms.read(values if min_count is None else values | {"min_count": min_count})
