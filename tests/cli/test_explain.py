"""A model explained: from Python over tables, and `fedboost explain` as a user types it."""

import csv
import json

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv as arrow_csv
from raised import raised
from refusals import refusal
from sites import fedboost, rows, shared_out, terms

from fedboost.errors import ConfigError
from fedboost.runtime.data import text
from fedboost.runtime.local.simulation import simulate
from fedboost.runtime.model import Model

WARD = 2
LABEL = 4


@pytest.fixture(scope="module")
def model():
    return simulate(terms(rounds=4), shared_out(2)).model


@pytest.fixture(scope="module")
def of_classes():
    grades = (rows()["age"].to_numpy() // 10 % 3).astype(np.int64)
    table = rows().set_column(LABEL, "y", pa.array(grades))
    return simulate(terms(objective="multi:softprob", num_class=3, rounds=2), [table]).model


@pytest.fixture
def folder(tmp_path, monkeypatch, model, of_classes):
    """A folder with m.json, classes.json and rows.csv."""
    monkeypatch.chdir(tmp_path)
    model.save("m.json")
    of_classes.save("classes.json")
    arrow_csv.write_csv(rows(), "rows.csv")
    return tmp_path


def done(*arguments):
    """What `fedboost explain` with these arguments, which must succeed, wrote to standard output."""
    end = fedboost("explain", *arguments)
    assert (end.code, end.err) == (0, "")
    return end.out


def read(text):
    """The header and the numbers of a CSV."""
    header, *lines = csv.reader(text.splitlines())
    return header, np.array([[float(cell) for cell in line] for line in lines])


# ---- from Python ------------------------------------------------------------------------------------


def test_shap_values_take_what_predict_takes(model, tmp_path):
    arrow_csv.write_csv(rows(), tmp_path / "rows.csv")
    values = model.shap_values(rows())
    assert values.shape == (rows().num_rows, 4)
    shares = 1 / (1 + np.exp(-values.sum(axis=1)))
    assert shares == pytest.approx(model.predict(rows()), rel=1e-12)
    for data in (tmp_path / "rows.csv", rows().to_pandas(), rows().to_pydict()):
        assert model.shap_values(data).tolist() == values.tolist()
    with raised(ConfigError, "model-array-shape"):
        model.shap_values(np.zeros((2, 2), np.float32))


def test_shap_values_of_classes(of_classes):
    values = of_classes.shap_values(rows())
    assert values.shape == (rows().num_rows, 3, 4)
    margins = of_classes.booster.margins(features())
    assert np.abs(values.sum(axis=2).T - margins).max() < 1e-12


def features():
    """The rows as the model's features, with the levels' codes."""
    ward = np.searchsorted(["a", "b", "c"], rows().column("ward").to_numpy(zero_copy_only=False))
    columns = [rows().column("age").to_numpy(), rows().column("dose").to_numpy(zero_copy_only=False), ward]
    return np.column_stack(columns).astype(np.float32)


def test_partial_dependence_is_scikit_learns(model):
    sklearn = pytest.importorskip("sklearn")
    from sklearn.inspection import partial_dependence

    class Fitted(sklearn.base.ClassifierMixin, sklearn.base.BaseEstimator):
        def fit(self, X, y=None):
            self.classes_ = np.array([0, 1])
            return self

        def predict_proba(self, X):
            positive = model.predict(np.asarray(X, np.float32))
            return np.column_stack([1 - positive, positive])

    for number, name in enumerate(["age", "dose"]):
        grid, means = model.partial_dependence(rows(), name)
        assert len(grid) == 100
        assert means.std() > 0.01
        theirs = partial_dependence(
            Fitted().fit(None),
            features().astype(np.float64),
            [number],
            method="brute",
            response_method="predict_proba",
            custom_values={number: np.array(grid)},
        )
        assert np.abs(theirs["average"][0] - means).max() < 1e-14


def test_partial_dependence_on_levels_and_missing_values(model):
    grid, means = model.partial_dependence(rows(), "ward")
    assert grid == ["a", "b", "c"]
    for level, mean in zip(grid, means, strict=True):
        all_there = rows().set_column(WARD, "ward", pa.array([level] * rows().num_rows))
        assert mean == model.predict(all_there).mean()
    grid, means = model.partial_dependence(rows(), "ward", ["c", None])
    missing = rows().set_column(WARD, "ward", pa.array([None] * rows().num_rows, pa.string()))
    assert grid == ["c", None]
    assert means[1] == model.predict(missing).mean()
    _, means = model.partial_dependence(features(), "dose", [None, float("nan"), 0, 1.5])
    assert means[0] == means[1]
    assert len({*means.tolist()}) == 3


def test_partial_dependence_of_classes(of_classes):
    grid, means = of_classes.partial_dependence(rows(), "age", iter([40, 55.5]))
    assert grid == [40, 55.5]
    assert means.shape == (2, 3)
    assert means.sum(axis=1) == pytest.approx([1, 1], rel=1e-12)


ODD_GRIDS = {
    "no such feature": ("agee", None, r"no feature 'agee' \(did you mean age\?\)"),
    "a word for a number": ("age", ["old"], "'old' in the grid is not a number, but feature 'age'"),
    "an infinite number": ("age", [1, float("inf")], "inf in the grid is too large for a 32-bit float"),
    "too large a number": ("age", [1e300], r"1e\+300 in the grid is too large for a 32-bit float"),
    "an integer beyond floats": ("age", [10**400], "is not a number"),
    "no such level": ("ward", ["a", "z"], "'z' in the grid is not a category of 'ward'"),
    "an empty grid": ("age", [], "pass a grid"),
}


@pytest.mark.parametrize(("feature", "grid", "said"), ODD_GRIDS.values(), ids=ODD_GRIDS)
def test_grids_that_cannot_be(model, feature, grid, said):
    with pytest.raises(ConfigError, match=said):
        model.partial_dependence(rows(), feature, grid)


def test_partial_dependence_needs_rows_with_values(model):
    with raised(ConfigError, "prediction-no-rows"):
        model.partial_dependence(rows().slice(0, 0), "age", [50])
    empty = rows().set_column(0, "age", pa.nulls(rows().num_rows, pa.float64()))
    with raised(ConfigError, "model-grid-empty"):
        model.partial_dependence(empty, "age")
    assert model.partial_dependence(empty, "age", [50])[1].shape == (1,)


def test_trees_are_numbered_from_0(model):
    assert len({model.tree_text(number) for number in range(4)}) == 4
    assert model.tree_text(0).startswith("0:[")
    assert "Tree 3 of 4, binary:logistic: round 3<" in model.tree_svg(3)
    for number in (-1, 4):
        for draw in (model.tree_text, model.tree_svg):
            with raised(ConfigError, "model-tree-unknown", naming=[number]):
                draw(number)


def test_a_picture_names_levels_and_classes(model, of_classes):
    drawn = "".join(model.tree_svg(number) for number in range(4))
    assert any(f">ward: {levels}<" in drawn for levels in ("a", "b", "c", "a, b", "a, c", "b, c"))
    assert "Tree 4 of 6, multi:softprob: round 1, class 1<" in of_classes.tree_svg(4)


def test_a_picture_says_which_tree_of_a_forest_it_is():
    settings = {"objective": "reg:squarederror", "rounds": 2, "num_parallel_tree": 3, "subsample": 0.5}
    forest = simulate(terms(**settings), [rows()]).model
    assert "Tree 4 of 6, reg:squarederror: round 1, tree 1<" in forest.tree_svg(4)
    assert forest.shap_values(rows()).sum(axis=1) == pytest.approx(forest.predict(rows()), rel=1e-12)


def test_base_margins_count_in_all_of_it(folder):
    known = np.linspace(-1, 1, rows().num_rows)
    table = rows().append_column("known", [known])
    columns = {**terms().columns.model_dump(mode="json"), "base_margin": "known"}
    based = simulate(terms().changed(columns=columns), [table]).model
    values = based.shap_values(table)
    assert 1 / (1 + np.exp(-values.sum(axis=1))) == pytest.approx(based.predict(table), rel=1e-6)
    assert np.ptp(values[:, -1]) == pytest.approx(2, rel=1e-6)
    assert based.shap_values(rows(), known).tolist() == values.tolist()
    with raised(ConfigError, "model-margin-missing"):
        based.shap_values(features())
    _, means = based.partial_dependence(table, "age", [50])
    of_fifty = table.set_column(0, "age", pa.array([50.0] * table.num_rows))
    assert means.tolist() == [based.predict(of_fifty).mean()]
    assert based.partial_dependence(rows(), "age", [50], known)[1].tolist() == means.tolist()
    based.save("based.json")
    arrow_csv.write_csv(table, "based.csv")
    assert read(done("based.json", "--shap", "based.csv"))[1].tolist() == values.tolist()


def test_sparse_tables_are_explained_as_dense_ones(monkeypatch):
    scipy = pytest.importorskip("scipy.sparse")
    draw = np.random.default_rng(4)
    matrix = scipy.random(90, 5, 0.3, random_state=draw, dtype=np.float32).tocsr()
    dense = {f"f{place}": column for place, column in enumerate(matrix.toarray().T)}
    label = (matrix.sum(axis=1).A1 > 0.7).astype(int)
    columns = {"label": "y", "numeric": list(dense)}
    model = simulate(terms().changed(columns=columns), [{**dense, "y": label}]).model
    monkeypatch.setattr(text, "DENSE", 100)  # 20 rows at a time
    values = model.shap_values({"f": matrix})
    assert values.tolist() == model.shap_values(dense).tolist()
    assert values[:, :-1].any()
    grid, means = model.partial_dependence({"f": matrix}, "f2")
    assert len(grid) > 10
    assert grid == model.partial_dependence(dense, "f2")[0]
    assert means == pytest.approx(model.partial_dependence(dense, "f2")[1], rel=1e-14)


# ---- as commands ------------------------------------------------------------------------------------


def test_importances(folder, model):
    (said, _, _, heading, *lines) = done("m.json").splitlines()
    used = model.importance("weight")
    first, *_ = model.importance()
    assert said == f"{len(used)} of 3 features used in 4 trees, {first} with the highest gain"
    assert heading.split() == ["feature", "gain", "cover", "weight"]
    assert [line.split()[0] for line in lines] == list(model.importance("gain"))
    objects = [json.loads(line) for line in done("m.json", "--json").splitlines()]
    assert [one["feature"] for one in objects] == list(model.importance("gain"))
    for line, one in zip(lines, objects, strict=True):
        name = one.pop("feature")
        assert one == {kind: model.importance(kind)[name] for kind in ("gain", "cover", "weight")}
        assert [float(cell) for cell in line.split()[1:]] == pytest.approx([*one.values()], rel=1e-5)


def test_names_cannot_move_the_cursor(folder):
    columns = {"label": "y", "numeric": ["age\u202ec", ":smile:"]}
    table = rows().rename_columns(["age\u202ec", ":smile:", "ward", "site", "y"])
    simulate(terms().changed(columns=columns), [table]).model.save("odd.json")
    text = done("odd.json")
    assert "age\\u202ec " in text
    assert ":smile: " in text
    assert "\u202e" not in text + done("odd.json", "--tree", "0")


def test_a_tree(folder, model):
    assert done("m.json", "--tree", "1") == model.tree_text(1)
    assert done("m.json", "--tree", "1", "--svg", "t.svg") == ""
    assert (folder / "t.svg").read_text(encoding="utf-8") == model.tree_svg(1)


def test_shap_values_as_csv(folder, model):
    text = done("m.json", "--shap", "rows.csv")
    header, values = read(text)
    assert header == ["age", "dose", "ward", "bias"]
    assert values.tolist() == model.shap_values("rows.csv").tolist()
    assert done("m.json", "--shap", "rows.csv", "--out", "shap.csv") == ""
    assert (folder / "shap.csv").read_text() == text


def test_shap_values_of_classes_as_csv(folder, of_classes):
    header, values = read(done("classes.json", "--shap", "rows.csv"))
    assert header == ["class", "age", "dose", "ward", "bias"]
    assert values[:, 0].tolist() == [0, 1, 2] * rows().num_rows
    assert values[:, 1:].tolist() == of_classes.shap_values("rows.csv").reshape(-1, 4).tolist()


def test_classes_are_called_by_name(folder):
    names = ["mild", "<grave>", "odd"]
    columns = {**terms().columns.model_dump(mode="json"), "classes": names}
    grades = [names[int(age) // 10 % 3] for age in rows()["age"].to_pylist()]
    table = rows().set_column(LABEL, "y", pa.array(grades))
    settings = {"objective": "multi:softprob", "num_class": 3, "rounds": 1}
    simulate(terms(**settings).changed(columns=columns), [table]).model.save("named.json")
    header, *lines = csv.reader(done("named.json", "--shap", "rows.csv").splitlines())
    assert header == ["class", "age", "dose", "ward", "bias"]
    assert [line[0] for line in lines] == names * table.num_rows
    done("named.json", "--tree", "1", "--svg", "t.svg")
    assert "Tree 1 of 3, multi:softprob: round 0, class &lt;grave&gt;<" in (folder / "t.svg").read_text()


def test_shap_values_of_odd_names_and_levels(folder):
    columns = {"label": "y", "numeric": ['a,"b"'], "categorical": {"ward": ["a", "b", "c"]}}
    table = rows().rename_columns(['a,"b"', "dose", "ward", "site", "y"])
    simulate(terms().changed(columns=columns), [table]).model.save("odd.json")
    arrow_csv.write_csv(table.set_column(WARD, "ward", pa.array(["z"] * 180)), "odd.csv")
    end = fedboost("explain", "odd.json", "--shap", "odd.csv")
    assert end.code == 0
    assert (
        end.err == "ward has 180 rows with undeclared categories ('z', ...), which are treated as missing\n"
    )
    header, values = read(end.out)
    assert header == ['a,"b"', "ward", "bias"]
    assert values.shape == (180, 3)


REFUSED = {
    "no model": (("nowhere.json",), "nowhere.json: cannot read the model: No such file"),
    "no such tree": (("m.json", "--tree", "4"), "there is no tree 4; the model has 4 trees"),
    "a picture of no tree": (("m.json", "--svg", "t.svg"), "--svg draws one tree; specify which"),
    "a picture nowhere": (
        ("m.json", "--tree", "0", "--svg", "no/t.svg"),
        "no/t.svg: cannot write: the directory",
    ),
    "a picture over the model": (("m.json", "--tree", "0", "--svg", "m.json"), "an input of this command"),
    "a tree and rows": (("m.json", "--tree", "0", "--shap", "rows.csv"), "--tree and --shap"),
    "a file for nothing": (("m.json", "--out", "x.csv"), "--out only applies to the CSV of --shap"),
    "JSON of a tree": (("m.json", "--tree", "0", "--json"), "--json prints feature importance"),
    "JSON of rows": (("m.json", "--shap", "rows.csv", "--json"), "--json prints feature importance"),
    "a feature without rows": (
        ("m.json", "--partial-dependence", "age"),
        "--data TABLE must be specified together",
    ),
    "rows without a feature": (("m.json", "--data", "rows.csv"), "--data TABLE must be specified together"),
    "a feature and a tree": (
        ("m.json", "--partial-dependence", "age", "--data", "rows.csv", "--tree", "0"),
        "specify only one of --tree and --partial-dependence",
    ),
    "no such feature": (
        ("m.json", "--partial-dependence", "ages", "--data", "rows.csv"),
        "the model has no feature 'ages' (did you mean age?)",
    ),
    "no rows": (("m.json", "--shap", "nowhere.csv"), "nowhere.csv: no such file"),
    "rows without a column": (("m.json", "--shap", "few.csv"), "column 'dose' is missing"),
    "values over the rows": (("m.json", "--shap", "rows.csv", "--out", "rows.csv"), "an input of this"),
}


@pytest.mark.parametrize(("arguments", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_explained_is_one_line(folder, arguments, said):
    arrow_csv.write_csv(rows().drop_columns(["dose"]), "few.csv")
    before = {file: file.read_bytes() for file in folder.iterdir()}
    assert said in refusal("explain", *arguments)
    assert {file: file.read_bytes() for file in folder.iterdir()} == before


def test_a_tree_below_0_is_refused(folder):
    assert "--tree" in refusal("explain", "m.json", "--tree", "-1")


def test_a_model_without_trees_that_split(folder, model):
    lonely = simulate(terms(rounds=1, min_child_weight=1e6), [rows()]).model
    lonely.save("lonely.json")
    assert done("lonely.json") == "0 of 3 features used in 1 tree\n"
    assert done("lonely.json", "--json") == ""
    assert done("lonely.json", "--tree", "0").startswith("0:leaf=")
    assert Model.load("lonely.json").shap_values(rows())[:, :3].tolist() == [[0.0] * 3] * 180


@pytest.mark.parametrize("feature", ["age", "ward"])
def test_partial_dependence_is_a_csv_of_the_grid(folder, model, feature):
    due, means = model.partial_dependence(rows(), feature)
    header, *lines = csv.reader(
        done("m.json", "--partial-dependence", feature, "--data", "rows.csv").splitlines()
    )
    assert header == [feature, "prediction"]
    assert [value for value, _ in lines] == list(map(str, due))
    assert [float(mean) for _, mean in lines] == means.tolist()


def test_partial_dependence_of_classes_has_a_column_for_each(folder, of_classes):
    _, means = of_classes.partial_dependence(rows(), "dose")
    told = "classes.json", "--partial-dependence", "dose", "--data", "rows.csv", "--out", "out.csv"
    assert done(*told) == ""
    text = (folder / "out.csv").read_text()
    header, *lines = csv.reader(text.splitlines())
    assert header == ["dose", "0", "1", "2"]
    assert [[float(cell) for cell in line[1:]] for line in lines] == means.tolist()
