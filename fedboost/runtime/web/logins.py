"""Identification of a page's caller: the owner of a token, a logged-in browser, or a client on this machine.

Guarantees: a cookie contains a random login id, never a token. A login ends when its token expires or is
deleted, when the process ends, and in any case after a few hours. If a user logs in too often, only the
user's own earlier logins end.
Raises: Refusal for unidentified callers if identification is required, and for callers with a different role.
"""

import hashlib
import hmac
import os
import secrets
import stat
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from fedboost.errors import ConfigError
from fedboost.runtime.config import read_toml, to_toml
from fedboost.runtime.files import file_errors
from fedboost.runtime.web.guard import Buckets, Refusal, Scope, asker_of, only_header
from fedboost.system import open_private, others_may
from fedboost.terms.reading import Frozen, Name, read_model

# ---- Tokens: who may read pages of a process from elsewhere, and who may submit -------------------------
# A file has the name, role, last day and SHA-256 of each token. The token itself is printed once, when it is
# created, and not stored. To revoke a token, delete its entry: the file is read again when it changes.
# Guarantees: a token has 256 random bits; all entries are compared, in constant time; no token is logged.
# Raises: ConfigError for files that others can write to or that are not token files; Refusal for wrong and
# expired tokens. A correct token is accepted however many wrong ones came from its address, because 256 bits
# cannot be guessed.


Role = Literal["viewer", "analyst", "officer", "client"]
TOKEN_BYTES = 32
TRIES_PER_SECOND, TRIES_SAVED = 0.1, 5.0
"""Limits for wrong tokens from one address: one per ten seconds, after an initial burst of five."""
MAX_TOKENS = 1000
LONGEST_TOKEN = 128


class Token(Frozen):
    """An entry in a token file. ends: last day on which the token is valid, UTC."""

    name: Name
    role: Role
    ends: date
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class _File(Frozen):
    tokens: tuple[Token, ...] = Field((), max_length=MAX_TOKENS)


class Tokens:
    """The tokens in a file, read again when it changes. log: reports when it can no longer be read."""

    def __init__(self, path: Path, log: Any) -> None:
        """Read the token file. Raises ConfigError if it is not a token file or others can write to it."""
        self._path = path
        self._log = log
        self._tries = Buckets(TRIES_PER_SECOND, TRIES_SAVED)
        self._stamp = self._stamp_of()
        self._tokens = read_tokens(path)

    def owner(self, offered: str, address: str) -> Token:
        """Return a token's entry in the token file. offered: the token; address: the client's address;
        failed attempts are limited per address. Raises Refusal if the token is wrong or expired."""
        self.read_again()
        digest = hashlib.sha256(offered[:LONGEST_TOKEN].encode(errors="surrogatepass")).hexdigest()
        found = [token for token in self._tokens if hmac.compare_digest(token.sha256, digest)]
        if not found:
            now = time.monotonic()
            tries = self._tries.of(address, now)
            if tries.tokens(now) < 1.0:
                wait = {"Retry-After": "10"}
                raise Refusal(
                    HTTPStatus.TOO_MANY_REQUESTS, "there were too many wrong tokens; wait ten seconds", wait
                )
            tries.take(now)
            raise Refusal(HTTPStatus.UNAUTHORIZED, "this token is not valid for this process")
        if not is_current(found[0]):
            raise Refusal(
                HTTPStatus.UNAUTHORIZED, f"this token was valid until {found[0].ends}; ask for a new one"
            )
        return found[0]

    def knows(self, token: Token) -> bool:
        """Return whether a token that was accepted earlier is still valid."""
        self.read_again()
        return token in self._tokens and is_current(token)

    def read_again(self) -> None:
        """Read the file again if it has changed. While it cannot be read, no token is valid."""
        if (stamp := self._stamp_of()) == self._stamp:
            return
        self._stamp, self._tokens = stamp, ()
        try:
            self._tokens = read_tokens(self._path)
        except ConfigError as error:
            self._log.error("no token is valid until this file is corrected", reason=str(error))

    def _stamp_of(self) -> tuple[int, int, int]:
        try:
            status = self._path.stat()
        except OSError:
            return 0, 0, 0
        return status.st_mtime_ns, status.st_size, status.st_ino


def is_current(token: Token) -> bool:
    """Return whether a token has not expired yet."""
    return datetime.now(UTC).date() <= token.ends


def read_tokens(path: Path) -> tuple[Token, ...]:
    """Read a token file. Raises ConfigError if it is missing, invalid, or can be written by others."""
    if not path.exists():
        raise ConfigError(
            "tokens-missing",
            f"{path} does not exist; create it with `fedboost keys token NAME --file {path}`",
        )
    entries = read_model(_File, read_toml(path), str(path)).tokens
    if others_may(status := path.stat(), stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(
            "tokens-writable",
            f"other users can write to {path} (mode {status.st_mode & 0o777:o}); run: chmod 600 {path}",
        )
    return entries


def add_token(path: Path, name: str, role: Role, days: int) -> tuple[str, date]:
    """Create a token and append its entry to a token file, which is created if missing.

    Args:
        name: name of the token's owner.
        role: "viewer", "analyst" or "officer".
        days: number of days that the token is valid.

    Returns:
        The token and the last day on which it is valid.

    Raises:
        ConfigError: the name already has a valid token, or the file cannot be used.
    """
    known = read_tokens(path) if path.exists() else ()
    if any(token.name == name and is_current(token) for token in known):
        raise ConfigError(
            "token-name-taken",
            f"{path} already has a token for {name!r}; delete its entry, or use another name",
        )
    if len(known) >= MAX_TOKENS:
        raise ConfigError(
            "tokens-too-many",
            f"{path} already has {MAX_TOKENS} tokens, which is the maximum; delete expired ones",
        )
    token, ends = secrets.token_urlsafe(TOKEN_BYTES), datetime.now(UTC).date() + timedelta(days=days)
    digest = hashlib.sha256(token.encode()).hexdigest()
    read_model(Token, {"name": name, "role": role, "ends": ends, "sha256": digest}, "the token")
    entry = f"\n[[tokens]]\nname = {to_toml(name)}\nrole = {to_toml(role)}\nends = {ends}\nsha256 = "
    with file_errors(path, "cannot write"):
        file = open_private(path, os.O_APPEND)
        with os.fdopen(file, "wb") as opened:
            opened.write(f"{entry}{to_toml(digest)}\n".encode())
            opened.flush()
            os.fsync(file)
    return token, ends


# ---- Who requests a page: by a token, or by the cookie of a browser that logged in ----------------------


_READERS = "viewer", "analyst", "officer"
LOGIN_SECONDS = 12 * 3600.0
MAX_LOGINS = 1024
"""Maximum number of logins. If it is exceeded, the oldest login of the user with the most logins ends."""


@dataclass(frozen=True)
class Caller:
    """The caller of a page. name: '' for a local client without a token; by_cookie: a browser's login."""

    name: str
    role: str
    by_cookie: bool = False


class Logins:
    """Identifies callers by tokens and cookies, and manages browser logins.

    Args:
        tokens: the valid tokens, or None if no tokens are set up.
        is_open: True if everyone who can reach the pages may read them.
        encrypted: True if pages are served over TLS.
        readers: roles whose tokens may read (default: those of people).
    """

    def __init__(
        self, tokens: Tokens | None, is_open: bool, encrypted: bool, readers: Sequence[str] = ()
    ) -> None:
        self.is_open = is_open
        self._readers = readers
        self.cookie = "__Host-fedboost" if encrypted else "fedboost"
        self._encrypted = encrypted
        self._tokens = tokens
        self._secret = secrets.token_bytes(32)
        self._logins: dict[str, tuple[Token, float]] = {}
        """Maps hash of a cookie's value -> the token, and when the login ends (monotonic seconds)."""

    def caller(self, scope: Scope) -> Caller:
        """Identify the caller of a request. Raises Refusal if a required token is missing or invalid."""
        offered = only_header(scope, b"authorization")
        if offered is not None:
            kind, _, token = offered.partition(" ")
            if kind.lower() != "bearer":
                raise _unknown("send the token as Authorization: Bearer TOKEN")
            by_token = self.owner(token, scope)
            return Caller(by_token.name, by_token.role)
        login = self._logins.get(_hashed(self._cookie_of(scope)))
        if login is not None and self._tokens is not None:
            owner, ends = login
            if time.monotonic() < ends and self._tokens.knows(owner):
                return Caller(owner.name, owner.role, by_cookie=True)
        if self.is_open:
            return Caller("", "viewer")
        raise _unknown("a token is required: log in, or send it as Authorization: Bearer TOKEN")

    def need(self, scope: Scope, role: str) -> Caller:
        """Identify the caller and check that it has a token with this role. Raises Refusal if not."""
        caller = self.caller(scope)
        if not caller.name:
            raise _unknown(f"a token with role {role} is required: send it as Authorization: Bearer TOKEN")
        if caller.role != role:
            raise Refusal(HTTPStatus.FORBIDDEN, f"this token has role {caller.role}, but {role} is required")
        return caller

    def log_in(self, token: str, scope: Scope) -> str:
        """Create a login for a browser that sent a token, and return the Set-Cookie header. Raises Refusal if
        the token is not valid."""
        owner, now = self.owner(token, scope), time.monotonic()
        self._logins = {key: login for key, login in self._logins.items() if login[1] > now}
        value = secrets.token_urlsafe(32)
        self._logins[_hashed(value)] = owner, now + LOGIN_SECONDS
        if len(self._logins) > MAX_LOGINS:
            names = [each.name for each, _ in self._logins.values()]
            most = Counter(names).most_common(1)[0][0]
            del self._logins[[*self._logins][names.index(most)]]
        return self._set_cookie(value, int(LOGIN_SECONDS))

    def form_key(self, scope: Scope) -> str:
        """Return the CSRF token in this login's forms, which only pages for the logged-in browser contain."""
        cookie = self._cookie_of(scope).encode("latin-1", "replace")
        return hmac.new(self._secret, cookie, hashlib.sha256).hexdigest()

    def log_out(self, scope: Scope) -> str:
        """End a browser's login, and return the Set-Cookie header."""
        self._logins.pop(_hashed(self._cookie_of(scope)), None)
        return self._set_cookie("", 0)

    def owner(self, token: str, scope: Scope) -> Token:
        """Return the token file's entry for a token that was sent with a request. Raises Refusal if the token
        is not valid or its role may not read."""
        if self._tokens is None:
            raise _unknown("no tokens are set up for this process")
        owner = self._tokens.owner(token.strip(), asker_of(scope).address)
        if owner.role not in (readers := self._readers or _READERS):
            needed = " or ".join(readers)
            raise Refusal(HTTPStatus.FORBIDDEN, f"this token has role {owner.role}, but {needed} is required")
        return owner

    def _cookie_of(self, scope: Scope) -> str:
        cookies = only_header(scope, b"cookie") or ""
        for each in cookies.split(";"):
            name, _, value = each.strip().partition("=")
            if name == self.cookie:
                return value
        return ""

    def _set_cookie(self, value: str, seconds: int) -> str:
        secure = "; Secure" if self._encrypted else ""
        return f"{self.cookie}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"


def _hashed(value: str) -> str:
    return hashlib.sha256(value.encode("latin-1", "replace")).hexdigest()


def _unknown(reason: str) -> Refusal:
    return Refusal(HTTPStatus.UNAUTHORIZED, reason, {"WWW-Authenticate": "Bearer"})
