"""The HTTP API: its OpenAPI document, made from the types of its answers, and the page that shows it."""

from collections.abc import Iterator
from typing import Any, get_args

from pydantic.json_schema import models_json_schema

from fedboost.results.session import Error, Health, Model, Session, SessionDetail, Site, Submitted
from fedboost.version import VERSION
from fedboost.views.document import Beside, Block, Document, Line, Link, Paragraph, Section, Table

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
_JSON, _HTML, _TEXT = "application/json", "text/html", "text/plain"
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


def _answer(what: str, content: Any = None, kind: str = _JSON) -> Object:
    """Return an answer. content: its type, or a schema; text unless given."""
    schema = {"type": "string"} if content is None else content
    if isinstance(content, type):
        schema = {"$ref": _REFS.format(model=content.__name__)}
    elif of := get_args(content):
        schema = {"type": "array", "items": {"$ref": _REFS.format(model=of[0].__name__)}}
    return {"description": what, "content": {kind: {"schema": schema}}}


def _operation(
    summary: str, answer: Object, *refused: int, named: bool = False, status: str = "200", **more: Any
) -> Object:
    answers = {status: answer} | {
        str(code): {"$ref": f"#/components/responses/{_FAULTS[code][0]}"}
        for code in (401, 403, *refused, 429)
    }
    place = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
    return {"summary": summary, "responses": answers, **({"parameters": [place]} if named else {}), **more}


def _paths() -> Object:
    submitted = _answer("the session runs already, or waits to begin", Submitted)
    detail = _answer("the session", SessionDetail)
    signed = {"required": True, "content": {_JSON: {"schema": {"$ref": _REFS.format(model="SignedTerms")}}}}
    read = {
        "/health": _operation("Is it up", _answer("it is", Health)),
        "/sites": _operation("Sites that are or were here", _answer("sites", list[Site])),
        "/sessions": _operation("Sessions, those that are over last", _answer("sessions", list[Session])),
        "/sessions/{name}": _operation("A session with its rounds", detail, 404, named=True),
        "/models": _operation("Models that are kept", _answer("models", list[Model])),
        "/models/{name}": _operation(
            "A model file, by its session", _answer("XGBoost JSON", _OBJECT), 404, named=True
        ),
        "/models/{name}/report": _operation(
            "The report of a model", _answer("one page", kind=_HTML), 404, named=True
        ),
        "/metrics": _operation("Metrics for Prometheus", _answer("its text format", kind=_TEXT)),
        "/openapi.json": _operation("This document", _answer("OpenAPI 3.1", _OBJECT)),
    }
    paths = {path: {"get": operation} for path, operation in read.items()}
    paths["/sessions"]["post"] = _operation(
        "Submit signed terms; needs a token of the role analyst, and the analyst's own signature",
        submitted,
        400,
        413,
        422,
        status="202",
        requestBody=signed,
        security=[{"analyst": []}],
    )
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
    headings = ["address", "what it does", "answer", "refused"]
    schemas = shown["components"]["schemas"].items()
    blocks: list[Block] = [
        Paragraph(shown["info"]["description"]),
        Paragraph(("The same as an OpenAPI document for tools: ", Link(to, to))),
        Section(
            "operations",
            "Operations",
            [Table("A refusal is an Error", headings, [*_operations(shown["paths"])], (), folded=False)],
        ),
        Section("objects", "Objects", [Beside([_object(name, schema) for name, schema in schemas])]),
    ]
    return Document("Interface for programs", "JSON over HTTP", blocks)


def _operations(paths: Object) -> Iterator[list[Line]]:
    for path, methods in paths.items():
        for method, operation in methods.items():
            own, *refused = operation["responses"].items()
            status, answer = own
            ((kind, content),) = answer["content"].items()
            body = "; the body is a SignedTerms" if "requestBody" in operation else ""
            yield [
                f"{method.upper()} {BASE}{path}",
                f"{operation['summary']}{body}",
                f"{status}: {answer['description']} ({kind}{_of(content['schema'])})",
                ", ".join(code for code, _ in refused),
            ]


def _of(schema: Object) -> str:
    inner = schema.get("items", schema)
    name = inner.get("$ref", "").rpartition("/")[2]
    return f", {'a list of ' if 'items' in schema else ''}{name}" if name else ""


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
