"""Each message that the page on troubleshooting quotes is one of the code."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "troubleshooting.md"
SHORTEST = 4
"""Characters of a quoted piece that is looked for."""


def texts_of_code() -> str:
    """The texts in the sources, docstrings aside; of one with values only what stands between them."""
    trees = (ast.parse(file.read_text()) for file in (ROOT / "fedboost").rglob("*.py"))
    nodes = [node for tree in trees for node in ast.walk(tree)]
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    texts = (node for node in nodes if isinstance(node, ast.Constant) and id(node) not in docstrings)
    return "\n".join(node.value for node in texts if isinstance(node.value, str))


def messages() -> list[str]:
    """The messages that the page quotes: the first cell of each row that begins with one."""
    return [text for _, text in re.findall(r"^\| (`+) ?(.*?) ?\1 \|", PAGE.read_text(), re.MULTILINE)]


def test_each_message_is_one_of_the_code():
    known = texts_of_code()
    assert len(messages()) >= 100
    unknown = {message: [piece for piece in pieces(message) if piece not in known] for message in messages()}
    assert not {message: lacking for message, lacking in unknown.items() if lacking}


def test_each_message_quotes_enough_to_be_found():
    assert all(len("".join(pieces(message))) >= 8 for message in messages())


def pieces(message: str) -> list[str]:
    stripped = (piece.strip(" ;:") for piece in message.split("..."))
    return [piece for piece in stripped if len(piece) >= SHORTEST]
