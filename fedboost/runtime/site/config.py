"""A site's configuration file, party.toml."""

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
"""Instead of a scheduler's address: processes on this machine."""
_SCHEDULER = re.compile(r"(tcp|tls)://[^\s/]+:[0-9]{1,5}/?")
STATE = "fedboost.state"
"""The default folder, next to a site's file, in which it keeps its state."""


def _uri_or_path(value: object) -> object:
    """Turn a URI into a database, with its query under another key; as a path it would lose its slashes."""
    return (database_of(value) if isinstance(value, str) else None) or value


class WorkersConfig(Frozen):
    """Dask workers that read and hold the rows."""

    dask: str = Field(
        description='Address of the Dask scheduler, such as `tcp://scheduler:8786`, or `"local"` for '
        "processes on this machine."
    )
    count: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description='With `"local"`: number of processes (default: one per core).',
    )
    threads: int | None = Field(
        default=None, ge=1, le=1024, description='With `"local"`: number of threads of each process.'
    )

    @field_validator("dask")
    @classmethod
    def _scheduler(cls, value: str) -> str:
        if value != LOCAL and not _SCHEDULER.fullmatch(value):
            raise ValueError(
                f"{value!r} is not the address of a scheduler: write tcp://HOST:PORT, tls://HOST:PORT, or "
                f'"{LOCAL}" for processes on this machine'
            )
        return value

    def _faults(self) -> Iterator[str]:
        if self.dask != LOCAL and (self.count or self.threads):
            yield f'count and threads are for dask = "{LOCAL}": a cluster sets them itself'


class SitePageConfig(Frozen):
    """The [page of a site](site-page.md), for the person who decides in which sessions it takes part."""

    listen: str = Field(description="Loopback address that serves the page, `HOST:PORT`.")
    tokens: Path = Field(
        description="File of [tokens](site-page.md#turn-it-on), as written by `fedboost keys token`."
    )

    @field_validator("listen")
    @classmethod
    def _on_this_machine(cls, value: str) -> str:
        if not is_loopback(require_address(value)):
            port = value.rpartition(":")[2]
            raise ValueError(
                f"{value!r} is not a loopback address, and a site's page is for its own machine: listen on "
                f"127.0.0.1:{port}; from another machine, use ssh -L {port}:127.0.0.1:{port} SITE"
            )
        return value


class PartyConfig(Frozen):
    """The file of a site, or of a key holder, which has no `data`. Paths are relative to its folder."""

    party: Name = Field(description="Name of this site in terms and in its certificate.")
    aggregator: str = Field(description="Address of the aggregator, `HOST:PORT`.")
    data: Path | str | Database | None = Field(
        default=None,
        description="Table of this site: a [file, folder or URL](tables.md), or the URI of a "
        "[database](sources.md). A key holder has none.",
    )
    query: str | None = Field(
        default=None, description="With a database: the query that returns the rows of the table."
    )
    query_file: Path | None = Field(default=None, description="With a database: the file with the query.")
    names: Path | None = Field(
        default=None,
        description="File that maps the names of columns and levels in terms to those in the table "
        "([an offer of columns](vertical.md#an-offer-of-columns)).",
    )
    keys: Path | None = Field(default=None, description="Folder of this site's [bundle](identity.md).")
    models: Path | None = Field(
        default=None,
        description="Folder for this site's parts of models (default: next to the memory).",
    )
    metrics: str | None = Field(
        default=None, description="Address that serves metrics to Prometheus, `HOST:PORT` (default: none)."
    )
    state: Path = Field(
        default=Path(STATE),
        description="Folder for the memory, including the audit log.",
    )
    dataset: Name | None = Field(
        default=None,
        description="Name of these rows in the memory (default: the party's name). Sessions and budgets "
        "of one dataset add up.",
    )
    read: ReadOptions = Field(default=ReadOptions(), description="Options for reading a file, below.")
    scratch: Path | None = Field(
        default=None,
        description="Folder for temporary files of rows that are "
        "[more than fit in memory](operations.md#a-table-larger-than-the-memory).",
    )
    workers: WorkersConfig | None = Field(
        default=None, description="[Workers](workers.md) that read and hold the rows, below."
    )
    nthread: int = Field(
        default_factory=cores, ge=1, le=1024, description="Computing threads (default: one per core)."
    )
    console: SitePageConfig | None = Field(
        default=None, description="Page of this site for a browser on its machine (default: none)."
    )
    policy: Policy = Field(default=Policy(), description="Terms that this site accepts, below.")

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
        """The name of its dataset."""
        return self.dataset or self.party


def read_party(path: Path, holds_rows: bool | None = True) -> PartyConfig:
    """Read the file of a site or key holder; its paths become absolute. ConfigError. holds_rows: whether it
    must have `data` (a site) or must not (a key holder); None for either."""
    values = read_toml(path, SITE)
    config = read_model(PartyConfig, values, str(path))
    _check_workers(config, path)
    if holds_rows and config.data is None:
        raise ConfigError("site-data-missing", f"{path}: key 'data' is missing")
    if holds_rows is False and config.data is not None:
        raise ConfigError(
            "keyholder-has-rows", f"{path}: a key holder has no rows: remove data, or run `fedboost party`"
        )
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
    if config.workers is None:
        return
    for is_set, why in (
        (
            isinstance(config.data, Database),
            "workers read Parquet and CSV files: write the rows of the query to such files",
        ),
        (config.scratch is not None, "workers keep their rows in memory: remove scratch"),
        (
            "nthread" in config.model_fields_set,
            "the rows are on workers, which have threads of their own: remove nthread",
        ),
    ):
        if is_set:
            raise ConfigError("site-workers-conflict", f"{path}: {why}")
    if config.data is None:
        raise ConfigError("keyholder-has-workers", f"{path}: a key holder has no rows: remove [workers]")


def _source(config: PartyConfig, path: Path) -> Path | str | Database | None:
    file = from_folder(path, {"query_file": config.query_file})["query_file"]
    if isinstance(config.data, Database):
        return with_query(config.data, config.query, file, "query", str(path))
    if config.query is not None or file is not None:
        key = "query_file" if config.query is None else "query"
        raise ConfigError(
            "site-query-without-database",
            f"{path}: {key} is for a database, and data names {shown(config.data)}; remove {key}",
        )
    return config.data


def state_folder(config: PartyConfig) -> Path:
    """The folder of a dataset: `state` in the site's file, then the dataset's name. The name of the file does
    not matter."""
    return config.state / folder_name(config.rows_name)


def models_folder(config: PartyConfig) -> Path:
    """The folder for one party's parts of models; other parties may share the state folder."""
    own = "models" if config.rows_name == config.party else f"{folder_name(config.party)}.models"
    return config.models or state_folder(config) / own
