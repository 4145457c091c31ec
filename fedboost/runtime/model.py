"""Trained models as users see them: prediction, explanation, loading, assembling and reports.

A model file is an XGBoost model with fedboost's metadata in its attributes. It is written completely or not
at all. The same parties, rows and terms yield the same trees and the same fingerprint. The file is then also
byte-for-byte identical, except for the session and its signatures, which can be saved separately
(`reproducible`).
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
from fedboost.boosting.queries.base import part_in
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
    """A trained model. It predicts labels of rows and explains its predictions."""

    def predict(self, data: Any, base_margin: Any = None) -> Float64:
        """Return the predictions for the rows of a table.

        Args:
            data: a table (path, pandas or Arrow) with the feature columns of the terms, or a float32 array
                [rows, features]. Categories that the terms do not declare are treated as missing.
            base_margin: float32 [rows]: margins to which the values of the trees are added, as in XGBoost. If
                the terms name a base-margin column, a table must contain it, and an array requires this
                argument.

        Returns:
            float64 [rows], or [rows, classes] for multi:softprob.
        """
        rows = self._rows(data, base_margin)
        return np.concatenate([self.booster.predict(part, base) for part, base in rows()])

    def features(self, data: Any) -> Float32:
        """Return a table's features in the form in which the trees use them, float32 [rows, features], with
        NaN for missing values. Categories are replaced by their indices, and levels of target-means columns
        by the model's means. With these features, XGBoost predicts the same values as `predict` does from the
        table."""
        return np.concatenate([part for part, _ in self._rows(data, None)()])

    @property
    def classes(self) -> tuple[str, ...] | tuple[int, ...]:
        """The class labels: `columns.classes`, or else 0, 1, ... Raises ConfigError if the objective has no
        classes. For binary:logistic, `predict` returns the probability of the second class, which is
        `columns.positive` for a text label. For multi:softprob, it returns one column per class."""
        return classes_of(self.terms)

    def predict_class(self, data: Any) -> npt.NDArray[Any]:
        """Return the most probable class of each row, [rows], as str or int64; on a tie, the first one in
        `classes`. data: as for `predict`. Raises ConfigError if the objective has no classes."""
        classes, predictions = np.array(self.classes), self.predict(data)
        chosen: npt.NDArray[Any] = classes[
            np.argmax(predictions, axis=1) if predictions.ndim == 2 else (predictions > 0.5) + 0
        ]
        return chosen

    def shap_values(self, data: Any, base_margin: Any = None) -> Float64:
        """Return the SHAP values of each row. They sum to the row's margin, i.e. its prediction before the
        objective turns it into a probability or count. The last value of each row is the bias, i.e. the
        margin if no feature is known. Arguments are as for `predict`.

        Returns:
            float64 [rows, features + 1], or [rows, outputs, features + 1] if the model has several outputs.
        """
        rows = self._rows(data, base_margin)
        return np.concatenate([self.booster.contributions(part, base) for part, base in rows()])

    def partial_dependence(
        self, data: Any, feature: str, grid: Iterable[Any] | None = None, base_margin: Any = None
    ) -> tuple[list[Any], Float64]:
        """Return the partial dependence on a feature: for each value of a grid, the mean prediction if all
        rows had that value.

        Args:
            data, base_margin: as for `predict`.
            feature: name of the feature.
            grid: numbers, or categories of a categorical feature; None means missing. The default for a
                categorical feature is its declared categories. For a numeric feature, it is the distinct
                values in the rows or, if there are more than 100, as many evenly spaced values between the
                5th and 95th percentiles.

        Returns:
            The grid, and float64 [grid] or [grid, outputs].
        """
        names = self.booster.features
        if feature not in names:
            raise ConfigError(
                "model-feature-unknown", f"the model has no feature {feature!r}{nearest(feature, names)}"
            )
        rows, column = self._rows(data, base_margin), names.index(feature)
        categories = self.terms.columns.categorical.get(feature)
        if grid is None:
            grid = categories or explain.usual_grid(np.concatenate([part[:, column] for part, _ in rows()]))
        values = list(grid)
        if not values:
            raise ConfigError("model-grid-empty", f"the rows have no values of {feature!r}; pass a grid")
        codes = np.array([_code(value, feature, categories) for value in values], np.float32)
        return values, explain.mean_predictions(self.booster.predict, rows(), column, codes)

    def tree_text(self, number: int) -> str:
        """Return a tree as text, like XGBoost's `get_dump(with_stats=True)`. number: index of the tree,
        starting at 0."""
        return charts.tree_text(self._tree(number), self.booster.features)

    def tree_svg(self, number: int) -> str:
        """Return a drawing of a tree as an SVG document. number: index of the tree, starting at 0."""
        tree, title = self._tree(number), self.tree_title(number)
        return charts.tree_svg(tree, self.booster.features, self.terms.columns.categorical, title)

    def tree_title(self, number: int) -> str:
        """Return the title of a tree: its number, objective, round, class, and index among parallel trees."""
        return tree_title(self, number)

    def report(
        self,
        path: Path | str | None = None,
        data: Any = None,
        keys: Path | str | None = None,
        min_count: int | None = None,
    ) -> str:
        """Return a report about the model as an HTML page.

        Args:
            path: file to write the page to, if any.
            data: labelled table, as for `predict`, for which the report shows metrics, curves and partial
                dependence.
            keys: folder with the consortium's root certificate, used to verify the signatures.
            min_count: counts of fewer rows than this are hidden (default: as in the terms).

        Raises:
            ConfigError: the rows do not match the model, or there are too few.
        """
        return saved(report_of(self, data, keys, min_count), path)

    def _tree(self, number: int) -> Tree:
        count = len(self.booster.trees)
        if not 0 <= number < count:
            raise ConfigError(
                "model-tree-unknown",
                f"there is no tree {number}; the model has {count} trees, numbered from 0",
            )
        return self.booster.trees[number]

    def _rows(self, data: Any, base_margin: Any) -> Callable[[], Iterator[explain.Rows]]:
        """Return a function that yields pairs of features and base margins (or None). A sparse table is
        processed in chunks, any other table as a whole."""
        if isinstance(data, np.ndarray):
            if data.ndim != 2 or data.shape[1] != len(self.booster.features):
                raise ConfigError(
                    "model-array-shape",
                    f"the array has shape {data.shape}, but the model has "
                    f"{len(self.booster.features)} features",
                )
            if base_margin is None and self.terms.columns.base_margin is not None:
                raise ConfigError(
                    "model-margin-missing",
                    "the model was trained with base margins; to use an array, also pass column "
                    f"{self.terms.columns.base_margin!r} of its rows as base_margin",
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
            raise ConfigError(
                "model-margin-shape",
                f"base_margin has shape {base.shape}, but needs one value for each of the {rows} rows, and a "
                "model with one output",
            )
        return base

    def importance(self, kind: str = "gain") -> dict[str, float]:
        """Return feature -> importance, highest first. kind: "gain" or "cover" (both are means per split), or
        "weight" (number of splits)."""
        return self.booster.importance(kind)


def _code(value: Any, feature: str, categories: Sequence[str] | None) -> float:
    if value is None:
        return math.nan
    if categories is not None:
        if value not in categories:
            raise ConfigError("model-grid-value", f"{value!r} in the grid is not a category of {feature!r}")
        return float(categories.index(value))
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(
            "model-grid-value", f"{value!r} in the grid is not a number, but feature {feature!r} is numeric"
        ) from None
    if abs(number) > float(np.finfo(np.float32).max):
        raise ConfigError("model-grid-value", f"{value!r} in the grid is too large for a 32-bit float")
    return number


# ---- Models to continue or to measure: a model, or the path of its file ---------------------------------


MAX_FILE_BYTES = 4 * continuation.MAX_MODEL
"""Maximum size of a model file. It is larger than the limit for a model in terms, because a file may encode
trees less compactly, and the terms in the file may contain a model, too."""


def text_of(model: object, folder: Path = Path(), task: Task = TASKS["train"]) -> object:
    """Return the text, as in terms, of a `Model`, a `PartyModel` to continue, or the model file at a path;
    other values are returned unchanged. folder: where a relative path starts; task: as for `read_file`."""
    if isinstance(model, PartyModel) and task.trains:
        structure = part_in(model.booster, model.terms)
        return continuation.written(structure, model.terms.columns, facts={continuation.PARTS: model.id})
    if isinstance(model, Model):
        bins = continuation.attached(model.summary, model.terms.evaluation, task, "the model")
        facts = model.attributes() if task.measures else {}
        return continuation.written(model.booster, model.terms.columns, bins, facts)
    if not isinstance(model, (str, Path)) or str(model).startswith("{"):
        return model
    path = folder / model
    if task.trains and is_part(path):
        return text_of(PartyModel.load(path))
    return read_file(path, f"xgb_model {quoted(str(path))}", task)[0]


def is_part(path: Path) -> bool:
    """Return True if a file is only a part of a model. Raises ConfigError if it cannot be read."""
    return _read(path, str(path)).startswith(PART_BEGINS)


def read_file(path: Path, source: str, task: Task = TASKS["train"]) -> tuple[str, Terms | None]:
    """Read a model file for use in terms.

    Args:
        path: a model file written by fedboost or XGBoost.
        source: name of the file in error messages.
        task: task of the terms. For evaluation and drift, the text also contains metadata about the training
            of the model and the bin edges of its reference distribution.

    Returns:
        The model as text for the terms, and the terms under which it was trained (None for files written by
            XGBoost).

    Raises:
        ConfigError: the file cannot be read, is only a part of a model, or cannot be used for the task.
    """
    text = _read(path, source)
    if text.startswith(PART_BEGINS):
        raise ConfigError(
            "model-is-part", f"{path} is only a part of a model; run fedboost assemble on all parts"
        )
    booster, attributes = Booster.from_any_xgboost(text, str(path))
    terms = Terms.from_canonical(attributes[TERMS]) if TERMS in attributes else None
    trained = None if terms is None else terms.evaluation
    bins = continuation.attached(_summary(attributes), trained, task, str(path))
    facts = Model.load(path).attributes() if task.measures and terms is not None else {}
    columns = None if terms is None else terms.columns
    try:
        return continuation.written(booster, columns, bins, facts), terms
    except ConfigError as error:
        raise ConfigError("model-unfit", f"{path}: {error}") from None


def _summary(attributes: Mapping[str, str]) -> Any:
    try:
        return json.loads(attributes.get(SUMMARY, "{}"))
    except (ValueError, RecursionError):
        return {}


def _read(path: Path, source: str) -> str:
    """Return the text of a regular file. Other kinds are not opened: reading them might block or not end."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ValueError("not a regular file")
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise ValueError(
                f"it has more than {MAX_FILE_BYTES:,} bytes, which is too large for a model in terms"
            )
        return data.decode()
    except OSError as error:
        why = error.strerror or str(error)
    except UnicodeDecodeError:
        why = "it is not text; save it as JSON"
    except ValueError as error:  # one of the above, or a null byte in the path
        why = str(error)
    raise ConfigError("model-unreadable", f"{source}: cannot read the model: {why}")


# ---- Models and parts of models in files ----------------------------------------------------------------


def read_trained(data: bytes, source: str) -> Model | PartyModel:
    """Parse the content of a model file, of a model part, or of a model's structure. source: name of the file
    in error messages. Raises ConfigError for any other content."""
    kind: type[Model | PartyModel] = PartyModel if data.startswith(PART_BEGINS.encode()) else Model
    return kind.from_bytes(data, source)


def load_trained(path: Path) -> Model | PartyModel:
    """Load a model or a model part from a file, and its session file if there is one. Raises ConfigError if
    the file cannot be used."""
    with file_errors(path, "cannot read the model"), path.open("rb") as file:
        begins = file.read(len(PART_BEGINS))
    return PartyModel.load(path) if begins == PART_BEGINS.encode() else Model.load(path)


def assemble(parts: Iterable[PartyModel | Path | str]) -> Model:
    """Assemble a model from its parts, which are `PartyModel` objects or files. The parts of the label holder
    and of all parties with splits are required. If the analyst's part is included, the model also has metrics
    and signatures. Raises ConfigError if parts are missing, altered or from different sessions."""
    read = [part if isinstance(part, PartyModel) else PartyModel.load(part) for part in parts]
    return Model(**vars(assembled(read)))


# ---- The result of a training: the model, its metrics and traffic ---------------------------------------


@dataclass(frozen=True)
class Result:
    """The result of training.

    Attributes:
        model: the complete model, even if the terms have `model = "parties"`.
        history: one row per round: `round`, the metrics by name as analysts receive them, `seconds`, and
            `bytes` (sent and received by all parties).
        traffic: maps party -> (bytes sent, bytes received) over the whole session.
        party_models: maps party -> the part of the model that it would keep, if the terms have `model =
            "parties"`.
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
        """Return an HTML report about the model, like `Model.report`. It also shows the traffic and the
        duration of each round."""
        session = Ended(self.model.terms, (), self.traffic, self.history)
        return saved(report_of(self.model, data, keys, min_count, session), path)


def finish(session: AggregatorSession, meter: Meter, parts: Iterable[Part] = ()) -> Result:
    """Return the result of a finished session. meter: traffic and rounds of the session; parts: model parts
    that parties keep. Raises SessionFailed if the session has no model."""
    model = trained_model_of(session)
    party_models = {part.party: PartyModel.of(part) for part in parts}
    if isinstance(model, PartyModel):
        model = assembled([model, *party_models.values()])
    return Result(Model(**vars(model)), meter.history, meter.traffic, party_models)


# ---- The report of a model, with rows, signatures and session if given ----------------------------------


_NOBODY = "party : "
"""Prefix of messages about rows if the party has no name."""
MAX_FEATURES = 6  # features whose partial dependence is drawn
MAX_DEPENDENCE_ROWS = 10_000  # maximum rows for partial dependence; of more rows, every n-th is used


UNKNOWN = {"trained": 0.0, "unknown": 1.0}
"""`Shares` for rows supplied for a report: it is unknown whether the model was trained on them."""


def report_of(
    model: Model, data: Any, keys: Path | str | None, min_count: int | None, session: Ended | None = None
) -> str:
    rows = None if data is None else rows_facts(model, data, min_count)
    signatures = None if keys is None else signature_facts(model, Path(keys))
    return written(model, rows, signatures, session)


def signature_facts(model: Model, keys: Path) -> Verification:
    """Return the result of verifying a model's signatures with the root certificate in a key folder."""
    roots, denied = read_trust(keys)
    return verified(model, "model", roots, datetime.now(UTC), denied)


def rows_facts(model: Model, data: Any, min_count: int | None = None, source: str = "") -> GivenRows:
    """Return a model's metrics, curves and partial dependence on labelled rows.

    Args:
        model: the model.
        data: labelled table, as for `Model.predict`.
        min_count: counts of fewer rows than this are hidden (default: as in the terms).
        source: name of the table in error messages (default: derived from `data`).

    Raises:
        ConfigError: the rows do not match the model, or there are too few.
    """
    named = shown(data) if isinstance(data, (str, Path, Database)) else "the table"
    table, source = as_table(data), source or named
    terms = _unprotected(model.terms, min_count)
    try:
        shard = to_shard(table, terms, "")
    except SchemaMismatch as error:  # here the detail may be shown
        raise ConfigError("table-misfit", f"{source}: {error.detail}") from None
    except Refused as error:
        raise ConfigError(
            error.code, f"{source}: {error.public.removeprefix(_NOBODY)}", error.detail
        ) from None
    if shard.rows < terms.evaluation.min_count:
        raise ConfigError(
            "report-too-few-rows",
            f"{source} has {shard.rows} rows, but a report needs at least {terms.evaluation.min_count}; use "
            "more rows, or omit --data",
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
    """Return terms to evaluate rows in this process: without protection, noise, parties and subgroups."""
    values = settings_for(terms, TASKS["evaluate"])
    hiding = {*Hiding.file_keys(), "noise", "parties", "party_metrics", "subgroups", "program"}
    values = {key: value for key, value in values.items() if key not in hiding} | {"protection": "plain"}
    values["columns"] = {
        key: value
        for key, value in values["columns"].items()
        if key not in ("held", "subgroups", "label_range")
    }
    return Terms.read(values if min_count is None else values | {"min_count": min_count})
