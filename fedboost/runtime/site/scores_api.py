"""The REST API of a label holder's scoring service.

Guarantees: a request without a client's token, or with rows that do not fit, is answered before another party
is asked, and charges nothing. An error is one sentence with its code.
Raises: ConfigError for an address that cannot be used, and for missing tokens or TLS."""

import json
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from typing import Any

import pyarrow as pa
from pydantic import Field, JsonValue, ValidationError

from fedboost.errors import ConfigError, FedboostError, Refused, SchemaMismatch, quoted
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


class Answer(Frozen):
    """Body of a response: scores in the order of the rows, and parties that did not answer. With `reasons`,
    it also has what each of the parties contributes."""

    model: str
    scores: list[JsonValue]
    without: list[str]
    parties: list[str] | None = None
    reasons: list[JsonValue] | None = None


def read(body: bytes, columns: tuple[str, ...]) -> tuple[Question, pa.Table]:
    """Return a request and its rows as a table. Raises Refusal for a body that is not a request, and
    ConfigError for unknown columns and values that are not numbers or text."""
    try:
        question = Question.model_validate_json(body)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, fault["loc"])) or "the body"
        raise Refusal(HTTPStatus.BAD_REQUEST, quoted(f"{where}: {fault['msg']}")) from None
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
        return question, pa.table({name: [row.get(name) for row in question.rows] for name in columns})
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        raise ConfigError(
            "score-value", "the values of a column must all be numbers, or all be text"
        ) from None


def status_of(error: FedboostError) -> HTTPStatus:
    if error.code in AWAY:
        return HTTPStatus.SERVICE_UNAVAILABLE
    if isinstance(error, ConfigError | SchemaMismatch):
        return HTTPStatus.BAD_REQUEST
    return HTTPStatus.FORBIDDEN if isinstance(error, Refused) else HTTPStatus.BAD_GATEWAY


def openapi(columns: tuple[str, ...], model: str) -> Mapping[str, Any]:
    """Return the description of the API in OpenAPI 3.1."""
    body = Question.model_json_schema()
    values = {name: {"type": ["number", "string", "null"]} for name in columns}
    body["properties"]["rows"]["items"] = {"type": "object", "properties": values}
    good, failed = ({"description": text} for text in ("Success", 'An error: {"error": "one sentence"}'))
    errors = dict.fromkeys(("400", "401", "403", "413", "429", "502", "503"), failed)
    answer = {"application/json": {"schema": Answer.model_json_schema()}}
    post = {
        "summary": "Score rows",
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {"200": {**good, "content": answer}, **errors},
    }
    get = {"summary": "Which parties answer", "responses": {"200": good, "401": failed}}
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
    local, pair = is_loopback(own.listen), None
    if own.certificate is not None and own.key is not None:
        pair = own.certificate, own.key
    if not local and pair is None:
        raise ConfigError(
            "serve-no-tls",
            f"{file}: serve.listen is {own.listen}, which is not a loopback address, so `certificate` and "
            f"`key` of [serve] must be set",
        )

    async def scores(call: Call) -> bytes:
        body = await call.request.body()
        try:
            question, table = await service.beside(partial(read, body, service.columns))
            asked = table, call.caller.name, question.reasons
            values, reasons, without = await service.score(*asked)
        except FedboostError as error:
            reason = quoted(f"{error.code}: {error.detail or error.public}")
            raise Refusal(status_of(error), reason) from None
        answer: dict[str, Any] = {"model": service.model.id, "scores": values.tolist(), "without": without}
        if reasons is not None:
            answer |= {"parties": [*service.terms.parties, "bias"], "reasons": reasons.tolist()}
        return Answer(**answer).model_dump_json(exclude_none=True).encode()

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
