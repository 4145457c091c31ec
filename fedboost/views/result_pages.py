"""The page of a result that is no model: its own sections, then who agreed to it, traffic, and who saw what.

Promises: the same facts give the same bytes.
Refuses: nothing.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedboost.terms.terms import Terms
from fedboost.views.approval import given_to_analyst, not_hidden
from fedboost.views.as_html import (
    Markup,
    ResultFacts,
    Sections,
    details,
    document,
    element,
    items,
    joined,
    left_out,
    names,
    paragraph,
    table,
)
from fedboost.views.charts import MAX_BARS, bars, ends, intervals, pairs, points
from fedboost.views.comparison import SHORT, digits_of, figure, for_whom, overall, sentence
from fedboost.views.facts import (
    ALONE,
    FEDERATED,
    NOT_WORTH,
    POOLED,
    TOO_FEW,
    ComparisonFacts,
    SiteComparison,
)
from fedboost.views.model import ON_THE_NETWORK, columns_and_settings, of_colluders, part_of, turns
from fedboost.views.rows import measured, number, share
from fedboost.views.tasks import (
    MOVED_BY_CHANCE,
    advice,
    hidden,
    most_moved,
    quantile,
    rows_in_words,
    said_of_rows,
    share_of,
    values_of,
    why_left_out,
)
from fedboost.views.words import counted

_ALWAYS = "program", "objective", "protection"


def result_page(facts: ResultFacts, heading: str, lead: str, sections: Sections) -> str:
    """Return the page."""
    terms = facts.terms
    more = {
        "agreed": ("What was agreed, and by whom", _agreed(terms, facts.signed_by)),
        "privacy": ("Privacy: who saw what", _privacy(terms)),
        "session": ("Traffic", turns(facts.session, terms)),
    }
    return document(heading, heading, lead, {**sections, **more}, "the result and its session")


def warned(texts: Sequence[str], facts: ResultFacts) -> Markup:
    """Return a list of warnings: these, and those of the session."""
    found = [*texts, *_of_session(facts)]
    if not found:
        return paragraph("None.")
    return element("ul", *(element("li", text) for text in found), class_="warnings")


def _of_session(facts: ResultFacts) -> Iterator[str]:
    terms = facts.terms
    if not facts.signed_by:
        yield "Nobody signed what was answered: anybody may have made these figures."
    absent = len(set(terms.parties) - set(facts.signed_by))
    if facts.signed_by and absent:
        yield f"{absent} of the {len(terms.parties)} parties of the terms did not sign."
    if not terms.protection.hides:
        yield f"Protection {terms.hiding.protection}: {not_hidden(terms)}."


def _agreed(terms: Terms, signed_by: Sequence[str]) -> Markup:
    parties = dict.fromkeys((*terms.parties, *signed_by))
    rows = (
        (party, part_of(terms, party), "what it answered" if party in signed_by else "nothing")
        for party in parties
    )
    return joined(
        paragraph(
            "All of it stands in the terms, which every party agreed to before the session: their digest is ",
            element("code", terms.digest),
            ".",
        ),
        table("Parties", ["party", "takes part with", "signed"], rows, ()),
        paragraph("Signatures are checked where the result arrives, if the analyst has keys."),
        columns_and_settings(terms, _ALWAYS),
    )


def _privacy(terms: Terms) -> Markup:
    rows = table("Who saw what", ["who", "what"], _who_saw_what(terms), (), folded=False)
    return joined(
        rows,
        paragraph(
            "It is the aggregator that leaves counts of few rows out: together with the analyst it tells all "
            "that it sees."
        ),
    )


def _who_saw_what(terms: Terms) -> Iterator[Sequence[str]]:
    own = "; metrics of each site's rows alone" if terms.evaluation.party_metrics else ""
    noise = " with noise on them" if terms.noise is not None and terms.noise.placement != "central" else ""
    yield (
        "aggregator",
        f"sums over the rows of all parties{noise}, of however few rows, and never the numbers of a single "
        f"party{own}"
        if terms.protection.hides
        else not_hidden(terms),
    )
    yield "each other site", _told_sites(terms)
    if terms.keyholder is not None and terms.protection.hides:
        yield f"key holder {terms.keyholder}", "of sums numbers with a blind added, which say nothing"
    yield "aggregator and sites together", of_colluders(terms)
    yield "analyst", f"{given_to_analyst(terms)}; bytes of each party"
    yield ON_THE_NETWORK
    yield "whoever has this page", "what the analyst is given"


def _told_sites(terms: Terms) -> str:
    if terms.task.counts_values:
        return "the terms, how many rows there are in all, and where their values lie; no other result"
    known = ", and how many rows there are in all" if terms.task.reads_labels else ""
    return f"the terms, with the model in them{known}; no other result"


# ---- The page of a comparison: whether joining is worth it, for all sites together and for each ---------
# Promises: it says plainly where joining is not worth it, or cannot be told.


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
        _comparison_chart(facts.sites, metric),
        table(f"Each site, by {metric}", headings, rows, range(1, 7)),
        _all_metrics(facts),
        details("In words", items(sentence(site, metric) for site in facts.sites)),
    )


def _comparison_chart(sites: Sequence[SiteComparison], metric: str) -> Markup:
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


# ---- The page of a description: rows, columns, levels and the label, and what to change -----------------
# Promises: nothing but what the description says.


MAX_CHARTS = 6
"""Columns whose levels are drawn."""


def description_page(facts: ResultFacts) -> str:
    """Return the page."""
    summary = facts.summary
    numeric = [column for column in summary["columns"] if column["kind"] == "numeric"]
    categorical = [column for column in summary["columns"] if column["kind"] == "categorical"]
    sections: Sections = {
        "warnings": ("Warnings", warned((), facts)),
        "advice": ("What to change", _advice(facts)),
        "missing": ("Missing values", _missing(facts)),
        "numbers": ("Numbers", _numbers(numeric, summary["rows"])),
        "levels": ("Levels", _levels(categorical, summary["rows"])),
        "label": ("The label", _label(summary["label"], summary["rows"])),
    }
    lead = f"{summary['rows']:,} rows of all parties, {counted(len(summary['columns']), 'column')}"
    return result_page(facts, "Description of the rows", lead, sections)


def _advice(facts: ResultFacts) -> Markup:
    lines = [
        line[0].upper() + line[1:] + ("" if line.endswith("?") else ".") for line in advice(facts.summary)
    ]
    said = element("ul", *(element("li", line) for line in lines), class_="warnings") if lines else None
    return joined(said or paragraph("Nothing."), paragraph(hidden(facts.summary).replace("...", "…")))


def _missing(facts: ResultFacts) -> Markup:
    rows = max(facts.summary["rows"], 1)
    counts = [(each["name"], each["missing"]) for each in facts.summary["columns"]]
    known = sorted(((name, count) for name, count in counts if count), key=lambda pair: -pair[1])
    if not known:
        return paragraph("No column has missing values, as far as it is told.")
    title = "Percent of the rows without a value"
    title += f", the first {MAX_BARS} of {len(known)} columns" if len(known) > MAX_BARS else ""
    return bars(title, [(name, 100 * count / rows) for name, count in known], "percent of the rows")


def _numbers(columns: Sequence[Any], rows: int) -> Markup:
    if not columns:
        return left_out("The terms have no numeric features.")
    return joined(
        table("Quantiles of each numeric feature", _headings(columns), _quantiles(columns, rows)),
        paragraph("Quantiles are rounded as their intervals allow; missing is a share of all rows."),
    )


def _headings(columns: Sequence[Any]) -> list[str]:
    return ["column", "missing", *(f"{float(share):.0%}" for share in columns[0]["quantiles"])]


def _quantiles(columns: Sequence[Any], rows: int) -> Iterator[Sequence[str]]:
    for column in columns:
        values = (_shown(quantile(value)) for value in column["quantiles"].values())
        yield column["name"], _shown(share_of(column.get("missing", 0), rows)), *values


def _levels(columns: Sequence[Any], rows: int) -> Markup:
    if not columns:
        return left_out("The terms have no categorical features.")
    drawn = [_description_chart(column["name"], column["levels"]) for column in columns[:MAX_CHARTS]]
    lines = (
        (column["name"], level, _count(count), _shown(share_of(count, rows)))
        for column in columns
        for level, count in [
            *column["levels"].items(),
            ("(other levels)", column["undeclared"]),
            ("(missing)", column["missing"]),
        ]
    )
    headings = ["column", "level", "rows", "share"]
    return joined(
        element("div", *drawn, class_="charts"),
        left_out(f"Drawn are the first {MAX_CHARTS} of {len(columns)} columns; the table has all.")
        if len(columns) > MAX_CHARTS
        else "",
        table("Rows of each level", headings, lines, (2, 3)),
    )


def _description_chart(name: str, levels: Any) -> Markup:
    known = [(level, float(count)) for level, count in levels.items() if count is not None]
    ranked = sorted(known, key=lambda pair: -pair[1])
    few = f", the first {MAX_BARS} of {len(ranked)} levels" if len(ranked) > MAX_BARS else ""
    return bars(f"Rows by {name}{few}", ranked, "rows")


def _label(label: Any, rows: int) -> Markup:
    if "levels" in label:
        lines = (
            (name, _count(count), _shown(share_of(count, rows))) for name, count in label["levels"].items()
        )
        return joined(
            _description_chart(label["name"], label["levels"]),
            table(f"Rows by {label['name']}", ["label", "rows", "share"], lines),
        )
    if "quantiles" in label:
        return table(f"Quantiles of {label['name']}", _headings([label]), _quantiles([label], rows))
    return left_out(f"Nothing is told of the values of {label['name']}.")


def _count(count: int | None) -> str:
    return "…" if count is None else f"{count:,}"


def _shown(text: str) -> str:
    return "…" if text == "..." else text


# ---- The page of a drift: the columns that moved, the furthest first, and where their rows went ---------
# Promises: nothing but what the result says.


MAX_DRIFT_CHARTS = 8
"""Columns whose bins are drawn."""
FAR = "moved", "shifted"


def drift_page(facts: ResultFacts) -> str:
    """Return the page."""
    summary = facts.summary
    *columns, score = summary["columns"]
    ranked = [*sorted(columns, key=lambda each: -(each["psi"] or 0)), score]
    sections: Sections = {
        "warnings": ("Warnings", warned([*_moved(ranked)], facts)),
        "columns": ("How far each column moved", _columns(ranked, summary["min_count"])),
        "bins": ("Where the rows went", _bins(ranked)),
    }
    lead = f"{summary['rows']:,} rows of all parties, against {summary['reference_rows']:,} of the training"
    return result_page(facts, "Drift of the rows", lead, sections)


def _moved(columns: Sequence[Any]) -> Iterator[str]:
    far = [each["name"] for each in columns[:-1] if each["verdict"] in FAR]
    if far:
        more = f" and {len(far) - MAX_BARS} more" if len(far) > MAX_BARS else ""
        yield (
            f"{counted(len(far), 'column')} moved since the training: {', '.join(far[:MAX_BARS])}{more}. "
            "That alone does not say that the model is worse: evaluate it where labels are known."
        )
    if columns[-1]["verdict"] in FAR:
        yield "The score of the model moved: it predicts otherwise than for the rows of its training."


def _columns(columns: Sequence[Any], floor: int) -> Markup:
    lines = (
        (
            each["name"],
            "…" if each["psi"] is None else f"{each['psi']:.3f}",
            f"{each['by_chance']:.3f}",
            each["verdict"],
            most_moved(each),
        )
        for each in columns
    )
    known = [(each["name"], each["psi"]) for each in columns if each["psi"] is not None]
    few = f", the first {MAX_BARS} of {len(known)}" if len(known) > MAX_BARS else ""
    headings = ["column", "psi", "by chance", "verdict", "most moved"]
    return joined(
        bars(f"Population stability index{few}", known, "population stability index"),
        table("Columns, the furthest first, and the score", headings, lines, (1, 2)),
        paragraph(
            f"psi: population stability index. {MOVED_BY_CHANCE} Bins of fewer than {floor} rows are merged."
        ),
    )


def _bins(columns: Sequence[Any]) -> Markup:
    told = [each for each in columns if each["psi"] is not None]
    drawn = [each for each in told[:-1] if each["verdict"] != "stable"][:MAX_DRIFT_CHARTS] + told[-1:]
    lines = (
        (
            each["name"],
            values_of(one),
            f"{one['reference']:,}",
            f"{before:.1%}",
            f"{one['rows']:,}",
            f"{after:.1%}",
        )
        for each in told
        for one, before, after in _shares(each)
    )
    headings = ["column", "values", "rows of the training", "share", "rows today", "share today"]
    return joined(
        paragraph(
            "Drawn are the columns that moved by more than chance, "
            f"at most {MAX_DRIFT_CHARTS}, and the score."
        ),
        element("div", *map(_drift_chart, drawn), class_="charts"),
        table("Rows by bin of each column", headings, lines, range(2, 6), folded=True),
    )


def _drift_chart(column: Any) -> Markup:
    values = [(_short(one), 100 * before, 100 * after) for one, before, after in _shares(column)]
    few = f", the first {MAX_BARS} of {len(values)} bins" if len(values) > MAX_BARS else ""
    return pairs(
        f"Percent of the rows by {column['name']}{few}", values, ("training", "today"), "percent of the rows"
    )


def _short(one: Any) -> str:
    """The values of a bin in few characters."""
    ends = one.get("low"), one.get("high")
    if None in ends:
        return values_of(one)
    return f"{ends[0]:.4g} to {ends[1]:.4g}" + (" or missing" if one.get("missing") else "")


def _shares(column: Any) -> Iterator[tuple[Any, float, float]]:
    """Yield each bin with its share of the rows then and now."""
    sums = [max(sum(one[key] for one in column["bins"]), 1) for key in ("reference", "rows")]
    for one in column["bins"]:
        yield one, one["reference"] / sums[0], one["rows"] / sums[1]


# ---- The page of an evaluation: metrics, curves, and results by subgroup and site -----------------------
# Promises: nothing but what the evaluation says.


_RATES = {
    "selection_rate": "predicted 1",
    "true_positive_rate": "recall",
    "false_positive_rate": "false positive rate",
    "positive_rate": "label 1",
}
Split = Mapping[str, Any]


def evaluation_page(facts: ResultFacts) -> str:
    """Return the page."""
    summary, rows = facts.summary, facts.summary["rows"]
    about = rows_in_words(summary)
    sections: Sections = {
        "warnings": ("Warnings", warned([*said_of_rows(summary)], facts)),
        "quality": ("Quality", measured(summary, f"On {rows:,} rows of all parties: {about}.")),
        **{
            f"subgroups-{place}": (f"By {column}", _split(column, split, summary))
            for place, (column, split) in enumerate(summary.get("subgroups", {}).items())
        },
    }
    if "sites" in summary:
        sections = {**sections, "sites": ("By site", _split("site", summary["sites"], summary))}
    lead = f"{rows:,} rows of all parties ({about}); nothing was trained"
    return result_page(facts, "Evaluation of a model", lead, sections)


def _split(title: str, split: Split, summary: Mapping[str, Any]) -> Markup:
    unit, about = summary["unit"], rows_in_words(summary)
    sets = split["sets"]
    if not sets:
        return left_out(f"No group has {unit} rows.")
    metrics = [*dict.fromkeys(name for one in sets.values() for name in one["metrics"])]
    rates = {key: words for key, words in _RATES.items() if any("rates" in one for one in sets.values())}
    rows = (
        (
            name,
            f"{known['rows']:,}",
            *(number(known["metrics"].get(key)) for key in metrics),
            *(share(known.get("rates", {}).get(key)) for key in rates),
        )
        for name, known in sets.items()
    )
    headings = [title, "rows", *metrics, *rates.values()]
    return joined(
        element("div", *_charts(sets, metrics, rates), class_="charts"),
        table(f"Figures by {title} ({about})", headings, rows),
        _gaps(split["gaps"], metrics, rates),
        _absent(split["left_out"], unit),
    )


def _charts(sets: Split, metrics: list[str], rates: Mapping[str, str]) -> Iterator[Markup]:
    """Yield the first metric, and the share that is predicted 1."""
    figures = [
        (metric, {name: known["metrics"].get(metric) for name, known in sets.items()})
        for metric in metrics[:1]
    ]
    if rates:
        selected = {name: known.get("rates", {}).get("selection_rate") for name, known in sets.items()}
        figures.append(("share predicted 1", selected))
    for words, values in figures:
        known = [(name, value) for name, value in values.items() if value is not None]
        few = f", the {MAX_BARS} highest and lowest of {len(known)}" if len(known) > MAX_BARS else ""
        yield points(f"{words[0].upper()}{words[1:]}{few}", ends(known), words)


def _gaps(gaps: Mapping[str, float], metrics: list[str], rates: Mapping[str, str]) -> Markup:
    """The largest less the smallest of each figure."""
    if not gaps:
        return Markup("")
    rows = [(key, number(gaps[key])) for key in metrics if key in gaps]
    rows += [(words, share(gaps[key])) for key, words in rates.items() if key in gaps]
    return joined(
        table("Largest less smallest", ["figure", "gap"], rows, folded=False),
        paragraph(
            "A gap between groups of few rows may be chance. Gaps that rounding may make are left out."
        ),
    )


def _absent(absent: list[str], unit: int) -> Markup:
    if not absent:
        return Markup("")
    return element(
        "div",
        f"Left out, {why_left_out(unit)}: ",
        names(absent),
        class_="left-out",
    )
