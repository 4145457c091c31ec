"""Mistakes that users make: a table of each area in a file `mistakes_AREA.py` of this folder, as `MISTAKES`.

A mistake ends in one line on standard error, with exit code 2, and every file stays as it was. All lines are
in `tests/cli/mistakes.txt`, to be read from top to bottom. To write it, run
`PYTHONPATH=.:tests/helpers python tests/helpers/mistakes.py`.
"""

import os
import re
import shlex
from collections.abc import Callable
from contextlib import chdir
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

from orderly import write_all
from refusals import refused

GOLDEN = Path(__file__).parents[1] / "cli" / "mistakes.txt"


@dataclass(frozen=True)
class Mistake:
    """A command line, typed in a folder with everything in order (`orderly.write_all`)."""

    command: str
    """What is typed behind `fedboost`, split as a shell does."""
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


def line_of(mistake: Mistake, folder: Path) -> str:
    """The line in which a mistake ends, made in a folder with everything in order, the current one."""
    write_all(folder)
    for name, content in mistake.files.items():
        path = folder / name
        path.write_bytes(content) if isinstance(content, bytes) else path.write_text(content)
    mistake.prepare(folder)
    line = refused(folder, shlex.split(mistake.command)).replace(f"{folder}/", "FOLDER/")
    return re.sub(r"127\.0\.0\.1:\d{5}\b", "127.0.0.1:PORT", line)


def golden() -> dict[str, str]:
    """The lines that mistakes end in, by name."""
    parts = (block.split("\n") for block in GOLDEN.read_text().strip().split("\n\n"))
    return {name: f"{line}\n" for name, _, line in parts}


def _block(name: str) -> str:
    mistake = all_mistakes()[name]
    with TemporaryDirectory() as folder, chdir(folder):
        return f"{name}\n$ fedboost {mistake.command}\n{line_of(mistake, Path(folder))}"


if __name__ == "__main__":
    os.environ["NO_COLOR"] = "1"
    with get_context("fork").Pool(2, maxtasksperchild=1) as processes:  # gRPC's threads outlive a command
        GOLDEN.write_text("\n".join(processes.map(_block, all_mistakes(), chunksize=1)))
