"""One tree for people: as the lines XGBoost's `get_dump` writes, and as a picture.

Promises: every node is there with its number, split, gain and cover, or leaf value and cover; the text is
XGBoost's to the character (names that would break a line apart, or hold a quote, are the exception); the
picture is one SVG document that needs nothing else and draws the same bytes for the same tree.
Refuses nothing.
"""

import math
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from fedboost.errors import printable
from fedboost.gbdt.tree import NO_CHILD, Tree

_FONT = 12
_BOX, _PITCH, _GAP, _EDGE = 36, 46, 104, 16
"""Pixels: the height of a node, from one leaf to the next, between columns (an edge and its word are there),
around everything."""
_HEAD, _FOOT = 34, 26
_MAX_TEXT_LENGTH = 24
"""Characters that are shown of a name, and of categories; a tooltip has all of them."""
_THICKEST = 7.0
_BOLD = 1.08
_NOTE = "A leaf adds its value to the margin. The thicker an edge, the more of the cover goes along it."
_DOCUMENT, _IN_PAGE = 'xmlns="http://www.w3.org/2000/svg"', 'role="img"'
_LINE, _INK, _FAINT, _PAPER = "#9aa5b1", "#1f2933", "#52606d", "#f5f7fa"
_RISE, _FALL = (31, 119, 180), (214, 96, 30)
"""Colours of leaves that add to the margin, and of those that take from it."""


@dataclass(frozen=True)
class _Words:
    """The text of a node in a picture: two lines, and all of it."""

    first: str
    second: str
    whole: str

    @property
    def width(self) -> float:
        return max(_width(self.first) * _BOLD, _width(self.second)) + _FONT


def tree_text(tree: Tree, names: Sequence[str]) -> str:
    """The tree as text: a line a node, each below its parent and one tab further in; `names` are those of the
    features."""
    return "".join("\t" * depth + _line(tree, node, names) + "\n" for node, depth in _walk(tree))


def tree_svg(
    tree: Tree,
    names: Sequence[str],
    categories: Mapping[str, Sequence[str]],
    title: str,
    in_page: bool = False,
) -> str:
    """The tree from left to right, "yes" above "no", as an SVG document. categories: of the features that are
    categories, in the order of their codes; in_page: an image in a page of HTML instead."""
    depth = dict(_walk(tree))
    words = {node: _words(tree, node, names, categories) for node in depth}
    widths = [0.0] * (max(depth.values()) + 1)
    for node, at in depth.items():
        widths[at] = max(widths[at], words[node].width)
    columns = [_EDGE + sum(widths[:at]) + at * _GAP for at in range(len(widths))]
    heights = _heights(tree, [*depth])
    most = max(abs(tree.value[leaf]) for leaf in tree.leaves)
    edges, boxes = [], []
    for node, at in depth.items():
        x, y, left = columns[at], heights[node], tree.left[node]
        colour = _leaf_colour(tree.value[node], most) if left == NO_CHILD else _PAPER
        boxes.append(_box(words[node], x, y, widths[at], colour))
        for child in () if left == NO_CHILD else (left, left + 1):
            edges.append(_edge(tree, node, child, (x + widths[at], y), (columns[at + 1], heights[child])))
    wide = max(columns[-1] + widths[-1], *(_EDGE + _width(line) * _BOLD for line in (title, _NOTE))) + _EDGE
    high = _HEAD + len(tree.leaves) * _PITCH + _FOOT
    return "\n".join(
        [
            f'<svg {_IN_PAGE if in_page else _DOCUMENT} width="{wide:.0f}" height="{high}" '
            f'viewBox="0 0 {wide:.0f} {high}" font-family="Helvetica, Arial, sans-serif" '
            f'font-size="{_FONT}">',
            f"<title>{_safe(title)}</title>",
            '<rect width="100%" height="100%" fill="#ffffff"/>',
            _text(_EDGE, 22, title, _INK, "start", "bold"),
            *edges,
            *boxes,
            _text(_EDGE, high - 12, _NOTE, _FAINT, "start"),
            "</svg>\n",
        ]
    )


def _walk(tree: Tree) -> Iterator[tuple[int, int]]:
    """Every node and its depth: parents first, left before right."""
    waiting = [(0, 0)]
    while waiting:
        node, depth = waiting.pop()
        yield node, depth
        left = tree.left[node]
        if left != NO_CHILD:
            waiting += [(left + 1, depth + 1), (left, depth + 1)]


def _heights(tree: Tree, walk: Sequence[int]) -> dict[int, float]:
    """The middle of each node: leaves one below the other, the others midway between their children."""
    leaves = [node for node in walk if tree.left[node] == NO_CHILD]
    middle = {leaf: _HEAD + (index + 0.5) * _PITCH for index, leaf in enumerate(leaves)}
    for node in reversed(walk):
        if tree.left[node] != NO_CHILD:
            middle[node] = (middle[tree.left[node]] + middle[tree.left[node] + 1]) / 2
    return middle


def _split(tree: Tree, node: int, names: Sequence[str], categories: Mapping[str, Sequence[str]]) -> list[str]:
    """The condition of rows that go left: the feature, and its values."""
    name, threshold = names[tree.feature[node]], tree.threshold[node]
    if right := tree.categories[node]:
        stay = [category for code, category in enumerate(categories.get(name, ())) if not right >> code & 1]
        return [name, f": {', '.join(stay)}" if stay else " is missing"]
    if threshold == math.inf:
        return [name, " is present"]
    return [name, f" < {threshold:.6g}"]


def _line(tree: Tree, node: int, names: Sequence[str]) -> str:
    """A node as XGBoost writes it."""
    left, cover = tree.left[node], f"cover={_number(tree.cover[node])}"
    if left == NO_CHILD:
        return f"{node}:leaf={_number(tree.value[node])},{cover}"
    name, missing = printable(names[tree.feature[node]]), left if tree.missing_left[node] else left + 1
    if right := tree.categories[node]:
        codes = (str(code) for code in range(right.bit_length()) if right >> code & 1)
        split, ways = f"{name}:{{{','.join(codes)}}}", f"yes={left + 1},no={left},missing={missing}"
    else:
        split, ways = f"{name}<{_number(tree.threshold[node])}", f"yes={left},no={left + 1},missing={missing}"
    return f"{node}:[{split}] {ways},gain={_number(tree.gain[node])},{cover}"


def _number(value: float) -> str:
    """The float32 as XGBoost writes it: nine digits, which are enough to read it back."""
    return f"{np.float32(value):.9g}"


def _words(tree: Tree, node: int, names: Sequence[str], categories: Mapping[str, Sequence[str]]) -> _Words:
    line, cover = _line(tree, node, names), f"cover {tree.cover[node]:.4g}"
    if tree.left[node] == NO_CHILD:
        return _Words(f"{tree.value[node]:+.4g}", cover, line)
    split = [printable(part) for part in _split(tree, node, names, categories)]
    shown = [part if len(part) <= _MAX_TEXT_LENGTH else part[: _MAX_TEXT_LENGTH - 1] + "…" for part in split]
    return _Words("".join(shown), f"gain {tree.gain[node]:.4g}, {cover}", f"{''.join(split)}\n{line}")


def _leaf_colour(value: float, most: float) -> str:
    """The colour of a leaf: stronger the more it adds (blue) or takes (orange)."""
    share = 0.1 + 0.4 * (abs(value) / most if 0.0 < most < math.inf else 0.0)
    colour = _RISE if value > 0.0 else _FALL
    return "#" + "".join(f"{round(255 + (part - 255) * share):02x}" for part in colour)


def _edge(tree: Tree, node: int, child: int, start: tuple[float, float], end: tuple[float, float]) -> str:
    yes = child == tree.left[node]
    word = ("yes" if yes else "no") + (", missing" if yes == tree.missing_left[node] else "")
    share = tree.cover[child] / tree.cover[0] if 0.0 < tree.cover[child] <= tree.cover[0] else 0.0
    thick = 1.0 + (_THICKEST - 1.0) * share
    (x, y), (to_x, to_y), half = start, end, _GAP / 2
    path = f"M{x:.1f} {y:.1f}C{x + half:.1f} {y:.1f} {to_x - half:.1f} {to_y:.1f} {to_x:.1f} {to_y:.1f}"
    beside = to_y - thick / 2 - 4 if yes else to_y + thick / 2 + _FONT
    line = f'<path d="{path}" fill="none" stroke="{_LINE}" stroke-width="{thick:.1f}"/>'
    return f"{line}\n{_text(to_x - 6, beside, word, _FAINT, 'end')}"


def _box(words: _Words, x: float, y: float, width: float, fill: str) -> str:
    """A node whose left side has its middle at x, y."""
    return "\n".join(
        [
            f"<g><title>{_safe(words.whole)}</title>",
            f'<rect x="{x:.1f}" y="{y - _BOX / 2:.1f}" width="{width:.1f}" height="{_BOX}" rx="4" '
            f'fill="{fill}" stroke="{_LINE}"/>',
            _text(x + width / 2, y - 3, words.first, _INK, "middle", "bold"),
            _text(x + width / 2, y + 12, words.second, _FAINT, "middle") + "</g>",
        ]
    )


def _text(x: float, y: float, text: str, colour: str, anchor: str, weight: str = "normal") -> str:
    attributes = f'x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}" font-weight="{weight}"'
    return f"<text {attributes}>{_safe(text)}</text>"


def _width(text: str) -> float:
    """The approximate width of a text in pixels, without a font to measure it."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return _FONT * (0.6 * (len(text) - wide) + wide)


def _safe(text: str) -> str:
    """The text, escaped for XML."""
    return escape("\n".join(printable(line) for line in text.split("\n")))
