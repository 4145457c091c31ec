"""TOML settings files, network addresses and the choice of keys, as used by parties, aggregators and
analysts.

Relative paths in a file are relative to the folder that contains it. An error message is one line with the
file and the key. For an unknown key, it suggests the closest known key. Connections without keys must be
requested explicitly, and are only allowed on one machine.
"""

import ipaddress
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field, SecretStr, field_validator

from fedboost.errors import ConfigError
from fedboost.terms.reading import Frozen, OrNone, read_model

if TYPE_CHECKING:
    from fedboost.runtime.net.keys import Bundle


_ADDRESS = re.compile(r"(?P<host>\[[^][/\s]*:[^][/\s]*\]|[^][@/:?#\s]+):(?P<port>[0-9]{1,5})")
"""Pattern of HOST:PORT. An IPv6 host must be in brackets, because its colons would be ambiguous."""


def require_address(value: str, forms: str = "HOST:PORT") -> str:
    """Return `value` if it has the form HOST:PORT. Raises ValueError if not, which names the `forms`."""
    parts = _ADDRESS.fullmatch(value)
    if parts is None or not value.isprintable() or int(parts["port"]) > 65535 or not _is_host(parts["host"]):
        what = "this" if "@" in value else repr(value)  # a password may be before the @
        raise ValueError(f"{what} is not an address; write {forms}, e.g. localhost:7070")
    return value


def _is_host(host: str) -> bool:
    """Return whether this is an IPv6 address in brackets, or a name that can be looked up."""
    try:
        return bool(ipaddress.IPv6Address(host[1:-1]) if host[0] == "[" else host.encode("idna"))
    except ValueError:
        return False


_TUNNEL = re.compile(r"(?:(wss?)|grpcs?)://([^][@/:?#\s]+|\[[^][@/\s]+\])(:[0-9]{1,5})?(?:/(?(1)[^\s?#]*))?")
"""Pattern of the address of a tunnel. A tunnel over gRPC has no path of its own."""


def require_dialable(value: str) -> str:
    """Return `value` if it is a HOST:PORT to connect to, or the address of a tunnel. Raises ValueError if
    not, e.g. for port 0."""
    tunnel = _TUNNEL.fullmatch(value)
    port = int(((tunnel and tunnel[3]) or ":1")[1:])
    if tunnel and value.isprintable() and 0 < port <= 65535 and _is_host(tunnel[2]):
        return value
    forms = "HOST:PORT, wss://HOST/PATH or grpcs://HOST" if "://" in value else "HOST:PORT"
    if require_address(value, forms).rpartition(":")[2].strip("0") == "":
        raise ValueError(
            f"{value!r} cannot be connected to, because port 0 is only for listening; specify another port"
        )
    return value


_PROXY = re.compile(
    r"http://([^][@/:?#\\\s]+:[^][@/:?#\\\s]*@)?(?P<host>[^][@/:?#\\\s]+|\[[^][@/\s]+\])(:(?P<port>[0-9]{1,5}))?/?"
)


def require_proxy(value: object) -> SecretStr:
    """Return a proxy's URL as a secret. Raises ValueError, without the URL, which may contain a password."""
    text = value.get_secret_value() if isinstance(value, SecretStr) else str(value)
    parts = _PROXY.fullmatch(text)
    if not parts or not text.isascii() or int(parts["port"] or 1) > 65535 or not _is_host(parts["host"]):
        raise ValueError(
            "a proxy is http://HOST:PORT or http://USER:PASSWORD@HOST:PORT; write other characters than "
            "letters and digits in percent, e.g. %40 for @"
        )
    return SecretStr(text)


_ABOUT_PROXY = (
    "HTTP [proxy](networks.md#proxies), `http://HOST:PORT` or `http://USER:PASSWORD@HOST:PORT` (default: the "
    "environment's `https_proxy`)."
)
_IS_PROXY = BeforeValidator(require_proxy)
Proxy = Annotated[SecretStr | None, _IS_PROXY, Field(default=None, description=_ABOUT_PROXY)]
_ABOUT_CA = "Authorities (PEM) that the TLS of [tunnels](networks.md) trusts (default: the system's)."
Authorities = Annotated[Path | None, Field(default=None, description=_ABOUT_CA)]


def check_address(value: str, source: str) -> str:
    """`require_dialable`, but with a ConfigError. Its message starts with `source`, a setting or option."""
    try:
        return require_dialable(value)
    except ValueError as error:
        raise ConfigError("address-invalid", f"{source}: {error}") from None


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


TERMS, SITE, AGGREGATOR, ADDER = "terms", "a site's file", "the aggregator's file", "an adder's file"
OFFER, NAMES = "an offer of columns", "a site's names"
_KEY_OF = {
    **{TERMS: "columns", SITE: "party", AGGREGATOR: "listen", ADDER: "upstream"},
    **{OFFER: "holder", NAMES: "names"},
}
"""Maps kind of TOML file -> a key that only this kind has."""


def read_toml(path: Path, kind: str = "") -> dict[str, Any]:
    """Read a TOML file. kind: one of the kinds in `_KEY_OF`, or "" for any. Raises
    ConfigError if the file cannot be read, is not TOML or is clearly of another kind."""
    try:
        with path.open("rb") as file:
            values = tomllib.load(file)
    except OSError as error:
        raise ConfigError("config-unreadable", f"{path}: cannot read: {error.strerror}") from None
    except ValueError as error:  # from TOML, or from Python for a number with thousands of digits
        raise ConfigError("config-not-toml", f"{path} is not valid TOML: {error}") from None
    except RecursionError:
        raise ConfigError("config-not-toml", f"{path} is not valid TOML: it is nested too deeply") from None
    for other, key in _KEY_OF.items():
        is_own = kind in ("", other) or (kind, other) == (ADDER, AGGREGATOR)  # both have `listen`
        if not is_own and key in values and (kind == TERMS or _KEY_OF[kind] not in values):
            raise ConfigError("config-wrong-kind", f"{path} is {other}; specify {kind} instead")
    return values


def from_folder(source: Path, paths: Mapping[str, Path | None]) -> dict[str, Path | None]:
    """Resolve the paths in a settings file, relative to the folder that contains the file. source: the file;
    paths: key -> path or None. Raises ConfigError if a path is invalid."""
    absolute = {}
    for key, path in paths.items():
        try:
            absolute[key] = path and (source.parent / path).resolve()
        except (OSError, RuntimeError, ValueError) as error:  # a loop of links, or a null byte
            raise ConfigError(
                "config-path-invalid", f"{source}: {key} = {str(path)!r} is not a valid path: {error}"
            ) from None
    return absolute


def choose_keys(
    keys: Path | None, role: str, address: str, insecure_loopback: bool, named: str = ""
) -> "Bundle | None":
    """Return the bundle (certificate and key) with which to connect, or None for an unencrypted connection.

    Args:
        keys: folder of the bundle.
        role: "party", "aggregator", "adder" or "analyst".
        address: HOST:PORT; without keys it must be a loopback address.
        insecure_loopback: connect without keys and encryption.
        named: how users name the folder (default: as is usual for this role).

    Raises:
        ConfigError: the bundle cannot be used, `keys` and `insecure_loopback` are both passed or both
            missing, or an unencrypted connection would leave this machine.
    """
    from fedboost.runtime.net.keys import read_bundle

    if keys is not None and not insecure_loopback:
        return read_bundle(keys, role)
    if keys is not None:
        raise ConfigError(
            "keys-or-insecure",
            f"keys ({keys}) cannot be combined with --insecure-loopback; remove one of them",
        )
    if not insecure_loopback:
        raise ConfigError(
            "keys-not-given",
            f"no keys are specified; name the folder from `fedboost keys {role}` with "
            + (named or ("--keys FOLDER" if role == "analyst" else 'keys = "FOLDER" in the file'))
            + ", or use --insecure-loopback if everything runs on one machine",
        )
    if not is_loopback(address):
        raise ConfigError(
            "keys-not-loopback",
            f"--insecure-loopback only works on this machine, not with {address}; use keys",
        )
    return None


def is_loopback(address: str) -> bool:
    """Return whether the host of an address HOST:PORT is localhost or a loopback IP address."""
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
    raise TypeError(f"a {type(value).__name__} cannot be written as TOML")


_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


# ---- The aggregator's file ------------------------------------------------------------------------------


class ConsoleConfig(Frozen):
    """Settings of the [console](console.md), i.e. of the aggregator's web pages and HTTP API."""

    listen: str = Field(description="Address to serve the [console](console.md) at, `HOST:PORT`.")
    tokens: OrNone[Path] = Field(
        description="File of access [tokens](console.md#from-elsewhere), written by `fedboost keys token`.",
    )

    _check = field_validator("listen")(require_address)


class TunnelsConfig(Frozen):
    """Further addresses at which [tunnels](networks.md) arrive. Anything may end their TLS, e.g. a reverse
    proxy. Requires `keys`."""

    websocket: OrNone[str] = Field(description="Address for tunnels over WebSockets, `HOST:PORT`.")
    grpc: OrNone[str] = Field(description="Address for tunnels over gRPC, `HOST:PORT`.")
    certificate: OrNone[Path] = Field(
        description="TLS certificate (PEM) for these addresses (default: none; a reverse proxy ends TLS)."
    )
    key: OrNone[Path] = Field(description="Private key of this certificate (PEM).")

    _check = field_validator("websocket", "grpc")(require_address)

    @property
    def pair(self) -> tuple[Path, Path] | None:
        """The TLS certificate and its key, if any."""
        return None if self.certificate is None or self.key is None else (self.certificate, self.key)

    def _faults(self) -> Iterator[str]:
        if self.websocket is None and self.grpc is None:
            yield "set websocket, grpc or both"
        if (self.certificate is None) != (self.key is None):
            yield "set certificate and key together"


class AggregatorConfig(Frozen):
    """Settings in the aggregator's file. Relative paths are relative to the folder that contains it."""

    listen: str = Field(default="127.0.0.1:7070", description="Address to listen on, `HOST:PORT`.")
    keys: Path | None = Field(default=None, description="Folder of the aggregator's [bundle](identity.md).")
    state: OrNone[Path] = Field(
        description="Folder where sessions are stored, so that they survive a restart "
        "(default: NAME.state next to NAME.toml).",
    )
    programs: tuple[str, ...] = Field(
        default=(), description="Custom programs that terms may use, as `module:function`."
    )
    memory: float = Field(default=4.0, gt=0, description="Maximum memory for a session's sums, in GiB.")
    metrics: str | None = Field(
        default=None, description="Address to serve Prometheus metrics at, `HOST:PORT` (default: none)."
    )
    console: ConsoleConfig | None = Field(
        default=None, description="Web pages and HTTP API of the aggregator (default: none)."
    )
    tunnels: OrNone[TunnelsConfig] = Field(description="Addresses for tunnels, below (default: none).")

    _check = field_validator("listen", "metrics")(require_address)


class AdderConfig(Frozen):
    """Settings in an adder's file. Relative paths are relative to the folder that contains it."""

    listen: str = Field(default="127.0.0.1:7071", description="Address to listen on, `HOST:PORT`.")
    upstream: str = Field(description="Address of the aggregator, `HOST:PORT` or that of a tunnel.")
    proxy: Proxy
    ca: Authorities
    keys: Path | None = Field(default=None, description="Folder of the adder's [bundle](identity.md).")
    tunnels: OrNone[TunnelsConfig] = Field(description="Addresses for tunnels (default: none).")

    _check = field_validator("listen")(require_address)
    _check_upstream = field_validator("upstream")(require_dialable)


def read_adder(path: Path) -> AdderConfig:
    """Read an adder's settings file. Paths in the result are absolute. Raises ConfigError if the file cannot
    be read or has an invalid setting."""
    config = read_model(AdderConfig, read_toml(path, ADDER), str(path))
    own = from_folder(path, {"keys": config.keys, "ca": config.ca})
    return config.model_copy(update={**own, "tunnels": _tunnels(path, config.tunnels)})


def _tunnels(path: Path, config: TunnelsConfig | None) -> TunnelsConfig | None:
    if config is None:
        return None
    own = {"certificate": config.certificate, "key": config.key}
    return config.model_copy(update=from_folder(path, own))


def read_aggregator(path: Path) -> AggregatorConfig:
    """Read the aggregator's settings file. Paths in the result are absolute. Raises ConfigError if the file
    cannot be read or has an invalid setting."""
    config = read_model(AggregatorConfig, read_toml(path, AGGREGATOR), str(path))
    state = config.state or Path(f"{path.stem}.state")
    update: dict[str, Any] = {**from_folder(path, {"keys": config.keys, "state": state})}
    update["tunnels"] = _tunnels(path, config.tunnels)
    if config.console is not None:
        tokens = from_folder(path, {"tokens": config.console.tokens})
        update["console"] = config.console.model_copy(update=tokens)
    return config.model_copy(update=update)
