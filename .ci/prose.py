"""Counts of the prose: prints what exceeds its limit, and fails if anything does.

    python .ci/prose.py [--list]

`tool.prose` in pyproject.toml has the limits. Hand-written pages are README.md, CONTRIBUTING.md and those of
docs, without what `make reference` writes and decisions. Measurements (docs/benchmarks and its index) are
checked for words and sentences, and not counted. --list prints where.
"""

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path

from structure import ROOT, modules

GENERATED = {
    "terms.md",
    "configuration.md",
    "commands.md",
    "python-reference.md",
    "errors.md",
    "benchmarks.md",
}
LONG_SENTENCE = 35
BANNED = re.compile(
    r"\b(anew|for ever|at hand|whoever|in earnest|as it has it|by heart|nobody|is none of|are none of|"
    r"(?<!there )is no(?! longer| more| less| other| larger| smaller)|tells? (?:if|whether)|hears? of)\b",
    re.IGNORECASE,
)
_STOP = {
    *re.findall(
        r"\w+",
        """a an the of to in on for is are it its as by with and or that this be from at
    if all each true return whether their there what""",
    )
}
_SECTION = re.compile(r"<!-- Written by .*?<!-- end -->|<!-- (\w+) -->.*?<!-- /\1 -->", re.DOTALL)
_FENCED = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)


def pages() -> dict[str, str]:
    """The hand-written text of each page, without sections that are generated."""
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    known = [path for path in files if path.name not in GENERATED]
    return {str(path.relative_to(ROOT)): _SECTION.sub("", path.read_text()) for path in known}


def measurements() -> dict[str, str]:
    """The text of the pages that benchmarks/report.py writes."""
    files = [ROOT / "docs" / "benchmarks.md", *sorted((ROOT / "docs" / "benchmarks").glob("*.md"))]
    return {str(path.relative_to(ROOT)): path.read_text() for path in files}


def _length(text: str) -> int:
    """Words of a page: what has a letter or a digit."""
    return sum(any(map(str.isalnum, word)) for word in text.split())


def _words(text: str) -> set[str]:
    split = re.sub(r"([a-z])([A-Z])", r"\1 \2", text)
    return {word.lower().rstrip("s") for word in re.findall(r"[A-Za-z]+", split)} - _STOP


def empty_docstrings(path: Path) -> Iterator[str]:
    """Docstrings whose every word is in the signature that they are about, or in the name of its class."""
    for parent in ast.walk(ast.parse(path.read_text())):
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                owner = parent.name if isinstance(parent, ast.ClassDef) else ""
                signature = [node.name, owner]
                if not isinstance(node, ast.ClassDef):
                    signature += [ast.unparse(node.args), ast.unparse(node.returns or ast.Constant(None))]
                text = ast.get_docstring(node)
                if text is not None and _words(text) <= _words(" ".join(signature)):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}: {text}"


def comments(path: Path) -> list[tuple[int, str]]:
    """Line and text of each comment that has a line of its own."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    return [
        (t.start[0], t.string) for t in tokens if t.type == tokenize.COMMENT and t.line.strip()[:1] == "#"
    ]


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each string that stands alone."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Expr(ast.Constant(str(text))):
                yield node.lineno, text


def long_sentences(name: str, text: str) -> Iterator[str]:
    """Sentences of more words than a reader holds, outside of code and tables."""
    prose = "\n".join(
        line for line in _FENCED.sub("", text).splitlines() if not line.lstrip().startswith("|")
    )
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*#]|\d+\.) )", prose):
        for sentence in re.split(r"(?<=[.!?:])\s+", " ".join(block.split())):
            if (length := len(sentence.split())) > LONG_SENTENCE:
                yield f"{name}: {length} words: {sentence[:100]}"


def main() -> int:
    """Print the counts, and what exceeds its limit."""
    limits = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["prose"]
    texts = pages()
    found: dict[str, list[str]] = {"empty_docstrings": [], "banned_words": [], "long_sentences": []}
    lines = 0
    for path in sorted(modules().values()):
        found["empty_docstrings"] += empty_docstrings(path)
        lines += len(comments(path))
        for number, text in (*comments(path), *docstrings(path)):
            where = f"{path.relative_to(ROOT)}:{number}"
            found["banned_words"] += (f"{where}: {match[0]}" for match in BANNED.finditer(text))
    for name, text in (texts | measurements()).items():
        found["banned_words"] += (f"{name}: {match[0]}" for match in BANNED.finditer(_FENCED.sub("", text)))
        found["long_sentences"] += long_sentences(name, text)
    counts = {key: len(places) for key, places in found.items()}
    counts["words_of_docs"] = sum(_length(text) for text in texts.values())
    if "--list" in sys.argv:
        print("\n".join(place for places in found.values() for place in places))
    over = {key: count for key, count in counts.items() if count > limits[key]}
    print(", ".join(f"{key.replace('_', ' ')} {count:,}" for key, count in counts.items()), end="")
    print(f", lines of comments {lines:,}")
    print("".join(f"{key}: {count:,}, at most {limits[key]:,}\n" for key, count in over.items()), end="")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
