"""Fixtures of the tests of commands."""

import pytest
from pyarrow import csv
from sites import rows, terms

from fedboost.runtime.tasks import terms_to_toml


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with rows.csv and terms.toml for two parties."""
    monkeypatch.chdir(tmp_path)
    csv.write_csv(rows(), "rows.csv")
    (tmp_path / "terms.toml").write_text(terms_to_toml(terms(["north", "south"])))
    return tmp_path
