"""Writes docs/benchmarks.md from the JSON files that the benchmarks left in a folder.

    python benchmarks/report.py FOLDER

Promises: the tables are those the scripts printed; how to read them is written on the page, and stays when a
section is new; a benchmark without a file in the folder keeps its section; the same files give the same page.
Ends with status 1, after the page is written, if a table says that a claim does not hold.
Refuses: files that are no results of a benchmark of SECTIONS, and a page with a section that is none of these
(one line on standard error, exit status 2).
"""

import argparse
import ast
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from common import script

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "benchmarks.md"


SECTIONS = {
    "turns": "Turns",
    "accuracy": "Accuracy",
    "parity": "Objectives",
    "speed": "Speed",
    "memory": "Memory",
    "sources": "Rows of a database",
    "predict": "Prediction",
    "contributions": "SHAP values",
    "startup": "Start-up",
    "memory_turn": "A site's memory of a turn",
    "masked": "Masks",
    "many_parties": "Many parties",
    "columns": "Columns apart",
    "joined": "Joined columns",
    "alignment": "Row ids in common",
    "rowsums": "Sums over encrypted rows",
    "encrypted": "Encryption",
    "network": "Network",
    "console": "Open pages of the console",
    "protections": "Protections",
    "wire": "Bytes",
    "estimates": "Estimates",
    "wide": "Many columns",
    "votes": "Votes",
    "symmetric": "Symmetric trees",
    "target_means": "Target means",
    "tune": "Candidates side by side",
    "privacy": "Differential privacy",
    "larger": "Tables larger than the memory",
    "malformed": "Malformed messages",
    "curious": "A curious aggregator",
    "faults": "Faults",
    "crashes": "Killed processes",
    "workers": "Workers of Dask",
    "holders": "A turn inside a site",
    "lost_workers": "Lost workers",
    "soak": "Sessions back to back",
}
"""Headings in the order of the page, by the script's name."""
ELSEWHERE = {"parties": "docs/scaling.md"}
"""Scripts whose results are on another page."""
FAILS = "NO"
"""What a table says where a claim does not hold."""

_MARK = "<!-- benchmark: {} -->"
_INTRODUCTION = """\
# What was measured

Each section has a table, the command that made it, and how to read it. The script that the command names
describes the measurement at its head; [benchmarks](../benchmarks/README.md) lists all scripts.
`make bench` runs those that take minutes, `make bench-long` the others, and `benchmarks/report.py` writes
their sections of this page.

- What a table compares was measured in the same run, in turns. `NO` marks a claim that does not hold. The
  distance of least from most shows other work on the machine, as does the load before the run.
- Parameters that are not named are at their defaults, and rows are generated unless a table is named.
- A section that names no other machine was measured in November 2026 on an AMD EPYC with 2 cores and 24 GiB
  of memory, under Linux. The versions were Python 3.11.7, fedboost 0.1.0, XGBoost 3.2.0, LightGBM 4.7.0,
  scikit-learn 1.9.1, Dask 2026.8.0, numpy 2.4.6, numba 0.68.1, pyarrow 26.0.1, gRPC 1.85.1, phe 1.5.0, gmpy2
  2.3.2.
"""


def main() -> int:
    """Write the page; 1 if a claim does not hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("folder", type=Path, help="holds a JSON file of each benchmark that was run")
    parser.add_argument("--page", type=Path, default=PAGE, help="default: docs/benchmarks.md")
    options = parser.parse_args()
    results = read_results(options.folder)
    text = options.page.read_text() if options.page.exists() else ""
    options.page.write_text(written(text, results))
    print(f"{options.page}: new sections: {', '.join(results)}")
    failed = [line for result in results.values() for line in failing(result)]
    for line in failed:
        print(f"does not hold: {line}")
    return 1 if failed else 0


def read_results(folder: Path) -> dict[str, dict[str, Any]]:
    """What the JSON files hold, by benchmark, in the order of the page."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        try:
            result = json.loads(path.read_text())
            name = result["benchmark"]
            section_of(name, result)
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            fail(f"{path}: not the results of a benchmark ({type(error).__name__}: {error})")
        if name in found:
            fail(f"{path}: another file of the folder is of {name}, too; keep one of them")
        found[name] = result
    if not found:
        fail(f"{folder.absolute()}: no results there; run a benchmark with --json {folder}/NAME.json first")
    return {name: found[name] for name in SECTIONS if name in found}


def written(page: str, results: Mapping[str, Mapping[str, Any]]) -> str:
    """The page with the sections of these results new, and all others as they are."""
    kept = sections(page)
    parts = [_INTRODUCTION]
    for name, heading in SECTIONS.items():
        if name in results:
            parts.append(section_of(name, results[name], reading_of(kept.get(name, ""))))
        else:
            empty = f"{_MARK.format(name)}\n## {heading}\n\nNot measured yet.\n"
            parts.append(kept.get(name, empty))
    return "\n".join(parts)


def sections(page: str) -> dict[str, str]:
    """The sections of a page, from the comment that names the benchmark to the next, in their order."""
    pieces = re.split(rf"^{_MARK.format('(.+)')}$", page, flags=re.MULTILINE)
    found = {}
    for name, body in zip(pieces[1::2], pieces[2::2], strict=True):
        if name not in SECTIONS:
            fail(f"the page has a section of {name!r}, which is no benchmark; take it out")
        found[name] = f"{_MARK.format(name)}\n{body.strip()}\n"
    return found


def reading_of(section: str) -> str:
    """How to read the tables: what a section has between its command and when it was measured."""
    found = re.search(r"^    [^\n]+\n\n(.*?)^Measured ", section, re.MULTILINE | re.DOTALL)
    return found[1].strip() if found else ""


def section_of(name: str, result: Mapping[str, Any], reading: str = "") -> str:
    """One section of the page; without a reading the script's docstring takes its place."""
    heading = SECTIONS[name]
    tables = [part for table in result["tables"] for part in (f"{table['title']}:", *markdown(table))]
    reading = reading or ast.get_docstring(ast.parse(script(name).read_text())) or ""
    parts = [
        f"## {heading}",
        *tables,
        f"    {result['command']}",
        reading,
        f"Measured {origin(result)}",
    ]
    return f"{_MARK.format(name)}\n" + "\n\n".join(parts) + "\n"


def markdown(table: Mapping[str, Any]) -> list[str]:
    """A table, and the sentences beneath it."""
    headings = table["headings"]
    rows = [[*row, *[""] * (len(headings) - len(row))] for row in table["rows"]]
    columns = [[row[place] for row in rows] for place in range(len(headings))]
    aligned = ["--:" if any(map(_is_number, column)) else "---" for column in columns]
    lines = ["| " + " | ".join(map(_cell, row)) + " |" for row in (headings, *rows)]
    lines.insert(1, "|" + "|".join(["---", *aligned[1:]]) + "|")
    return ["\n".join(lines), *map(_cell, table["notes"])]


def _is_number(cell: str) -> bool:
    return re.match(r"[+-]?\d", cell) is not None


def _cell(text: str) -> str:
    return re.sub(r"([|*<])", r"\\\1", text)


def origin(result: Mapping[str, Any]) -> str:
    """When, where and with what, as the end of a sentence."""
    machine = result["machine"]
    memory = f", {machine['memory']} GiB of memory" if machine["memory"] else ""
    load = "" if machine["load"] is None else f", load before {machine['load']}"
    where = f"{machine['processor']}, cores: {machine['cores']}{memory}, {machine['system']}{load}"
    return f"{result['date']} on {where}; {', '.join(f'{k} {v}' for k, v in result['versions'].items())}."


def failing(result: Mapping[str, Any]) -> list[str]:
    """The rows and sentences that say of a claim that it does not hold."""
    found: list[Sequence[str]] = []
    for table in result["tables"]:
        found += [row for row in table["rows"] if FAILS in row]
        found += [[note] for note in table["notes"] if re.search(rf"\b{FAILS}\b", note)]
        found += [[table["title"]]] if re.search(rf"\b{FAILS}\b", table["title"]) else []
    return [f"{result['benchmark']}: {' | '.join(cells)}" for cells in found]


def fail(message: str) -> NoReturn:
    """End with one line of what went wrong."""
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    sys.exit(main())
