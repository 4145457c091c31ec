"""The files users write: terms, a site's file, the aggregator's file. All TOML.

Promises: paths in a file count from that file's folder; a fault is one line that names file and key.
Refuses: unknown keys, naming the nearest known one (ConfigError); a connection without keys, unless it was
asked for and stays on this machine.
"""

import ipaddress
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pydantic import Field, PrivateAttr, field_validator

from fedboost.errors import ConfigError
from fedboost.runtime.files import folder_name
from fedboost.runtime.site.policy import Policy
from fedboost.terms.reading import Frozen, Name, read_model
from fedboost.terms.terms import Terms

if TYPE_CHECKING:
    from fedboost.runtime.net.keys import Bundle

_ADDRESS = re.compile(r"(\[[^][/\s]*:[^][/\s]*\]|[^][/:\s]+):(?P<port>[0-9]{1,5})")
"""An IPv6 address stands in brackets, so that its colons are not taken for that of the port."""


def _address(value: str) -> str:
    parts = _ADDRESS.fullmatch(value)
    if parts is None or not value.isprintable() or int(parts["port"]) > 65535:
        raise ValueError(f"{value!r} is not an address; write HOST:PORT, such as localhost:7070")
    return value


def _address_to_dial(value: str) -> str:
    if _address(value).rpartition(":")[2].strip("0") == "":
        raise ValueError(f"{value!r} is no address to dial: port 0 is for listening; write HOST:PORT")
    return value


def check_address(value: str, source: str) -> str:
    """Return the address if it has the form HOST:PORT and can be dialled, else raise ConfigError."""
    try:
        return _address_to_dial(value)
    except ValueError as error:
        raise ConfigError(f"{source}: {error}") from None


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


STATE = "fedboost.state"
"""The folder beside a site's file in which it keeps its state, unless the file names another."""


class PartyConfig(Frozen):
    """A site's file. `keys` is the folder of its bundle, `state` the folder of its memory, beside the file
    unless named, `audit` its log of what left, beside the memory unless named, `dataset` the name of these
    rows there (the party's, so that a table that is moved, copied or longer is still the same rows),
    `scratch` a folder for what is made of rows that are more than fit in memory, `nthread` how many threads
    compute (one a core), `policy` what it agrees to. A key holder's file has no `data`."""

    party: Name
    aggregator: str
    data: Path | None = None
    keys: Path | None = None
    audit: Path | None = None
    state: Path | None = None
    dataset: Name | None = None
    scratch: Path | None = None
    nthread: int = Field(default_factory=cores, ge=1, le=1024)
    policy: Policy = Policy()

    _file: Path = PrivateAttr(Path("party.toml"))

    _check = field_validator("aggregator")(_address_to_dial)

    @property
    def file(self) -> Path:
        """The path of the file that was read."""
        return self._file

    @property
    def rows_name(self) -> str:
        """The name of its rows."""
        return self.dataset or self.party


class AggregatorConfig(Frozen):
    """The aggregator's file. `programs` are custom programs, as module:function, that terms may name;
    `memory` is how many GiB the sums of a session may take; `state` is the folder in which sessions outlive
    the process, beside the file unless named."""

    listen: str = "127.0.0.1:7070"
    keys: Path | None = None
    state: Path | None = None
    programs: tuple[str, ...] = Field(())
    memory: float = Field(default=4.0, gt=0)

    _check = field_validator("listen")(_address)


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read: {error.strerror}") from None
    except ValueError as error:  # TOML's own, and that of Python for a number of thousands of digits
        raise ConfigError(f"{path}: not TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{path}: not TOML: nested too deeply") from None


def read_terms(path: Path) -> Terms:
    """An analyst's terms."""
    return Terms.read(read_settings(path), str(path))


def read_settings(path: Path) -> dict[str, Any]:
    """The settings in a terms file; instead of the path of a model to continue, that model."""
    settings = read_toml(path)
    if "xgb_model" in settings:
        from fedboost.runtime.continuation import text_of  # most terms continue none

        settings["xgb_model"] = text_of(settings["xgb_model"], path.parent)
    return settings


def read_party(path: Path, holds_rows: bool | None = True) -> PartyConfig:
    """A site's file, or that of a key holder, which holds no rows, or either (None); its paths are made
    absolute."""
    values = read_toml(path)
    if "ledger" in values:
        raise ConfigError(
            f"{path}: key 'ledger' was removed, what was spent is in the site's memory: take the key away, "
            f"then `fedboost privacy init --from {values['ledger']} --config {path}` moves it there"
        )
    config = read_model(PartyConfig, values, str(path))
    if holds_rows and config.data is None:
        raise ConfigError(f"{path}: key 'data' is missing")
    if holds_rows is False and config.data is not None:
        raise ConfigError(f"{path}: a key holder has no rows: take data away, or run `fedboost party`")
    paths = {
        "data": config.data,
        "keys": config.keys,
        "scratch": config.scratch,
        "audit": config.audit,
        "state": config.state or Path(STATE),
    }
    config = config.model_copy(update=_from_folder(path, paths))
    audit = config.audit or state_folder(config) / f"{folder_name(config.party)}.audit.jsonl"
    config = config.model_copy(update={"audit": audit})
    config._file = path
    return config


def state_folder(config: PartyConfig) -> Path:
    """The folder of what a site keeps of its dataset: `state` of its file, then the dataset's name. What the
    file is called plays no part."""
    assert config.state is not None
    return config.state / folder_name(config.rows_name)


def read_aggregator(path: Path) -> AggregatorConfig:
    """The aggregator's file; its paths are made absolute."""
    config = read_model(AggregatorConfig, read_toml(path), str(path))
    state = config.state or Path(f"{path.stem}.state")
    return config.model_copy(update=_from_folder(path, {"keys": config.keys, "state": state}))


def _from_folder(source: Path, paths: Mapping[str, Path | None]) -> dict[str, Path | None]:
    absolute = {}
    for key, path in paths.items():
        try:
            absolute[key] = path and (source.parent / path).resolve()
        except (OSError, RuntimeError, ValueError) as error:  # a loop of links; a null byte
            raise ConfigError(f"{source}: {key}: {str(path)!r} is no path: {error}") from None
    return absolute


def choose_keys(keys: Path | None, role: str, address: str, insecure_loopback: bool) -> "Bundle | None":
    """The bundle to connect with; None for a connection without encryption on this machine.

    Raises ConfigError unless exactly one of the two was asked for, and for the second only with a loopback
    address.
    """
    from fedboost.runtime.net.keys import read_bundle

    if keys is not None and not insecure_loopback:
        return read_bundle(keys, role)
    if keys is not None:
        raise ConfigError(f"keys ({keys}) and --insecure-loopback exclude each other; take one away")
    if not insecure_loopback:
        raise ConfigError(
            f"no keys: name the folder that `fedboost keys {role}` wrote, "
            + ("--keys FOLDER" if role == "analyst" else 'keys = "FOLDER" in the file')
            + "; on one machine --insecure-loopback does without"
        )
    if not _is_loopback(address):
        raise ConfigError(
            f"--insecure-loopback is for this machine alone, and {address} is no loopback address; use keys"
        )
    return None


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


_ALWAYS_WRITTEN = {"parties", "objective", "rounds", "max_depth", "learning_rate", "protection"}


def terms_to_toml(terms: Terms, comments: Mapping[str, str] = MappingProxyType({})) -> str:
    """The terms as a TOML file for an analyst to edit: what is usually set and what was, columns last.
    comments: key to what stands above it."""
    values = terms.model_dump(mode="json")
    keys = _ALWAYS_WRITTEN | terms.model_dump(exclude_unset=True).keys()
    lines = []
    for key, value in values.items():
        if key in keys and key != "columns":
            lines += [f"# {comments[key]}"] if key in comments else []
            lines.append(f"{key} = {to_toml(value)}")
    lines += ["", "[columns]"]
    chosen = terms.columns.model_dump(mode="json", exclude_defaults=True)
    lines += [f"{key} = {to_toml(value)}" for key, value in chosen.items()]
    return "\n".join(lines) + "\n"


def to_toml(value: object) -> str:
    """A value as TOML, on one line."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            escaped = "".join(_ESCAPES.get(c, c if c.isprintable() else f"\\U{ord(c):08X}") for c in value)
            return f'"{escaped}"'
        case list() | tuple():
            return f"[{', '.join(map(to_toml, value))}]"
        case dict():
            return "{ " + ", ".join(f"{to_toml(str(k))} = {to_toml(v)}" for k, v in value.items()) + " }"
    raise TypeError(f"{type(value).__name__} has no TOML form here")


_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
