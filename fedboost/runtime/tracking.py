"""Logging of model training as an MLflow run (requires the extra mlflow).

Only data that the analyst already has is logged: settings of the terms, published metrics and the model file.
The data is sent only to the tracking server. If the server fails, the training continues. Messages never
contain passwords from the server's address.
"""

import json
import os
import posixpath
import re
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fedboost.errors import ConfigError, quoted
from fedboost.runtime.signed_model import SignedModel
from fedboost.terms.terms import Terms
from fedboost.version import VERSION

EXTRA = 'MLflow is not installed: pip install "fedboost[mlflow]"'
NOT_SETTINGS = ("columns", "parties", "xgb_model", "candidates", "blocks")
"""Keys of terms that are not logged as parameters, because they are long; the model file contains them."""
MAX_NAME, MAX_VALUE, MAX_METRICS = 250, 500, 1000
"""Maximum length of a name and of a parameter in characters, and maximum number of metrics per request. All
versions of MLflow accept these."""

VARIABLES = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # otherwise MLflow reports each run to its makers
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # otherwise a training could wait for four minutes
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
"""Environment variables set for MLflow, unless they are already set."""


class MLflowCallback:
    """Logs the training of a model as an MLflow run. Use it as a context manager, and call it with each row
    of the training's history.

        with fb.MLflowCallback(terms, "http://mlflow.example.org:5000") as log:
            result = fb.simulate(terms, sites, on_round=log)
            log.log_model(result.model)

    The run's status becomes FINISHED, KILLED after Ctrl-C, or FAILED after another exception. `run_id` is the
    id of the run.

    Args:
        terms: terms under which the model is trained, logged as parameters.
        tracking_uri: address of the server (default: MLFLOW_TRACKING_URI).
        experiment_name: name of the experiment (default: MLFLOW_EXPERIMENT_NAME, or else Default).
        run_name: name of the run (default: chosen by MLflow).

    Raises:
        ConfigError: MLflow is not installed, or the server fails when the run starts or ends.
    """

    def __init__(
        self,
        terms: Terms,
        tracking_uri: str | None = None,
        experiment_name: str | None = None,
        run_name: str | None = None,
    ) -> None:
        if find_spec("mlflow") is None:
            raise ConfigError("extra-missing", EXTRA)
        self.run_id = ""
        self._terms, self._uri, self._run_name = terms, tracking_uri, run_name
        self._experiment = experiment_name or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"
        self._client: Any = None
        self._unsent: list[Any] = []
        """Metrics that the server has not accepted yet."""
        self._lost = False
        """True once the server has failed. From then on, metrics are kept and sent with the model."""

    def __enter__(self) -> Self:
        for name, value in VARIABLES.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient
        from mlflow.entities import Param

        with self._told():
            client = self._client = MlflowClient(tracking_uri=self._uri)
            known = client.get_experiment_by_name(self._experiment)
            number = client.create_experiment(self._experiment) if known is None else known.experiment_id
            self.run_id = client.create_run(
                number, tags=_tags(self._terms), run_name=self._run_name
            ).info.run_id
            settings = [Param(key, value) for key, value in parameters(self._terms).items()]
            client.log_batch(self.run_id, params=settings)
        return self

    def __call__(self, row: Mapping[str, float]) -> None:
        """Log a round's metrics, duration and traffic. Issues a RuntimeWarning once the server fails."""
        from mlflow.entities import Metric

        now, number = int(time.time() * 1000), int(row["round"])
        self._unsent += [Metric(metric_name(n), v, now, number) for n, v in row.items() if n != "round"]
        if self._lost:
            return
        try:
            self._send()
        except ConfigError as error:
            self._lost = True
            warnings.warn(f"{error}; the training continues", RuntimeWarning, stacklevel=2)

    def log_model(self, model: SignedModel) -> None:
        """Log the model file, and set tags for its fingerprint and the parties that signed it."""
        self._send()
        signed = ", ".join(model.attestations)
        with tempfile.TemporaryDirectory() as folder, self._told():
            model.save(Path(folder) / "model.json")
            self._client.set_tag(self.run_id, "fedboost.fingerprint", model.fingerprint)
            self._client.set_tag(self.run_id, "fedboost.signed_by", signed or "nobody")
            self._client.log_artifacts(self.run_id, folder)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stopped = kind is not None and issubclass(kind, KeyboardInterrupt)
        status = "KILLED" if stopped else "FINISHED" if kind is None else "FAILED"
        try:
            self._send()
            with self._told():
                self._client.set_terminated(self.run_id, status)
        except ConfigError as fault:
            if kind is None:
                raise
            warnings.warn(str(fault), RuntimeWarning, stacklevel=2)

    def _send(self) -> None:
        while self._unsent:
            with self._told():
                self._client.log_batch(self.run_id, metrics=self._unsent[:MAX_METRICS])
            del self._unsent[:MAX_METRICS]

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Context manager that turns the server's errors into a ConfigError with a one-line message."""
        from mlflow.exceptions import MlflowException

        try:
            yield
        except (MlflowException, ImportError, OSError) as error:  # MLflow also raises those of requests
            where = f"at {without_access(self._uri)}" if self._uri else "in MLFLOW_TRACKING_URI"
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise ConfigError(
                "mlflow-failed", f"the MLflow server {where} failed: {quoted(without_access(lines[0]))}"
            ) from None


def without_access(text: str) -> str:
    """Return a text with user names, passwords and query strings removed from all URLs."""
    return re.sub(r"(://[^\s?]*)\?[^\s)'\"]*", r"\1?...", re.sub("://.*@", "://***@", text))


def metric_name(name: str) -> str:
    """Return a metric's name with only characters that MLflow allows, e.g. error_at_0.7 for error@0.7."""
    plain = re.sub(r"[^\w.\- :/]", "_", name.replace("@", "_at_"))
    if posixpath.normpath(plain) != plain or plain.startswith(("/", "..")):
        plain = re.sub(r"[/.]", "_", plain)
    return plain[:MAX_NAME]


def parameters(terms: Terms) -> dict[str, str]:
    values: Mapping[str, Any] = terms.model_dump(mode="json")
    return {
        key: (value if isinstance(value, str) else json.dumps(value))[:MAX_VALUE]
        for key, value in values.items()
        if key not in NOT_SETTINGS and value is not None
    }


def _tags(terms: Terms) -> dict[str, str]:
    return {
        "fedboost.version": VERSION,
        "fedboost.terms": terms.digest,
        "fedboost.parties": ", ".join(terms.parties),
        "fedboost.protection": terms.hiding.protection,
    }
