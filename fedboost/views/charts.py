"""Charts as SVG inside a page: lines and bars, in the colours of the page.

Guarantees: a chart has a title and a description of its content, and does not need a script. Lines differ in
more than colour. The same values render to the same bytes. Numbers that are not finite are omitted.
"""

import math
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fedboost.errors import printable
from fedboost.gbdt.tree import NO_CHILD, Tree
from fedboost.views.document import Bars, Lines, Markup, Series, element, joined, lines
from fedboost.views.words import amount, shorten

WIDTH, HEIGHT = 440, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 22, 12, 46
_LEGEND, _MARK = 20, 26
"""Height of an entry in the legend, and width of the sample line before its name, in pixels."""
_ROW = 16
"""Height of a line of numbers at risk, in pixels."""
_NAMES = 156
"""Width of the space for the names of bars, in pixels."""
_MAX_NAME, _MAX_SERIES_NAME = 18, 24
MAX_SERIES = 8
"""Maximum number of lines in a chart: more could not be distinguished."""
MAX_BARS = 20
MAX_POINTS = 600
"""Maximum number of points of a line. More points than pixels would only make the page larger."""
_TICKS = 4
_LARGEST = 1e300
_DASHES = "", "7 4", "2 3", "9 3 2 3", "12 4", "4 2", "1 4", "9 3 2 3 2 3"
_KINDS = "bar", "bar second"
"""CSS classes of the first and the second bar of a name."""

Places = list[tuple[float, float]]


def draw(chart: Lines | Bars) -> Markup:
    """Return a chart as markup, which is empty if the chart has no finite value."""
    return _lines(chart) if isinstance(chart, Lines) else _bars(chart)


def thinned(points: Places) -> Places:
    """Return the points of a line, thinned to about MAX_POINTS. Of each run of neighbouring points, the
    first, lowest, highest and last one are kept, so that no peak is lost."""
    if len(points) <= MAX_POINTS:
        return points
    size = -(-len(points) * 4 // MAX_POINTS)
    kept = set[int]()
    for first in range(0, len(points), size):
        run = range(first, min(first + size, len(points)))
        kept |= {run[0], run[-1], min(run, key=lambda n: points[n][1]), max(run, key=lambda n: points[n][1])}
    return [points[number] for number in sorted(kept)]


def _drawn(series: Series) -> Places:
    """Return the finite points of a line, thinned to about MAX_POINTS."""
    return thinned([(x, y) for x, y in series.points if _is_finite(x) and _is_finite(y)])


@dataclass(frozen=True)
class _Axis:
    """An axis that maps values from `low` to `high` to pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    whole: bool = False
    """True if ticks must be whole numbers."""
    marks: tuple[float, ...] = ()
    """Ticks to use instead of round numbers."""

    def at(self, value: float) -> float:
        """Return the pixel coordinate of a value."""
        return self.start + (self.end - self.start) * ((value - self.low) / (self.high - self.low))

    @property
    def ticks(self) -> list[float]:
        """Round numbers between `low` and `high`, at which the axis is labelled."""
        if self.marks:
            return [*self.marks]
        rough = (self.high - self.low) / _TICKS
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(step for step in (1, 2, 2.5, 5, 10) if step * power >= rough * 0.999) * power
        step = max(math.ceil(step), 1) if self.whole else step
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, min(last, first + 2 * _TICKS) + 1)]


def _lines(chart: Lines) -> Markup:
    shown = [(one, places) for one in chart.series[:MAX_SERIES] if (places := _drawn(one))]
    if not shown:
        return Markup("")
    legend = _LEGEND * ((len(shown) + 1) // 2) if len(shown) > 1 else 0
    bottom = HEIGHT - _BOTTOM
    xs = [x for _, places in shown for x, _ in places]
    ys = [y for _, places in shown for _, y in places]
    square, mark, steps = chart.square, chart.mark, [one for one, _ in shown if one.at_risk]
    x_axis = _Axis(*((0.0, 1.0) if square else _range(xs, 0.0)), _LEFT, WIDTH - _RIGHT, chart.whole)
    x_axis = replace(x_axis, marks=_apart(xs, chart.ticks)) if steps else x_axis
    y_axis = _Axis(*((0.0, 1.0) if square or steps else _range(ys, 0.05)), bottom, _TOP)
    parts = [*_grid(x_axis, y_axis, chart.across, chart.up)]
    if chart.diagonal:
        low, high = max(x_axis.low, y_axis.low), min(x_axis.high, y_axis.high)
        parts.append(_straight(x_axis.at(low), y_axis.at(low), x_axis.at(high), y_axis.at(high), "faint"))
    if mark is not None and x_axis.low <= mark[0] <= x_axis.high:
        at = x_axis.at(mark[0])
        right = at > (_LEFT + WIDTH) / 2
        parts.append(_straight(at, _TOP, at, bottom, "faint"))
        parts.append(_text(at + (-5 if right else 5), _TOP + 10, mark[1], "end" if right else "start"))
    for number, (one, places) in enumerate(shown):
        parts.append(_path([(x_axis.at(x), y_axis.at(y)) for x, y in places], number, one.dots))
    parts += _at_risk(steps, x_axis, HEIGHT + 6)
    below = HEIGHT + (_ROW * (len(steps) + 1) + 10) * bool(steps)
    parts += _legend([one.name for one, _ in shown], below)
    described = "; ".join(_described(one.name, places) for one, places in shown)
    description = f"{chart.up} by {chart.across}. {described}."
    few = f", the first {MAX_SERIES} of {len(chart.series)}" if len(chart.series) > MAX_SERIES else ""
    return _figure(f"{chart.title}{few}", description, below + legend, parts)


def _apart(values: Sequence[float], chosen: Sequence[float]) -> tuple[float, ...]:
    """Return the chosen values and some of the others, at about the distance of ticks."""
    low, high = min(values), max(values)
    out, step = [low, *(value for value in chosen if low < value <= high)], 0.8 * (high - low) / _TICKS
    for value in sorted({*values}):
        out += [value] if all(abs(value - one) >= step for one in out) else []
    return tuple(sorted(out))


def _at_risk(series: Sequence[Series], axis: _Axis, top: float) -> Iterable[Markup]:
    """Yield the numbers of rows at risk at the ticks of the horizontal axis, a line for each curve."""
    if series:
        yield _text(_LEFT, top, "Number at risk", "start")
    for number, one in enumerate(series, 1):
        y, times = top + _ROW * number, [x for x, _ in one.points]
        yield _text(_LEFT - 14, y, shorten(one.name.split()[0], 6), "end")
        for tick in axis.ticks:
            if tick <= times[-1]:
                known = one.at_risk[bisect_right(times, tick) - 1]
                first = tick == axis.low  # leaves room for the name
                yield _text(axis.at(tick) - 6 * first, y, f"{known:,}", "start" if first else "middle")


def _bars(chart: Bars) -> Markup:
    known = [(name, values) for name, *values in chart.values if all(map(_is_finite, values))]
    if not known:
        return Markup("")
    shown, kinds = known[:MAX_BARS], chart.kinds
    every = [value for _, values in shown for value in values]
    low, high = min(0.0, *every), max(0.0, *every)
    axis = _Axis(low, high if high > low else low + 1.0, _NAMES, WIDTH - 74)
    thick = 11 if kinds else 16
    top, line = _TOP + _LEGEND * bool(kinds), (thick + 2) * len(shown[0][1]) + 8
    parts, described = list[Markup](), list[str]()
    for x, name, kind in zip((12, 12 + WIDTH / 2), kinds, _KINDS, strict=False):
        parts.append(_rect(kind, x, 8, _MARK, 11))
        parts.append(_text(x + _MARK + 6, 18, shorten(name, _MAX_SERIES_NAME), "start"))
    for number, (name, values) in enumerate(shown):
        y = top + number * line
        parts.append(_text(_NAMES - 8, y + line / 2 + 2, shorten(name, _MAX_NAME), "end"))
        words = zip(kinds, values, strict=True) if kinds else [("", values[0])]
        described.append(f"{name} {', '.join(f'{kind} {value:.4g}'.lstrip() for kind, value in words)}")
        for value, kind in zip(values, _KINDS, strict=False):
            start, end = sorted((axis.at(0.0), axis.at(value)))
            parts.append(_rect(kind, start, y + 3, max(end - start, 1.0), thick))
            parts.append(_text(max(end, start + 1.0) + 6, y + 2 + thick, amount(value), "start"))
            y += thick + 2
    few = f", the first {MAX_BARS} of {len(known)}" if len(known) > MAX_BARS else ""
    description = f"{chart.unit}: {'; '.join(described)}."
    return _figure(f"{chart.title}{few}", description, top + _TOP + len(shown) * line, parts)


def _figure(title: str, description: str, height: float, parts: Iterable[Markup]) -> Markup:
    """Return a drawing with its caption, and with a title and a description for screen readers."""
    drawing = element(
        "svg",
        element("title", title),
        element("desc", description),
        *parts,
        viewBox=f"0 0 {WIDTH} {height:.0f}",
        role="img",
        class_="chart",
    )
    return element("figure", element("figcaption", title), drawing)


def _grid(x_axis: _Axis, y_axis: _Axis, across: str, up: str) -> Iterable[Markup]:
    for value in y_axis.ticks:
        y = y_axis.at(value)
        yield _straight(x_axis.start, y, x_axis.end, y, "grid")
        yield _text(x_axis.start - 6, y + 4, _number(value, y_axis), "end")
    bottom, middle = y_axis.start, (y_axis.start + y_axis.end) / 2
    for value in x_axis.ticks:
        x = x_axis.at(value)
        yield _straight(x, bottom, x, bottom + 4, "axis")
        yield _text(x, bottom + 17, _number(value, x_axis), "middle")
    yield _straight(x_axis.start, bottom, x_axis.end, bottom, "axis")
    yield _text((x_axis.start + x_axis.end) / 2, bottom + 36, shorten(across, 48), "middle")
    yield element(
        "text", shorten(up, 40), transform=f"translate(14 {middle:.1f}) rotate(-90)", text_anchor="middle"
    )


def _legend(series: Sequence[str], top: float) -> Iterable[Markup]:
    if len(series) < 2:
        return
    for number, name in enumerate(series):
        x, y = 12 + (number % 2) * WIDTH / 2, top + (number // 2) * _LEGEND + 6
        yield _path([(x, y), (x + _MARK, y)], number, dots=False)
        yield _text(x + _MARK + 6, y + 4, shorten(name, _MAX_SERIES_NAME), "start")


def _rect(kind: str, x: float, y: float, width: float, height: float) -> Markup:
    sizes = {"width": _px(width), "height": f"{height:.0f}"}
    return element("rect", class_=kind, x=_px(x), y=_px(y), **sizes)


def _path(places: Sequence[tuple[float, float]], number: int, dots: bool) -> Markup:
    if len(places) == 1:
        dots = True
    path = Markup("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places))
    dash = _DASHES[number] or None
    drawn = [element("path", d=path, class_=f"line s{number}", stroke_dasharray=dash)]
    if dots:
        drawn += [
            element("circle", class_=f"dot s{number}", cx=_px(x), cy=_px(y), r="3.5") for x, y in places
        ]
    return joined(*drawn)


def _straight(x: float, y: float, to_x: float, to_y: float, kind: str) -> Markup:
    return element("line", class_=kind, x1=_px(x), y1=_px(y), x2=_px(to_x), y2=_px(to_y))


def _text(x: float, y: float, text: str, anchor: str, **style: str) -> Markup:
    return element("text", text, x=_px(x), y=_px(y), text_anchor=anchor, **style)


def _described(name: str, points: Sequence[tuple[float, float]]) -> str:
    (x, y), (last_x, last_y) = points[0], points[-1]
    values = [y for _, y in points]
    text = f"{name}: {y:.4g} at {x:.4g}"
    if len(points) == 1:
        return text
    return f"{text}, {last_y:.4g} at {last_x:.4g}, from {min(values):.4g} to {max(values):.4g} in all"


def _range(values: Sequence[float], margin: float) -> tuple[float, float]:
    """Return the ends of an axis for these values. margin: fraction of their range to add at each end."""
    low, high = min(values), max(values)
    span = high - low
    if span <= 1e-9 * max(abs(low), abs(high), 1e-290):
        half = abs(low) * 0.1 if abs(low) > 1e-290 else 0.5
        return low - half, high + half
    return low - margin * span, high + margin * span


def _number(value: float, axis: _Axis) -> str:
    """Return the label of a tick: "0" if the value is negligible relative to the axis."""
    if abs(value) < 1e-9 * (axis.high - axis.low):
        return "0"
    return amount(value)


def _is_finite(value: float) -> bool:
    return abs(value) < _LARGEST


def _px(value: float) -> str:
    return f"{value:.1f}"


# ---- One tree: as text in the format of XGBoost's `get_dump`, and as a picture --------------------------
# Guarantees: every node is included, with its number, split, gain and cover, or leaf value and cover. The
# text is identical to XGBoost's, except for names that contain a quote or would break a line. The picture is
# self-contained and does not need a style sheet.


_FONT = 12
_BOX, _PITCH, _GAP, _EDGE = 36, 46, 104, 16
"""Height of a node, distance between leaves, gap between columns (for an edge and its label), and margin
around the picture, in pixels."""
_HEAD, _FOOT = 34, 26
_MAX_TEXT_LENGTH = 24
"""Maximum length of a name or a list of categories. The tooltip shows the whole text."""
_BOLD = 1.08
_NOTE = "A leaf adds its value to the margin."
_GREY, _INK, _FAINT, _PAPER = "#9aa5b1", "#1f2933", "#52606d", "#f5f7fa"
_RISE, _FALL = "#d2e4f0", "#f7dfd2"
"""Colours of leaves with positive values, and of all other leaves."""


class _Words(NamedTuple):
    """The text of a node in a picture: two lines, and the full text for the tooltip."""

    first: str
    second: str
    whole: str

    @property
    def width(self) -> float:
        return max(_width(self.first) * _BOLD, _width(self.second)) + _FONT


def tree_text(tree: Tree, names: Sequence[str]) -> str:
    """Return a tree as text in XGBoost's format: one line per node, below its parent and indented by one more
    tab. names: feature names."""
    return "".join("\t" * depth + _line(tree, node, names) + "\n" for node, depth in _walk(tree))


def tree_svg(
    tree: Tree,
    names: Sequence[str],
    categories: Mapping[str, Sequence[str]],
    title: str,
    in_page: bool = False,
) -> str:
    """Return a drawing of a tree as SVG. The root is on the left, and "yes" branches are above "no" branches.

    Args:
        tree: the tree to draw.
        names: feature names.
        categories: categorical feature -> its categories, in the order of their codes.
        title: text above the tree.
        in_page: True for an image inside an HTML page instead of an SVG document.
    """
    depth = dict(_walk(tree))
    words = {node: _words(tree, node, names, categories) for node in depth}
    widths = [0.0] * (max(depth.values()) + 1)
    for node, at in depth.items():
        widths[at] = max(widths[at], words[node].width)
    columns = [_EDGE + sum(widths[:at]) + at * _GAP for at in range(len(widths))]
    heights = _heights(tree, [*depth])
    edges, boxes = [], []
    for node, at in depth.items():
        x, y, left = columns[at], heights[node], tree.left[node]
        colour = (_RISE if tree.value[node] > 0.0 else _FALL) if left == NO_CHILD else _PAPER
        boxes.append(_box(words[node], x, y, widths[at], colour))
        for child in () if left == NO_CHILD else (left, left + 1):
            edges.append(_edge(tree, node, child, (x + widths[at], y), (columns[at + 1], heights[child])))
    wide = max(columns[-1] + widths[-1], *(_EDGE + _width(line) * _BOLD for line in (title, _NOTE))) + _EDGE
    high = _HEAD + len(tree.leaves) * _PITCH + _FOOT
    drawing = element(
        "svg",
        element("title", title),
        element("rect", width="100%", height="100%", fill="#ffffff"),
        _text(_EDGE, 22, title, "start", fill=_INK, font_weight="bold"),
        *edges,
        *boxes,
        _text(_EDGE, high - 12, _NOTE, "start", fill=_FAINT),
        role="img",
        xmlns=None if in_page else "http://www.w3.org/2000/svg",
        width=f"{wide:.0f}",
        height=f"{high}",
        viewBox=f"0 0 {wide:.0f} {high}",
        font_family="Helvetica, Arial, sans-serif",
        font_size=f"{_FONT}",
    )
    return f"{drawing}\n"


def _walk(tree: Tree) -> Iterator[tuple[int, int]]:
    """Yield every node with its depth: parents before children, left before right."""
    waiting = [(0, 0)]
    while waiting:
        node, depth = waiting.pop()
        yield node, depth
        left = int(tree.left[node])
        if left != NO_CHILD:
            waiting += [(left + 1, depth + 1), (left, depth + 1)]


def _heights(tree: Tree, walk: Sequence[int]) -> dict[int, float]:
    """Return node -> vertical centre in pixels: leaves evenly spaced, others midway between children."""
    leaves = [node for node in walk if tree.left[node] == NO_CHILD]
    middle = {leaf: _HEAD + (index + 0.5) * _PITCH for index, leaf in enumerate(leaves)}
    for node in reversed(walk):
        if tree.left[node] != NO_CHILD:
            middle[node] = (middle[tree.left[node]] + middle[tree.left[node] + 1]) / 2
    return middle


def _split(tree: Tree, node: int, names: Sequence[str], categories: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the condition under which rows go left, in two parts: the feature, and its values."""
    name, threshold = names[tree.feature[node]], tree.threshold[node]
    if right := tree.levels(node):
        stay = [category for code, category in enumerate(categories.get(name, ())) if code not in right]
        return [name, f": {', '.join(stay)}" if stay else " is missing"]
    if threshold == math.inf:
        return [name, " is present"]
    return [name, f" < {threshold:.6g}"]


def _line(tree: Tree, node: int, names: Sequence[str]) -> str:
    """Return a node as one line in XGBoost's format."""
    left, cover = tree.left[node], f"cover={_nine(tree.cover[node])}"
    if left == NO_CHILD:
        return f"{node}:leaf={_nine(tree.value[node])},{cover}"
    name, missing = printable(names[tree.feature[node]]), left if tree.missing_left[node] else left + 1
    if right := tree.levels(node):
        split, ways = f"{name}:{{{','.join(map(str, right))}}}", f"yes={left + 1},no={left},missing={missing}"
    else:
        split, ways = (f"{name}<{_nine(tree.threshold[node])}", f"yes={left},no={left + 1},missing={missing}")
    return f"{node}:[{split}] {ways},gain={_nine(tree.gain[node])},{cover}"


def _nine(value: float) -> str:
    """Return a float32 in XGBoost's format: with nine digits, which are enough to read it back exactly."""
    return f"{np.float32(value):.9g}"


def _words(tree: Tree, node: int, names: Sequence[str], categories: Mapping[str, Sequence[str]]) -> _Words:
    line, cover = _line(tree, node, names), f"cover {tree.cover[node]:.4g}"
    if tree.left[node] == NO_CHILD:
        return _Words(f"{tree.value[node]:+.4g}", cover, line)
    split = [printable(part) for part in _split(tree, node, names, categories)]
    shown = [part if len(part) <= _MAX_TEXT_LENGTH else part[: _MAX_TEXT_LENGTH - 1] + "…" for part in split]
    return _Words("".join(shown), f"gain {tree.gain[node]:.4g}, {cover}", f"{''.join(split)}\n{line}")


def _edge(tree: Tree, node: int, child: int, start: tuple[float, float], end: tuple[float, float]) -> Markup:
    yes = child == tree.left[node]
    word = ("yes" if yes else "no") + (", missing" if yes == tree.missing_left[node] else "")
    (x, y), (to_x, to_y), half = start, end, _GAP / 2
    path = f"M{x:.1f} {y:.1f}C{x + half:.1f} {y:.1f} {to_x - half:.1f} {to_y:.1f} {to_x:.1f} {to_y:.1f}"
    line = element("path", d=path, fill="none", stroke=_GREY)
    return joined(line, _text(to_x - 6, to_y - 5 if yes else to_y + 13, word, "end", fill=_FAINT))


def _box(words: _Words, x: float, y: float, width: float, fill: str) -> Markup:
    """Return the box of a node. x, y: centre of its left side."""
    place = {"x": _px(x), "y": _px(y - _BOX / 2), "width": _px(width), "height": f"{_BOX}", "rx": "4"}
    return element(
        "g",
        element("title", lines(words.whole)),
        element("rect", **place, fill=fill, stroke=_GREY),
        _text(x + width / 2, y - 3, words.first, "middle", fill=_INK, font_weight="bold"),
        _text(x + width / 2, y + 12, words.second, "middle", fill=_FAINT),
    )


def _width(text: str) -> float:
    """Return the approximate width of text in pixels. The exact width depends on the reader's fonts."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return _FONT * (0.6 * (len(text) - wide) + wide)
