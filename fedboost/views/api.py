"""The interface for programs: its OpenAPI document, and the page that shows it.

Promises: the page is made of the document, so that the two say the same.
Refuses: nothing.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from fedboost.version import VERSION
from fedboost.views.elements import items, paragraph, table
from fedboost.views.markup import Markup, element, joined
from fedboost.views.shell import document, part

BASE = "/api/v1"
Object = dict[str, Any]


def _answer(what: str, kind: str, schema: Object | None = None) -> Object:
    return {
        "description": what,
        "content": {kind: {"schema": {"type": "string"} if schema is None else schema}},
    }


def _named(name: str) -> Object:
    return {"$ref": f"#/components/schemas/{name}"}


def _list(name: str) -> Object:
    return {"type": "array", "items": _named(name)}


def _operation(
    summary: str, answer: Object, *refused: int, named: bool = False, status: str = "200", **more: Any
) -> Object:
    faults = {400: "BadRequest", 401: "NoToken", 403: "Forbidden", 404: "NotFound", 413: "TooLarge"}
    faults |= {422: "NotFit", 429: "TooMany"}
    answers = {status: answer} | {
        str(code): {"$ref": f"#/components/responses/{faults[code]}"} for code in (401, 403, *refused, 429)
    }
    place = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
    return {"summary": summary, "responses": answers, **({"parameters": [place]} if named else {}), **more}


_JSON, _HTML, _TEXT = "application/json", "text/html", "text/plain"
_STRING: Object = {"type": "string"}
_OBJECT: Object = {"type": "object"}
_INTEGER: Object = {"type": "integer"}
_NUMBER: Object = {"type": "number"}
_TIME: Object = {"type": "integer", "description": "seconds since 1970, UTC; 0 for never"}
_STRINGS: Object = {"type": "array", "items": _STRING}
_ROUNDS: Object = {"type": "array", "items": {"type": "object", "additionalProperties": _NUMBER}}
_TRAFFIC: Object = {
    "type": "object",
    "description": "party to the bytes that it sent and received",
    "additionalProperties": {"type": "array", "items": _INTEGER, "minItems": 2, "maxItems": 2},
}


def _schema(**fields: Object) -> Object:
    return {"type": "object", "properties": fields, "required": [*fields]}


_SESSION: Object = {
    "name": _STRING,
    "state": {"type": "string", "enum": ["waiting", "running", "done", "failed"]},
    "analyst": _STRING,
    "terms": {"type": "string", "description": "digest of the terms"},
    "program": _STRING,
    "protection": _STRING,
    "parties": _STRINGS,
    "rounds_done": _INTEGER,
}
SCHEMAS = {
    "Error": _schema(error=_STRING),
    "Health": _schema(status=_STRING, version=_STRING, since=_TIME),
    "Site": _schema(name=_STRING, connected={"type": "boolean"}, since=_TIME, seen=_TIME, version=_STRING),
    "Session": _schema(**_SESSION),
    "SessionDetail": _schema(
        **_SESSION, rounds=_ROUNDS, traffic=_TRAFFIC, reason=_STRING, model={"type": "boolean"}
    ),
    "SignedTerms": {
        "type": "object",
        "description": "what the command fedboost sign writes; without request where analysts have no keys",
        "properties": {
            "terms": {"type": "string", "description": "canonical JSON", "pattern": "^\\{.*\\}$"},
            "request": _OBJECT,
        },
        "required": ["terms"],
    },
    "Submitted": _schema(terms=_STRING, state=_STRING, name=_STRING, missing=_STRINGS),
    "Model": _schema(
        name=_STRING, ended=_TIME, analyst=_STRING, terms=_STRING, bytes=_INTEGER, report={"type": "boolean"}
    ),
}


def _refusal(what: str) -> Object:
    return _answer(what, _JSON, _named("Error"))


def _paths() -> Object:
    signed = {"required": True, "content": {_JSON: {"schema": _named("SignedTerms")}}}
    submit = _operation(
        "Submit signed terms; needs a token of the role analyst, and the analyst's own signature",
        _answer("the session runs already, or waits to begin", _JSON, _named("Submitted")),
        400,
        413,
        422,
        status="202",
        requestBody=signed,
        security=[{"analyst": []}],
    )
    return {
        "/health": {"get": _operation("Is it up", _answer("it is", _JSON, _named("Health")))},
        "/sites": {"get": _operation("Sites that are or were here", _answer("sites", _JSON, _list("Site")))},
        "/sessions": {
            "get": _operation(
                "Sessions, those that are over last", _answer("sessions", _JSON, _list("Session"))
            ),
            "post": submit,
        },
        "/sessions/{name}": {
            "get": _operation(
                "A session with its rounds",
                _answer("the session", _JSON, _named("SessionDetail")),
                404,
                named=True,
            )
        },
        "/models": {"get": _operation("Models that are kept", _answer("models", _JSON, _list("Model")))},
        "/models/{name}": {
            "get": _operation(
                "A model file, by its session", _answer("XGBoost JSON", _JSON, _OBJECT), 404, named=True
            )
        },
        "/models/{name}/report": {
            "get": _operation("The report of a model", _answer("one page", _HTML), 404, named=True)
        },
        "/metrics": {"get": _operation("Metrics for Prometheus", _answer("its text format", _TEXT))},
        "/openapi.json": {"get": _operation("This document", _answer("OpenAPI 3.1", _JSON, _OBJECT))},
    }


def openapi() -> Object:
    """Return the document, OpenAPI 3.1."""
    bearer = {"type": "http", "scheme": "bearer"}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "fedboost aggregator",
            "version": VERSION,
            "description": "Reading needs no token where the console listens on a loopback address, else one "
            'of any role. Errors are JSON: {"error": "..."}.',
        },
        "servers": [{"url": BASE}],
        "security": [{}, {"viewer": []}, {"analyst": []}],
        "paths": _paths(),
        "components": {
            "schemas": SCHEMAS,
            "responses": {
                "BadRequest": _refusal("not such a request"),
                "NoToken": _refusal("no token, or a wrong one"),
                "Forbidden": _refusal("a token of another role, or a page of another website"),
                "NotFound": _refusal("there is no such thing"),
                "TooLarge": _refusal("more bytes than a request may have"),
                "NotFit": _refusal("terms that cannot be, or that the analyst has not signed"),
                "TooMany": _refusal("too many wrong tokens from this address"),
            },
            "securitySchemes": {
                "viewer": {**bearer, "description": "a token of the role viewer"},
                "analyst": {**bearer, "description": "a token of the role analyst"},
            },
        },
    }


def page(caller: str) -> str:
    """Return the page that shows the document."""
    shown = openapi()
    about = shown["info"]
    sections = [part("about", "About", joined(paragraph(about["description"]), _link()))]
    sections += [
        part(f"path-{number}", f"{BASE}{path}", joined(*_operations(methods)))
        for number, (path, methods) in enumerate(shown["paths"].items())
    ]
    schemas = (_schema_table(name, schema) for name, schema in SCHEMAS.items())
    sections.append(part("schemas", "Objects", joined(*schemas)))
    return document("/api", "Interface for programs", *sections, caller=caller)


def _link() -> Markup:
    to = f"{BASE}/openapi.json"
    return paragraph("The same as a document for tools: ", element("a", to, href=to), ".")


def _operations(methods: Mapping[str, Object]) -> Iterator[Markup]:
    for method, operation in methods.items():
        yield element("h3", f"{method.upper()}: {operation['summary']}")
        if "requestBody" in operation:
            yield paragraph("Body: an object SignedTerms, as the command fedboost sign writes it.")
        texts = []
        for status, answer in operation["responses"].items():
            if "$ref" in answer:
                continue
            kind, content = next(iter(answer["content"].items()))
            texts.append(f"{status}: {answer['description']} ({kind}{_of(content['schema'])})")
        others = [status for status, answer in operation["responses"].items() if "$ref" in answer]
        yield items([*texts, f"{', '.join(others)}: refused, with an object Error"])


def _of(schema: Object) -> str:
    inner = schema.get("items", schema)
    name = inner.get("$ref", "").rpartition("/")[2]
    return f", {'a list of ' if 'items' in schema else ''}{name}" if name else ""


def _schema_table(name: str, schema: Object) -> Markup:
    rows = [
        (
            field,
            f"{values['type']}{': ' + ', '.join(values['enum']) if 'enum' in values else ''}",
            values.get("description", ""),
        )
        for field, values in schema["properties"].items()
    ]
    return table(name, ["field", "type", "what"], rows, (), folded=False)
