"""The aggregator's file."""

from pathlib import Path

from pydantic import Field, field_validator

from fedboost.runtime.config import AGGREGATOR, from_folder, read_toml, require_address
from fedboost.terms.reading import Frozen, read_model


class AggregatorConfig(Frozen):
    """The aggregator's file. `programs` are custom programs, as module:function, that terms may name;
    `memory` is how many GiB the sums of a session may take; `state` is the folder in which sessions outlive
    the process, beside the file unless named; `metrics` is the address at which Prometheus reads metrics,
    none unless named."""

    listen: str = "127.0.0.1:7070"
    keys: Path | None = None
    state: Path | None = None
    programs: tuple[str, ...] = Field(())
    memory: float = Field(default=4.0, gt=0)
    metrics: str | None = None

    _check = field_validator("listen", "metrics")(require_address)


def read_aggregator(path: Path) -> AggregatorConfig:
    """The aggregator's file; its paths are made absolute."""
    config = read_model(AggregatorConfig, read_toml(path, AGGREGATOR), str(path))
    state = config.state or Path(f"{path.stem}.state")
    return config.model_copy(update=from_folder(path, {"keys": config.keys, "state": state}))
