"""Comparison of models: whether joining is worth it, for all sites together and for each site."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fedboost.results.model import ALONE, FEDERATED, POOLED, VERDICTS, Comparison, SiteComparison, Verdict
from fedboost.views import document
from fedboost.views.as_html import MAX_OPEN
from fedboost.views.document import Block, Document, Items, Line, Paragraph, Section, State, Table, note
from fedboost.views.words import capital, counted, shorten

MAX_NAMED = 5
"""Maximum number of sites that a sentence lists for each verdict."""
_MODELS = ALONE, FEDERATED, POOLED
_GAIN = "better by", "at least", "at most"


class _Words(NamedTuple):
    """Texts of a verdict. cell: text in a site's table row; whom: text before the names of sites; answer:
    start of the answer, if there are models to compare."""

    state: State
    cell: str
    whom: str
    answer: str = ""


_WORDS: dict[Verdict, _Words] = {
    "worth it": _Words("good", "yes", "it is worth it for", "Joining is worth it"),
    "not worth it": _Words("bad", "NO", "it is NOT worth it for", "Joining is NOT worth it"),
    "cannot be told": _Words(
        "unclear", "unclear", "it is unclear for", "It is unclear whether joining is worth it"
    ),
    "cannot train alone": _Words("unclear", "no model", "there is no site-alone model for"),
    "too few rows": _Words("unclear", "few rows", "there are too few rows to decide for"),
}
_ADVICE = "a column that names the site, or more rounds, may change that"
_ADVICE_ON_COLUMNS = "more rounds, or columns of more parties, may change that"
_INTERVAL = (
    "“At least” and “at most” are the ends of a 95% interval for the gain of joining. It covers only the "
    "choice of held-out rows. A negative gain means that joining is worse."
)


def comparison(result: Comparison) -> Document:
    metric, sites = result.metrics[0], result.sites
    rows = f"{sum(site.rows for site in sites):,} rows"
    if result.is_of_columns:
        (site,) = sites
        answer = sentence(site, metric, _ADVICE_ON_COLUMNS)
        lead = f"{counted(site.rows, 'row')} in common; models alone, {FEDERATED} and {POOLED}"
        more: list[str] = []
        title = "The label holder"
    else:
        answer, more, site = sentence(result.together, metric, ""), [for_whom(sites)], result.together
        if any(each.verdict == "not worth it" for each in sites):
            named = result.site_column
            column = f", or column {shorten(named)!r} among the features of the terms," if named else ""
            more.append(f"For sites where it is not worth it, more rounds{column} may change that.")
        lead = f"{rows} of {counted(len(sites), 'site')}; models {ALONE}, {FEDERATED} and {POOLED}"
        title = "All sites together"
    blocks: list[Block] = [
        document.Verdict(answer, _WORDS[site.verdict].state, more),
        Section("together", title, [*_together(result, site)]),
        *([] if result.is_of_columns else [Section("sites", "Site by site", [*_sites(result)])]),
        Section("how", "How the models were compared", [*_how(result)]),
    ]
    return Document("Comparison of models", lead, blocks, "the result of the comparison")


def for_whom(sites: Sequence[SiteComparison]) -> str:
    """Return a sentence that lists the sites by verdict."""
    parts = []
    for verdict, words in _WORDS.items():
        names = [shorten(site.site) for site in sites if site.verdict == verdict]
        if names:
            more = f", and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
            parts.append(f"{words.whom} {len(names)} ({', '.join(names[:MAX_NAMED])}{more})")
    return f"Of {counted(len(sites), 'site')}, {'; '.join(parts)}."


def sentence(site: SiteComparison, metric: str, advice: str = _ADVICE) -> str:
    """Return a sentence that says whether joining is worth it for a site. metric: name of the metric that
    decides; advice: clause to add if joining is not worth it."""
    name = shorten(site.site)
    if site.verdict == "too few rows":
        return (
            f"{name} has too few rows to decide: only {site.different_held_out} distinct rows were held out."
        )
    if site.verdict == "cannot train alone":
        return (
            f"{name} has no site-alone model ({site.cannot}); if it joins, it gets {_joined(site, metric)}."
        )
    answer = f"{_WORDS[site.verdict].answer} for {name}: {_change(site, metric)}."
    if advice and site.verdict == "not worth it":
        answer += f" Under these terms it does better alone; {advice}."
    return answer


def _joined(site: SiteComparison, metric: str) -> str:
    """Return a clause with the metric of the federated model."""
    digits = digits_of(site.models[POOLED][metric].value)
    return f"{metric} {figure(site.models[FEDERATED][metric].value, digits)}"


def _change(site: SiteComparison, metric: str) -> str:
    """Return a clause with the metrics of the federated and site-alone models, and the gain's interval."""
    digits, gain = digits_of(site.models[POOLED][metric].value), site.better_by[metric]
    word, values = "better", (gain.value, gain.low, gain.high)
    if site.verdict == "not worth it":
        word, values = "worse", (-gain.value, -gain.high, -gain.low)
    alone = figure(site.models[ALONE][metric].value, digits)
    by, least, most = (figure(value, digits) for value in values)
    return f"{_joined(site, metric)} instead of {alone}, {word} by {by} ({least} to {most})"


# ---- Tables and charts ----------------------------------------------------------------------------------


def _together(result: Comparison, site: SiteComparison) -> Iterator[Block]:
    if not site.models:
        yield note("No rows were held out, so there are no figures.")
        return
    models = [model for model in _MODELS if model in site.models]
    gain = [*_GAIN] if site.better_by else []
    rows = [(metric, *_figures(result, site, metric, models, bool(gain))) for metric in result.metrics]
    able = [each for each in result.sites if not each.cannot]
    some = f"the {len(able)} sites that can train alone: " if 0 < len(able) < len(result.sites) else ""
    means = (
        f"{site.rows:,} rows in common" if result.is_of_columns else f"means per row over {site.rows:,} rows"
    )
    title = f"{some}{means}, {site.held_out:,} of them held out each time"
    yield Table(capital(title), ["metric", *models, *gain], rows, folded=False)
    yield note(_INTERVAL)


def _sites(result: Comparison) -> Iterator[Block]:
    metric, sites = result.metrics[0], result.sites
    rated = [site for site in sites if site.better_by and site.verdict != "too few rows"]
    rated = [site for site in rated if not math.isnan(site.better_by[metric].value)]
    rated.sort(key=lambda site: -site.better_by[metric].value)
    sites = (*rated, *(site for site in sites if site not in rated))
    rows: list[Sequence[Line]] = [
        (
            site.site,
            f"{site.rows:,}",
            *_figures(result, site, metric, (ALONE, FEDERATED)),
            document.Badge(_WORDS[site.verdict].cell, _WORDS[site.verdict].state),
        )
        for site in sites
    ]
    headings = ["site", "rows", ALONE, FEDERATED, *_GAIN, "worth it?"]
    yield Table(f"Each site, by {metric}, highest gain first", headings, rows, range(1, 7))
    unable = [sentence(site, metric) for site in sites if site.verdict == "cannot train alone"]
    if unable:
        yield Items(unable[:MAX_OPEN])
    if len(result.metrics) > 1:
        every = [
            (site.site, metric, *_figures(result, site, metric, _MODELS))
            for site in sites
            for metric in result.metrics
        ]
        headings = ["site", "metric", *_MODELS, *_GAIN]
        yield Table("All figures of each site", headings, every, range(2, 8), folded=True)


def _figures(
    result: Comparison, site: SiteComparison, metric: str, models: Sequence[str], gain: bool = True
) -> list[str]:
    """Return a metric of a site for these models, and the gain with its interval, or dashes."""
    known = [site.models[model][metric].value if model in site.models else math.nan for model in models]
    if gain:
        better = site.better_by.get(metric)
        known += [math.nan] * 3 if better is None else [better.value, better.low, better.high]
    of_all = result.together.models.get(FEDERATED)
    digits = 4 if of_all is None else digits_of(of_all[metric].value)
    return [figure(value, digits) for value in known]


def _how(result: Comparison) -> Iterator[Block]:
    each = "" if result.splits == 1 else f" in each of {result.splits} splits"
    whose = "the label holder's" if result.is_of_columns else "each site's"
    yield Paragraph(
        f"{result.share:.0%} of {whose} rows were held out{each}, and no model was trained on them."
    )
    same = "equals the pooled model, byte for byte" if result.equal else "differs from the pooled model"
    why = " They can differ with vote_top_k, alone_rounds, min_rows_per_bin or rows drawn without a row_id."
    yield Paragraph(f"The {FEDERATED} model {same}.{'' if result.equal else why}")
    if result.is_of_columns:
        tables = ", ".join(f"{shorten(party)} {rows:,}" for party, rows in result.tables.items())
        yield Paragraph(f"Rows of the tables: {tables}.")
        if result.protection:
            yield Paragraph(
                f"Models were trained without protection; {result.protection} would yield the same models."
            )
    yield note("All models were trained in one process on local tables; no site was involved.")


def digits_of(value: float) -> int:
    """Return the number of decimals for figures of this magnitude: four, or as many as are needed to show
    four significant digits."""
    exponent = math.floor(math.log10(abs(value))) if value and math.isfinite(value) else 0
    return 4 if -3 < exponent < 3 else min(max(3 - exponent, 0), 8)


def figure(value: float, digits: int) -> str:
    """Format a figure with this many decimals. NaN becomes a dash."""
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


# ---- JSON for scripts -----------------------------------------------------------------------------------


def as_lines(result: Comparison) -> Iterator[Mapping[str, Any]]:
    """Yield one JSON object per site, followed by one for all sites together. The last one also lists the
    sites by verdict."""
    yield from (_site(site, result) for site in result.sites)
    yield {
        "event": "done",
        "splits": result.splits,
        "held_out": result.share,
        "equal": result.equal,
        "together": {**_site(result.together, result), "event": "together"},
        "verdicts": {
            verdict: [site.site for site in result.sites if site.verdict == verdict] for verdict in VERDICTS
        },
    }


def _site(site: SiteComparison, result: Comparison) -> Mapping[str, Any]:
    metric = result.metrics[0]
    return {
        "event": "site",
        "splits": result.splits,
        **site.model_dump(mode="json", exclude_defaults=True),
        "decided_by": metric,
        "verdict": site.verdict,
        "sentence": sentence(site, metric),
    }
