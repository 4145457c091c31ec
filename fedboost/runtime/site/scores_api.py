"""The REST API of a label holder's scoring service.

Guarantees: a request without a client's token, or with rows that do not fit, is answered before another party
is asked, and charges nothing. An error is one sentence with its code.
Raises: ConfigError for an address that cannot be used, and for missing tokens or TLS."""

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import pyarrow as pa
from pydantic import Field, JsonValue, ValidationError

from fedboost.errors import ConfigError, FedboostError, Refused, quoted
from fedboost.holders.scoring import MAX_POINTS
from fedboost.runtime.aggregator.limits import Refusals
from fedboost.runtime.config import is_loopback
from fedboost.runtime.site.config import PartyConfig
from fedboost.runtime.site.models import NAME_CHARS
from fedboost.runtime.site.service import AWAY, LabelService
from fedboost.runtime.web.app import CLIENT, About, Call, Row, WebApp, scoring_program
from fedboost.runtime.web.guard import Refusal, is_loopback_name
from fedboost.terms.reading import Frozen
from fedboost.views.as_html import Served

MAX_BODY = 8 << 20


class Question(Frozen):
    """Body of a request. rows: column -> value, for each row; reasons: True to also return what each party
    contributes."""

    rows: tuple[dict[str, JsonValue], ...] = Field(min_length=1, max_length=MAX_POINTS)
    reasons: bool = False


def table_of(question: Question, columns: tuple[str, ...]) -> pa.Table:
    """Return the rows of a request as a table. Raises ConfigError for unknown columns, and for values that
    are not numbers or text."""
    for place, row in enumerate(question.rows):
        if unknown := [name for name in row if name not in columns]:
            known = ", ".join(columns)
            raise ConfigError(
                "score-column-unknown", f"rows[{place}]: unknown column {unknown[0]!r}; use {known}"
            )
        for name, value in row.items():
            if isinstance(value, list | dict):
                raise ConfigError("score-value", f"rows[{place}].{name}: a value must be a number or text")
    try:
        return pa.table({name: [row.get(name) for row in question.rows] for name in columns})
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        raise ConfigError(
            "score-value", "the values of a column must all be numbers, or all be text"
        ) from None


def openapi(columns: tuple[str, ...], model: str) -> Mapping[str, Any]:
    """Return the description of the API in OpenAPI 3.1."""
    row = {"type": "object", "properties": {name: {"type": ["number", "string", "null"]} for name in columns}}
    numbers = {"type": "array", "items": {}}
    answer = {
        "type": "object",
        "required": ["model", "scores", "without"],
        "properties": {
            "model": {"type": "string"},
            "scores": numbers,
            "reasons": numbers,
            "without": {"type": "array", "items": {"type": "string"}},
        },
    }
    failed = {"description": "An error", "content": {"application/json": {"schema": {"type": "object"}}}}
    body = {
        "type": "object",
        "required": ["rows"],
        "properties": {
            "rows": {"type": "array", "items": row, "minItems": 1, "maxItems": MAX_POINTS},
            "reasons": {"type": "boolean"},
        },
    }
    good = {"description": "Scores, in the order of the rows"}
    post = {
        "summary": "Score rows",
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {
            "200": {**good, "content": {"application/json": {"schema": answer}}},
            **dict.fromkeys(("400", "401", "403", "413", "422", "429", "503"), failed),
        },
    }
    get = {"summary": "Which parties answer", "responses": {"200": {"description": "Ready"}, "401": failed}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "fedboost scores", "version": model[:NAME_CHARS]},
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}],
        "paths": {"/api/v1/scores": {"post": post}, "/api/v1/health": {"get": get}},
    }


def scores_app(config: PartyConfig, service: LabelService, log: Any) -> Any:
    """Create the web application of the REST API, and start listening. Raises ConfigError if it cannot
    listen, or if tokens or TLS are missing."""
    own, file = config.serve, config.file
    if own.listen is None or own.tokens is None:
        raise ConfigError("serve-address-missing", f"{file}: set `listen` and `tokens` in [serve]")
    local = is_loopback(own.listen)
    if not local and (own.certificate is None or own.key is None):
        raise ConfigError(
            "serve-no-tls",
            f"{file}: serve.listen is {own.listen}, which is not a loopback address, so `certificate` and "
            f"`key` of [serve] must be set",
        )
    pair = None if own.certificate is None or own.key is None else (own.certificate, own.key)
    statuses = dict.fromkeys(AWAY, HTTPStatus.SERVICE_UNAVAILABLE)
    statuses["score-limit"] = HTTPStatus.FORBIDDEN

    async def scores(call: Call) -> bytes:
        try:
            question = Question.model_validate_json(await call.request.body())
        except ValidationError as error:
            fault = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, fault["loc"])) or "the body"
            raise Refusal(HTTPStatus.BAD_REQUEST, quoted(f"{where}: {fault['msg']}")) from None
        try:
            table = table_of(question, service.columns)
            done = await service.score(table, call.caller.name, question.reasons)
        except FedboostError as error:
            status = statuses.get(error.code, HTTPStatus.BAD_REQUEST)
            if isinstance(error, Refused) and status == HTTPStatus.BAD_REQUEST:
                status = HTTPStatus.FORBIDDEN if error.code != "table-misfit" else status
            raise Refusal(status, quoted(f"{error.code}: {error.detail or error.public}")) from None
        out = {"model": service.model.id, "scores": done.values.tolist(), "without": list(done.without)}
        if done.reasons is not None:
            out["parties"] = [*service.terms.parties, "bias"]
            out["reasons"] = done.reasons.tolist()
        return json.dumps(out).encode()

    async def health(call: Call) -> bytes:
        parties = service.ready
        return json.dumps({"ready": all(parties.values()), "parties": parties}).encode()

    async def described(call: Call) -> bytes:
        return json.dumps(openapi(service.columns, service.model.id)).encode()

    table = [
        Row("/api/v1/scores", scores, scoring_program, "POST", MAX_BODY),
        Row("/api/v1/health", health, scoring_program),
        Row("/api/v1/openapi.json", described, scoring_program),
    ]
    about = About(
        "scoring service",
        "scores are served",
        "score request refused",
        Served("fedboost scores", "this service", "", {}),
        lambda call, document: "",
        readers=(CLIENT,),
        rate=(2000.0, 4000.0),
    )
    names = is_loopback_name if local else (lambda name: True)  # clients know this server by its certificate
    where = own.listen, own.tokens, names, "clients need a token"
    return WebApp(about, table, *where, Refusals(log, None), log, False, pair)
