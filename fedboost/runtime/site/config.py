"""Configuration file of a site or key holder, party.toml: its keys, and how it is read and checked."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from pydantic import Field, PrivateAttr, field_validator, model_validator

from fedboost.errors import ConfigError
from fedboost.runtime.config import (
    SITE,
    Authorities,
    Proxy,
    cores,
    from_folder,
    is_loopback,
    read_toml,
    require_address,
    require_dialable,
)
from fedboost.runtime.data.database import ColumnMap, Database, ReadOptions, database_of, with_query
from fedboost.runtime.data.locations import is_remote, shown
from fedboost.runtime.files import folder_name
from fedboost.runtime.net.routes import Server
from fedboost.runtime.site.policy import Policy
from fedboost.terms.reading import Frozen, Name, OrNone, one_or_several, read_model
from fedboost.terms.reading import Table as Mapped

LOCAL = "local"
"""Value of `dask` that starts workers on this machine instead of connecting to a scheduler."""
_SCHEDULER = re.compile(r"(tcp|tls)://[^\s/]+:[0-9]{1,5}/?")
STATE = "fedboost.state"
"""Default state folder, next to the site's file."""


def _uri_or_path(value: object) -> object:
    """Convert the URI of a database to a `Database`, and return any other value unchanged. A URI that is read
    as a path would lose slashes."""
    return (database_of(value) if isinstance(value, str) else None) or value


class WorkersConfig(Frozen):
    """Dask workers that read and hold the rows."""

    dask: str = Field(
        description='Address of the Dask scheduler, e.g. `tcp://scheduler:8786`, or `"local"` for '
        "processes on this machine."
    )
    count: OrNone[int] = Field(
        ge=1,
        le=1024,
        description='With `"local"`: number of processes (default: one per core).',
    )
    threads: OrNone[int] = Field(
        ge=1,
        le=1024,
        description='With `"local"`: number of threads per process (default: one).',
    )

    @field_validator("dask")
    @classmethod
    def _scheduler(cls, value: str) -> str:
        if value != LOCAL and not _SCHEDULER.fullmatch(value):
            raise ValueError(
                f"{value!r} is not the address of a scheduler: use tcp://HOST:PORT, tls://HOST:PORT, or "
                f'"{LOCAL}" for processes on this machine'
            )
        return value

    def _faults(self) -> Iterator[str]:
        if self.dask != LOCAL and (self.count or self.threads):
            yield f'count and threads apply only to dask = "{LOCAL}", not to an existing cluster; remove them'


class SitePageConfig(Frozen):
    """The site's local [web page](site-page.md), for the person who decides which sessions the site joins."""

    listen: str = Field(description="Loopback address that serves the page, `HOST:PORT`.")
    tokens: Path = Field(
        description="[Token file](site-page.md#turn-it-on), as written by `fedboost keys token`."
    )

    @field_validator("listen")
    @classmethod
    def _on_this_machine(cls, value: str) -> str:
        if not is_loopback(require_address(value)):
            port = value.rpartition(":")[2]
            raise ValueError(
                f"{value!r} is not a loopback address, but a site's page is served only on its own machine: "
                f"use 127.0.0.1:{port}; from another machine, open it by ssh -L {port}:127.0.0.1:{port} SITE"
            )
        return value


class ServeConfig(Frozen):
    """The [scoring service](serve.md) of this site, `fedboost serve`: at the label holder, where and whom it
    answers; at another party, how much it answers."""

    max_ids: int = Field(
        default=0,
        ge=0,
        description="Not at the label holder: maximum number of row ids about which this site answers, over "
        "all models and all time (default: it answers nothing).",
    )
    min_known_ids: int = Field(
        default=1000,
        ge=1,
        description="Not at the label holder: minimum number of ids of a request that this site has. With "
        "`1`, requests may be about single rows, by which the label holder can look up single people.",
    )
    listen: str | None = Field(
        default=None, description="At the label holder: address that serves the REST API, `HOST:PORT`."
    )
    tokens: Path | None = Field(
        default=None, description="Token file, as written by `fedboost keys token NAME --role client`."
    )
    certificate: Path | None = Field(
        default=None, description="TLS certificate (PEM), unless `listen` is a loopback address."
    )
    key: Path | None = Field(default=None, description="Private key of this certificate (PEM).")
    max_ids_per_client: int = Field(
        default=100_000, ge=0, description="Maximum number of row ids per client, over all time."
    )
    timeout: float = Field(
        default=2.0, gt=0, le=60, description="Seconds to wait for the answer of another party."
    )
    partial: bool = Field(
        default=False,
        description="Whether to score without a party that does not answer. Its columns count as missing, "
        "and the response names it.",
    )

    _check_listen = field_validator("listen")(require_address)


class PartyConfig(Frozen):
    """Contents of the configuration file of a site or key holder. A key holder has no `data`. Relative paths
    are relative to the folder that contains the file."""

    party: Name = Field(description="Name of this site, as in the terms and in its certificate.")
    aggregator: tuple[str, ...] = Field(
        min_length=1,
        max_length=16,
        description="Address of the aggregator, `HOST:PORT` or that of a [tunnel](networks.md), or a list of "
        "addresses: if one cannot be reached, the next one is tried.",
    )
    proxy: Proxy
    ca: Authorities
    through: tuple[str, ...] = Field(
        default=(),
        description='Names of the [adders](operations.md#adders) at these addresses, in the same order; `""` '
        "for the aggregator itself (default: no adders).",
    )
    data: OrNone[Path | str | Database] = Field(
        description="Table of this site: a [file, folder or URL](tables.md), or the URI of a "
        "[database](sources.md). A key holder has none.",
    )
    query: str | None = Field(
        default=None, description="With a database: query that returns the rows of the table."
    )
    query_file: Path | None = Field(
        default=None, description="With a database: file that contains the query."
    )
    columns: Mapped[ColumnMap] = Field(
        default_factory=dict,
        description="Columns of the terms with other [names, units or levels](tables.md#tables-that-differ) "
        "in the table, below.",
    )
    names: OrNone[Path] = Field(
        description="File that maps column and level names used in the terms to the names in the table "
        "([an offer of columns](vertical.md#an-offer-of-columns)).",
    )
    keys: Path | None = Field(default=None, description="Folder with this site's [key bundle](identity.md).")
    models: OrNone[Path] = Field(
        description="Folder for this site's model parts (default: next to the memory).",
    )
    metrics: str | None = Field(
        default=None, description="Address at which to serve Prometheus metrics, `HOST:PORT` (default: none)."
    )
    state: Path = Field(
        default=Path(STATE),
        description="Folder for this site's memory: its record of sessions, including the audit log.",
    )
    dataset: OrNone[Name] = Field(
        description="Name of the dataset (default: the party's name). Sessions with the same dataset name "
        "share one budget and session limit.",
    )
    read: ReadOptions = Field(default=ReadOptions(), description="Options for reading the file, below.")
    scratch: OrNone[Path] = Field(
        description="Folder for temporary files if the rows "
        "[do not fit in memory](operations.md#a-table-larger-than-the-memory).",
    )
    workers: WorkersConfig | None = Field(
        default=None, description="[Dask workers](workers.md) that read and hold the rows, below."
    )
    nthread: int = Field(
        default_factory=cores, ge=1, le=1024, description="Number of threads (default: one per core)."
    )
    console: OrNone[SitePageConfig] = Field(
        description="Local web page for the person in charge of this site, below (default: none).",
    )
    serve: ServeConfig = Field(
        default=ServeConfig(), description="The [scoring service](serve.md) of this site, below."
    )
    policy: Policy = Field(default=Policy(), description="Limits on the terms that this site accepts, below.")

    _file: Path = PrivateAttr(Path("party.toml"))

    _one_or_several = field_validator("aggregator", "through", mode="before")(one_or_several)

    @field_validator("aggregator")
    @classmethod
    def _dialable(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(require_dialable, value))

    @model_validator(mode="after")
    def _one_name_each(self) -> Self:
        if self.through and len(self.through) != len(self.aggregator):
            raise ValueError(
                f"through has {len(self.through)} names for {len(self.aggregator)} addresses of aggregator; "
                f'name the adder at each address, or "" for the aggregator itself'
            )
        counts = Counter(how.name or name for name, how in self.columns.items())
        for name in (name for name, count in counts.items() if count > 1):
            raise ValueError(f"two tables under columns read column {name!r} of the table: keep one")
        if self.names is not None and self.columns:
            raise ValueError("names and columns both name columns of the table: keep one")
        return self

    _keep_uri = field_validator("data", mode="before")(_uri_or_path)
    _check_metrics = field_validator("metrics")(require_address)

    @property
    def servers(self) -> tuple[Server, ...]:
        """The servers that this site connects to, in the order in which they are tried."""
        names = self.through or ("",) * len(self.aggregator)
        return tuple(Server(*pair, self.proxy, self.ca) for pair in zip(self.aggregator, names, strict=True))

    @property
    def adders(self) -> tuple[str, ...]:
        """Names of the adders that may take this site's calls."""
        return tuple(dict.fromkeys(filter(None, self.through)))

    @property
    def direct_server(self) -> Server:
        """The aggregator itself. Raises ConfigError if the site only knows adders."""
        for server in self.servers:
            if not server.adder:
                return server
        raise ConfigError(
            "aggregator-only-adders",
            f"{self.file}: this command needs the aggregator itself, but all addresses are those of adders; "
            f'add its address to `aggregator`, and "" to `through`',
        )

    @property
    def file(self) -> Path:
        """Path of the file that was read."""
        return self._file

    @property
    def map_file(self) -> Path | None:
        """File that names columns of the table, if any."""
        return self.names or (self.file if self.columns else None)

    @property
    def rows_name(self) -> str:
        """Name of the dataset for which the memory counts sessions and the privacy spent."""
        return self.dataset or self.party


def read_party(path: Path, holds_rows: bool | None = True) -> PartyConfig:
    """Read the file of a site or key holder, and make its paths absolute. holds_rows: True if the file must
    have `data` (a site), False if it must not (a key holder), None for either. Raises ConfigError if the file
    is invalid."""
    values = read_toml(path, SITE)
    config = read_model(PartyConfig, values, str(path))
    _check_workers(config, path)
    if holds_rows and config.data is None:
        raise ConfigError("site-data-missing", f"{path}: key 'data' is missing")
    if holds_rows is False and config.data is not None:
        raise ConfigError(
            "keyholder-has-rows", f"{path}: a key holder has no rows; remove `data`, or run `fedboost party`"
        )
    source = _source(config, path)
    elsewhere = source is None or isinstance(source, Database) or is_remote(source)
    keys = "names", "keys", "ca", "scratch", "models", "state"
    paths = {"data": None if elsewhere else Path(str(source))}
    paths |= {key: getattr(config, key) for key in keys}
    absolute: dict[str, Path | str | Database | None] = {**from_folder(path, paths)}
    if elsewhere:
        absolute["data"] = source.beside(path.parent) if isinstance(source, Database) else source
    config = config.model_copy(update=absolute)
    if config.console is not None:
        tokens = from_folder(path, {"tokens": config.console.tokens})
        config = config.model_copy(update={"console": config.console.model_copy(update=tokens)})
    own = {name: getattr(config.serve, name) for name in ("tokens", "certificate", "key")}
    config = config.model_copy(update={"serve": config.serve.model_copy(update=from_folder(path, own))})
    config = config.model_copy(update={"models": models_folder(config)})
    config._file = path
    return config


def _check_workers(config: PartyConfig, path: Path) -> None:
    if config.workers is None:
        return
    for is_set, why in (
        (
            isinstance(config.data, Database),
            "workers read only Parquet and CSV files: export the rows of the query to such files",
        ),
        (config.scratch is not None, "workers keep their rows in memory: remove scratch"),
        (
            "nthread" in config.model_fields_set,
            "the rows are on workers, which have their own threads: remove nthread",
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
            f"{path}: {key} applies only to a database, but data is {shown(config.data)}; remove {key}",
        )
    return config.data


def state_folder(config: PartyConfig) -> Path:
    """Return the folder with the memory of a site's dataset. It depends on `state` and the dataset's name,
    not on the name of the configuration file."""
    return config.state / folder_name(config.rows_name)


def models_folder(config: PartyConfig) -> Path:
    """Return the folder for one party's model parts; several parties may share the state folder."""
    own = "models" if config.rows_name == config.party else f"{folder_name(config.party)}.models"
    return config.models or state_folder(config) / own
