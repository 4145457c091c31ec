"""Terms that an analyst signed, as a file: for whoever submits them, who cannot change or make them up.

The file is JSON: `terms` as text, and `request` with the analyst's nonce, time, certificate and signature
(base64); without `request` where analysts have no keys.

Refuses: bytes that are no such file (ConfigError).
"""

import base64
import json
import os
import time
from typing import Any

from fedboost.errors import ConfigError
from fedboost.protocol import key_exchange
from fedboost.protocol.messages import Request
from fedboost.runtime.net.keys import Bundle
from fedboost.terms.terms import Terms
from fedboost.wire.codec import MAX_REQUEST

_BYTES = "nonce", "certificate", "signature"


def sign_terms(terms: Terms, bundle: Bundle) -> bytes:
    """The content of a file with terms that the owner of a bundle signed, good for one session."""
    nonce = os.urandom(key_exchange.NONCE_BYTES)
    return to_json(terms, key_exchange.request(bundle.signer, terms, nonce, int(time.time())))


def to_json(terms: Terms, request: Request | None) -> bytes:
    """The content of a file with terms, and the analyst's request for a session."""
    values: dict[str, Any] = {"terms": terms.canonical()}
    if request is not None:
        signed = {name: base64.b64encode(getattr(request, name)).decode() for name in _BYTES}
        values["request"] = {"time": request.time, **signed}
    return json.dumps(values, indent=1).encode() + b"\n"


def from_json(data: bytes) -> tuple[str, Request | None]:
    """The text of the terms in the content of a file, unread, and the request if there is one: nobody has
    checked it. ConfigError."""
    try:
        values = json.loads(data)
        text, given = values["terms"], values.get("request")
        if not isinstance(text, str) or not {*values} <= {"terms", "request"}:
            raise ValueError
        request = None if given is None else _request(given)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ConfigError("not signed terms; `fedboost sign terms.toml` writes them") from None
    return text, request


def _request(given: Any) -> Request:
    values = {name: base64.b64decode(given[name], validate=True) for name in _BYTES}
    if type(given["time"]) is not int or sum(map(len, values.values())) > MAX_REQUEST:
        raise ValueError
    return Request(time=given["time"], **values)
