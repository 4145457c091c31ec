"""The HTTP API: its OpenAPI document, made from the types of its answers, and the page that shows it."""

from collections.abc import Sequence
from typing import Any, NamedTuple, get_args

from pydantic.json_schema import models_json_schema

from fedboost.results.session import Error, Health, Model, Session, SessionDetail, Site, Submitted
from fedboost.version import VERSION
from fedboost.views.document import Beside, Block, Document, Link, Paragraph, Section, Table

BASE = "/api/v1"
Object = dict[str, Any]
_REFS = "#/components/schemas/{model}"
_FAULTS = {
    400: ("BadRequest", "not such a request"),
    401: ("NoToken", "no token, or a wrong one"),
    403: ("Forbidden", "a token of another role, or a page of another website"),
    404: ("NotFound", "there is no such thing"),
    413: ("TooLarge", "more bytes than a request may have"),
    422: ("NotFit", "terms that cannot be, or that the analyst has not signed"),
    429: ("TooMany", "too many wrong tokens from this address"),
}
_JSON = "application/json"
_OBJECT: Object = {"type": "object"}
_SIGNED: Object = {
    "type": "object",
    "description": "what the command fedboost sign writes; without request where analysts have no keys",
    "properties": {
        "terms": {"type": "string", "description": "canonical JSON", "pattern": "^\\{.*\\}$"},
        "request": _OBJECT,
    },
    "required": ["terms"],
}


class Operation(NamedTuple):
    """What is under an address. content: the type of the answer, a schema, or the media type of a text."""

    summary: str
    answer: str
    content: Any
    refused: Sequence[int] = ()
    status: int = 200


READ = {
    "/health": Operation("Is it up", "it is", Health),
    "/sites": Operation("Sites that are or were here", "sites", list[Site]),
    "/sessions": Operation("Sessions, those that are over last", "sessions", list[Session]),
    "/sessions/{name}": Operation("A session with its rounds", "the session", SessionDetail, [404]),
    "/models": Operation("Models that are kept", "models", list[Model]),
    "/models/{name}": Operation("A model file, by its session", "XGBoost JSON", _OBJECT, [404]),
    "/models/{name}/report": Operation("The report of a model", "one page", "text/html", [404]),
    "/metrics": Operation("Metrics for Prometheus", "its text format", "text/plain"),
    "/openapi.json": Operation("This document", "OpenAPI 3.1", _OBJECT),
}
SUBMIT = Operation(
    "Submit signed terms; needs a token of the role analyst, and the analyst's own signature",
    "the session runs already, or waits to begin",
    Submitted,
    [400, 413, 422],
    202,
)


def _ref(kind: type) -> Object:
    return {"$ref": _REFS.format(model=kind.__name__)}


def _answer(what: str, content: Any) -> Object:
    kind, schema = _JSON, content
    if isinstance(content, str):
        kind, schema = content, {"type": "string"}
    elif of := get_args(content):
        schema = {"type": "array", "items": _ref(*of)}
    elif isinstance(content, type):
        schema = _ref(content)
    return {"description": what, "content": {kind: {"schema": schema}}}


def _described(operation: Operation, named: bool = False) -> Object:
    refused = {
        str(code): {"$ref": f"#/components/responses/{_FAULTS[code][0]}"}
        for code in (401, 403, *operation.refused, 429)
    }
    answers = {str(operation.status): _answer(operation.answer, operation.content)} | refused
    place = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
    return {"summary": operation.summary, "responses": answers, **({"parameters": [place]} if named else {})}


def _paths() -> Object:
    signed = {"required": True, "content": {_JSON: {"schema": {"$ref": _REFS.format(model="SignedTerms")}}}}
    paths = {path: {"get": _described(row, "{name}" in path)} for path, row in READ.items()}
    paths["/sessions"]["post"] = {
        **_described(SUBMIT),
        "requestBody": signed,
        "security": [{"analyst": []}],
    }
    return paths


def _schemas() -> Object:
    types = Error, Health, Site, Session, SessionDetail, Submitted, Model
    _, made = models_json_schema([(each, "serialization") for each in types], ref_template=_REFS)
    return {
        "SignedTerms": _SIGNED,
        **{
            each.__name__: {
                key: _untitled(value)
                for key, value in made["$defs"][each.__name__].items()
                if key not in ("title", "description")
            }
            for each in types
        },
    }


def _untitled(schema: Any) -> Any:
    """Return a schema without the titles of its parts, which repeat their names."""
    if isinstance(schema, dict):
        return {
            key: _untitled(value)
            for key, value in schema.items()
            if key != "title" or not isinstance(value, str)
        }
    return [*map(_untitled, schema)] if isinstance(schema, list) else schema


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
            "schemas": _schemas(),
            "responses": {name: _answer(what, Error) for name, what in _FAULTS.values()},
            "securitySchemes": {
                "viewer": {**bearer, "description": "a token of the role viewer"},
                "analyst": {**bearer, "description": "a token of the role analyst"},
            },
        },
    }


# ---- The page -------------------------------------------------------------------------------------------


def interface() -> Document:
    """Return the page that shows the document."""
    shown, to = openapi(), f"{BASE}/openapi.json"
    rows = [("GET", path, row) for path, row in READ.items()]
    rows.append(
        ("POST", "/sessions", SUBMIT._replace(summary=f"{SUBMIT.summary}; the body is a SignedTerms"))
    )
    lines = [
        (
            f"{method} {BASE}{path}",
            row.summary,
            f"{row.status}: {row.answer} ({_name(row.content)})",
            ", ".join(map(str, (401, 403, *row.refused, 429))),
        )
        for method, path, row in rows
    ]
    headings = ["address", "what it does", "answer", "refused, with an Error"]
    schemas = shown["components"]["schemas"].items()
    blocks: list[Block] = [
        Paragraph(shown["info"]["description"]),
        Paragraph(("The same as an OpenAPI document for tools: ", Link(to, to))),
        Section("operations", "Operations", [Table("All addresses", headings, lines, (), folded=False)]),
        Section("objects", "Objects", [Beside([_object(name, schema) for name, schema in schemas])]),
    ]
    return Document("Interface for programs", "JSON over HTTP", blocks)


def _name(content: Any) -> str:
    """Return the name of what an answer has."""
    if of := get_args(content):
        return f"a list of {of[0].__name__}"
    return content if isinstance(content, str) else getattr(content, "__name__", "an object")


def _object(name: str, schema: Object) -> Table:
    rows = [
        (
            field,
            f"{values['type']}{': ' + ', '.join(values['enum']) if 'enum' in values else ''}",
            values.get("description", ""),
        )
        for field, values in schema["properties"].items()
    ]
    return Table(name, ["field", "type", "what"], rows, (), folded=False)
