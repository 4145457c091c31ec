"""Who asks for a page: by a token of its own, by the cookie of a browser that logged in, or as somebody on
this machine.

Promises: a cookie holds a random name of a login, never a token; a login ends with its token, with the
process, and after some hours. Who logs in very often ends logins of their own.
Refuses: who has neither, where one is needed, and who has another role (Refusal).
"""

import hashlib
import hmac
import secrets
import time
from collections import Counter
from dataclasses import dataclass
from http import HTTPStatus

from fedboost.runtime.web.guard import Refusal, Scope, asker_of, only_header
from fedboost.runtime.web.tokens import Token, Tokens

LOGIN_SECONDS = 12 * 3600.0
MAX_LOGINS = 1024
"""Beyond it the oldest login of who has most ends."""


@dataclass(frozen=True)
class Caller:
    """Who asks. name: '' for somebody on this machine without a token; by_cookie: a browser that logged
    in."""

    name: str
    role: str
    by_cookie: bool = False


class Logins:
    """The callers of pages. tokens: None where there are none; open: anybody who reaches the pages may read
    them."""

    def __init__(self, tokens: Tokens | None, is_open: bool, encrypted: bool) -> None:
        self.is_open = is_open
        self.cookie = "__Host-fedboost" if encrypted else "fedboost"
        self._encrypted = encrypted
        self._tokens = tokens
        self._secret = secrets.token_bytes(32)
        self._logins: dict[str, tuple[Token, float]] = {}
        """By the hash of the cookie's value: the token, and when the login ends."""

    def caller(self, scope: Scope) -> Caller:
        """Who asks; Refusal where that must be known, and is not."""
        offered = only_header(scope, b"authorization")
        if offered is not None:
            kind, _, token = offered.partition(" ")
            if kind.lower() != "bearer":
                raise _unknown("give the token as: Authorization: Bearer TOKEN")
            by_token = self._owner(token.strip(), scope)
            return Caller(by_token.name, by_token.role)
        login = self._logins.get(_hashed(self._cookie_of(scope)))
        if login is not None and self._tokens is not None:
            owner, ends = login
            if time.monotonic() < ends and self._tokens.knows(owner):
                return Caller(owner.name, owner.role, by_cookie=True)
        if self.is_open:
            return Caller("", "viewer")
        raise _unknown("this needs a token: log in, or give it as Authorization: Bearer TOKEN")

    def need(self, scope: Scope, role: str) -> Caller:
        """Who asks, if it is somebody with a token of this role; else Refusal."""
        caller = self.caller(scope)
        if not caller.name:
            raise _unknown(f"this needs a token of the role {role}: Authorization: Bearer TOKEN")
        if caller.role != role:
            raise Refusal(HTTPStatus.FORBIDDEN, f"a token of the role {caller.role}; this needs {role}")
        return caller

    def log_in(self, token: str, scope: Scope) -> str:
        """The header Set-Cookie for a browser that gave a token. Raises Refusal."""
        owner, now = self._owner(token.strip(), scope), time.monotonic()
        self._logins = {key: login for key, login in self._logins.items() if login[1] > now}
        value = secrets.token_urlsafe(32)
        self._logins[_hashed(value)] = owner, now + LOGIN_SECONDS
        if len(self._logins) > MAX_LOGINS:
            names = [each.name for each, _ in self._logins.values()]
            most = Counter(names).most_common(1)[0][0]
            del self._logins[[*self._logins][names.index(most)]]
        return self._set_cookie(value, int(LOGIN_SECONDS))

    def form_key(self, scope: Scope) -> str:
        """What the forms of a login's pages carry: nobody knows it who cannot read these pages."""
        cookie = self._cookie_of(scope).encode("latin-1", "replace")
        return hmac.new(self._secret, cookie, hashlib.sha256).hexdigest()

    def log_out(self, scope: Scope) -> str:
        """The header Set-Cookie that ends a login."""
        self._logins.pop(_hashed(self._cookie_of(scope)), None)
        return self._set_cookie("", 0)

    def _owner(self, token: str, scope: Scope) -> Token:
        if self._tokens is None:
            raise _unknown("this process has no tokens")
        return self._tokens.owner(token, asker_of(scope).address)

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
