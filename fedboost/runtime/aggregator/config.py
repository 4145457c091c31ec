"""The aggregator's file."""

from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from fedboost.runtime.config import AGGREGATOR, from_folder, read_toml, require_address
from fedboost.terms.reading import Frozen, read_model


class ConsoleConfig(Frozen):
    """Pages for browsers, and an interface for programs ([console](console.md))."""

    listen: str = Field(description="Address at which the [console](console.md) is served, `HOST:PORT`.")
    tokens: Path | None = Field(
        default=None,
        description="File of the [tokens](console.md#from-elsewhere) that `fedboost keys token` writes.",
    )

    _check = field_validator("listen")(require_address)


class AggregatorConfig(Frozen):
    """The aggregator's file. Paths count from the folder of the file."""

    listen: str = Field(default="127.0.0.1:7070", description="Address to listen on, `HOST:PORT`.")
    keys: Path | None = Field(default=None, description="Folder of the aggregator's [bundle](identity.md).")
    state: Path | None = Field(
        default=None,
        description="Folder in which sessions outlive the process; NAME.state beside NAME.toml unless named.",
    )
    programs: tuple[str, ...] = Field(
        default=(), description="Custom programs that terms may name, as `module:function`."
    )
    memory: float = Field(default=4.0, gt=0, description="GiB that the sums of a session may take.")
    metrics: str | None = Field(
        default=None, description="Address at which Prometheus reads metrics, `HOST:PORT`; none unless named."
    )
    console: ConsoleConfig | None = Field(
        default=None, description="Pages of the aggregator for browsers; none unless given."
    )

    _check = field_validator("listen", "metrics")(require_address)


def read_aggregator(path: Path) -> AggregatorConfig:
    """The aggregator's file; its paths are made absolute."""
    config = read_model(AggregatorConfig, read_toml(path, AGGREGATOR), str(path))
    state = config.state or Path(f"{path.stem}.state")
    update: dict[str, Any] = {**from_folder(path, {"keys": config.keys, "state": state})}
    if config.console is not None:
        tokens = from_folder(path, {"tokens": config.console.tokens})
        update["console"] = config.console.model_copy(update=tokens)
    return config.model_copy(update=update)
