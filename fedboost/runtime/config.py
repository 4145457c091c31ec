"""Settings in TOML files, addresses and the choice of keys, for parties, aggregator and analysts.

Paths in a file are relative to its folder. An error is one line that names file and key, and suggests the
nearest key for an unknown one. Connections without keys are refused unless requested, and then only allowed
on this machine.
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
"""An IPv6 address is in brackets, as its colons would be ambiguous."""


def require_address(value: str) -> str:
    """Return `value` if it is HOST:PORT, else raise ValueError."""
    parts = _ADDRESS.fullmatch(value)
    if parts is None or not value.isprintable() or int(parts["port"]) > 65535:
        raise ValueError(f"{value!r} is not an address; write HOST:PORT, e.g. localhost:7070")
    return value


def require_dialable(value: str) -> str:
    """Return `value` if it is HOST:PORT and can be dialled, else raise ValueError."""
    if require_address(value).rpartition(":")[2].strip("0") == "":
        raise ValueError(f"{value!r} cannot be dialled, as port 0 is only for listening; write HOST:PORT")
    return value


def check_address(value: str, source: str) -> str:
    """Like `require_dialable`, but raises ConfigError that begins with `source`."""
    try:
        return require_dialable(value)
    except ValueError as error:
        raise ConfigError("address-invalid", f"{source}: {error}") from None


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


TERMS, SITE, AGGREGATOR = "terms", "a site's file", "the aggregator's file"
OFFER, NAMES = "an offer of columns", "a site's names"
_KEY_OF = {TERMS: "columns", SITE: "party", AGGREGATOR: "listen", OFFER: "holder", NAMES: "names"}
"""Kind of TOML file -> a key that no other kind has."""


def read_toml(path: Path, kind: str = "") -> dict[str, Any]:
    """Read a TOML file. ConfigError if it clearly is of another kind."""
    try:
        with path.open("rb") as file:
            values = tomllib.load(file)
    except OSError as error:
        raise ConfigError("config-unreadable", f"{path}: cannot read: {error.strerror}") from None
    except ValueError as error:  # from TOML, or from Python for a number with thousands of digits
        raise ConfigError("config-not-toml", f"{path}: not TOML: {error}") from None
    except RecursionError:
        raise ConfigError("config-not-toml", f"{path}: not TOML: nested too deeply") from None
    for other, key in _KEY_OF.items():
        if kind and other != kind and key in values and _KEY_OF[kind] not in values:
            raise ConfigError("config-wrong-kind", f"{path}: is {other}; give {kind} instead")
    return values


def from_folder(source: Path, paths: Mapping[str, Path | None]) -> dict[str, Path | None]:
    """Make a file's paths absolute, relative to its folder."""
    absolute = {}
    for key, path in paths.items():
        try:
            absolute[key] = path and (source.parent / path).resolve()
        except (OSError, RuntimeError, ValueError) as error:  # a loop of links, or a null byte
            raise ConfigError(
                "config-path-invalid", f"{source}: {key}: {str(path)!r} is not a path: {error}"
            ) from None
    return absolute


def choose_keys(keys: Path | None, role: str, address: str, insecure_loopback: bool) -> "Bundle | None":
    """Return the bundle to connect with; None for an unencrypted connection on this machine. ConfigError
    unless exactly one of them is requested, the second with a loopback address."""
    from fedboost.runtime.net.keys import read_bundle

    if keys is not None and not insecure_loopback:
        return read_bundle(keys, role)
    if keys is not None:
        raise ConfigError(
            "keys-or-insecure", f"keys ({keys}) and --insecure-loopback exclude each other; remove one"
        )
    if not insecure_loopback:
        raise ConfigError(
            "keys-not-given",
            f"no keys; name the folder from `fedboost keys {role}` with "
            + ("--keys FOLDER" if role == "analyst" else 'keys = "FOLDER" in the file')
            + ", or on a single machine use --insecure-loopback",
        )
    if not is_loopback(address):
        raise ConfigError(
            "keys-not-loopback", f"--insecure-loopback is only for this machine, not {address}; use keys"
        )
    return None


def is_loopback(address: str) -> bool:
    """Return whether an address HOST:PORT is a loopback address."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def to_toml(value: object) -> str:
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
    """Web pages, and an interface for programs ([console](console.md))."""

    listen: str = Field(description="Address that serves the [console](console.md), `HOST:PORT`.")
    tokens: Path | None = Field(
        default=None,
        description="File of [tokens](console.md#from-elsewhere), written by `fedboost keys token`.",
    )

    _check = field_validator("listen")(require_address)


class AggregatorConfig(Frozen):
    """The aggregator's file. Paths are relative to its folder."""

    listen: str = Field(default="127.0.0.1:7070", description="Address to listen on, `HOST:PORT`.")
    keys: Path | None = Field(default=None, description="Folder of the aggregator's [bundle](identity.md).")
    state: Path | None = Field(
        default=None,
        description="Folder in which sessions outlive the process (default: NAME.state beside NAME.toml).",
    )
    programs: tuple[str, ...] = Field(
        default=(), description="Custom programs that terms may name, as `module:function`."
    )
    memory: float = Field(default=4.0, gt=0, description="Most GiB for the sums of a session.")
    metrics: str | None = Field(
        default=None, description="Address that serves Prometheus metrics, `HOST:PORT` (default: none)."
    )
    console: ConsoleConfig | None = Field(
        default=None, description="Web pages of the aggregator (default: none)."
    )

    _check = field_validator("listen", "metrics")(require_address)


def read_aggregator(path: Path) -> AggregatorConfig:
    """Read the aggregator's file, with absolute paths."""
    config = read_model(AggregatorConfig, read_toml(path, AGGREGATOR), str(path))
    state = config.state or Path(f"{path.stem}.state")
    update: dict[str, Any] = {**from_folder(path, {"keys": config.keys, "state": state})}
    if config.console is not None:
        tokens = from_folder(path, {"tokens": config.console.tokens})
        update["console"] = config.console.model_copy(update=tokens)
    return config.model_copy(update=update)
