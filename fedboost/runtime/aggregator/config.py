"""The aggregator's file."""

from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from fedboost.runtime.config import AGGREGATOR, from_folder, read_toml, require_address
from fedboost.terms.reading import Frozen, read_model


class ConsoleConfig(Frozen):
    """`[console]`: `listen` is the address at which the console is served; `tokens` the file of those who may
    read it from elsewhere, or submit, which `fedboost keys token` writes."""

    listen: str
    tokens: Path | None = None

    _check = field_validator("listen")(require_address)


class AggregatorConfig(Frozen):
    """The aggregator's file. `programs` are custom programs, as module:function, that terms may name;
    `memory` is how many GiB the sums of a session may take; `state` is the folder in which sessions outlive
    the process, beside the file unless named; `metrics` is the address at which Prometheus reads metrics,
    none unless named; `console` is the console, none unless given."""

    listen: str = "127.0.0.1:7070"
    keys: Path | None = None
    state: Path | None = None
    programs: tuple[str, ...] = Field(())
    memory: float = Field(default=4.0, gt=0)
    metrics: str | None = None
    console: ConsoleConfig | None = None

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
