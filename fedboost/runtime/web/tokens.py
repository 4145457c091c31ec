"""Tokens: who may read pages of a process from elsewhere, and who may submit.

A file has for each token its name, role, last day and SHA-256; the token itself is printed once, when it is
made, and is nowhere else. To take a token away, delete its entry: the file is read again when it changes.

Promises: a token has 256 random bits; all entries are compared, in constant time; tokens never print.
Refuses: files that others can write, or that are none (ConfigError); wrong tokens and those that ended
(Refusal). A right token is taken however many wrong ones came from its address: nobody guesses 256 bits.
"""

import hashlib
import hmac
import os
import secrets
import stat
import time
from datetime import UTC, date, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from fedboost.errors import ConfigError
from fedboost.runtime.bucket import Buckets
from fedboost.runtime.config import read_toml, to_toml
from fedboost.runtime.web.guard import Refusal
from fedboost.terms.reading import Frozen, Name, read_model

Role = Literal["viewer", "analyst", "officer"]
TOKEN_BYTES = 32
TRIES_PER_SECOND, TRIES_SAVED = 0.1, 5.0
"""Wrong tokens of one address: so many in one go, then one each ten seconds."""
MAX_TOKENS = 1000
LONGEST_TOKEN = 128


class Token(Frozen):
    """An entry of the file. ends: the last day on which it counts, UTC."""

    name: Name
    role: Role
    ends: date
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class _File(Frozen):
    tokens: tuple[Token, ...] = Field((), max_length=MAX_TOKENS)


class Tokens:
    """The tokens of a file, as it is now. log: takes a file that can no longer be read."""

    def __init__(self, path: Path, log: Any) -> None:
        """Read the file. ConfigError."""
        self._path = path
        self._log = log
        self._tries = Buckets(TRIES_PER_SECOND, TRIES_SAVED)
        self._stamp = self._stamp_of()
        self._tokens = read_tokens(path)

    def owner(self, offered: str, address: str) -> Token:
        """The entry of a token that was offered from this address. Raises Refusal."""
        self.read_again()
        digest = hashlib.sha256(offered[:LONGEST_TOKEN].encode(errors="surrogatepass")).hexdigest()
        found = [token for token in self._tokens if hmac.compare_digest(token.sha256, digest)]
        if not found:
            now = time.monotonic()
            tries = self._tries.of(address, now)
            if tries.tokens(now) < 1.0:
                wait = {"Retry-After": "10"}
                raise Refusal(HTTPStatus.TOO_MANY_REQUESTS, "too many wrong tokens; wait ten seconds", wait)
            tries.take(now)
            raise Refusal(HTTPStatus.UNAUTHORIZED, "this is no token of this process")
        if not is_current(found[0]):
            raise Refusal(HTTPStatus.UNAUTHORIZED, f"this token ended on {found[0].ends}; ask for a new one")
        return found[0]

    def knows(self, token: Token) -> bool:
        """Tell if a token that was right still is."""
        self.read_again()
        return token in self._tokens and is_current(token)

    def read_again(self) -> None:
        """Read the file if it has changed; one that cannot be read any more has no tokens."""
        if (stamp := self._stamp_of()) == self._stamp:
            return
        self._stamp, self._tokens = stamp, ()
        try:
            self._tokens = read_tokens(self._path)
        except ConfigError as error:
            self._log.error("no token counts until this file is put right", reason=str(error))

    def _stamp_of(self) -> tuple[int, int, int]:
        try:
            status = self._path.stat()
        except OSError:
            return 0, 0, 0
        return status.st_mtime_ns, status.st_size, status.st_ino


def is_current(token: Token) -> bool:
    """Tell if a token's last day is not over."""
    return datetime.now(UTC).date() <= token.ends


def read_tokens(path: Path) -> tuple[Token, ...]:
    """The tokens of a file. ConfigError for a file that is none, or that others can write."""
    if not path.exists():
        raise ConfigError(f"{path}: no such file; `fedboost keys token NAME --file {path}` writes it")
    entries = read_model(_File, read_toml(path), str(path)).tokens
    mode = path.stat().st_mode
    if os.name == "posix" and mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(f"{path}: others can write it (mode {mode & 0o777:o}); run: chmod 600 {path}")
    return entries


def add_token(path: Path, name: str, role: Role, days: int) -> tuple[str, date]:
    """Make a token, and write its entry at the end of the file, which is made if there is none: the token,
    and its last day. ConfigError."""
    known = read_tokens(path) if path.exists() else ()
    if any(token.name == name and is_current(token) for token in known):
        raise ConfigError(f"{path}: has a token of {name!r}; delete its entry first, or give another name")
    if len(known) >= MAX_TOKENS:
        raise ConfigError(f"{path}: has {MAX_TOKENS} tokens; delete those that ended")
    token, ends = secrets.token_urlsafe(TOKEN_BYTES), datetime.now(UTC).date() + timedelta(days=days)
    digest = hashlib.sha256(token.encode()).hexdigest()
    read_model(Token, {"name": name, "role": role, "ends": ends, "sha256": digest}, "the token")
    entry = f"\n[[tokens]]\nname = {to_toml(name)}\nrole = {to_toml(role)}\nends = {ends}\nsha256 = "
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "wb") as opened:
            opened.write(f"{entry}{to_toml(digest)}\n".encode())
            opened.flush()
            os.fsync(file)
    except OSError as error:
        raise ConfigError(f"{path}: cannot write: {error.strerror}") from None
    return token, ends
