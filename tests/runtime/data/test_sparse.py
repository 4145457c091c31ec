"""Sparse tables: the same model as of the dense ones, from LIBSVM files and from scipy's matrices."""

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse
from raised import raised

import fedboost as fb
from fedboost.errors import ConfigError
from fedboost.gbdt.cut_points import MAX_REFINEMENTS, Quantiles, count_cells, first_bits
from fedboost.runtime.data.draft import split_by_site, split_by_weights
from fedboost.runtime.data.shard import to_features
from fedboost.runtime.data.table import as_table, read_table
from fedboost.runtime.data.text import SparseTable

ROWS, COLUMNS = 300, 80


def data():
    rng = np.random.default_rng(0)
    X = np.where(rng.random((ROWS, COLUMNS)) < 0.06, rng.integers(1, 4, (ROWS, COLUMNS)), 0).astype(
        np.float32
    )
    return X, (X[:, 0] + X[:, 1] + X[:, 2] + 0.5 * rng.normal(size=ROWS) > 0.5).astype(np.float32)


def libsvm(X, y):
    rows = (
        " ".join([f"{label:g}", *(f"{place}:{row[place]:g}" for place in np.flatnonzero(row))])
        for row, label in zip(X, y, strict=True)
    )
    return "# a remark\n" + "\n".join(rows) + "\n\n"


def model_of(*tables, **settings):
    terms = fb.Terms.draft(tables[0], label="label", rounds=5, protection="plain", **settings)
    return fb.simulate(terms, list(tables)).model


def test_the_model_is_that_of_the_dense_table(tmp_path):
    X, y = data()
    dense = model_of({**{f"f{i}": X[:, i] for i in range(COLUMNS)}, "label": y})
    assert len(dense.booster.trees[0]) > 5
    parts = [np.arange(0, 100), np.arange(100, ROWS)]
    sparse = model_of(*({"f": scipy.sparse.csr_matrix(X[rows]), "label": y[rows]} for rows in parts))
    assert sparse.fingerprint == dense.fingerprint
    path = tmp_path / "rows.libsvm"
    path.write_text(libsvm(X, y))
    assert model_of(path).fingerprint == dense.fingerprint
    due = dense.predict(X).tolist()
    assert sparse.predict({"f": scipy.sparse.coo_array(X)}).tolist() == due
    assert sparse.predict(path).tolist() == due


def test_rows_are_made_dense_some_at_a_time(monkeypatch):
    X, y = data()
    table = as_table({"f": scipy.sparse.csc_array(X), "label": y})
    monkeypatch.setattr("fedboost.runtime.data.text.DENSE", 7 * COLUMNS)
    parts = [*table.parts()]
    assert [part.num_rows for part in parts] == [7] * 42 + [6]
    schema = fb.Terms.draft(table, label="label").columns
    assert np.concatenate([to_features(part, schema, "t") for part in parts]).tolist() == X.tolist()
    column = table.column("f1")
    assert column[5:50].tolist() == X[5:50, 1].tolist()
    assert table.column("f80") is None


def test_a_sparse_table_is_split_into_parties():
    X, y = data()
    site = np.where(np.arange(ROWS) % 3, "a", "b")
    table = as_table({"f": scipy.sparse.csr_array(X), "label": y, "site": site})
    by_weight = split_by_weights(table, ["a", "b"], [2.0, 1.0], 0)
    assert [part.num_rows for part in by_weight.values()] == [200, 100]
    for rows, part in zip((site == "a", site == "b"), split_by_site(table, "site").values(), strict=True):
        assert part.column_names == table.column_names[:1] + table.column_names[2:]
        assert part.dense["label"].to_pylist() == y[rows].tolist()
        for place in range(COLUMNS):
            assert part.column(f"f{place}")[:].tolist() == X[rows, place].tolist()
    some = np.array([7, 3, 250])
    assert table.take(some).column("f2")[:].tolist() == X[some, 2].tolist()


def test_beside_dense_columns_and_several_matrices():
    X, y = data()
    table = {
        "age": np.arange(ROWS) // 2,
        "a": scipy.sparse.csr_array(X[:, :3]),
        "b": scipy.sparse.csr_array(X[:, 3:]),
    }
    terms = fb.Terms.draft({**table, "label": y}, label="label")
    assert terms.columns.features[:5] == ("age", "a0", "a1", "a2", "b0")
    assert len(terms.columns.features) == COLUMNS + 1


def test_of_very_many_features_fewer_cells_are_counted_at_a_time(monkeypatch):
    assert first_bits(1) == first_bits(2048) == 11
    assert first_bits(15_626) == 9
    monkeypatch.setattr("fedboost.gbdt.cut_points.MAX_SUBCELLS", 1 << 12)
    few, columns = Quantiles(256, ROWS, COLUMNS), data()[0].T
    for _ in range(MAX_REFINEMENTS):
        assert few.grids.cells <= COLUMNS << 9
        few.refine(count_cells(columns, few.grids))
    cuts = few.cut_points().cuts
    assert all(
        own.tolist() == np.unique(column)[1:].tolist() for own, column in zip(cuts, columns, strict=True)
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("# nothing\n", "has no rows"),
        ("1 0:1\nyes 1:2\n", "line 2 is not a LIBSVM line"),
        ("1 0:1 1\n", "line 1 is not a LIBSVM line"),
        ("1 0:1 x:2\n", "line 1 is not a LIBSVM line"),
        ("1 -1:1\n", "has a feature index outside the range 0"),
        ("1 70000:1\n", "has a feature index outside the range 0 to 65,535"),
        ("1 3:1 3:2\n", "a row has two values for the same index"),
        ("1 99999999999999999999999:1\n", "line 1 is not a LIBSVM line"),
        ("1 1_0:1\n", "line 1 is not a LIBSVM line"),
        ("1 0:1 2:inf\n", "column 'f2' has a value that is infinite"),
        ("1 qid:1 0:1\n1 0:1\n", "some lines have a qid and others do not"),
        ("1 qid:a 0:1\n", "line 1 is not a LIBSVM line"),
        ("1 0:1e300\n", "column 'f0' has a value that is infinite or too large for a 32-bit float"),
    ],
)
def test_files_that_are_none(tmp_path, text, says):
    path = tmp_path / "rows.svm"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        read_table(path)


def test_what_a_file_does_not_write_down_is_0(tmp_path):
    """Also a last feature that this site, or these rows to predict, happen to have nothing of."""
    for name, text in (("one", "1 0:1 5:2\n0 1:1\n1 0:2\n0 2:1\n" * 20), ("other", "1 0:1\n0 1:1\n" * 10)):
        (tmp_path / f"{name}.libsvm").write_text(text)
    terms = fb.Terms.draft(tmp_path / "one.libsvm", label="label", rounds=2, protection="plain")
    assert terms.columns.features == tuple(f"f{place}" for place in range(6))
    model = fb.simulate(terms, [tmp_path / "one.libsvm", tmp_path / "other.libsvm"]).model
    assert model.predict(tmp_path / "other.libsvm").shape == (20,)


def test_a_ranking_by_the_qid_of_a_file(tmp_path):
    X, y = data()
    group = np.arange(ROWS) % 7
    lines = libsvm(X, y).splitlines()[1 : ROWS + 1]
    path = tmp_path / "rows.libsvm"
    numbered = zip(lines, group, strict=True)
    path.write_text("\n".join(" ".join([line[0], f"qid:{of}", line[2:]]) for line, of in numbered))
    assert "qid" not in fb.Terms.draft(path, label="label").columns.features
    ranking = {"group": "qid", "objective": "rank:ndcg"}
    sparse = model_of(path, **ranking)
    dense = {**{f"f{i}": X[:, i] for i in range(COLUMNS)}, "label": y, "qid": group}
    assert sparse.fingerprint == model_of(dense, **ranking).fingerprint
    assert len(sparse.booster.trees[0]) > 5
    shares = split_by_weights(read_table(path), ["a", "b"], [1, 1], 0, "qid")
    assert sorted(part.num_rows for part in shares.values())[0] > 100
    assert model_of(*shares.values(), **ranking).fingerprint == sparse.fingerprint


def test_matrices_that_are_none():
    X, y = data()
    with raised(ConfigError, "table-column-twice"):
        as_table({"f": scipy.sparse.csr_array(X), "f1": y})
    with raised(ConfigError, "table-matrix-dtype"):
        as_table({"f": scipy.sparse.csr_array(X.astype(np.complex64)), "y": y})
    with raised(ConfigError, "table-value-invalid"):
        as_table({"f": scipy.sparse.csr_array(np.diag([1.0, 1, 1, 1e300])), "y": y[:4]})


def test_matrices_of_other_rows_and_categories():
    X, y = data()
    with raised(ConfigError, "table-lengths-differ"):
        as_table({"f": scipy.sparse.csr_array(X), "label": y[1:]})
    columns = {"label": "label", "categorical": {"f0": ["0", "1"]}}
    terms = fb.Terms.read({"columns": columns, "protection": "plain"})
    with raised(fb.FedboostError, "table-sparse-categorical"):
        fb.simulate(terms, [{"f": scipy.sparse.csr_array(X), "label": y}])


def test_an_empty_matrix_is_a_table_of_zeros():
    table = SparseTable.from_matrices(pa.table({"label": [0.0, 1.0]}), {"f": scipy.sparse.csr_array((2, 3))})
    assert [table.column(f"f{place}")[:].tolist() for place in range(3)] == [[0, 0]] * 3
