"""Settings in TOML files, addresses and the choice of keys: shared by parties, aggregator and analysts.

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
from typing import TYPE_CHECKING, Any

from pydantic import Field, field_validator

from fedboost.errors import ConfigError
from fedboost.terms.reading import Frozen, read_model

if TYPE_CHECKING:
    from fedboost.runtime.net.keys import Bundle


_ADDRESS = re.compile(r"(\[[^][/\s]*:[^][/\s]*\]|[^][/:\s]+):(?P<port>[0-9]{1,5})")
"""An IPv6 address stands in brackets, so that its colons are not taken for that of the port."""


def require_address(value: str) -> str:
    """Return an address HOST:PORT. ValueError for any other text."""
    parts = _ADDRESS.fullmatch(value)
    if parts is None or not value.isprintable() or int(parts["port"]) > 65535:
        raise ValueError(f"{value!r} is not an address; write HOST:PORT, such as localhost:7070")
    return value


def require_dialable(value: str) -> str:
    """Return an address HOST:PORT that can be dialled. ValueError for any other text."""
    if require_address(value).rpartition(":")[2].strip("0") == "":
        raise ValueError(f"{value!r} is no address to dial: port 0 is for listening; write HOST:PORT")
    return value


def check_address(value: str, source: str) -> str:
    """Return the address if it has the form HOST:PORT and can be dialled, else raise ConfigError."""
    try:
        return require_dialable(value)
    except ValueError as error:
        raise ConfigError(f"{source}: {error}") from None


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


TERMS, SITE, AGGREGATOR = "terms", "a site's file", "the aggregator's file"
OFFER, NAMES = "an offer of columns", "a site's names"
_KEY_OF = {TERMS: "columns", SITE: "party", AGGREGATOR: "listen", OFFER: "holder", NAMES: "names"}
"""Kinds of TOML files, and a key that no other kind has."""


def read_toml(path: Path, kind: str = "") -> dict[str, Any]:
    """The content of a TOML file. ConfigError if that is plainly of another kind."""
    try:
        with path.open("rb") as file:
            values = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read: {error.strerror}") from None
    except ValueError as error:  # TOML's own, and that of Python for a number of thousands of digits
        raise ConfigError(f"{path}: not TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{path}: not TOML: nested too deeply") from None
    for other, key in _KEY_OF.items():
        if kind and other != kind and key in values and _KEY_OF[kind] not in values:
            raise ConfigError(f"{path}: is {other}; give {kind} in its place")
    return values


def from_folder(source: Path, paths: Mapping[str, Path | None]) -> dict[str, Path | None]:
    """Return paths of a file as absolute ones, counted from its folder."""
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
    if not is_loopback(address):
        raise ConfigError(
            f"--insecure-loopback is for this machine alone, and {address} is no loopback address; use keys"
        )
    return None


def is_loopback(address: str) -> bool:
    """Tell if an address HOST:PORT is of this machine alone."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


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


# ---- The aggregator's file ------------------------------------------------------------------------------


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
