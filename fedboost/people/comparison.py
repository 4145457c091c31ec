"""Models compared in words: a table and a sentence for each site, and one sentence for all.

Promises: it says plainly where joining is not worth it, or cannot be told.
Refuses: nothing.
"""

import math
import textwrap
from collections.abc import Iterator, Sequence

from fedboost.people.facts import (
    ALONE,
    FEDERATED,
    NOT_WORTH,
    ONLY_JOINED,
    POOLED,
    TOO_FEW,
    UNTOLD,
    WORTH,
    ComparisonFacts,
    SiteComparison,
)
from fedboost.people.text import WIDTH, counted, one_line, shorten

NAME_WIDTH, MIN_FIGURE_WIDTH = 13, 11
"""Columns before the figures, and of a figure, unless its name is longer."""
MAX_NAMED = 8
"""Sites that are named in the last sentence for each verdict."""
ANSWERS = {
    WORTH: "YES for",
    NOT_WORTH: "NO for",
    UNTOLD: "it cannot be told for",
    ONLY_JOINED: "there is no model alone for",
    TOO_FEW: "there are too few rows to say for",
}
"""An answer to whether joining is worth it, by verdict."""


def comparison(facts: ComparisonFacts) -> Iterator[str]:
    """Yield the comparison of all sites."""
    share = f"{facts.share:.0%} of each one's rows"
    yield f"{len(facts.sites)} sites; {share} are held out, and no model sees them."
    yield "better by: what the federated model gains on that of the site alone; at least,"
    yield "at most: with other rows held out it would lie between these 95 times of 100."
    for site in facts.sites:
        yield ""
        yield from _site(site, facts.metrics, facts.splits)
    yield ""
    yield from textwrap.wrap(_all_sites(facts.sites), WIDTH)
    yield f"federated == pooled{' in every split' * (facts.splits > 1)}: {'yes' if facts.equal else 'no'}"
    if not facts.equal:
        yield "(they need not be with vote_top_k, or rows drawn without a row_id)"


def _site(site: SiteComparison, metrics: tuple[str, ...], splits: int) -> Iterator[str]:
    """Yield a site's table and its sentence."""
    in_each = "" if splits == 1 else f" in each of {splits} splits"
    yield one_line(f"{site.site}: {counted(site.rows, 'row')}, {site.held_out} held out{in_each}")
    width = max(MIN_FIGURE_WIDTH, 2 + max(map(len, metrics)))
    abreast = (WIDTH - NAME_WIDTH) // width
    for first in range(0, len(metrics) if site.models else 0, abreast):
        yield from _table(site, metrics[first : first + abreast], width)
    yield from textwrap.wrap(one_line(sentence(site, metrics[0])), WIDTH)


def _table(site: SiteComparison, metrics: Sequence[str], width: int) -> Iterator[str]:
    digits = {name: _digits(site.models[POOLED][name].value) for name in metrics}
    yield _line("", metrics, width)
    for model in (ALONE, FEDERATED, POOLED):
        if model in site.models:
            figures = site.models[model]
            yield _line(model, [_figure(figures[name].value, digits[name]) for name in metrics], width)
    if site.better_by:
        for title, end in (("better by", "value"), ("  at least", "low"), ("  at most", "high")):
            gains = [_figure(getattr(site.better_by[name], end), digits[name]) for name in metrics]
            yield _line(title, gains, width)


def _line(title: str, figures: Sequence[str], width: int) -> str:
    return f"{title:<{NAME_WIDTH}}" + "".join(f"{figure:>{width}}" for figure in figures)


def sentence(site: SiteComparison, metric: str) -> str:
    """Return whether joining was worth it for a site, by the metric that decides."""
    name = shorten(site.site)
    if site.verdict == TOO_FEW:
        return f"{name} has too few rows to say: {site.different} different ones were held out."
    digits = _digits(site.models[POOLED][metric].value)
    joined = _figure(site.models[FEDERATED][metric].value, digits)
    if site.verdict == ONLY_JOINED:
        return f"{name} has no model alone ({site.cannot}); if it joins, one of {metric} {joined}."
    alone, gain = _figure(site.models[ALONE][metric].value, digits), site.better_by[metric]
    both = f"{metric} {joined} instead of {alone}"
    if site.verdict == NOT_WORTH:
        worse, least, most = (_figure(-value, digits) for value in (gain.value, gain.high, gain.low))
        return (
            f"Joining is NOT worth it for {name}: {both}, worse by {worse} ({least} to {most}). Under these "
            f"terms it does better alone; a column that names the site, or more rounds, may change that."
        )
    better, least, most = (_figure(value, digits) for value in (gain.value, gain.low, gain.high))
    if site.verdict == WORTH:
        return f"Joining is worth it for {name}: {both}, better by {better} ({least} to {most})."
    return (
        f"It cannot be told whether joining is worth it for {name}: {both}, better by {better} ({least} to "
        f"{most})."
    )


def _all_sites(sites: Sequence[SiteComparison]) -> str:
    """Return one sentence on all sites."""
    parts = []
    for verdict, answer in ANSWERS.items():
        names = [shorten(site.site) for site in sites if site.verdict == verdict]
        if names:
            more = f", and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
            parts.append(f"{answer} {len(names)} ({', '.join(names[:MAX_NAMED])}{more})")
    text = "; ".join(parts)
    return one_line(f"Of {len(sites)} sites, is joining worth it? {text[0].upper()}{text[1:]}.")


def _digits(value: float) -> int:
    """Return digits after the point for figures of this size: four, or as many as show four of them."""
    exponent = math.floor(math.log10(abs(value))) if value and math.isfinite(value) else 0
    return 4 if -3 < exponent < 3 else min(max(3 - exponent, 0), 8)


def _figure(value: float, digits: int) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"
