"""Charts as SVG inside a page: lines, bars and points, in the colours of the page.

Promises: a chart has a title and a description of what it shows, and needs no script; lines differ by more
than their colour; the same values draw the same bytes; numbers that are not finite are left out.
Refuses: nothing.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from fedboost.gbdt.metrics import OF_PARTY, TRAIN, VALIDATION
from fedboost.views.as_html import Markup, ReportFacts, element, joined, left_out, paragraph, table
from fedboost.views.training import ACCOUNTED
from fedboost.views.words import shorten

WIDTH, HEIGHT = 440, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 14, 12, 46
_LINE, _LEGEND, _MARK = 24, 20, 26
"""Pixels: of a bar with its name, of a line of the legend, of the mark before a name."""
_NAMES = 156
"""Pixels for the names of bars."""
_MAX_NAME, _MAX_SERIES_NAME = 20, 24
MAX_SERIES = 8
"""Lines of a chart that can be told apart."""
MAX_BARS = 20
_TICKS = 4
_LARGEST = 1e300
_DASHES = "", "7 4", "2 3", "9 3 2 3", "12 4", "4 2", "1 4", "9 3 2 3 2 3"


@dataclass(frozen=True)
class Series:
    """A line: its name, and its points."""

    name: str
    points: Sequence[tuple[float, float]]
    dots: bool = False
    """True if each point is marked."""

    @property
    def drawn(self) -> list[tuple[float, float]]:
        """The points that can be drawn."""
        return [(x, y) for x, y in self.points if _is_finite(x) and _is_finite(y)]


@dataclass(frozen=True)
class _Axis:
    """Values low to high, and the pixels they stand at."""

    low: float
    high: float
    start: float
    end: float
    whole: bool = False
    """True if the values are whole numbers."""

    def at(self, value: float) -> float:
        """The pixel of a value."""
        return self.start + (self.end - self.start) * ((value - self.low) / (self.high - self.low))

    @property
    def ticks(self) -> list[float]:
        """Round values between the ends."""
        rough = (self.high - self.low) / _TICKS
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(step for step in (1, 2, 2.5, 5, 10) if step * power >= rough * 0.999) * power
        step = max(math.ceil(step), 1) if self.whole else step
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, min(last, first + 2 * _TICKS) + 1)]


def lines(
    title: str,
    series: Sequence[Series],
    across: str,
    up: str,
    square: bool = False,
    diagonal: bool = False,
    mark: tuple[float, str] | None = None,
    whole: bool = False,
) -> Markup:
    """Return a chart of lines, the first MAX_SERIES of them. across, up: what the axes are; square: both from
    0 to 1; diagonal: a faint line from corner to corner; mark: a place on the axis across, and its words;
    whole: the axis across has whole numbers."""
    shown = [one for one in series[:MAX_SERIES] if one.drawn]
    if not shown:
        return Markup("")
    legend = _LEGEND * ((len(shown) + 1) // 2) if len(shown) > 1 else 0
    bottom = HEIGHT - _BOTTOM
    xs = [x for one in shown for x, _ in one.drawn]
    ys = [y for one in shown for _, y in one.drawn]
    x_axis = _Axis(*((0.0, 1.0) if square else _range(xs, 0.0)), _LEFT, WIDTH - _RIGHT, whole)
    y_axis = _Axis(*((0.0, 1.0) if square else _range(ys, 0.05)), bottom, _TOP)
    parts = [*_grid(x_axis, y_axis, across, up)]
    if diagonal:
        ends = x_axis.at(0), y_axis.at(0), x_axis.at(1), y_axis.at(1)
        parts.append(_straight(*ends, "faint"))
    if mark is not None and x_axis.low <= mark[0] <= x_axis.high:
        at = x_axis.at(mark[0])
        right = at > (_LEFT + WIDTH) / 2
        parts.append(_straight(at, _TOP, at, bottom, "faint"))
        parts.append(_text(at + (-5 if right else 5), _TOP + 10, mark[1], "end" if right else "start"))
    for number, one in enumerate(shown):
        parts.append(_path([(x_axis.at(x), y_axis.at(y)) for x, y in one.drawn], number, one.dots))
    parts += _legend([one.name for one in shown], HEIGHT)
    told = "; ".join(_described(one) for one in shown)
    return _figure(title, f"{up} by {across}. {told}.", HEIGHT + legend, parts)


def bars(title: str, values: Sequence[tuple[str, float]], unit: str) -> Markup:
    """Return a chart of horizontal bars from 0, the first MAX_BARS of them, each with its value."""
    shown = [(name, value) for name, value in values if _is_finite(value)][:MAX_BARS]
    if not shown:
        return Markup("")
    low, high = min(0.0, *(v for _, v in shown)), max(0.0, *(v for _, v in shown))
    axis = _Axis(low, high if high > low else low + 1.0, _NAMES, WIDTH - 74)
    parts = []
    for number, (name, value) in enumerate(shown):
        y, ends = _TOP + number * _LINE, sorted((axis.at(0.0), axis.at(value)))
        width = max(ends[1] - ends[0], 1.0)
        parts += [
            _text(_NAMES - 8, y + 15, shorten(name, _MAX_NAME), "end"),
            element("rect", class_="bar", x=_px(ends[0]), y=_px(y + 3), width=_px(width), height="16"),
            _text(ends[1] + 6, y + 15, f"{value:.4g}", "start"),
        ]
    told = "; ".join(f"{name} {value:.4g}" for name, value in shown)
    return _figure(title, f"{unit}: {told}.", 2 * _TOP + len(shown) * _LINE, parts)


def points(title: str, values: Sequence[tuple[str, float]], unit: str) -> Markup:
    """Return a chart of one point a name, the first MAX_BARS of them, on an axis."""
    shown = [(name, value) for name, value in values if _is_finite(value)][:MAX_BARS]
    if not shown:
        return Markup("")
    bottom = float(_TOP + len(shown) * _LINE)
    axis = _Axis(*_range([value for _, value in shown], 0.08), _NAMES, WIDTH - _RIGHT)
    parts = [*_ticks_across(axis, bottom, unit)]
    for number, (name, value) in enumerate(shown):
        y = _TOP + (number + 0.5) * _LINE
        parts += [
            _text(_NAMES - 8, y + 4, shorten(name, _MAX_NAME), "end"),
            _straight(_NAMES, y, WIDTH - _RIGHT, y, "grid"),
            element("circle", class_="dot s0", cx=_px(axis.at(value)), cy=_px(y), r="5"),
        ]
    told = "; ".join(f"{name} {value:.4g}" for name, value in shown)
    return _figure(title, f"{unit}: {told}.", bottom + _BOTTOM, parts)


def pairs(
    title: str, values: Sequence[tuple[str, float, float]], kinds: tuple[str, str], unit: str
) -> Markup:
    """Return a chart of two horizontal bars a name, from 0, the first MAX_BARS of them. kinds: what the first
    and the second bar are."""
    shown = [each for each in values if _is_finite(each[1]) and _is_finite(each[2])][:MAX_BARS]
    if not shown:
        return Markup("")
    high = max(max(first, second) for _, first, second in shown)
    axis = _Axis(0.0, high if high > 0 else 1.0, _NAMES, WIDTH - 74)
    top, pair = _TOP + _LEGEND, _LINE + 10
    parts = [*_keys(kinds)]
    for number, (name, *both) in enumerate(shown):
        y = top + number * pair
        parts.append(_text(_NAMES - 8, y + 19, shorten(name, _MAX_NAME), "end"))
        for value, kind, down in zip(both, ("bar", "bar second"), (3, 16), strict=True):
            width = max(axis.at(value) - axis.start, 1.0)
            parts.append(
                element(
                    "rect", class_=kind, x=_px(axis.start), y=_px(y + down), width=_px(width), height="11"
                )
            )
            parts.append(_text(axis.start + width + 6, y + down + 10, f"{value:.3g}", "start"))
    told = "; ".join(f"{name} {kinds[0]} {a:.3g}, {kinds[1]} {b:.3g}" for name, a, b in shown)
    return _figure(title, f"{unit}: {told}.", top + _TOP + len(shown) * pair, parts)


def intervals(title: str, values: Sequence[tuple[str, float, float, float]], unit: str) -> Markup:
    """Return a chart of one point a name, within the line of its interval, the first MAX_BARS of them, with a
    line at 0. values: name, value, low, high."""
    shown = [each for each in values if all(map(_is_finite, each[1:]))][:MAX_BARS]
    if not shown:
        return Markup("")
    bottom = float(_TOP + len(shown) * _LINE)
    every = [0.0, *(number for each in shown for number in each[1:])]
    axis = _Axis(*_range(every, 0.08), _NAMES, WIDTH - _RIGHT)
    parts = [*_ticks_across(axis, bottom, unit), _straight(axis.at(0.0), _TOP, axis.at(0.0), bottom, "faint")]
    for number, (name, value, low, high) in enumerate(shown):
        y = _TOP + (number + 0.5) * _LINE
        parts += [
            _text(_NAMES - 8, y + 4, shorten(name, _MAX_NAME), "end"),
            _straight(axis.at(low), y, axis.at(high), y, "line s0"),
            element("circle", class_="dot s0", cx=_px(axis.at(value)), cy=_px(y), r="5"),
        ]
    told = "; ".join(f"{name} {value:.4g}, {low:.4g} to {high:.4g}" for name, value, low, high in shown)
    return _figure(title, f"{unit}: {told}.", bottom + _BOTTOM, parts)


def ends(values: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    """Return named values that fit a chart: all of them, or where they are many the MAX_BARS / 2 highest and
    as many lowest, highest first."""
    if len(values) <= MAX_BARS:
        return [*values]
    ranked = sorted(values, key=lambda pair: -pair[1])
    return [*ranked[: MAX_BARS // 2], *ranked[-(MAX_BARS // 2) :]]


def _figure(title: str, description: str, height: float, parts: Iterable[Markup]) -> Markup:
    """Return a chart under its title."""
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
    yield from _ticks_across(x_axis, y_axis.start, across)
    middle = (y_axis.start + y_axis.end) / 2
    yield element(
        "text", shorten(up, 40), transform=f"translate(14 {middle:.1f}) rotate(-90)", text_anchor="middle"
    )


def _ticks_across(axis: _Axis, bottom: float, across: str) -> Iterable[Markup]:
    for value in axis.ticks:
        x = axis.at(value)
        yield _straight(x, bottom, x, bottom + 4, "axis")
        yield _text(x, bottom + 17, _number(value, axis), "middle")
    yield _straight(axis.start, bottom, axis.end, bottom, "axis")
    yield _text((axis.start + axis.end) / 2, bottom + 36, shorten(across, 48), "middle")


def _legend(series: Sequence[str], top: float) -> Iterable[Markup]:
    if len(series) < 2:
        return
    for number, name in enumerate(series):
        x, y = 12 + (number % 2) * WIDTH / 2, top + (number // 2) * _LEGEND + 6
        yield _path([(x, y), (x + _MARK, y)], number, dots=False)
        yield _text(x + _MARK + 6, y + 4, shorten(name, _MAX_SERIES_NAME), "start")


def _keys(kinds: Sequence[str]) -> Iterable[Markup]:
    """What the bars of a pair are."""
    for number, (name, kind) in enumerate(zip(kinds, ("bar", "bar second"), strict=True)):
        x = 12 + number * WIDTH / 2
        yield element("rect", class_=kind, x=_px(x), y="8", width=_px(_MARK), height="11")
        yield _text(x + _MARK + 6, 18, shorten(name, _MAX_SERIES_NAME), "start")


def _path(places: Sequence[tuple[float, float]], number: int, dots: bool) -> Markup:
    if len(places) == 1:
        dots = True
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    dash = _DASHES[number] or None
    drawn = [element("path", d=path, class_=f"line s{number}", stroke_dasharray=dash)]
    if dots:
        drawn += [
            element("circle", class_=f"dot s{number}", cx=_px(x), cy=_px(y), r="3.5") for x, y in places
        ]
    return joined(*drawn)


def _straight(x: float, y: float, to_x: float, to_y: float, kind: str) -> Markup:
    return element("line", class_=kind, x1=_px(x), y1=_px(y), x2=_px(to_x), y2=_px(to_y))


def _text(x: float, y: float, text: str, anchor: str) -> Markup:
    return element("text", text, x=_px(x), y=_px(y), text_anchor=anchor)


def _described(series: Series) -> str:
    points = series.drawn
    (x, y), (last_x, last_y) = points[0], points[-1]
    values = [y for _, y in points]
    text = f"{series.name}: {y:.4g} at {x:.4g}"
    if len(points) == 1:
        return text
    return f"{text}, {last_y:.4g} at {last_x:.4g}, from {min(values):.4g} to {max(values):.4g} in all"


def _range(values: Sequence[float], margin: float) -> tuple[float, float]:
    """The ends of an axis for these values, with a share of the space around them."""
    low, high = min(values), max(values)
    span = high - low
    if span <= 1e-9 * max(abs(low), abs(high), 1e-290):
        half = abs(low) * 0.1 or 0.5
        return low - half, high + half
    return low - margin * span, high + margin * span


def _number(value: float, axis: _Axis) -> str:
    """A value at an axis: 0 where it is nothing beside the ends."""
    if abs(value) < 1e-9 * (axis.high - axis.low):
        return "0"
    return f"{value:.4g}"


def _is_finite(value: float) -> bool:
    return abs(value) < _LARGEST


def _px(value: float) -> str:
    return f"{value:.1f}"


# ---- The learning curves of a report --------------------------------------------------------------------
# Promises: metrics as the model file has them; those of single sites only where it has any.


MAX_CHARTS = 12
"""Metrics that are drawn."""


@dataclass(frozen=True)
class Curve:
    """Values of one metric, by the number of the round from 1. party: '' for all rows; rows: the set."""

    party: str
    rows: str
    metric: str
    values: Mapping[int, float]


def curves_of(rounds: Sequence[Mapping[str, float]]) -> list[Curve]:
    """Return the curves in a history."""
    names = dict.fromkeys(name for row in rounds for name in row if name not in ACCOUNTED)
    out = []
    for name in names:
        party, _, own = name.rpartition(OF_PARTY)
        held_out = own.startswith(f"{VALIDATION}-")
        metric = own.removeprefix(f"{VALIDATION}-")
        values = {number: row[name] for number, row in enumerate(rounds, 1) if name in row}
        out.append(Curve(party, VALIDATION if held_out else TRAIN, metric, values))
    return out


def learning_curves(facts: ReportFacts) -> Markup:
    """Return a chart of each metric over all rows, of each metric by site, and tables of both."""
    curves = curves_of(facts.rounds)
    if not curves:
        return left_out(
            "The model file has no metrics of rounds: its terms asked for none, or no set of rows had ten."
        )
    whole = [curve for curve in curves if not curve.party]
    own = [curve for curve in curves if curve.party]
    kinds = dict.fromkeys(curve.metric for curve in whole)
    drawn = [_chart(facts, [c for c in whole if c.metric == kind], kind) for kind in [*kinds][:MAX_CHARTS]]
    more = len(kinds) - MAX_CHARTS
    return joined(
        paragraph(
            "Over the rows of all parties, after each round, to four significant digits. Nobody signs these "
            "numbers."
        ),
        element("div", *drawn, class_="charts"),
        left_out(f"{more} more metrics stand in the table alone.") if more > 0 else "",
        _rounds(whole, len(facts.rounds)) if whole else "",
        _by_site(facts, own),
    )


def _chart(facts: ReportFacts, curves: Iterable[Curve], metric: str) -> Markup:
    series = [Series(curve.rows, [*curve.values.items()]) for curve in curves]
    model = facts.model
    mark = (model.kept, f"kept up to round {model.kept}") if model.kept < model.trained else None
    return lines(f"{metric} by round", series, "round", metric, mark=mark, whole=True)


def _rounds(curves: Sequence[Curve], rounds: int) -> Markup:
    headings = ["round", *(f"{c.rows} {c.metric}" for c in curves)]
    rows = ([str(n), *(_value(c.values.get(n)) for c in curves)] for n in range(1, rounds + 1))
    return table("Metrics of each round", headings, rows)


def _by_site(facts: ReportFacts, curves: Sequence[Curve]) -> Markup:
    if not curves:
        return left_out(
            "By site: the terms did not ask for metrics of single sites (party_metrics), so there are none."
        )
    kinds = dict.fromkeys((curve.rows, curve.metric) for curve in curves)
    drawn = []
    for rows, metric in [*kinds][:MAX_CHARTS]:
        own = [curve for curve in curves if (curve.rows, curve.metric) == (rows, metric)]
        title = f"{metric} by round, {rows} rows of each site"
        if len(own) > MAX_SERIES:
            title = f"{metric} by round, {rows} rows of {len(own)} sites: lowest, median, highest"
        drawn.append(lines(title, _of_sites(own), "round", metric, whole=True))
    last: dict[str, dict[tuple[str, str], float]] = {curve.party: {} for curve in curves}
    for curve in curves:
        if facts.model.kept in curve.values:
            last[curve.party][curve.rows, curve.metric] = curve.values[facts.model.kept]
    headings = ["site", *(f"{rows} {metric}" for rows, metric in kinds)]
    lines_of_sites = ([party, *(_value(own.get(kind)) for kind in kinds)] for party, own in last.items())
    return joined(
        element("h3", "By site"),
        paragraph("Over the rows of one site alone, which its policy allowed. The aggregator saw them, too."),
        element("div", *drawn, class_="charts"),
        table("Metrics of each site after the last round of the model", headings, lines_of_sites),
    )


def _of_sites(curves: Sequence[Curve]) -> list[Series]:
    """A line for each site; where they are many, of all of them the lowest, the median and the highest."""
    if len(curves) <= MAX_SERIES:
        return [Series(curve.party, [*curve.values.items()]) for curve in curves]
    rounds = sorted({number for curve in curves for number in curve.values})
    values = {n: [c.values[n] for c in curves if n in c.values] for n in rounds}
    return [
        Series("highest", [(n, max(values[n])) for n in rounds]),
        Series("median", [(n, median(values[n])) for n in rounds]),
        Series("lowest", [(n, min(values[n])) for n in rounds]),
    ]


def best_round(curve: Curve, grows: bool) -> int | None:
    """Return the round in which a metric was best, the first of equal ones; None where it has no number."""
    known = {number: value for number, value in curve.values.items() if math.isfinite(value)}
    return (max if grows else min)(known, key=known.__getitem__) if known else None


def _value(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
