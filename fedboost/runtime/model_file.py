"""The model as people hold it: trees, the terms they were trained under, and a file.

Promises: the file is an XGBoost model; fedboost's own facts ride in its attributes; saving replaces the
file at once or not at all; the same parties, rows and terms give the same trees and fingerprint, and the same
bytes but for the session and its signatures, which may be saved beside (`reproducible`).
Refuses: files that are not such models (ConfigError).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedboost.errors import ConfigError
from fedboost.fixedpoint import Float32, Float64
from fedboost.gbdt import explain
from fedboost.gbdt.tree import Tree
from fedboost.people import html, tree_drawing
from fedboost.runtime.files import saved
from fedboost.runtime.model_report import classes_of, tree_title
from fedboost.runtime.signed_model import SignedModel
from fedboost.terms.reading import nearest


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
        return tree_drawing.tree_text(self._tree(number), self.booster.features)

    def tree_svg(self, number: int) -> str:
        """Tree `number`, from 0, as a picture: an SVG document."""
        tree, title = self._tree(number), self.tree_title(number)
        return tree_drawing.tree_svg(tree, self.booster.features, self.terms.columns.categorical, title)

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
        from fedboost.runtime.report import report_of

        return saved(report_of(self, data, keys, min_count), path)

    def _tree(self, number: int) -> Tree:
        count = len(self.booster.trees)
        if not 0 <= number < count:
            raise ConfigError(f"there is no tree {number}: the model's {count} trees are numbered from 0")
        return self.booster.trees[number]

    def _rows(self, data: Any, base_margin: Any) -> Callable[[], Iterator[explain.Rows]]:
        """A function that yields the features of rows, and their base margins if they have any; the rows of a
        sparse table in parts."""
        from fedboost.runtime.data.features import to_base_margin, to_features
        from fedboost.runtime.data.sparse import SparseTable
        from fedboost.runtime.data.table import as_table

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

    def _repr_html_(self) -> str:
        return html.model_html(self.outline, self.importance())

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
