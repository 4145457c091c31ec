"""The pages that are made from the code: `python docs/make/reference.py` writes them."""

import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import commands  # noqa: E402
import configuration  # noqa: E402
import errors  # noqa: E402
import pictures  # noqa: E402
import python_names  # noqa: E402
import rules  # noqa: E402
import terms  # noqa: E402


def decisions() -> str:
    """docs/decisions/README.md: the title of each."""
    head = "# Decisions\n\nHalf a page for each choice that took thought: what was chosen, and why.\n\n"
    rows = []
    for file in sorted((DOCS / "decisions").glob("0*.md")):
        number, title = file.read_text().split("\n", 1)[0].removeprefix("# ").split(" ", 1)
        rows.append(f"- [{number.rstrip(':')}]({file.name}) {title[0].upper()}{title[1:]}")
    return head + "\n".join(rows) + "\n"


def protocol() -> str:
    """docs/protocol.md: its own text, and the rules."""
    return rules.page((DOCS / "protocol.md").read_text())


PAGES: dict[str, Callable[[], str]] = {
    "terms.md": terms.page,
    "configuration.md": configuration.page,
    "commands.md": commands.page,
    "errors.md": errors.page,
    "python-reference.md": python_names.page,
    "protocol.md": protocol,
    "decisions/README.md": decisions,
    **pictures.PICTURES,
}
"""What is made, by its path under docs."""

if __name__ == "__main__":
    for path, make in PAGES.items():
        (DOCS / path).write_text(make())
