"""docs/python-reference.md, from signatures and docstrings of the names that `import fedboost` offers."""

import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import fedboost
from fedboost.runtime.analyst import Connection

HEAD = """# Python names

<!-- Written by `make reference`: change the docstrings in fedboost. -->

The names of `import fedboost as fb`, from their docstrings. [From Python](python.md) shows how they go
together. Every key of `fb.Terms(...)` is in [terms](terms.md).
"""
GROUPS = {
    "Before and during training": (
        "Terms",
        "simulate",
        "connect",
        "Training",
        "Result",
        "describe",
        "Description",
        "tune",
        "Tuning",
        "MLflowCallback",
    ),
    "After training": (
        "Model",
        "PartyModel",
        "assemble",
        "predict_jointly",
        "evaluate",
        "Evaluation",
        "drift",
        "Drift",
    ),
    "Sources of rows": ("Database",),
    "scikit-learn": ("FederatedClassifier", "FederatedRegressor", "FederatedRanker"),
    "Errors": ("FedboostError", "ConfigError", "PeerError", "Refused", "SessionFailed", "TableWarning"),
}
"""The names, by what they are for."""
CALLED = (
    "fb.Terms",
    "fb.Database",
    "fb.MLflowCallback",
    "fb.FederatedClassifier",
    "fb.FederatedRegressor",
    "fb.FederatedRanker",
)
"""Classes that a user calls; objects of the others come from functions."""
OF_TERMS = ("changed", "digest")
"""Members of the terms of the protocol that analysts use; the others are of their own class."""


def page() -> str:
    """The whole page, as Markdown."""
    parts = [HEAD]
    for title, names in GROUPS.items():
        parts.append(f"## {title}\n")
        for name in names:
            parts += section(f"fb.{name}", getattr(fedboost, name))
            if name == "connect":
                parts += section("fb.connect(...)", Connection)
    return "\n".join(parts)


def section(name: str, thing: Any) -> Iterator[str]:
    """A name with its docstring, and of a class its public methods and properties."""
    yield f"### `{name}`\n"
    if not inspect.isclass(thing) or name in CALLED:
        lines = textwrap.wrap(signature(name, thing), 100, subsequent_indent="    ", break_on_hyphens=False)
        yield "\n".join(["```text", *lines, "```\n"])
    yield f"{doc(thing)}\n"
    if not inspect.isclass(thing) or issubclass(thing, Exception):
        return
    rows = [member(key, value) for key, value in members(thing)]
    if rows:
        yield "\n".join(["| member | meaning |", "|---|---|", *rows]) + "\n"


def members(thing: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties that fedboost defines and documents, in the order of the alphabet."""
    for key in sorted(dir(thing)):
        value = inspect.getattr_static(thing, key)
        plain = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        plain = plain.fget if isinstance(plain, property) else plain
        plain = getattr(plain, "func", plain)  # a cached property
        home = getattr(plain, "__module__", "") or ""
        if home.startswith("fedboost.terms") and key not in OF_TERMS:
            continue
        if (
            not key.startswith("_")
            and home.startswith("fedboost")
            and inspect.getdoc(plain)
            and callable(plain)
        ):
            yield key, value


def member(key: str, value: Any) -> str:
    """The row of a method or property."""
    plain = value.__func__ if isinstance(value, classmethod | staticmethod) else value
    callable_ = inspect.isfunction(plain)
    shown = signature(key, plain) if callable_ else key
    about = doc(plain if callable_ else getattr(plain, "fget", None) or getattr(plain, "func", plain))
    shown, about = shown.replace("|", "\\|"), " ".join(about.split()).replace("|", "\\|")
    return f"| `{' '.join(shown.split())}` | {about} |"


def signature(name: str, thing: Any) -> str:
    """A call with its parameters and their defaults; types are in the docstrings where they matter."""
    target = thing.__init__ if inspect.isclass(thing) else thing
    parameters = list(inspect.signature(target).parameters.values())
    shown = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in parameters
        if parameter.name not in ("self", "cls") and not parameter.name.startswith("_")
    ]
    text = str(inspect.Signature(shown))
    return name + re.sub(r"<[^>]*>", "...", text)


def doc(thing: Any) -> str:
    """The docstring, whose examples are code of Markdown."""
    text = inspect.getdoc(thing) or ""
    return re.sub(
        r"(?:(?<=\n\n)|^)((?:    .*\n?)+)",
        lambda found: f"```text\n{textwrap.dedent(found[1]).strip()}\n```\n",
        text,
    )
