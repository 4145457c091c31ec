"""Writes docs/benchmarks.md from the JSON files that the benchmarks left in a folder.

    python benchmarks/report.py FOLDER

Promises: the tables are those the scripts printed, and what is measured is said in the words of the script
itself; a benchmark without a file in the folder keeps its section as it is; the same files give the same
page. Ends with status 1, after the page is written, if a table says that a claim does not hold.
Refuses: files that are no results of a benchmark of SECTIONS, and a page with a section that is none of these
(one line on standard error, exit status 2).
"""

import argparse
import ast
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from common import script

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "benchmarks.md"


@dataclass(frozen=True)
class Section:
    """The heading of a benchmark, and what is to be said of its results beyond what the script says."""

    heading: str
    remark: str = ""


SECTIONS = {
    "turns": Section(
        "Turns",
        "What is not reached, and why. Three figures lie about their goals within the noise of this\n"
        "machine of two cores: in three runs `plain` took 0.85 to 0.98 of XGBoost's allreduce, four\n"
        "processes 1.09 to 1.16, two threads 0.76 to 0.88. uvloop and HTTP/2 frames of 1 MB were tried: no\n"
        "difference beyond it. 100 parties: each adds the streams of 34 neighbours in six turns. A stream\n"
        "takes some 45 us: 12 are AES, at 10 GB/s, 7 adding its cells, 10 keys and ciphers, the rest\n"
        "Python; one-shot\n"
        "AES-GCM saves 3 and computes a tag that nobody needs. Masked and plain both became faster,\n"
        "plain more (4.7 and 0.37 s before). adult: what is\n"
        "left beside 1.5 ms of kernels is Python, 3,900 calls a tree, none of them above a twentieth\n"
        "([decision 0019](decisions/0019-a-level-at-a-time.md)). kddcup99_10pct: joint codes leave 17\n"
        "columns of 41; LightGBM, which bundles as well, takes a little less. 1,000,000 x 50 with one\n"
        "thread: kernels are nearly all of it, and histograms of bins by row wait for the memory. Memory:\n"
        "130 MB are interpreter, libraries and compiled kernels; 64 the bins by row, 14 of them padding to\n"
        "a cache line; 50 the bins by feature, which splits are applied by; 32 rows and gradients; a turn's\n"
        "arrays and the histograms of a level the rest. Without either copy of the bins a tree takes longer.",
    ),
    "accuracy": Section(
        "Accuracy",
        "At 100 rounds and rate 0.3 these models overfit, and any change of the bins moves the AUC of a\n"
        "single split by about 0.003 either way. That an earlier rule for the cut points failed here is in\n"
        "[decision 0005](decisions/0005-cuts-at-quantiles.md); why sets of levels lose to numbers on\n"
        "bank_marketing, in XGBoost as here, in [decision 0011](decisions/0011-sets-of-levels.md).",
    ),
    "parity": Section("Objectives"),
    "speed": Section("Speed"),
    "memory": Section("Memory"),
    "sources": Section("Rows of a database"),
    "predict": Section("Prediction"),
    "contributions": Section("SHAP values"),
    "startup": Section("Start-up"),
    "memory_turn": Section("A site's memory of a turn"),
    "masked": Section("Masks"),
    "many_parties": Section("Many parties"),
    "columns": Section(
        "Columns apart",
        "By columns a tree of 100,000 x (10 + 10) takes longer than 1.5 times one party's, because two\n"
        "sessions each have their turns. Of some 12 ms more than one party takes, at 100,000 rows, 2 are\n"
        "sealing and opening what is relayed, 1.5 messages and their bytes, 1 histograms of two tables of\n"
        "half the columns, 1 sending rows down the tree at both, 1 row sets, 2 views and transcripts, the\n"
        "rest Python of the second party. With more rows the share of that falls.",
    ),
    "joined": Section("Joined columns"),
    "alignment": Section("Row ids in common"),
    "rowsums": Section(
        "Sums over encrypted rows",
        "Encryption at the label holder is two thirds of the time by kernels, three quarters by gmpy2\n"
        "alone. `close` to `check` do not grow with rows; by kernels nearly half of them is `open`.\n"
        "The claims are narrow: beside other work, runs differed by up to 13 %, HEU's by up to 70 %.",
    ),
    "encrypted": Section(
        "Encryption",
        "Between two turns a party makes random powers in advance, for 2048 ciphertexts at most: `full\n"
        "pool` is a turn that needs no others. A turn of paillier takes longest for the key holder's\n"
        "`decrypt`.",
    ),
    "network": Section("Network"),
    "console": Section("Open pages of the console"),
    "protections": Section("Protections"),
    "wire": Section("Bytes"),
    "estimates": Section("Estimates"),
    "wide": Section("Many columns"),
    "votes": Section(
        "Votes",
        "Rows were shared out at random: parties whose rows are unlike vote unlike.",
    ),
    "symmetric": Section(
        "Symmetric trees",
        "Symmetric trees fit the rows they grow on more slowly. That is of use where trees overfit, as at a\n"
        "rate of 0.3; on adult and california_housing at 0.1 they want more rounds: with 300 the\n"
        "differences are +0.0008 AUC and +0.0068 RMSE (2 splits). They have fewer leaves than depthwise\n"
        "trees of the same depth, since a node stays a leaf where a child would be under\n"
        "`min_child_weight`, and so send less. CPU seconds differ by less than they do between runs.",
    ),
    "target_means": Section(
        "Target means",
        "What `min_count = 10` leaves out grows with the number of levels: of these half have fewer than 12\n"
        "training rows. With noise the column has four of 36 trees.",
    ),
    "tune": Section(
        "Candidates side by side",
        "bank_marketing: below random search by half a standard deviation of the difference. Random search\n"
        "takes the best of 27 full curves of one validation set, `fb.tune` of the 6 that it grows to the\n"
        "end. On the full curves of three of these splits no candidate that was dropped would have won\n"
        "([decision 0028](decisions/0028-candidates.md)): what is left is which candidates were drawn.\n"
        "Turns "
        "apart are those of histograms alone.",
    ),
    "privacy": Section(
        "Differential privacy",
        "XGBoost at these settings overfits default_credit (a rate of 0.1 does better): to be above it\n"
        "there says nothing of privacy. On heart_disease, 644 rows to train on, noise and splits move the\n"
        "AUC by more than what the two programs differ by at epsilon 1.",
    ),
    "larger": Section("Tables larger than the memory"),
    "malformed": Section("Malformed messages"),
    "curious": Section("A curious aggregator"),
    "faults": Section("Faults"),
    "crashes": Section("Killed processes"),
    "workers": Section(
        "Workers of Dask",
        "Memory while trees grow is not half of xgboost.dask's. Some 320 MB of a worker are there without\n"
        "rows: 66 the worker of Dask, 60 numba with LLVM's library, 60 what numba sets up at the first\n"
        "kernel, 45 the other kernels, 30 pyarrow, the rest Python, gRPC, cryptography and fedboost.\n"
        "pandas, 45 more, is no longer imported. With rows come 2.3 bytes a value and 32 a row. Giving\n"
        "freed memory back once columns are binned, and loading kernels without numba's registries, were\n"
        "tried: 2 and 9 MB.",
    ),
    "holders": Section("A turn inside a site"),
    "lost_workers": Section("Lost workers"),
    "soak": Section("Sessions back to back"),
}
"""In the order of the page, by the script's name."""
ELSEWHERE = {"parties": "docs/scaling.md"}
"""Scripts whose results are on another page."""
FAILS = "NO"
"""What a table says where a claim does not hold."""

_MARK = "<!-- benchmark: {} -->"
_INTRODUCTION = """\
# What was measured

Written by `benchmarks/report.py` from what the scripts of [benchmarks](../benchmarks/README.md) left, word
for word: `make bench` runs those that take minutes, `make bench-long` the others. A section says when and
with what it was measured; what a table compares was measured in the same run, in turns. A machine that did
other work, too, shows in its load before the run and in the distance of the least from the most. Every
parameter that is not named is at its default.
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
    latest = max(results.values(), key=lambda result: str(result["date"]))
    parts = [_INTRODUCTION, f"The latest of these results: {origin(latest)}\n"]
    for name, section in SECTIONS.items():
        if name in results:
            parts.append(section_of(name, results[name]))
        else:
            empty = f"{_MARK.format(name)}\n## {section.heading}\n\nNot measured yet.\n"
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


def section_of(name: str, result: Mapping[str, Any]) -> str:
    """One section of the page."""
    tables = [part for table in result["tables"] for part in (f"{table['title']}:", *markdown(table))]
    said = ast.get_docstring(ast.parse(script(name).read_text())) or ""
    parts = [
        f"## {SECTIONS[name].heading}",
        f"    {result['command']}",
        said,
        *tables,
        *filter(None, [SECTIONS[name].remark]),
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
