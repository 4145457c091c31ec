"""The model as people hold it: trees, the terms they were trained under, and a file.

Promises: the file is an XGBoost model; fedboost's own facts ride in its attributes; saving replaces the
file at once or not at all; the same parties and terms give the same file, byte for byte.
Refuses: files that are not such models (ConfigError).
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedboost.boosting import state
from fedboost.errors import ConfigError, PeerError
from fedboost.fixedpoint import Float32, Float64
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.explain import dependence
from fedboost.gbdt.objectives.labels import LabelKind
from fedboost.gbdt.tree import Tree
from fedboost.people import tree_drawing
from fedboost.privacy.identity import signatures as signatures_identity
from fedboost.privacy.identity.certificates import identify
from fedboost.protocol import key_exchange
from fedboost.protocol.messages import Attest, Request
from fedboost.runtime.files import write_atomically
from fedboost.runtime.model_facts import Facts
from fedboost.terms.reading import nearest
from fedboost.terms.terms import Terms


@dataclass(frozen=True)
class Model:
    """A trained model.

    terms: those of its session; rounds: the metrics of each round; attestations: what each party signed of
    it (nothing where no party has keys), over the session's digest `session`; rosters: from which round on
    sums were over other parties than in the round before (nothing where it always were all); request: the
    analyst's signed request for the session, which the signatures are bound to.
    """

    booster: Booster = field(repr=False)
    terms: Terms = field(repr=False)
    rounds: tuple[Mapping[str, float], ...] = field(repr=False)
    attestations: Mapping[str, Attest] = field(default_factory=dict, repr=False, compare=False)
    session: bytes = field(default=b"", repr=False, compare=False)
    rosters: Mapping[int, tuple[str, ...]] = field(default_factory=dict, repr=False)
    request: Request | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        trees, parties = len(self.booster.trees), ", ".join(self.parties)
        return f"Model({self.booster.objective}, {trees} trees, parties {parties})"

    @property
    def parties(self) -> tuple[str, ...]:
        """The parties whose rows trained it."""
        return self.terms.parties

    @property
    def kept(self) -> int:
        """Rounds that the trees are of: fewer than there were where the training stopped early."""
        rounds = len(self.booster.trees) // self.booster.roots - self.terms.constant_rounds
        return min(rounds, len(self.rounds))

    @property
    def protection(self) -> str:
        """The name of the protection that hid the parties' vectors."""
        return self.terms.hiding.protection

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the model without fedboost's facts: equal for equal trees, by any parties."""
        return self.booster.fingerprint

    def verify(self, roots: bytes, now: datetime, denied: Collection[str] = ()) -> tuple[str, ...]:
        """The parties of the consortium with these roots (PEM) that signed this model: each took part in its
        session, under its terms and their protection, and was told these very trees. A custom program may
        make of the trees what it likes: there the questions alone are signed. PeerError for a signature that
        is wrong.
        """
        if len({attest.transcript for attest in self.attestations.values()}) > 1:
            raise PeerError("the parties signed that they answered different questions")
        structure = self._structure() if self.terms.session.program == "boosting" else None
        for party, attest in self.attestations.items():
            try:
                signed_by = identify(attest.certificate, roots, now, denied)
            except PeerError as error:
                raise PeerError(f"the model's signature of party {party}: {error}") from None
            if (signed_by.name, signed_by.role) != (party, key_exchange.PARTY) or party not in self.parties:
                raise PeerError(f"the model is signed for party {party} by {signed_by.role} {signed_by.name}")
            if structure not in (None, attest.structure):
                raise PeerError(f"party {party} signed other trees than those of the model")
            nonce = b"" if self.request is None else self.request.nonce
            statement = key_exchange.attestation(
                self.terms, nonce, self.session, party, attest.turns, attest.transcript, attest.structure
            )
            signatures_identity.verify(signed_by, statement, attest.signature)
        return tuple(party for party in self.parties if party in self.attestations)

    def _structure(self) -> bytes:
        """The digest of the constant and the trees as the parties got them."""
        trees = self.booster.trees[self.booster.roots * self.terms.constant_rounds :]
        if self.terms.earlier is not None:
            return state.structure(0.0, trees)
        based = self.terms.columns.base_margin is not None
        return state.structure(self.booster.trees[0].value[0] if based else self.booster.constant, trees)

    def facts(self) -> dict[str, str]:
        """fedboost's own facts, as attributes of the file."""
        return Facts(
            self.terms, self.rounds, self.attestations, self.session, self.rosters, self.request
        ).to_attributes()

    def to_bytes(self) -> bytes:
        """The content of the model file."""
        return self.booster.to_xgboost(self.facts()).encode()

    def save(self, path: Path | str) -> None:
        """Write the model file: XGBoost JSON."""
        write_atomically(Path(path), self.to_bytes())

    @classmethod
    def from_bytes(cls, data: bytes, source: str = "model") -> "Model":
        """The model in the content of a model file; ConfigError if it is none."""
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise ConfigError(f"{source}: not a fedboost model: not text") from None
        booster, attributes = Booster.from_xgboost(text, source)
        facts = Facts.from_attributes(attributes, source)
        terms = facts.terms
        if terms.objective.loss.xgboost_equivalent == booster.loss:  # the file has no objective but XGBoost's
            booster = replace(booster, loss=terms.objective.loss)
        columns = terms.columns.features, tuple(terms.columns.categorical), terms.objective.name
        fits = columns == (booster.features, booster.categorical, booster.objective)
        based = terms.columns.base_margin is not None and terms.session.program == "boosting"
        if not fits or (based and not booster.begins_with_a_leaf) or not _continues(booster, terms):
            raise ConfigError(f"{source}: the trees and the terms in the file do not belong together")
        return cls(
            booster, terms, facts.rounds, facts.attestations, facts.session, facts.rosters, facts.request
        )

    @classmethod
    def load(cls, path: Path | str) -> "Model":
        """Read a model file."""
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise ConfigError(f"{path}: cannot read the model: {error.strerror}") from None
        return cls.from_bytes(data, str(path))

    def predict(self, data: Any, base_margin: Any = None) -> Float64:
        """Predictions, float64 [rows] ([rows, classes] for multi:softprob), for a table (path, pandas, Arrow)
        or float32 [rows, features] array.

        A table needs the feature columns of the terms; values missing or never declared count as missing.
        base_margin: float32 [rows], the margins to add the trees to, as in XGBoost; where the terms name a
        column of them, a table has it, and an array of features needs it.
        """
        rows = self._rows(data, base_margin)
        return np.concatenate([self.booster.predict(part, base) for part, base in rows()])

    @property
    def classes(self) -> tuple[str, ...] | tuple[int, ...]:
        """The labels: those of columns.classes, else 0, 1, ...; ConfigError for other objectives.

        With binary:logistic `predict` gives the probability of the second, which stands for columns.positive
        where labels are words; with multi:softprob a column for each.
        """
        if self.terms.objective.loss.xgboost_equivalent.label_kind is not LabelKind.CLASS:
            raise ConfigError(
                f"{self.terms.objective.name} predicts numbers, which have no classes: use predict"
            )
        return self.terms.columns.classes or tuple(range(self.terms.objective.num_class or 2))

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

        data, base_margin: what `predict` takes. grid: numbers, or of a categorical feature levels; None
        counts as missing. Unless given, the declared levels, the distinct values, or where they are many 100
        numbers between the 5 % and 95 % quantiles.
        """
        names = self.booster.features
        if feature not in names:
            raise ConfigError(f"the model has no feature {feature!r}{nearest(feature, names)}")
        rows, column = self._rows(data, base_margin), names.index(feature)
        levels = self.terms.columns.categorical.get(feature)
        if grid is None:
            grid = levels or dependence.usual_grid(np.concatenate([part[:, column] for part, _ in rows()]))
        values = list(grid)
        if not values:
            raise ConfigError(f"no value of {feature!r} to predict with: none in the rows, nor a grid")
        codes = np.array([_code(value, feature, levels) for value in values], np.float32)
        return values, dependence.mean_predictions(self.booster.predict, rows(), column, codes)

    def tree_text(self, number: int) -> str:
        """Tree `number`, from 0, as text: the lines of XGBoost's `get_dump(with_stats=True)`."""
        return tree_drawing.tree_text(self._tree(number), self.booster.features)

    def tree_svg(self, number: int) -> str:
        """Tree `number`, from 0, as a picture: an SVG document."""
        tree, booster = self._tree(number), self.booster
        in_round, parallel = number % booster.roots, booster.num_parallel_tree
        title = f"Tree {number} of {len(booster.trees)}, {booster.objective}: round {number // booster.roots}"
        title += f", class {self.classes[in_round // parallel]}" if booster.loss.outputs > 1 else ""
        title += f", tree {in_round % parallel}" if parallel > 1 else ""
        return tree_drawing.tree_svg(tree, booster.features, self.terms.columns.categorical, title)

    def _tree(self, number: int) -> Tree:
        count = len(self.booster.trees)
        if not 0 <= number < count:
            raise ConfigError(f"there is no tree {number}: the model's {count} trees are numbered from 0")
        return self.booster.trees[number]

    def _rows(self, data: Any, base_margin: Any) -> Callable[[], Iterator[dependence.Rows]]:
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
        features = partial(to_features, schema=self.terms.columns, source=source)
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


def _continues(booster: Booster, terms: Terms) -> bool:
    """Tell if a model begins with the one that the terms continue, if they do."""
    first = terms.earlier
    if first is None:
        return True
    begins = booster.trees[: len(first.trees)] == first.trees
    return begins and (booster.base_score, booster.num_parallel_tree) == (
        first.base_score,
        first.num_parallel_tree,
    )


def _code(value: Any, feature: str, levels: Sequence[str] | None) -> float:
    """A value of a grid as the number that stands for it."""
    if value is None:
        return math.nan
    if levels is not None:
        if value not in levels:
            raise ConfigError(f"{value!r} in the grid is no declared level of {feature!r}")
        return float(levels.index(value))
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(f"{value!r} in the grid is no number, which feature {feature!r} takes") from None
    if abs(number) > float(np.finfo(np.float32).max):
        raise ConfigError(f"{value!r} in the grid is infinite or too large for a 32-bit float")
    return number
