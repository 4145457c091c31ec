"""Writes the pages of docs/benchmarks from the JSON files that the benchmarks left in a folder.

    python benchmarks/report.py FOLDER

Each folder of benchmarks has a page, such as docs/benchmarks/speed.md; docs/benchmarks.md is the index. The
tables of a section are those that its script printed. The hand-written text between its command and its date
stays. A benchmark without a file in FOLDER keeps its section. The index and the first table of each page show
the main figure of each section, read from its tables.

Prints the sections that are new and the claims that do not hold. Exit status 1 if a claim does not hold. Exit
status 2, with one line on standard error and no page written, if FOLDER or a page cannot be used.
"""

import argparse
import ast
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from common import script

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"


@dataclass(frozen=True)
class Section:
    """Heading of a section, and the sentence that shows its main figure.

    In the sentence, `{row | column}` is the cell of the first table that has both. The first cells of a row,
    as many as needed, name it. `{~pattern}` is the first group of a regular expression found in the section.
    """

    heading: str
    headline: str


SECTIONS = {
    "turns": Section(
        "Turns", "depth 6, masked: {depth 6, masked: round trips per tree | reached} round trips per tree"
    ),
    "speed": Section(
        "Speed",
        "1,000,000 x 50, one thread: {1,000,000 x 50 | 1, cpu | of XGBoost's} times XGBoost's time per tree, "
        "{1,000,000 x 50 | 1, cpu | of LightGBM's} times LightGBM's",
    ),
    "memory": Section(
        "Memory", "1,000,000 x 50: {fedboost | in memory} MB, XGBoost {XGBoost | in memory} MB"
    ),
    "sources": Section("Databases", "{bins in memory | above the bins} MB above the bins"),
    "predict": Section("Prediction", "{XGBoost | fedboost / this} times XGBoost's CPU time"),
    "contributions": Section("SHAP values", "{XGBoost | fedboost / this} times XGBoost's CPU time"),
    "startup": Section(
        "Start-up",
        "`fedboost --help` {fedboost --help | seconds} s; first tree in {1 | 1, cpu | of XGBoost's} times "
        "XGBoost's time",
    ),
    "scores": Section(
        "Scores online",
        "{1,000,000 | one row, ms} ms per row over HTTP, 99th percentile {1,000,000 | 99th percentile}",
    ),
    "memory_turn": Section("Question log", "{note of a question | median} ms per turn"),
    "masked": Section(
        "Masks", "1,000,000 x 50, 3 parties: {1,000,000 x 50, 3 parties | ratio} times `plain`"
    ),
    "many_parties": Section("Many parties", "100 parties, masked: {100 parties | ratio} times `plain`"),
    "columns": Section(
        "Different columns",
        "100,000 x (10 + 10): {100,000 x (10 + 10), depth 5, 32 bins | columns / one} times one party's time",
    ),
    "alignment": Section(
        "Row matching",
        "100,000 ids each: {fedboost | 100,000 | CPU seconds} CPU s (claim: {fedboost | 100,000 | claim})",
    ),
    "rowsums": Section(
        "Sums over encrypted rows",
        "{2048 bits, kernels | all} CPU s per tree with 2048 bits, {3072 bits, kernels | all} with 3072",
    ),
    "encrypted": Section(
        "Encryption", "2048 bits: {paillier, 2048 bits | encrypt | measured} cells/s encrypted"
    ),
    "wide": Section(
        "Many columns", "AUC {fedboost | AUC}, XGBoost {XGBoost | AUC}; first tree in {1 | seconds} s of CPU"
    ),
    "workers": Section(
        "Dask workers",
        "1,000,000 x 50: {1,000,000 x 50 | of xgboost.dask} times xgboost.dask's time per tree",
    ),
    "larger": Section(
        "Tables larger than memory",
        "{20,000,000 rows, in files | tree, ns a row} ns per row and tree from files, "
        "{1,000,000 rows, in memory | tree, ns a row} in memory",
    ),
    "accuracy": Section(
        "Accuracy", "adult: AUC {adult | AUC | 0.1 | fedboost}, XGBoost {adult | AUC | 0.1 | XGBoost}"
    ),
    "parity": Section(
        "Objectives",
        "beMTPL97: Poisson deviance {beMTPL97 | count:poisson | fedboost}, "
        "XGBoost {beMTPL97 | count:poisson | XGBoost}",
    ),
    "cox": Section(
        "Cox",
        "flchain: C-index {flchain | bins}, {flchain | exact} with exact risk sets",
    ),
    "joined": Section(
        "Joined columns",
        "adult: AUC {adult | joined}, without the other columns {adult | label holder alone}",
    ),
    "votes": Section(
        "Votes",
        "default_credit: AUC difference {default_credit | 0.1 | difference}, "
        "{default_credit | 0.1 | MB voted} MB per round instead of {default_credit | 0.1 | MB without}",
    ),
    "symmetric": Section(
        "Symmetric trees",
        "adult: AUC difference {adult | AUC | 0.1 | difference}, {adult | 0.1 | kB symmetric} kB per tree "
        "instead of {adult | 0.1 | kB depthwise}",
    ),
    "target_means": Section(
        "Target means",
        "AUC {exact, min_count 1 | AUC} exact, {epsilon 8 | AUC} at epsilon 8, "
        "{exact, without | AUC} without the column",
    ),
    "tune": Section(
        "Tuning",
        "adult: validation AUC {adult | tune}, random search {adult | random search}; {adult | turns} turns "
        "instead of {adult | turns apart}",
    ),
    "privacy": Section(
        "Differential privacy",
        "adult, epsilon 1: AUC {adult | 1 | fedboost}, DP-EBM {adult | 1 | DP-EBM}, "
        "without privacy {adult | 1 | XGBoost, none}",
    ),
    "sensitivity": Section(
        "Effect of one row",
        "adult, epsilon 1: a hostile row uses {adult | 1 | cost} of the budget, "
        "{adult | 1 | planned} are planned",
    ),
    "network": Section(
        "Network",
        "200,000 x 50, 3 processes: {200,000 x 50, 3 x masked, mTLS | wall} s per tree masked, "
        "XGBoost's allreduce {200,000 x 50, 3 x XGBoost | wall} s",
    ),
    "console": Section(
        "Console", "50 open pages: {50 pages | ratio of the medians} times the median turn without"
    ),
    "protections": Section(
        "Protections",
        "adult, 20 rounds: {plain | seconds} s plain, {masked | seconds} s masked, "
        "{paillier | seconds} s paillier",
    ),
    "wire": Section(
        "Bytes",
        "{adult | 0.1 | sent} MB per round on adult, {default_credit | 0.1 | sent} MB on default_credit",
    ),
    "estimates": Section(
        "Estimates",
        "15 trainings: bytes within {~Bytes within [\\d.]+ times \\(([\\d.]+)\\)} times, "
        "seconds within {~Seconds within [\\d.]+ times \\(([\\d.]+)\\)}",
    ),
    "holders": Section(
        "Turns inside a site",
        "empty turn: {1 | ms of an empty turn} ms with one holder, {8 | ms of an empty turn} ms with 8",
    ),
    "swarm": Section(
        "Many sites",
        "1,000 sites: {1,000 parties, plain | CPU s a tree} s of the aggregator's CPU per tree plain, "
        "{1,000 parties, masked | CPU s a tree} s masked",
    ),
    "malformed": Section(
        "Malformed messages",
        "{~([\\d,]+) malformed messages} messages: {10 % | MiB} MiB after 10 %, {100 % | MiB} after all",
    ),
    "curious": Section(
        "Curious aggregator", "{~Violations: ([\\d,]+)} violations in {~([\\d,]+) seeds} seeds"
    ),
    "risk_sums": Section(
        "Risk sums",
        "leaves of a person that a poisoner finds: "
        "{poisoner, sums as parties receive them | leaves of the victim found}, "
        "{poisoner, sums that are not rounded | leaves of the victim found} without rounding",
    ),
    "faults": Section("Faults", "{~Violations: ([\\d,]+)} violations in {~([\\d,]+) seeds} seeds"),
    "crashes": Section(
        "Killed processes",
        "masked, 20 kills: a process is back after {masked, 20 kills, seed 1 | median s to go on} s",
    ),
    "lost_workers": Section("Lost workers", "a site continues after {~All: ([\\d.]+) s} s"),
    "soak": Section(
        "Consecutive sessions",
        "aggregator: {aggregator, MB | 1st quarter} MB in the first quarter, "
        "{aggregator, MB | 4th} MB in the last",
    ),
}
"""Sections in the order of the pages, by the script's name. The script's folder is the area."""
ELSEWHERE = {"parties": "scaling.md"}
"""Scripts whose results are on another page of docs."""
FAILS = "NO"
"""How a table marks a claim that does not hold."""

_MARK = "<!-- benchmark: {} -->"
_INTRODUCTION = """\
# Benchmarks

`make bench` runs the benchmarks that take minutes, `make bench-long` the others. Both then write these pages
with `benchmarks/report.py`. [benchmarks](../benchmarks/README.md) lists all scripts with their claims.

- **Machine.** AMD EPYC, 2 cores, 24 GiB of memory, Linux, November 2026, unless a section names another.
- **Versions.** Python 3.11.7, fedboost 0.1.0, XGBoost 3.2.0, LightGBM 4.7.0, scikit-learn 1.9.1,
  Dask 2026.8.0, numpy 2.4.6, numba 0.68.1, pyarrow 26.0.1, gRPC 1.85.1, phe 1.5.0, gmpy2 2.3.2.
- **Comparisons.** All sides of a table ran alternately in the same run. The range between least and most
  shows other work on the machine, as does the load before the run.
- **Settings.** Parameters that are not named have their defaults. Rows are generated unless a table is named.
- **Claims.** `NO` marks a claim that does not hold. The last column of the tables below counts these marks.
"""
_PAGE = """\
# Benchmarks: {}

[Machine, versions and settings](../benchmarks.md). Each section has its tables, the command that printed
them, and how to read them.
"""


def main() -> int:
    """Write the pages; return 1 if a claim does not hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "folder", type=Path, help="folder with the JSON files of the benchmarks that were run"
    )
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder of the pages (default: docs)")
    options = parser.parse_args()
    results = read_results(options.folder)
    parts = written(read_sections(options.docs), results)
    for name, text in pages(parts).items():
        (options.docs / name).parent.mkdir(exist_ok=True)
        (options.docs / name).write_text(text)
    print(f"{options.docs / 'benchmarks'}: new sections: {', '.join(results)}")
    failed = [line for result in results.values() for line in failing(result)]
    for line in failed:
        print(f"does not hold: {line}")
    return 1 if failed else 0


def read_results(folder: Path) -> dict[str, dict[str, Any]]:
    """Contents of the JSON files by benchmark, in the order of SECTIONS."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        try:
            result = json.loads(path.read_text())
            name = result["benchmark"]
            section_of(name, result)
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            fail(f"{path}: not the results of a benchmark ({type(error).__name__}: {error})")
        if name in found:
            fail(f"{path}: the folder has another file of {name}; keep one of them")
        found[name] = result
    if not found:
        fail(f"{folder.absolute()}: no results; run a benchmark with --json {folder}/NAME.json first")
    return {name: found[name] for name in SECTIONS if name in found}


def read_sections(docs: Path) -> dict[str, str]:
    """The sections of all pages in docs/benchmarks, by benchmark."""
    found: dict[str, str] = {}
    for path in sorted((docs / "benchmarks").glob("*.md")):
        found |= sections(path.read_text())
    return found


def sections(page: str) -> dict[str, str]:
    """The sections of a page in their order; each begins with the comment that names its benchmark."""
    pieces = re.split(rf"^{_MARK.format('(.+)')}$", page, flags=re.MULTILINE)
    found = {}
    for name, body in zip(pieces[1::2], pieces[2::2], strict=True):
        if name not in SECTIONS:
            fail(f"a page has a section of {name!r}, which is not a benchmark; delete it")
        found[name] = f"{_MARK.format(name)}\n{body.strip()}\n"
    return found


def written(kept: Mapping[str, str], results: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """All sections: those of the results new, the others as they are."""
    parts = {}
    for name, section in SECTIONS.items():
        if name in results:
            parts[name] = section_of(name, results[name], reading_of(kept.get(name, "")))
        else:
            empty = f"{_MARK.format(name)}\n## {section.heading}\n\nNot measured yet.\n"
            parts[name] = kept.get(name, empty)
    return parts


def pages(parts: Mapping[str, str]) -> dict[str, str]:
    """The index and the page of each area, by path under docs."""
    areas: dict[str, dict[str, str]] = {}
    for name, text in parts.items():
        areas.setdefault(area_of(name), {})[name] = text
    index, found = [_INTRODUCTION], {}
    for area, own in areas.items():
        path = f"benchmarks/{area}.md"
        elsewhere = [
            f"[{page.removesuffix('.md')}]({page})"
            for name, page in ELSEWHERE.items()
            if area_of(name) == area
        ]
        also = [f"See also {', '.join(elsewhere)}.\n"] if elsewhere else []
        index += [f"## [{area.capitalize()}]({path})\n", contents(own, path), *also]
        found[path] = "\n".join([_PAGE.format(area), contents(own), *own.values()])
    return {"benchmarks.md": "\n".join(index), **found}


def area_of(name: str) -> str:
    """The folder in which the script of a benchmark is."""
    return script(name).parent.name


def contents(parts: Mapping[str, str], path: str = "") -> str:
    """Table with a link to each section, its main figure, and how many claims do not hold."""
    lines = ["| section | main figure | `NO` |", "|---|---|--:|"]
    for name, text in parts.items():
        heading = SECTIONS[name].heading
        count = len(re.findall(rf"\b{FAILS}\b", text))
        lines.append(f"| [{heading}]({path}#{anchor(heading)}) | {headline(name, text)} | {count or ''} |")
    return "\n".join(lines) + "\n"


def anchor(heading: str) -> str:
    """The anchor that GitHub and the site give a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def headline(name: str, section: str) -> str:
    """The sentence with the main figure of a section; empty if the section lacks one of its figures."""
    try:
        return re.sub(r"\{(.+?)\}", lambda match: _figure(match[1], section), SECTIONS[name].headline)
    except LookupError:
        return ""


def _figure(place: str, section: str) -> str:
    """The cell or text at a place of a section, without its range; LookupError if there is none."""
    if place.startswith("~"):
        if (match := re.search(place[1:], section)) is None:
            raise LookupError(place)
        return str(match[1])
    label, column = place.rsplit(" | ", 1)
    for headings, *rows in _tables(section):
        for row in rows:
            if column in headings and " | ".join([*row, ""]).startswith(f"{label} | "):
                return row[headings.index(column)].split(" (")[0]
    raise LookupError(place)


def _tables(section: str) -> Iterator[list[list[str]]]:
    """Headings and rows of each table of a section, as they are on the page."""
    for block in re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE):
        lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in block.splitlines()]
        yield [[cell.strip() for cell in line] for line in (lines[0], *lines[2:])]


def reading_of(section: str) -> str:
    """The hand-written text of a section: what is between its command and the date."""
    found = re.search(r"^    [^\n]+\n\n(.*?)^Measured ", section, re.MULTILINE | re.DOTALL)
    return found[1].strip() if found else ""


def section_of(name: str, result: Mapping[str, Any], reading: str = "") -> str:
    """One section; without a hand-written text it has the script's docstring."""
    heading = SECTIONS[name].heading
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
    """A table, and the sentences below it."""
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
    """Date, machine and versions, as the end of "Measured"."""
    machine = result["machine"]
    memory = f", {machine['memory']} GiB of memory" if machine["memory"] else ""
    load = "" if machine["load"] is None else f", load before {machine['load']}"
    where = f"{machine['processor']}, cores: {machine['cores']}{memory}, {machine['system']}{load}"
    used = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    return f"{result['date']} on {where}. Versions: {used}."


def failing(result: Mapping[str, Any]) -> list[str]:
    """The rows and sentences that mark a claim as not holding."""
    found: list[Sequence[str]] = []
    for table in result["tables"]:
        found += [row for row in table["rows"] if FAILS in row]
        found += [[note] for note in table["notes"] if re.search(rf"\b{FAILS}\b", note)]
        found += [[table["title"]]] if re.search(rf"\b{FAILS}\b", table["title"]) else []
    return [f"{result['benchmark']}: {' | '.join(cells)}" for cells in found]


def fail(message: str) -> NoReturn:
    """Print the error in one line and exit with status 2."""
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    sys.exit(main())
