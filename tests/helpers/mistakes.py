"""Mistakes that users make: a table of each area in a file `mistakes_AREA.py` of this folder, as `MISTAKES`.

A mistake ends in one line on standard error, with exit code 2, and every file stays as it was.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path


@dataclass(frozen=True)
class Mistake:
    """A command line, typed in a folder with everything in order (`orderly.write_all`)."""

    command: str
    """What is typed behind `fedboost`, split as a shell does."""
    says: tuple[str, ...]
    """What the line must contain: what is wrong, where, and what to do."""
    files: dict[str, bytes | str] = field(default_factory=dict)
    """Files that are written before."""
    prepare: Callable[[Path], object] = lambda folder: None
    """Whatever else is done to the folder before."""


def all_mistakes() -> dict[str, Mistake]:
    """Every table's mistakes, by area and name."""
    areas = sorted(path.stem for path in Path(__file__).parent.glob("mistakes_*.py"))
    return {
        f"{area.removeprefix('mistakes_')}: {name}": mistake
        for area in areas
        for name, mistake in import_module(area).MISTAKES.items()
    }
