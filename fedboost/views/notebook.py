"""Models, results and terms in notebooks: small HTML tables.

Promises: whatever comes from outside is text and never markup, in bounded length; there are no colours, so
that the notebook's own hold, light or dark.
Refuses: nothing.
"""

import html
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from fedboost.errors import quoted
from fedboost.results.base import Traffic
from fedboost.results.model import ModelSummary
from fedboost.terms.terms import Terms
from fedboost.views.training import figures, signatures
from fedboost.views.words import counted, shorten, size

MAX_CELL = 200
"""Characters of a cell."""
MAX_LINES = 20
"""Lines of a table, and names of a list, that are shown."""
_LEFT = ' style="text-align: left; vertical-align: top"'


def terms_html(terms: Terms) -> str:
    """Return terms: the columns, and every setting that is not its default."""
    columns = terms.columns.model_dump(exclude_defaults=True)
    lines = {f"columns.{key}": _value(value) for key, value in columns.items()}
    for key, field in terms.file_keys().items():
        value = terms.flat[key]
        if key not in ("columns", "xgb_model") and value != field.get_default(call_default_factory=True):
            lines[key] = _value(value)
    lines |= {"objective": terms.objective.name, "protection": terms.hiding.protection}
    lines |= {"rounds": str(terms.trees.rounds), "digest": terms.digest[:12]}
    return _entries("Terms", lines)


def model_html(model: ModelSummary, gains: Mapping[str, float]) -> str:
    """Return a model: what it is, who signed it, and the features of the highest gains."""
    return _entries("Model", _lines(model)) + _gains(model, gains)


def result_html(model: ModelSummary, gains: Mapping[str, float], traffic: Traffic) -> str:
    """Return the result of a training: the model, and the bytes of each party."""
    lines = [(party, size(sent), size(received)) for party, (sent, received) in traffic.items()]
    sides = _table("Bytes", ("party", "sent", "received"), lines)
    return _entries("Result", _lines(model)) + _gains(model, gains) + sides


def _lines(model: ModelSummary) -> dict[str, str]:
    terms = model.terms
    stopped = f" ({model.trained} were trained)" if model.kept < model.trained else ""
    return {
        "objective": terms.objective.name,
        "trees": f"{model.trees} in {counted(model.kept, 'round')}{stopped}",
        "features": f"{len(terms.columns.numeric)} numeric, {len(terms.columns.categorical)} categorical",
        "last round": figures(model.last_row, terms, ", ") or "no metrics",
        "parties": _value(terms.parties),
        "protection": signatures(model).removeprefix("protection "),
        "fingerprint": model.fingerprint[:12],
    }


def _gains(model: ModelSummary, gains: Mapping[str, float]) -> str:
    noise = model.terms.noise
    if not gains or (noise is not None and noise.method != "hist"):  # splits are drawn: gains say nothing
        return ""
    return _table("Mean gain", ("feature", "gain"), [(name, f"{gain:.6g}") for name, gain in gains.items()])


def _value(value: Any) -> str:
    """Return a setting; of a long list its length and first names."""
    if isinstance(value, Mapping):
        value = [f"{key}: {_value(own)}" for key, own in islice(value.items(), MAX_LINES + 1)]
    if isinstance(value, Sequence) and not isinstance(value, str):
        texts = ", ".join(shorten(str(each)) for each in value[:MAX_LINES])
        return f"{len(value)}: {texts}, …" if len(value) > MAX_LINES else texts
    return str(value)


def _entries(title: str, lines: Mapping[str, str]) -> str:
    return _table(title, (), lines.items(), MAX_CELL)


def _table(
    title: str, headings: Sequence[str], lines: Iterable[Sequence[str]], limit: int = MAX_LINES
) -> str:
    """Return a table with a title; the first cell of each line is its heading."""
    head = "".join(f"<th{_LEFT}>{_text(heading)}</th>" for heading in headings)
    shown = [*islice(lines, limit + 1)]
    body = "".join(
        f"<tr><th{_LEFT}>{_text(first)}</th>{''.join(f'<td{_LEFT}>{_text(c)}</td>' for c in cells)}</tr>"
        for first, *cells in shown[:limit]
    )
    more = f"<tr><td{_LEFT}>…</td></tr>" if len(shown) > limit else ""
    top = f"<thead><tr>{head}</tr></thead>" if head else ""
    return f"<table><caption{_LEFT}>{_text(title)}</caption>{top}<tbody>{body}{more}</tbody></table>"


def _text(text: str) -> str:
    """Return text as markup has it: control characters, and those that turn the direction, as escapes."""
    return html.escape(quoted(text, MAX_CELL))
