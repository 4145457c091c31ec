"""A site's file."""

import re
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field, PrivateAttr, field_validator

from fedboost.errors import ConfigError
from fedboost.runtime.config import (
    SITE,
    cores,
    from_folder,
    is_loopback,
    read_toml,
    require_address,
    require_dialable,
)
from fedboost.runtime.data.database import Database, ReadOptions, database_of, with_query
from fedboost.runtime.data.locations import is_remote, shown
from fedboost.runtime.files import folder_name
from fedboost.runtime.site.policy import Policy
from fedboost.terms.reading import Frozen, Name, read_model

LOCAL = "local"
"""In place of a scheduler's address: processes of this machine."""
_SCHEDULER = re.compile(r"(tcp|tls)://[^\s/]+:[0-9]{1,5}/?")
STATE = "fedboost.state"
"""The folder beside a site's file in which it keeps its state, unless the file names another."""


def _uri_or_path(value: object) -> object:
    """A URI as a database, whose query stands under another key: a path would lose its slashes."""
    return (database_of(value) if isinstance(value, str) else None) or value


class WorkersConfig(Frozen):
    """Workers of Dask that read and hold the rows."""

    dask: str = Field(
        description='Address of the scheduler of Dask, such as `tcp://scheduler:8786`, or `"local"` for '
        "processes of this machine."
    )
    count: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description='With `"local"`: the number of processes, one a core unless given.',
    )
    threads: int | None = Field(
        default=None, ge=1, le=1024, description='With `"local"`: the threads of each process.'
    )

    @field_validator("dask")
    @classmethod
    def _scheduler(cls, value: str) -> str:
        if value != LOCAL and not _SCHEDULER.fullmatch(value):
            raise ValueError(
                f"{value!r} is no address of a scheduler: write tcp://HOST:PORT, tls://HOST:PORT, or "
                f'"{LOCAL}" for processes of this machine'
            )
        return value

    def _faults(self) -> Iterator[str]:
        if self.dask != LOCAL and (self.count or self.threads):
            yield f'count and threads are for dask = "{LOCAL}": a cluster says them itself'


class SitePageConfig(Frozen):
    """The [page of a site](site-page.md), for who decides what the site takes part in."""

    listen: str = Field(description="Loopback address at which the page is served, `HOST:PORT`.")
    tokens: Path = Field(
        description="File of the [tokens](site-page.md#turn-it-on) that `fedboost keys token` writes."
    )

    @field_validator("listen")
    @classmethod
    def _on_this_machine(cls, value: str) -> str:
        if not is_loopback(require_address(value)):
            port = value.rpartition(":")[2]
            raise ValueError(
                f"{value!r} is no loopback address, and a site's page is for its own machine: listen on "
                f"127.0.0.1:{port}; from another machine, ssh -L {port}:127.0.0.1:{port} SITE leads there"
            )
        return value


class PartyConfig(Frozen):
    """A site's file, or that of a key holder, which has no `data`. Paths count from its folder."""

    party: Name = Field(description="Name of this site in terms and in its certificate.")
    aggregator: str = Field(description="Address of the aggregator, `HOST:PORT`.")
    data: Path | str | Database | None = Field(
        default=None,
        description="Table of this site: a [file, folder or address](tables.md), or the URI of a "
        "[database](sources.md). A key holder has none.",
    )
    query: str | None = Field(
        default=None, description="With a database: the query whose rows are the table."
    )
    query_file: Path | None = Field(default=None, description="With a database: the file that has the query.")
    names: Path | None = Field(
        default=None,
        description="File that says what terms call the columns and levels of the table "
        "([an offer of columns](vertical.md#an-offer-of-columns)).",
    )
    keys: Path | None = Field(default=None, description="Folder of this site's [bundle](identity.md).")
    models: Path | None = Field(
        default=None,
        description="Folder of the parts of models that this site keeps, beside the memory unless named.",
    )
    metrics: str | None = Field(
        default=None, description="Address at which Prometheus reads metrics, `HOST:PORT`; none unless named."
    )
    state: Path = Field(
        default=Path(STATE),
        description="Folder of the memory and its audit log.",
    )
    dataset: Name | None = Field(
        default=None,
        description="Name of these rows in the memory, the party's unless named: sessions and budgets "
        "of one dataset add up.",
    )
    read: ReadOptions = Field(default=ReadOptions(), description="How a file is read, below.")
    scratch: Path | None = Field(
        default=None,
        description="Folder for what is made of rows that are "
        "[more than fit in memory](operations.md#a-table-larger-than-the-memory).",
    )
    workers: WorkersConfig | None = Field(
        default=None, description="[Workers](workers.md) that read and hold the rows, below."
    )
    nthread: int = Field(
        default_factory=cores, ge=1, le=1024, description="Threads that compute, one a core unless given."
    )
    console: SitePageConfig | None = Field(
        default=None, description="Page of this site for a browser on its machine; none unless given."
    )
    policy: Policy = Field(default=Policy(), description="Terms that this site agrees to, below.")

    _file: Path = PrivateAttr(Path("party.toml"))

    _check = field_validator("aggregator")(require_dialable)
    _keep_uri = field_validator("data", mode="before")(_uri_or_path)
    _check_metrics = field_validator("metrics")(require_address)

    @property
    def file(self) -> Path:
        """The path of the file that was read."""
        return self._file

    @property
    def rows_name(self) -> str:
        """The name of its rows."""
        return self.dataset or self.party


def read_party(path: Path, holds_rows: bool | None = True) -> PartyConfig:
    """A site's file, or that of a key holder, which holds no rows, or either (None); its paths are made
    absolute."""
    values = read_toml(path, SITE)
    config = read_model(PartyConfig, values, str(path))
    _check_workers(config, path)
    if holds_rows and config.data is None:
        raise ConfigError(f"{path}: key 'data' is missing")
    if holds_rows is False and config.data is not None:
        raise ConfigError(f"{path}: a key holder has no rows: take data away, or run `fedboost party`")
    source = _source(config, path)
    elsewhere = source is None or isinstance(source, Database) or is_remote(source)
    paths = {
        "data": None if elsewhere else Path(str(source)),
        "names": config.names,
        "keys": config.keys,
        "scratch": config.scratch,
        "models": config.models,
        "state": config.state,
    }
    absolute: dict[str, Path | str | Database | None] = {**from_folder(path, paths)}
    if elsewhere:
        absolute["data"] = source.beside(path.parent) if isinstance(source, Database) else source
    config = config.model_copy(update=absolute)
    if config.console is not None:
        tokens = from_folder(path, {"tokens": config.console.tokens})
        config = config.model_copy(update={"console": config.console.model_copy(update=tokens)})
    config = config.model_copy(update={"models": models_folder(config)})
    config._file = path
    return config


def _check_workers(config: PartyConfig, path: Path) -> None:
    """Raise ConfigError for what workers cannot do."""
    if config.workers is None:
        return
    for is_set, why in (
        (
            isinstance(config.data, Database),
            "workers read Parquet and CSV files: write the rows of the query into some",
        ),
        (config.scratch is not None, "workers keep their rows in memory: take scratch away"),
        (
            "nthread" in config.model_fields_set,
            "the rows are on workers, which have threads of their own: take nthread away",
        ),
    ):
        if is_set:
            raise ConfigError(f"{path}: {why}")
    if config.data is None:
        raise ConfigError(f"{path}: a key holder has no rows: take [workers] away")


def _source(config: PartyConfig, path: Path) -> Path | str | Database | None:
    """The rows that a site's file names, with the query that belongs to them. ConfigError."""
    file = from_folder(path, {"query_file": config.query_file})["query_file"]
    if isinstance(config.data, Database):
        return with_query(config.data, config.query, file, "query", str(path))
    if config.query is not None or file is not None:
        key = "query_file" if config.query is None else "query"
        raise ConfigError(
            f"{path}: {key} is for a database, and data names {shown(config.data)}; take {key} away"
        )
    return config.data


def state_folder(config: PartyConfig) -> Path:
    """The folder of what a site keeps of its dataset: `state` of its file, then the dataset's name. What the
    file is called plays no part."""
    return config.state / folder_name(config.rows_name)


def models_folder(config: PartyConfig) -> Path:
    """The folder of the parts of models that one party keeps, where other parties may have the same state
    folder."""
    own = "models" if config.rows_name == config.party else f"{folder_name(config.party)}.models"
    return config.models or state_folder(config) / own
