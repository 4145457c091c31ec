"""Trainings as runs of MLflow: what is logged, and what happens where the server fails or is missing."""

import json
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from anything import ANYTHING
from commands import done
from sites import fedboost, rows, shared_out, terms, written

import fedboost as fb
from fedboost.errors import ConfigError
from fedboost.runtime import tracking
from fedboost.runtime.local.cluster import LocalCluster
from fedboost.runtime.tasks import terms_to_toml
from fedboost.runtime.tracking import metric_name, parameters

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Failure(Exception):
    """What the stand-in's server raises."""


class Server:
    """A stand-in for MLflow: remembers what is logged, and fails from a call on."""

    def __init__(self):
        self.runs, self.experiments, self.fails = {}, {}, False
        self.reason = "no route to \x1b[2J host\nand more"

    def client(self, tracking_uri=None):
        self.uri = tracking_uri
        return self

    def get_experiment_by_name(self, name):
        self._check()
        number = self.experiments.get(name)
        return None if number is None else SimpleNamespace(experiment_id=number)

    def create_experiment(self, name):
        self.experiments[name] = str(len(self.experiments))
        return self.experiments[name]

    def create_run(self, experiment_id, tags, run_name):
        run = SimpleNamespace(
            tags=dict(tags), params={}, metrics=[], files={}, status="RUNNING", name=run_name
        )
        self.runs["run-1"] = run
        return SimpleNamespace(info=SimpleNamespace(run_id="run-1"))

    def log_batch(self, run_id, metrics=(), params=()):
        self._check()
        run = self.runs[run_id]
        run.metrics += [(metric.step, metric.key, metric.value) for metric in metrics]
        run.params |= {param.key: param.value for param in params}

    def set_tag(self, run_id, key, value):
        self.runs[run_id].tags[key] = value

    def log_artifacts(self, run_id, folder):
        self.runs[run_id].files = {file.name: file.read_bytes() for file in Path(folder).iterdir()}

    def set_terminated(self, run_id, status):
        self._check()
        self.runs[run_id].status = status

    def _check(self):
        if self.fails:
            raise Failure(self.reason)


@pytest.fixture
def server(monkeypatch):
    """MLflow, or what the callback needs of it."""
    made = Server()
    package, entities, exceptions = map(ModuleType, ("mlflow", "mlflow.entities", "mlflow.exceptions"))
    package.MlflowClient, exceptions.MlflowException = made.client, Failure
    entities.Param = lambda key, value: SimpleNamespace(key=key, value=value)
    entities.Metric = lambda key, value, time, step: SimpleNamespace(key=key, value=value, step=step)
    for module in (package, entities, exceptions):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(tracking, "find_spec", lambda name: True)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    for name, value in tracking.VARIABLES.items():
        monkeypatch.setenv(name, value)
    return made


def test_a_simulation_is_a_run(server):
    agreed = terms(rounds=3)
    with fb.MLflowCallback(agreed, "http://127.0.0.1:5000", "hospitals", "first") as log:
        result = fb.simulate(agreed, shared_out(2), on_round=log)
        log.log_model(result.model)
    run = server.runs[log.run_id]
    assert (server.uri, run.name, run.status) == ("http://127.0.0.1:5000", "first", "FINISHED")
    assert set(server.experiments) == {"hospitals"}
    logged = {(step, key): value for step, key, value in run.metrics}
    assert logged == {
        (row["round"], key): value for row in result.history for key, value in row.items() if key != "round"
    }
    assert (run.params["rounds"], run.params["max_depth"], run.params["protection"]) == ("3", "3", "plain")
    assert run.tags["fedboost.fingerprint"] == result.model.fingerprint
    assert run.tags["fedboost.terms"] == agreed.digest
    assert run.files == {"model.json": result.model.to_bytes()}


def test_the_python_of_the_page(server):
    page = (Path(__file__).parents[2] / "docs/mlflow.md").read_text()
    (python,) = re.findall(r"```python\n(.+?)```", page, re.DOTALL)
    agreed = terms(rounds=2)
    exec(python, {"fb": fb, "terms": agreed, "sites": shared_out(2)})
    assert list(server.experiments) == ["hospitals"]
    assert server.runs["run-1"].status == "FINISHED"
    assert set(server.runs["run-1"].files) == {"model.json"}


def test_nothing_of_the_rows_is_among_the_parameters():
    agreed = terms(["north", "south"])
    logged = parameters(agreed)
    assert not {"columns", "parties", "xgb_model"} & set(logged)
    assert all(isinstance(value, str) and len(value) <= 500 for value in logged.values())
    assert "ward" not in json.dumps(logged)


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("validation-logloss", "validation-logloss"),
        ("error@0.7", "error_at_0.7"),
        ("north:auc", "north:auc"),
        ("../secrets", "___secrets"),
        ("/etc:auc", "_etc:auc"),
        ("a\x1b[2J\n", "a__2J_"),
        ("x" * 300, "x" * 250),
    ],
)
def test_names_of_metrics_are_those_that_mlflow_takes(name, plain):
    assert metric_name(name) == plain


def test_a_server_that_fails_in_the_midst_does_not_end_the_training(server):
    with fb.MLflowCallback(terms(["north"])) as log:
        log({"round": 0, "auc": 0.5})
        server.fails = True
        with pytest.warns(RuntimeWarning, match=r"failed: no route to .x1b\[2J host; the training continues"):
            log({"round": 1, "auc": 0.6})
        log({"round": 2, "auc": 0.7})
        server.fails = False
    assert server.runs["run-1"].metrics == [
        (0, "auc", 0.5),
        (1, "auc", 0.6),
        (2, "auc", 0.7),
    ]


def test_a_server_that_does_not_answer_is_one_line(server):
    server.fails = True
    with pytest.raises(ConfigError) as told, fb.MLflowCallback(terms(["north"]), "http://127.0.0.1:1"):
        raise AssertionError
    assert str(told.value) == r"the MLflow server at http://127.0.0.1:1 failed: no route to \x1b[2J host"


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("http://bob:hunter2@127.0.0.1:9/a", "http://***@127.0.0.1:9/a"),
        ("http://bob:hun ter2@/?#@127.0.0.1:9", "http://***@127.0.0.1:9"),
        ("postgresql://db/runs?user=bob&password=hunter2", "postgresql://db/runs?..."),
        ("sqlite:///runs.db", "sqlite:///runs.db"),
    ],
)
def test_a_password_in_an_address_is_in_no_message(server, address, told):
    server.fails, server.reason = True, f"Failed to reach '{address}' ({address}): refused"
    with pytest.raises(ConfigError) as fault, fb.MLflowCallback(terms(["north"]), address):
        raise AssertionError
    assert "hun" not in str(fault.value)
    assert str(fault.value).startswith(f"the MLflow server at {told} failed: Failed to reach '")
    assert str(fault.value).endswith(f"{told}): refused")


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt, "KILLED"), (ValueError, "FAILED")])
def test_a_training_that_fails_ends_its_run(server, error, status):
    with pytest.raises(error), fb.MLflowCallback(terms(["north"])):
        raise error
    assert server.runs["run-1"].status == status


def test_without_the_extra_there_is_one_line(folder, monkeypatch):
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    options = (
        "--aggregator",
        "127.0.0.1:1",
        "--insecure-loopback",
        "--out",
        "m.json",
        "--mlflow",
        "http://x",
    )
    end = fedboost("train", "terms.toml", *options)
    assert (end.code, end.err) == (2, 'fedboost: MLflow is not installed: pip install "fedboost[mlflow]"\n')


@pytest.mark.slow
def test_a_training_over_the_network_is_a_run_of_a_real_store(folder, monkeypatch):
    """In a database of MLflow, where it is installed."""
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("alembic")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "hospitals")
    tables = shared_out(3, rows(90))
    (folder / "three.toml").write_text(terms_to_toml(terms(tables, eval_metric=["error@0.7", "logloss"])))
    store = f"sqlite:///{folder}/runs.db"
    monkeypatch.chdir(folder)
    with LocalCluster(folder, written(folder, tables), policy=ANYTHING) as consortium:
        at = ("--aggregator", consortium.address, "--keys", str(consortium.keys / "analyst"))
        done("train", "three.toml", *at, "--out", "m.json", "--mlflow", store)
    client = mlflow.MlflowClient(tracking_uri=store)
    number = client.get_experiment_by_name("hospitals").experiment_id
    (run,) = client.search_runs([number])
    assert run.info.status == "FINISHED"
    assert run.data.params["rounds"] == "3"
    assert {"logloss", "error_at_0.7", "seconds", "bytes"} <= set(run.data.metrics)
    assert len(client.get_metric_history(run.info.run_id, "logloss")) == 3
    assert run.data.tags["fedboost.signed_by"] == "north, south, east"
    path = client.download_artifacts(run.info.run_id, "model.json", str(folder))
    model = fb.Model.load(path)
    assert model.fingerprint == run.data.tags["fedboost.fingerprint"]
    assert model.attestations
