"""Packages of extras, and modules that not every system has, are imported only by what needs them."""

import json
import subprocess
import sys

import pytest

EXTRAS = (
    *(
        "starlette",
        "uvicorn",
        "h11",
        "anyio",
        "phe",
        "gmpy2",
        "pandas",
        "sklearn",
        "scipy",
        "xgboost",
        "lightgbm",
    ),
    *("dask", "distributed", "adbc_driver_postgresql", "adbc_driver_sqlite", "adbc_driver_manager", "duckdb"),
    *("polars", "python_calamine", "optuna", "mlflow"),
)
NEED_ONE = {
    *("fedboost.estimators", "fedboost.privacy.paillier", "fedboost.privacy.rowsums.ends"),
    *("fedboost.privacy.rowsums.sums", "fedboost.runtime.console", "fedboost.runtime.site.page"),
    "fedboost.runtime.site.scores_api",
    "fedboost.runtime.web.app",
}
"""The modules that are imported where their extra is there."""
IMPORT_ALL = """
import importlib, json, pkgutil, sys
sys.modules.update(dict.fromkeys(json.loads(sys.argv[1])))
import fedboost
failed = []
for module in pkgutil.walk_packages(fedboost.__path__, "fedboost.", onerror=lambda name: None):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except (ImportError, fedboost.ConfigError):
            failed.append(module.name)
print(json.dumps(failed))
"""


@pytest.mark.slow
def test_every_other_module_is_imported_without_extras():
    command = [sys.executable, "-c", IMPORT_ALL, json.dumps(EXTRAS)]
    end = subprocess.run(command, capture_output=True, text=True, check=True)
    assert {*json.loads(end.stdout)} == NEED_ONE
