"""The page of a comparison: whether joining is worth it, for all sites together and for each.

Promises: it says plainly where joining is not worth it, or cannot be told.
Refuses: nothing.
"""

import math
from collections.abc import Sequence

from fedboost.people.comparison import SHORT, digits_of, figure, for_whom, overall, sentence
from fedboost.people.facts import (
    ALONE,
    FEDERATED,
    NOT_WORTH,
    POOLED,
    TOO_FEW,
    ComparisonFacts,
    SiteComparison,
)
from fedboost.people.report.charts import MAX_BARS, intervals
from fedboost.people.report.markup import Markup, details, items, joined, left_out, paragraph, table
from fedboost.people.report.skeleton import Sections, document
from fedboost.people.text import counted

_MODELS = {ALONE: "alone", FEDERATED: "federated", POOLED: "pooled"}
COLUMNS_ADVICE = "more rounds, or columns of others, may change that"
MORE_ROUNDS = "Where it is not worth it, more rounds, or a column that names the site, may change that."


def comparison_page(facts: ComparisonFacts) -> str:
    """Return the page."""
    sections: Sections = {
        "answer": ("Is joining worth it?", _answer(facts)),
        "together": ("All sites together", _together(facts)),
        "sites": ("Site by site", _sites(facts)),
        "how": ("How it was compared", _how(facts)),
    }
    if _is_of_columns(facts):
        sections = {key: content for key, content in sections.items() if key != "sites"}
        sections["together"] = "The label holder", sections["together"][1]
    rows = f"{sum(site.rows for site in facts.sites):,} rows"
    lead = f"{rows} of {counted(len(facts.sites), 'site')}; models alone, federated and pooled"
    return document("Comparison", "Comparison of models", lead, sections, "the result of the comparison")


def _is_of_columns(facts: ComparisonFacts) -> bool:
    """True where parties hold different columns: one label holder is compared."""
    return len(facts.sites) == 1


def _answer(facts: ComparisonFacts) -> Markup:
    metric = facts.metrics[0]
    if _is_of_columns(facts):
        return paragraph(sentence(facts.sites[0], metric, COLUMNS_ADVICE))
    not_worth = any(site.verdict == NOT_WORTH for site in facts.sites)
    return joined(
        paragraph(overall(facts.together, metric)),
        paragraph(for_whom(facts.sites)),
        paragraph(MORE_ROUNDS) if not_worth else "",
    )


def _together(facts: ComparisonFacts) -> Markup:
    site = facts.together
    if not site.models:
        return left_out("No rows were held out, so there are no figures.")
    models = [model for model in _MODELS if model in site.models]
    headings = ["metric", *(_MODELS[model] for model in models)]
    headings += ["better by", "at least", "at most"] if site.better_by else []
    rows = (_figures(facts, site, metric, models, bool(site.better_by)) for metric in facts.metrics)
    title = f"Means by row over {site.rows:,} rows, {site.held_out:,} of them held out each time"
    return joined(
        table(
            title,
            headings,
            ([metric, *row] for metric, row in zip(facts.metrics, rows, strict=True)),
            folded=False,
        ),
        paragraph(
            "At least, at most: with other rows held out, the gain of joining would lie between these 95 "
            "times of 100. Below 0 joining does worse."
        ),
    )


def _sites(facts: ComparisonFacts) -> Markup:
    metric = facts.metrics[0]
    headings = ["site", "rows", "alone", "federated", "better by", "at least", "at most", "worth it?"]
    rows = (
        (
            site.site,
            f"{site.rows:,}",
            *_figures(facts, site, metric, (ALONE, FEDERATED)),
            SHORT[site.verdict],
        )
        for site in facts.sites
    )
    return joined(
        _chart(facts.sites, metric),
        table(f"Each site, by {metric}", headings, rows, range(1, 7)),
        _all_metrics(facts),
        details("In words", items(sentence(site, metric) for site in facts.sites)),
    )


def _chart(sites: Sequence[SiteComparison], metric: str) -> Markup:
    rated = [site for site in sites if site.better_by and site.verdict != TOO_FEW]
    ranked = sorted(rated, key=lambda site: -site.better_by[metric].value)
    few = ""
    if len(ranked) > MAX_BARS:
        few = f", the {MAX_BARS} that gain most and least of {len(ranked)}"
        ranked = [*ranked[: MAX_BARS // 2], *ranked[-(MAX_BARS // 2) :]]
    gains = [(site.site, site.better_by[metric]) for site in ranked]
    values = [(name, gain.value, gain.low, gain.high) for name, gain in gains]
    return intervals(f"Gain of joining in {metric}, by site{few}", values, f"better by ({metric})")


def _all_metrics(facts: ComparisonFacts) -> Markup:
    if len(facts.metrics) < 2:
        return Markup("")
    headings = ["site", "metric", *_MODELS.values(), "better by", "at least", "at most"]
    rows = (
        (site.site, metric, *_figures(facts, site, metric, [*_MODELS]))
        for site in facts.sites
        for metric in facts.metrics
    )
    return table("Every figure of each site", headings, rows, range(2, 8), folded=True)


def _figures(
    facts: ComparisonFacts, site: SiteComparison, metric: str, models: Sequence[str], gain: bool = True
) -> list[str]:
    """A metric of these models of a site, and the gain with its interval; a dash for what there is not."""
    known = [site.models[model][metric].value if model in site.models else math.nan for model in models]
    if gain:
        better = site.better_by.get(metric)
        known += [math.nan] * 3 if better is None else [better.value, better.low, better.high]
    of_all = facts.together.models.get(FEDERATED)
    digits = 4 if of_all is None else digits_of(of_all[metric].value)
    return [figure(value, digits) for value in known]


def _how(facts: ComparisonFacts) -> Markup:
    each = "" if facts.splits == 1 else f" in each of {facts.splits} splits"
    same = "the pooled model, byte for byte" if facts.equal else "not the pooled model"
    return joined(
        paragraph(f"{facts.share:.0%} of each site's rows were held out{each}, and no model saw them."),
        paragraph(
            f"The federated model is {same}."
            + (
                ""
                if facts.equal
                else " It need not be with vote_top_k, alone_rounds, min_rows_per_bin, or rows drawn "
                "without a row_id."
            )
        ),
        paragraph(
            "All of it was trained in one process, from tables that were at hand there: no site was asked, "
            "and nothing of this page was hidden from who made it."
        ),
    )
