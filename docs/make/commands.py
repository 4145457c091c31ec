"""Makes docs/commands.md from the commands themselves."""

import inspect
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer

from fedboost.cli.main import whole

HEAD = """# Commands

<!-- Written by `make reference`: change the commands in fedboost/cli. -->

All commands with their arguments and options, as in `fedboost COMMAND --help`. Existing files are replaced
only with `--force`. `fedboost --install-completion` installs completion of commands and files in the shell.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | no: a site or person declined, a signature does not hold, a table or (`--strict`) a log has warnings |
| 2 | refused or failed: one line on standard error names the cause and the remedy |

[Troubleshooting](troubleshooting.md) lists these lines.
"""
KINDS = {int: "whole number", float: "number", str: "text", Path: "path", bool: ""}
"""Type -> its name on the page; flags have none."""


def page() -> str:
    """Return the whole page as Markdown."""
    sections = sorted((name, command) for name, command in commands("fedboost", whole()))
    return "\n".join([HEAD, *(one(name, command) for name, command in sections)])


def commands(name: str, group: typer.Typer) -> Iterator[tuple[str, Any]]:
    """Yield the full name and the command for all commands of a group and of the groups in it."""
    for command in group.registered_commands:
        yield f"{name} {command.name or command.callback.__name__.replace('_', '-')}", command
    for inner in group.registered_groups:
        yield from commands(f"{name} {inner.typer_instance.info.name}", inner.typer_instance)


def one(name: str, command: Any) -> str:
    """Return the section of one command."""
    parameters = [
        (parameter, *declared(parameter))
        for parameter in inspect.signature(command.callback, eval_str=True).parameters.values()
    ]
    parameters.sort(key=lambda each: not isinstance(each[2], typer.models.ArgumentInfo))
    arguments = [each[0].name.upper() for each in parameters if is_argument(each[2])]
    parts = [
        f"## `{name}`",
        line(inspect.getdoc(command.callback) or ""),
        f"```text\n{' '.join([name, *arguments, '[OPTIONS]'])}\n```",
    ]
    if parameters:
        parts.append(
            "\n".join(
                [
                    "| name | type | default | meaning |",
                    "|---|---|---|---|",
                    *(row(*each) for each in parameters),
                ]
            )
        )
    if command.epilog:
        examples = [line(text).removeprefix("Example: ") for text in command.epilog.split("\n\n")]
        parts.append("```console\n" + "\n".join(examples) + "\n```")
    return "\n\n".join(parts) + "\n"


def declared(parameter: inspect.Parameter) -> tuple[Any, Any]:
    """Return the type of a parameter and its typer declaration."""
    if get_origin(parameter.annotation) is Annotated:
        kind, *told = get_args(parameter.annotation)
        return kind, told[-1]
    return parameter.annotation, parameter.default


def is_argument(told: Any) -> bool:
    """Return whether a declaration is that of an argument, not of an option."""
    return isinstance(told, typer.models.ArgumentInfo)


def row(parameter: inspect.Parameter, kind: Any, told: Any) -> str:
    """Return the table row of an argument or an option."""
    option = f"--{parameter.name.replace('_', '-')}"
    name = parameter.name.upper() if is_argument(told) else ", ".join(told.param_decls or [option])
    limits = [
        f"{word} {limit:g}" for word, limit in (("from", told.min), ("to", told.max)) if limit is not None
    ]
    cells = (
        f"`{name}`",
        " ".join([kind_of(kind, told), *limits]),
        default_of(parameter, told),
        line(told.help or ""),
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def kind_of(kind: Any, told: Any) -> str:
    """Return the name of a type, or the list of its choices."""
    if told.metavar and "|" in told.metavar:
        return ", ".join(f"`{choice}`" for choice in told.metavar.split("|"))
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return kind_of(next(each for each in inner if each is not NoneType), told)
    if origin is list:
        return kind_of(inner[0], told)
    if origin is Literal or (isinstance(kind, type) and issubclass(kind, Enum)):
        return ", ".join(f"`{getattr(each, 'value', each)}`" for each in inner or kind)
    return KINDS[kind]


def default_of(parameter: inspect.Parameter, told: Any) -> str:
    """Return the default as --help shows it."""
    if parameter.default in (inspect.Parameter.empty, ...):
        return "required"
    if isinstance(told.show_default, str):
        return told.show_default
    value = getattr(parameter.default, "value", parameter.default)
    return "" if value is None or isinstance(value, bool) or value == () or value == [] else f"`{value}`"


def line(words: str) -> str:
    """Return a text on one line."""
    return " ".join(words.split())
