"""Models compared in words: the verdict, the figures of all sites together, and a line for each site, or an
overview where they are many.

Promises: it says plainly where joining is not worth it, or cannot be told.
Refuses: nothing.
"""

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedboost.views.facts import (
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
from fedboost.views.words import WIDTH, Block, cell, counted, one_line, paragraph, shorten, table

NAME_WIDTH, MIN_FIGURE_WIDTH = 13, 11
"""Columns before the figures, and of a figure, unless its name is longer."""
MAX_NAMED = 5
"""Sites that are named in a sentence for each verdict."""
MAX_LISTED = 20
"""Sites that are listed one by one; of more there is an overview."""
EXTREMES = 5
"""Sites at each end of the overview."""
SHOWN = (ALONE, FEDERATED, "better by", "at least", "at most")
"""Figures in the line of a site."""
MAX_SITE = 14
"""Characters of its name there."""
QUANTILES = {"lowest": 0.0, "10 %": 0.1, "median": 0.5, "90 %": 0.9, "highest": 1.0}
ANSWERS = {
    WORTH: "it is worth it for",
    NOT_WORTH: "it is NOT worth it for",
    UNTOLD: "it cannot be told for",
    ONLY_JOINED: "there is no model alone for",
    TOO_FEW: "there are too few rows to say for",
}
"""An answer to whether joining is worth it, by verdict."""
SHORT = {WORTH: "yes", NOT_WORTH: "NO", UNTOLD: "unclear", ONLY_JOINED: "no model", TOO_FEW: "few rows"}
"""The same in the line of a site."""


ADVICE = "a column that names the site, or more rounds, may change that"
JOINED, PLAIN = "joined", "plain"
NO_TITLES: Mapping[str, str] = {}


def comparison(facts: ComparisonFacts) -> Iterator[Block]:
    """Yield the verdict, all sites together, and each site."""
    metric, together = facts.metrics[0], facts.together
    yield paragraph(one_line(f"{overall(together, metric)} {for_whom(facts.sites)}"))
    yield ""
    yield from _all_sites(together, facts)
    yield "at least, at most: with other rows held out, the gain of joining would lie"
    yield "between these 95 times of 100"
    yield ""
    if len(facts.sites) > MAX_LISTED:
        yield from _overview(facts.sites, facts.metrics)
    else:
        yield from _each(facts.sites, facts.metrics)
        for site in facts.sites:
            if site.verdict == ONLY_JOINED:
                yield paragraph(one_line(sentence(site, metric)))
    yield ""
    if any(site.verdict == NOT_WORTH for site in facts.sites):
        column = shorten(facts.site_column) if facts.site_column else ""
        feature = f", or column {column!r} among the features of the terms," if column else ""
        yield paragraph(one_line(f"Where it is not worth it, more rounds{feature} may change that."))
    share = f"{facts.share:.0%} of each site's rows were held out"
    yield paragraph(f"{share}{_in_each(facts.splits)}, and no model saw them.")
    yield f"federated == pooled{' in every split' * (facts.splits > 1)}: {'yes' if facts.equal else 'no'}"
    if not facts.equal:
        yield "(they need not be with vote_top_k, or rows drawn without a row_id)"


def of_columns(facts: ComparisonFacts, counts: Mapping[str, int], protection: str) -> Iterator[Block]:
    """Yield the verdict for a label holder, with its columns alone and with those of others, and the figures.
    counts: rows of each party's table; protection: of the terms."""
    (site,), metric = facts.sites, facts.metrics[0]
    yield paragraph(one_line(sentence(site, metric, "more rounds, or columns of others, may change that")))
    yield ""
    held = f"{counted(site.rows, 'row')} in common, {site.held_out} held out{_in_each(facts.splits)}"
    tables = ", ".join(f"{shorten(party)} {rows}" for party, rows in counts.items())
    yield paragraph(one_line(f"{held}, which no model saw; rows of the tables: {tables}"))
    width = max(MIN_FIGURE_WIDTH, 2 + max(map(len, facts.metrics)))
    abreast, shown = (WIDTH - NAME_WIDTH) // width, _without_twins(site, facts.equal)
    for first in range(0, len(facts.metrics) if site.models else 0, abreast):
        yield from _table(shown, facts.metrics[first : first + abreast], width, {FEDERATED: JOINED})
    yield "at least, at most: with other rows held out, the gain of joining would lie"
    yield "between these 95 times of 100"
    yield ""
    if facts.equal:
        yield paragraph("The pooled model, of one party with all columns, is the joined one, byte for byte.")
    else:
        yield paragraph(
            "The pooled model is another one (so with rows drawn without a row_id, with alone_rounds, and "
            "with min_rows_per_bin)."
        )
    if protection != PLAIN:
        yield paragraph(f"Trained under {PLAIN} in this process; {protection} gives the same model.")


def _without_twins(site: SiteComparison, equal: bool) -> SiteComparison:
    """The figures without those of the pooled model, where it is the joined one."""
    models = {name: figures for name, figures in site.models.items() if not (equal and name == POOLED)}
    return replace(site, models=models)


def overall(together: SiteComparison, metric: str) -> str:
    """Return whether joining pays for all sites together."""
    if together.verdict == TOO_FEW:
        return f"There are too few rows to say: {together.different} different ones were held out."
    digits = digits_of(together.models[POOLED][metric].value)
    joined = figure(together.models[FEDERATED][metric].value, digits)
    if together.verdict == ONLY_JOINED:
        return f"No site can train alone; if they join, they have a model of {metric} {joined}."
    alone, gain = figure(together.models[ALONE][metric].value, digits), together.better_by[metric]
    both = f"over all sites {metric} {joined} instead of {alone}"
    if together.verdict == NOT_WORTH:
        worse, least, most = (figure(-value, digits) for value in (gain.value, gain.high, gain.low))
        return f"Joining does NOT pay: {both}, worse by {worse} ({least} to {most})."
    better, least, most = (figure(value, digits) for value in (gain.value, gain.low, gain.high))
    answer = "Joining pays" if together.verdict == WORTH else "It cannot be told whether joining pays"
    return f"{answer}: {both}, better by {better} ({least} to {most})."


def for_whom(sites: Sequence[SiteComparison]) -> str:
    """Return one sentence on which sites gain."""
    parts = []
    for verdict, answer in ANSWERS.items():
        names = [shorten(site.site) for site in sites if site.verdict == verdict]
        if names:
            more = f", and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
            parts.append(f"{answer} {len(names)} ({', '.join(names[:MAX_NAMED])}{more})")
    return f"Of {counted(len(sites), 'site')}, {'; '.join(parts)}."


def _in_each(splits: int) -> str:
    return "" if splits == 1 else f" in each of {splits} splits"


def _all_sites(together: SiteComparison, facts: ComparisonFacts) -> Iterator[str]:
    """Yield all metrics of all sites together."""
    able = len([site for site in facts.sites if not site.cannot])
    whole = "all sites" if able in (0, len(facts.sites)) else f"the {able} sites that can train alone"
    held = f"{counted(together.rows, 'row')}, {together.held_out} held out{_in_each(facts.splits)}"
    yield from textwrap.wrap(one_line(f"{whole}, means by row: {held}"), WIDTH)
    width = max(MIN_FIGURE_WIDTH, 2 + max(map(len, facts.metrics)))
    abreast = (WIDTH - NAME_WIDTH) // width
    for first in range(0, len(facts.metrics) if together.models else 0, abreast):
        yield from _table(together, facts.metrics[first : first + abreast], width)


def _each(sites: Sequence[SiteComparison], metrics: tuple[str, ...]) -> Iterator[Block]:
    """Yield a line for each site, by the metric that decides."""
    metric = metrics[0]
    lines = table(metric, "rows", *SHOWN, "worth it?", numbers=range(1, 2 + len(SHOWN)))
    known = [site.models[POOLED][metric].value for site in sites if site.models]
    digits = digits_of(max(known, key=abs, default=0.0))
    for site in sites:
        figures = {name: values[metric].value for name, values in site.models.items()}
        if site.better_by:
            gain = site.better_by[metric]
            figures |= {"better by": gain.value, "at least": gain.low, "at most": gain.high}
        texts = (figure(figures.get(name, math.nan), digits) for name in SHOWN)
        lines.add_row(cell(shorten(site.site, MAX_SITE)), f"{site.rows}", *texts, SHORT[site.verdict])
    yield lines


def _overview(sites: Sequence[SiteComparison], metrics: tuple[str, ...]) -> Iterator[Block]:
    """Yield quantiles of the gains, and the sites at both ends."""
    rated = [site for site in sites if site.better_by and site.verdict != TOO_FEW]
    rated = [site for site in rated if not math.isnan(site.better_by[metrics[0]].value)]
    lines = table("gain by site", *QUANTILES)
    for metric in metrics:
        gains = [site.better_by[metric].value for site in rated]
        gains = [gain for gain in gains if not math.isnan(gain)]
        if gains:
            digits = digits_of(max(gains, key=abs))
            lines.add_row(metric, *(f"{q:.{digits}f}" for q in np.quantile(gains, [*QUANTILES.values()])))
    yield lines
    ranked = sorted(rated, key=lambda site: -site.better_by[metrics[0]].value)
    ends = min(EXTREMES, len(ranked) // 2)
    if ends:
        yield f"\nthe {ends} that gain most:"
        yield from _each(ranked[:ends], metrics)
        yield f"\nthe {ends} that gain least:"
        yield from _each(ranked[-ends:], metrics)
    yield f"\nall {len(sites)} sites: --csv FILE, or --json"


def _table(
    site: SiteComparison, metrics: Sequence[str], width: int, titles: Mapping[str, str] = NO_TITLES
) -> Iterator[str]:
    digits = {name: digits_of(site.models[FEDERATED][name].value) for name in metrics}
    yield _line("", metrics, width)
    for model in (ALONE, FEDERATED, POOLED):
        if model in site.models:
            figures = site.models[model]
            yield _line(
                titles.get(model, model),
                [figure(figures[name].value, digits[name]) for name in metrics],
                width,
            )
    if site.better_by:
        for title, end in (("better by", "value"), ("  at least", "low"), ("  at most", "high")):
            gains = [figure(getattr(site.better_by[name], end), digits[name]) for name in metrics]
            yield _line(title, gains, width)


def _line(title: str, figures: Sequence[str], width: int) -> str:
    return f"{title:<{NAME_WIDTH}}" + "".join(f"{figure:>{width}}" for figure in figures)


def sentence(site: SiteComparison, metric: str, advice: str = ADVICE) -> str:
    """Return whether joining was worth it for a site, by the metric that decides. advice: if it was not."""
    name = shorten(site.site)
    if site.verdict == TOO_FEW:
        return f"{name} has too few rows to say: {site.different} different ones were held out."
    digits = digits_of(site.models[POOLED][metric].value)
    joined = figure(site.models[FEDERATED][metric].value, digits)
    if site.verdict == ONLY_JOINED:
        return f"{name} has no model alone ({site.cannot}); if it joins, one of {metric} {joined}."
    alone, gain = figure(site.models[ALONE][metric].value, digits), site.better_by[metric]
    both = f"{metric} {joined} instead of {alone}"
    if site.verdict == NOT_WORTH:
        worse, least, most = (figure(-value, digits) for value in (gain.value, gain.high, gain.low))
        return (
            f"Joining is NOT worth it for {name}: {both}, worse by {worse} ({least} to {most}). Under these "
            f"terms it does better alone; {advice}."
        )
    better, least, most = (figure(value, digits) for value in (gain.value, gain.low, gain.high))
    if site.verdict == WORTH:
        return f"Joining is worth it for {name}: {both}, better by {better} ({least} to {most})."
    return (
        f"It cannot be told whether joining is worth it for {name}: {both}, better by {better} ({least} to "
        f"{most})."
    )


def digits_of(value: float) -> int:
    """Return digits after the point for figures of this size: four, or as many as show four of them."""
    exponent = math.floor(math.log10(abs(value))) if value and math.isfinite(value) else 0
    return 4 if -3 < exponent < 3 else min(max(3 - exponent, 0), 8)


def figure(value: float, digits: int) -> str:
    """Return a figure; a dash where there is none."""
    return "-" if math.isnan(value) else f"{value:.{digits}f}"
