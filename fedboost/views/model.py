"""The report of a model: one HTML page that needs nothing else.

Promises: the same facts give the same bytes; the page asks for nothing, from anywhere, and runs no script;
what comes from a file is text and never markup; what a model file does not have is named, and not made up.
Refuses: nothing.
"""

import json
from collections.abc import Iterator, Sequence
from statistics import median

from fedboost.gbdt.metrics import VALIDATION, grows, is_metric
from fedboost.privacy.pairwise import Group
from fedboost.terms.session import TRAINING
from fedboost.terms.terms import Terms
from fedboost.views.approval import SENDS_GRADIENTS, not_hidden
from fedboost.views.as_html import (
    KINDS,
    Markup,
    ReportFacts,
    SessionFacts,
    TreeFacts,
    details,
    document,
    element,
    items,
    joined,
    left_out,
    lines,
    names,
    paragraph,
    table,
)
from fedboost.views.charts import MAX_BARS, Series, bars, best_round, curves_of, ends, learning_curves
from fedboost.views.charts import lines as line_chart
from fedboost.views.privacy import PrivacyReport, report_of, stated, strength
from fedboost.views.rows import dependence, quality
from fedboost.views.training import absences, figures
from fedboost.views.words import counted, duration, size

# ---- What was agreed, and by whom: the parties with their signatures ------------------------------------
# Columns and settings of a report.
# Promises: every party, column and category that the terms name is there, and every setting that is not its
# default.


_ALWAYS = "objective", "rounds", "max_depth", "learning_rate", "max_bin", "protection"
"""Settings that are shown even where they are the defaults."""
_ELSEWHERE = "columns", "parties", "blocks", "xgb_model", "noise"
"""Settings that have a place of their own."""


def agreed(facts: ReportFacts) -> Markup:
    """Return the parties, the columns and the settings."""
    terms = facts.model.terms
    return joined(
        paragraph(
            "All of it stands in the terms, which every party agreed to before the session: their digest is ",
            element("code", terms.digest),
            ".",
        ),
        paragraph(_conclusion(facts)),
        table("Parties", ["party", "takes part with", "signature"], _parties(facts), ()),
        columns_and_settings(terms, _ALWAYS),
    )


def columns_and_settings(terms: Terms, always: Sequence[str]) -> Markup:
    """Return the columns, and the settings that are not their defaults. always: those that are shown even
    so."""
    return joined(
        table("Columns", ["column", "what it is"], _columns(terms), (), folded=False),
        table("Settings", ["setting", "value"], _settings(terms, always), (), folded=False),
        paragraph("Settings that are not named have their defaults."),
    )


def attendance(facts: ReportFacts) -> Markup:
    """Return who came and went."""
    lines = [*absences(facts.model)]
    if not lines:
        return paragraph("The sums of every round were over all parties.")
    return element("ul", *(element("li", line[0].upper() + line[1:] + ".") for line in lines))


def _conclusion(facts: ReportFacts) -> str:
    known = facts.verification
    if known is None:
        if not facts.model.signed_by:
            return "Nobody signed this model: anybody may have made it."
        return (
            "The signatures were not checked for this page: fedboost report with --keys, or "
            "fedboost verify, checks them."
        )
    outcome = "The signatures hold" if known.holds else "The signatures do NOT hold"
    asked = f" Analyst {known.analyst} asked for the session on {known.asked}." if known.analyst else ""
    return f"{outcome}: {known.conclusion}.{asked}"


def _parties(facts: ReportFacts) -> Iterator[Sequence[str]]:
    terms = facts.model.terms
    for party in dict.fromkeys((*terms.parties, *facts.model.signed_by)):
        yield party, part_of(terms, party), _signature(facts, party)


def part_of(terms: Terms, party: str) -> str:
    """Return what a party takes part with."""
    if party not in terms.parties:
        return "nothing: the terms do not name it"
    also = "; decrypts sums" if party == terms.keyholder else ""
    block = terms.blocks.of(party)
    if block is None:
        return ("rows" if party in terms.holders else "no rows") + also
    holds = "the labels, and columns" if block.label_holder == party else "columns"
    return f"{holds}: {', '.join(terms.blocks.columns_of(party).features)}{also}"


def _signature(facts: ReportFacts, party: str) -> str:
    if party not in facts.model.signed_by:
        return "none"
    if facts.verification is None:
        return "there, not checked"
    fault = facts.verification.faults.get(party, "")
    return f"WRONG: {fault}" if fault else "holds"


def _columns(terms: Terms) -> Iterator[Sequence[str]]:
    columns = terms.columns
    classes = joined("label, of the classes ", names(columns.classes)) if columns.classes else "label"
    positive = f"label; {columns.positive!r} counts as 1" if columns.positive is not None else classes
    yield columns.label or "-", positive
    beside = {
        "upper bound of the label": columns.label_upper_bound,
        "weight of the row": columns.weight,
        "margin that boosting begins at": columns.base_margin,
        "group that is ranked": columns.group,
        "marks rows for metrics alone": columns.validation,
        "row id": columns.row_id,
    }
    yield from ((name, what) for what, name in beside.items() if name is not None)
    yield "numeric features", names(columns.numeric)
    for name, categories in columns.categorical.items():
        yield name, joined("feature, of the categories ", names(categories))


def _settings(terms: Terms, always: Sequence[str]) -> Iterator[Sequence[str]]:
    changed = terms.model_dump(mode="json", exclude_defaults=True)
    every = terms.model_dump(mode="json")
    for key in dict.fromkeys((*always, *changed)):
        if key not in _ELSEWHERE:
            value = every.get(key)
            yield key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    columns = terms.columns.model_dump(mode="json", exclude_defaults=True)
    for key in ("ranges", "label_range"):
        if key in columns:
            yield f"columns.{key}", json.dumps(columns[key], ensure_ascii=False)
    if terms.noise is not None:
        for key, value in terms.noise.model_dump(mode="json").items():
            yield f"noise.{key}", json.dumps(value, ensure_ascii=False)
    if terms.earlier is not None:
        trees = f"a model of {counted(len(terms.earlier.trees), 'tree')}"
        continued = terms.task in TRAINING
        yield "xgb_model", f"{trees}, which this one continues" if continued else trees


# ---- Traffic and time of a session in a report ----------------------------------------------------------
# Promises: bytes and seconds as they were counted where the session was followed.


_UNITS = ("bytes", 1.0), ("kilobytes", 1e3), ("megabytes", 1e6), ("gigabytes", 1e9)


def turns(session: SessionFacts, terms: Terms) -> Markup:
    """Return the time and bytes of each round, where there are any, and the bytes of each party."""
    return joined(
        paragraph(_said(session)),
        element("div", *_by_round(session), class_="charts"),
        _rounds(session),
        _by_party(session, terms),
    )


def _said(session: SessionFacts) -> str:
    seconds = [row["seconds"] for row in session.rounds]
    said = size(sum(map(sum, session.traffic.values())))
    said += " since the aggregator was restarted" if session.since_restart else " in all"
    if seconds:
        said += f"; {counted(len(seconds), 'round')} in {duration(sum(seconds))}"
    if len(seconds) > 1:
        said += (
            f": the first, with what comes before it (keys, counts, cut points, compiling), took "
            f"{duration(seconds[0])}, the median of the others {median(seconds[1:]):.3g} s"
        )
    return f"{said}. Bytes are those of the messages between parties and aggregator, both ways."


def _by_round(session: SessionFacts) -> Iterator[Markup]:
    later = [*enumerate(session.rounds, 1)][1:]
    if len(later) < 2:
        return
    words, scale = _unit([row["bytes"] for _, row in later])
    for key, unit, factor in (("seconds", "seconds", 1.0), ("bytes", words, scale)):
        series = Series(key, [(number, row[key] / factor) for number, row in later])
        yield line_chart(
            f"{_capital(unit)} of each round after the first", [series], "round", unit, whole=True
        )


def _rounds(session: SessionFacts) -> Markup:
    if not session.rounds:
        return Markup("")
    rows = (
        (str(number), f"{row['seconds']:.3g}", size(row["bytes"]))
        for number, row in enumerate(session.rounds, 1)
    )
    return table("Time and traffic of each round", ["round", "seconds", "bytes"], rows, folded=True)


def _by_party(session: SessionFacts, terms: Terms) -> Markup:
    if not session.traffic:
        return left_out("No bytes were counted.")
    order = {party: number for number, party in enumerate(terms.parties)}
    parties = sorted(session.traffic, key=lambda party: order.get(party, len(order)))
    rows: list[Sequence[str]] = [(party, *map(size, session.traffic[party])) for party in parties]
    unit, scale = _unit([session.traffic[party][0] for party in parties])
    chosen = ends([(party, session.traffic[party][0] / scale) for party in parties])
    title = f"{_capital(unit)} sent by each party"
    title += f", the {MAX_BARS} that sent most and least of {len(parties)}" if len(parties) > MAX_BARS else ""
    return joined(
        bars(title, chosen, f"{unit} sent"),
        table("Traffic of each party", ["party", "sent", "received"], rows),
    )


def _unit(values: Sequence[float]) -> tuple[str, float]:
    """The largest unit of which the largest value has one at least, and its bytes."""
    largest = max(values, default=0.0)
    return next(((unit, scale) for unit, scale in reversed(_UNITS) if largest >= scale), _UNITS[0])


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


# ---- Who saw what, and the privacy card of a report -----------------------------------------------------
# Promises: it follows from the terms alone, as docs/threat-model.md has it.


NO_NOISE = "without noise nothing bounds what the sums, and the model itself, tell of single rows"

ON_THE_NETWORK = "somebody on the network", "that parties and aggregator talk, when, and how much"

TOLD_ELSEWHERE = ("parties in every sum", "protection", "terms")
"""What the card states and another section of the page has."""


def privacy(terms: Terms) -> Markup:
    """Return the table of who saw what, and the card."""
    return joined(
        table("Who saw what", ["who", "what"], _who_saw_what(terms), (), folded=False),
        _card(report_of(terms)) if terms.noise is not None else paragraph(f"No privacy card: {NO_NOISE}."),
    )


def _who_saw_what(terms: Terms) -> Iterator[Sequence[str]]:
    yield "aggregator", _aggregator(terms)
    if terms.blocks:
        yield from _of_columns(terms)
    else:
        told = "the terms, who takes part, and the model as it grows: every split and every leaf value"
        yield "each other site", told
    if terms.keyholder is not None and terms.protection.hides:
        yield f"key holder {terms.keyholder}", "of sums numbers with a blind added, which say nothing"
    yield "aggregator and sites together", of_colluders(terms)
    model = "the structure of the model" if terms.keeps_parts else "this model"
    alone = ", and those of each site's rows alone" if terms.evaluation.party_metrics else ""
    metrics = "no metrics"
    if terms.metrics:
        metrics = (
            f"metrics over the rows of all parties{alone}, to four digits and none of fewer than ten rows"
        )
    yield "analyst", f"{model}; {metrics}; bytes of each party"
    yield ON_THE_NETWORK
    yield (
        "whoever has the model file",
        "thresholds, gains, covers and leaf values, which are made from sums over the rows of all parties"
        + ("" if terms.noise is not None else f"; {NO_NOISE}"),
    )


def _aggregator(terms: Terms) -> str:
    if not terms.protection.hides:
        return not_hidden(terms)
    own = "; metrics of each site's rows alone" if terms.evaluation.party_metrics else ""
    noise = " with noise on them" if terms.noise is not None and terms.noise.placement != "central" else ""
    return f"sums over the rows of all parties{noise}, and never the numbers of a single party{own}"


def _of_columns(terms: Terms) -> Iterator[Sequence[str]]:
    sends = "sends every row's gradient, encrypted," if terms.hides_columns else SENDS_GRADIENTS
    for block in terms.blocks:
        who = f"label holder {block.label_holder}"
        yield (
            who,
            f"{sends} to the other parties of its rows; sees which rows go left at each of their splits",
        )
    yield "each feature holder", "which of the rows it shares go left at each split, and no leaf value"


def of_colluders(terms: Terms) -> str:
    """Return what the aggregator and sites learn together."""
    if terms.hides_columns:
        return (
            "aggregator and label holder: the other sites' columns, bin by bin; aggregator and another site: "
            "the labels"
        )
    if not terms.protection.hides:
        return "nothing more: the aggregator needs none of them"
    number = Group.of(terms.parties, terms.hiding.colluding).colluding
    if not number:
        holder = " and the key holder" if terms.protection.uses_key_holder else ""
        return f"one site with the aggregator{holder} can learn another site's numbers"
    sites = "one site" if number == 1 else f"up to {number} sites"
    return f"with {sites}: still no single other site's numbers; with more that is not promised"


def _card(report: PrivacyReport) -> Markup:
    head = {name: value for name, value in stated(report).items() if name not in TOLD_ELSEWHERE}
    headings = ["what", "times", "sensitivity", "noise in the sum", "cost of one"]
    releases = (
        (
            release["what"],
            str(release["times"]),
            *(f"{release[key]:.6g}" for key in ("sensitivity", "sigma", "cost")),
        )
        for release in report["releases"]
    )
    return joined(
        element("h3", "Privacy card"),
        table("What is promised of any one row", ["what", "value"], head.items(), (), folded=False),
        table("Every release", headings, releases, folded=False),
        paragraph(
            "Sensitivity is how far one row can move the whole sum, noise its standard deviation, both in "
            "the integers that are added; cost is mu squared, which adds."
        ),
        paragraph("Not covered:"),
        items(report["not_covered"]),
    )


# ---- Warnings of a report: what a reader of a model should know before its figures ----------------------
# Promises: each follows from the facts.


LATE = 0.8
"""Share of the rounds before which the best one is said to be early."""
MODERATE_EPSILON = 3.0


def warnings(facts: ReportFacts) -> Markup:
    """Return a list of warnings."""
    found = [*_of_signatures(facts), *_of_training(facts), *_of_privacy(facts)]
    if not found:
        return paragraph("None.")
    return element("ul", *(element("li", text) for text in found), class_="warnings")


def _of_signatures(facts: ReportFacts) -> Iterator[str]:
    model, known = facts.model, facts.verification
    if not model.signed_by:
        yield "Nobody signed this model: anybody may have made it."
    elif known is None:
        yield "The signatures were not checked for this page (--keys)."
    elif not known.holds:
        yield f"The signatures do NOT hold: {known.conclusion}."
    absent = len(set(model.terms.parties) - set(model.signed_by))
    if model.signed_by and absent:
        yield f"{counted(absent, 'party', 'parties')} of the terms did not sign."


def _of_training(facts: ReportFacts) -> Iterator[str]:
    model, terms = facts.model, facts.model.terms
    if model.rosters:
        yield "Parties were lost on the way: some rounds are of the rows of the others alone."
    if terms.metrics and not terms.validates and model.last_row:
        yield "No rows were held out: the learning curves are of the rows that trees grew on."
    if 0 < model.kept < model.trained:
        yield f"The training stopped early: round {model.kept} was the best of {model.trained}."
    elif model.trained < terms.trees.rounds:
        yield f"The training ended after {model.trained} of {terms.trees.rounds} rounds."
    yield from _best_rounds(facts)
    if not facts.importance:
        yield "No tree splits: every row gets the same prediction."


def _best_rounds(facts: ReportFacts) -> Iterator[str]:
    """Yield the metrics of the rows held out that were best long before the last round."""
    kept = facts.model.kept
    for curve in curves_of(facts.rounds[:kept]):
        if curve.rows == VALIDATION and not curve.party and is_metric(curve.metric):
            best = best_round(curve, grows(curve.metric))
            if best is not None and best < LATE * kept:
                yield (
                    f"{curve.metric} on the rows held out was best in round {best} of {kept}: the rounds "
                    "after it fit the rows that trees grow on, and others no better."
                )


def _of_privacy(facts: ReportFacts) -> Iterator[str]:
    terms = facts.model.terms
    if not terms.protection.hides:
        yield f"Protection {terms.hiding.protection}: {not_hidden(terms)}."
    if terms.noise is None:
        yield f"{NO_NOISE[0].upper()}{NO_NOISE[1:]}."
    elif terms.noise.epsilon > MODERATE_EPSILON:
        epsilon, delta = f"{terms.noise.epsilon:g}", f"{terms.noise.delta:g}"
        yield f"Epsilon {epsilon} at delta {delta}: {strength(terms.noise.epsilon)}."
    if facts.rows is not None:
        yield (
            f"This page has figures of the rows of {facts.rows.source}. Whoever reads it learns them: they "
            "are not hidden, and no site agreed to them."
        )


# ---- The report of a model: one HTML page that needs nothing else ---------------------------------------


def page(facts: ReportFacts) -> str:
    """Return the page."""
    model = facts.model
    sections = {
        "model": ("The model", _model(facts)),
        "warnings": ("Warnings", warnings(facts)),
        "agreed": ("What was agreed, and by whom", agreed(facts)),
        "curves": ("Learning curves", learning_curves(facts)),
        "importance": ("Importance of features", _importance(facts)),
        "trees": ("The first trees", _trees(facts)),
        "dependence": ("Partial dependence", dependence(facts)),
        "quality": ("Quality on given rows", quality(facts)),
        "session": ("Who came and went, traffic and time", _session(facts)),
        "privacy": ("Privacy: who saw what", privacy(model.terms)),
    }
    title = f"Report of model {model.fingerprint[:12]}"
    source = "the model file" if facts.session is None else "the model and its session"
    return document(title, "Report of a model", _lead(facts), sections, source)


def _lead(facts: ReportFacts) -> str:
    model = facts.model
    terms = model.terms
    return (
        f"{terms.objective.name}, {counted(model.trees, 'tree')} in {counted(model.kept, 'round')}, by "
        f"{counted(len(terms.parties), 'party', 'parties')} under the protection {terms.hiding.protection}"
    )


def _model(facts: ReportFacts) -> Markup:
    model, terms = facts.model, facts.model.terms
    stopped = f" ({model.trained} were trained)" if model.kept < model.trained else ""
    signed = len(set(model.signed_by) & set(terms.parties))
    entries = {
        "objective": terms.objective.name,
        "trees": f"{model.trees} in {counted(model.kept, 'round')}{stopped}",
        "features": f"{len(terms.columns.numeric)} numeric, {len(terms.columns.categorical)} categorical; "
        f"{len(facts.importance)} of them split",
        "last round": figures(model.last_row, terms, ", ") or "no metrics",
        "parties": f"{len(terms.parties)}, {signed} of which signed",
        "protection": terms.hiding.protection,
        "noise": "none"
        if terms.noise is None
        else f"epsilon {terms.noise.epsilon:g}, delta {terms.noise.delta:g}",
        "fingerprint": element("code", model.fingerprint),
        "digest of the terms": element("code", terms.digest),
    }
    return table("The model in short", ["what", "value"], entries.items(), (), folded=False)


def _importance(facts: ReportFacts) -> Markup:
    noise = facts.model.terms.noise
    if not facts.importance:
        return left_out("No feature splits.")
    by_gain = [(name, values[0]) for name, values in facts.importance.items()]
    rows = ([name, *(f"{value:.6g}" for value in values)] for name, values in facts.importance.items())
    drawn = noise is not None and noise.method != "hist"
    title = "Mean gain of the splits by a feature"
    title += f", the first {MAX_BARS} of {len(by_gain)}" if len(by_gain) > MAX_BARS else ""
    return joined(
        paragraph(
            "Trained with noise: splits are drawn, not chosen by gain, so these figures do not say what "
            "counts."
            if drawn
            else "Gain and cover are means over the splits by a feature, weight is their number. They say "
            "what the trees are made of, not what a feature does for a prediction."
        ),
        bars(title, by_gain, "mean gain"),
        table("Importance of each feature that splits", ["feature", *KINDS], rows, folded=True),
    )


def _trees(facts: ReportFacts) -> Markup:
    if not facts.trees:
        return left_out("The model has no trees.")
    return joined(
        paragraph(
            "A row goes from left to right, by “yes” or “no”, and ends in a leaf, whose value is added to "
            f"its margin. fedboost explain --tree draws the others: there are {facts.model.trees}."
        ),
        _tree(facts.trees[0]),
        *(details(tree.title, _tree(tree)) for tree in facts.trees[1:]),
    )


def _tree(tree: TreeFacts) -> Markup:
    text = details("The same as text", element("pre", lines(tree.text), tabindex="0"))
    if not tree.picture:
        why = f"{tree.title}: {tree.leaves} leaves are too many for a picture in this page."
        return joined(left_out(why), text)
    picture = element(
        "div", Markup(tree.picture), class_="scroll", tabindex="0", role="group", aria_label=tree.title
    )
    return joined(element("figure", element("figcaption", tree.title), picture, class_="tree"), text)


def _session(facts: ReportFacts) -> Markup:
    return joined(
        attendance(facts),
        left_out(
            "Traffic and the time of a round are not in a model file: fedboost train prints them at its end, "
            "and writes a page with them (--report)."
        )
        if facts.session is None
        else turns(facts.session, facts.model.terms),
    )
