"""What people see of models: reports, signatures, the end of training, demos and estimates.

Guarantees: content of a file is text, never markup. Facts that a model file lacks are reported as missing.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedboost.gbdt import metrics
from fedboost.gbdt.booster import IMPORTANCES, Booster
from fedboost.gbdt.metrics import OF_PARTY, PARTIAL_LIKELIHOOD, TRAIN, VALIDATION, grows, is_metric, own_name
from fedboost.results.base import Row
from fedboost.results.model import (
    ACCOUNTED,
    ColumnsDemo,
    Demo,
    Dependence,
    DrawnTree,
    GivenRows,
    ModelReport,
    ModelSummary,
    Training,
    TrainingEnd,
    Verification,
    metrics_of,
)
from fedboost.terms.terms import Terms
from fedboost.views import document as page
from fedboost.views.approval import not_hidden
from fedboost.views.results import key_figures, labels_of, number, quality, rows_warnings
from fedboost.views.session import NO_NOISE, agreed, by_party, part_of, strength, traffic
from fedboost.views.words import capital, counted, entry, listed, one_line, size

# ---- The report of a model: its quality, the features it uses, who agreed to it, and who saw what ------


_MORE = (
    "Metrics on other rows, calibration and partial dependence require a table with labels (--data TABLE)."
)
MAX_CHARTS = 12
"""Maximum number of charts of metrics."""
MAX_NAMED = 5
"""Maximum number of parties named below the title."""
LATE = 0.8
"""If a metric reaches its best value before this fraction of the rounds, a warning is shown."""
MODERATE_EPSILON = 3.0
DIVIDED = (
    "Trained with noise: the effect of a feature is divided among many splits. Its gain times its weight "
    "shows how much the feature contributes"
)


def report(result: ModelReport) -> page.Document:
    terms, rows = result.model.terms, result.rows
    blocks = (
        _key_figures(result),
        *page.warnings([*_warnings(result)]),
        page.Section("curves", "Learning curves and importance", [*_first_charts(result)]),
        *(
            [page.note(_MORE)]
            if rows is None
            else [_of_rows(rows, labels_of(terms)), _dependence(rows, result.classes)]
        ),
        *_by_site(result),
        _trees(result),
        *agreed(terms, [*_parties(result)]),
        page.Section("session", "Participation, traffic and time", [*_session(result)], folded=True),
    )
    source = "the model file" if result.session is None else "the model and its session"
    label = "survival" if terms.objective.loss.risk_sign else terms.columns.label or terms.objective.name
    return page.Document(f"Model of {label}", _lead(result), blocks, source)


def _lead(result: ModelReport) -> str:
    terms = result.model.terms
    parties = listed(terms.parties) if len(terms.parties) <= MAX_NAMED else f"{len(terms.parties)} parties"
    when = f", requested on {result.made}" if result.made else ""
    trees = f"{counted(result.model.trees, 'tree')} in {counted(result.model.kept, 'round')}"
    return f"{terms.objective.name}, {trees}, by {parties}{when}"


def _key_figures(result: ModelReport) -> page.Figures:
    model, terms = result.model, result.model.terms
    signed = len(set(model.signed_by) & set(terms.parties))
    whole = [curve for curve in curves_of(result.rounds[: model.kept]) if not curve.party]
    held_out = [curve for curve in whole if curve.rows == VALIDATION] or whole
    figures = [
        page.Figure(curve.metric, number(curve.values[model.kept]), OF_ROWS[curve.rows == VALIDATION])
        for curve in held_out[:3]
        if model.kept in curve.values and curve.metric != PARTIAL_LIKELIHOOD  # compares rounds only
    ]
    if result.training_rows is not None:
        figures.append(page.Figure("rows", f"{result.training_rows:,}", "across all parties"))
    of_parties = "all signed" if signed == len(terms.parties) else f"{signed} signed"
    known = result.verification
    of_parties += ", not checked" if known is None else ", checked" if known.holds else ", INVALID"
    figures.append(page.Figure("parties", str(len(terms.parties)), of_parties))
    hides = "hides each party's sums" if terms.protection.hides else "hides nothing from the aggregator"
    hides += ", with exceptions" * bool(terms.columns.absent or terms.evaluation.party_metrics)
    figures.append(page.Figure("protection", terms.hiding.protection, hides))
    noise = terms.noise
    epsilon = "none" if noise is None else f"{noise.epsilon:g}"
    figures.append(
        page.Figure("epsilon", epsilon, "no noise" if noise is None else f"at delta {noise.delta:g}")
    )
    return page.Figures(figures)


# ---- Warnings to read before the figures of a model -----------------------------------------------------


def _warnings(result: ModelReport) -> Iterator[str]:
    model, known, terms = result.model, result.verification, result.model.terms
    if not model.signed_by:
        yield "No party signed this model: anyone could have created it."
    elif known is None:
        yield "Signatures were not checked for this page; use fedboost report with --keys to check them."
    elif not known.holds:
        yield f"The signatures are NOT valid: {known.conclusion}."
    absent = len(set(terms.parties) - set(model.signed_by))
    if model.signed_by and absent:
        yield f"{counted(absent, 'party', 'parties')} in the terms did not sign."
    if model.rosters:
        yield "Parties were lost during training: some rounds used only the rows of the remaining parties."
    if terms.metrics and not terms.validates and model.last_row:
        yield "No rows were held out: the learning curves show metrics on the training rows."
    if 0 < model.kept < model.trained:
        yield f"The training stopped early: round {model.kept} was the best of {model.trained}."
    elif model.trained < terms.trees.rounds:
        yield f"The training ended after {model.trained} of {terms.trees.rounds} rounds."
    yield from _best_rounds(result)
    if not result.importance:
        yield "No tree has a split: every row gets the same prediction."
    if not terms.protection.hides:
        yield f"Protection {terms.hiding.protection}: {not_hidden(terms)}."
    if terms.noise is None:
        yield f"{capital(NO_NOISE)}."
    elif terms.noise.epsilon > MODERATE_EPSILON:
        epsilon, delta = f"{terms.noise.epsilon:g}", f"{terms.noise.delta:g}"
        yield f"Epsilon {epsilon} at delta {delta}: {strength(terms.noise.epsilon)}."
    if result.rows is not None:
        yield (
            f"This page contains figures about the rows of {result.rows.source}. No protection hides them "
            "from readers of the page, and no site agreed to them."
        )


def _best_rounds(result: ModelReport) -> Iterator[str]:
    """Yield a warning for each metric on held-out rows that was best long before the last round."""
    kept = result.model.kept
    for curve in curves_of(result.rounds[:kept]):
        if curve.rows == VALIDATION and not curve.party and is_metric(curve.metric):
            known = {number: value for number, value in curve.values.items() if math.isfinite(value)}
            best = (max if grows(curve.metric) else min)(known, key=known.__getitem__, default=kept)
            if best < LATE * kept:
                yield (
                    f"{curve.metric} on held-out rows was best in round {best} of {kept}: later rounds fit "
                    "the training rows better, but not other rows."
                )


# ---- Curves and importance ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """Values of a metric by round. party: party over whose rows the metric is computed, "" for all parties;
    rows: name of the set of rows, e.g. "validation"; values: round, starting at 1 -> value."""

    party: str
    rows: str
    metric: str
    values: Mapping[int, float]


def curves_of(rounds: Sequence[Row]) -> list[Curve]:
    names = dict.fromkeys(name for row in rounds for name in row if name not in ACCOUNTED)
    out = []
    for name in names:
        party, _, own = name.rpartition(OF_PARTY)
        held_out = own.startswith(f"{VALIDATION}-")
        metric = own.removeprefix(f"{VALIDATION}-")
        values = {number: row[name] for number, row in enumerate(rounds, 1) if name in row}
        out.append(Curve(party, VALIDATION if held_out else TRAIN, metric, values))
    return out


def metrics_by_round(rounds: Sequence[Row], mark: tuple[float, str] | None = None) -> list[page.Block]:
    """Return charts of the metrics over the rows of all parties, at most MAX_CHARTS. mark: a round to mark,
    and its label."""
    curves = [curve for curve in curves_of(rounds) if not curve.party]
    charts = list[page.Block]()
    for kind in [*dict.fromkeys(curve.metric for curve in curves)][:MAX_CHARTS]:
        series = [page.Series(c.rows, [*c.values.items()]) for c in curves if c.metric == kind]
        charts.append(page.Lines(f"{kind} by round", series, "round", kind, mark=mark, whole=True))
    return charts


def _first_charts(result: ModelReport) -> Iterator[page.Block]:
    model, noise = result.model, result.model.terms.noise
    mark = (model.kept, f"kept up to round {model.kept}") if model.kept < model.trained else None
    charts = metrics_by_round(result.rounds, mark)
    curves = [curve for curve in curves_of(result.rounds) if not curve.party]
    kinds = {curve.metric for curve in curves}
    by_gain = [(name, values[0]) for name, values in result.importance.items()]
    if by_gain:
        charts.append(page.Bars("Mean gain of the splits on each feature", by_gain, "mean gain"))
    yield page.SideBySide(charts)
    if curves:
        yield page.note(
            "The curves show metrics over the rows of all parties after each round, rounded to four "
            "significant digits. Parties do not sign these numbers."
        )
        if PARTIAL_LIKELIHOOD in kinds:
            yield page.note(
                f"{PARTIAL_LIKELIHOOD} grows with the number of rows at risk, so do not compare training and "
                "held-out rows. A prediction is a hazard ratio: by the model, 2 means twice the hazard of 1, "
                "at any time. fedboost evaluate reports the C-index and survival by predicted risk."
            )
        if len(kinds) > MAX_CHARTS:
            yield page.note(f"The table contains {counted(len(kinds) - MAX_CHARTS, 'more metric')}.")
        rows = [
            (str(n), *(_value(c.values.get(n)) for c in curves)) for n in range(1, len(result.rounds) + 1)
        ]
        headings = ["round", *(f"{c.rows} {c.metric}" for c in curves)]
        yield page.Table("Metrics of each round", headings, rows, folded=True)
    else:
        yield page.note(
            "The model file contains no metrics: the terms have none, or no set of rows had ten rows."
        )
    if not by_gain:
        yield page.note("No feature is used in a split.")
        return
    yield page.note(
        f"{DIVIDED}."
        if noise is not None
        else "Gain and cover (the sum of second derivatives) are means over the splits on a feature; weight "
        "is the number of these splits. They describe the trees, not how much, or in which direction, a "
        "feature contributes to a prediction."
    )
    rows = [(name, *(f"{value:.6g}" for value in values)) for name, values in result.importance.items()]
    yield page.Table(
        "Importance of each feature used in a split", ["feature", *IMPORTANCES], rows, folded=True
    )


def _by_site(result: ModelReport) -> Iterator[page.Section]:
    """Yield the section about metrics of individual sites, if there are any."""
    curves = [curve for curve in curves_of(result.rounds) if curve.party]
    if not curves:
        return
    kinds = [*dict.fromkeys((curve.rows, curve.metric) for curve in curves)]
    last: dict[str, dict[tuple[str, str], float]] = {curve.party: {} for curve in curves}
    for curve in curves:
        if result.model.kept in curve.values:
            last[curve.party][curve.rows, curve.metric] = curve.values[result.model.kept]
    headings = ["site", *(f"{rows} {metric}" for rows, metric in kinds)]
    lines = [(party, *(_value(own.get(kind)) for kind in kinds)) for party, own in last.items()]
    blocks: list[page.Block] = [
        page.Paragraph(
            "Metrics over the rows of a single site, as its policy allowed. The aggregator saw them, too."
        ),
        page.Table("Metrics of each site after the last round of the model", headings, lines),
    ]
    yield page.Section("sites", "By site", blocks)


def _value(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


# ---- The table that was specified for the report --------------------------------------------------------


def _of_rows(rows: GivenRows, labels: Sequence[str]) -> page.Section:
    result = rows.evaluation
    where = f"On {result.rows:,} rows of {rows.source}, predicted for this page ({result.about})."
    measured = quality(result, labels)
    unsure = [page.Items(found, warnings=True)] if (found := [*rows_warnings(result)]) else []
    blocks = [page.Paragraph(where), *unsure, key_figures(result), *(measured.blocks if measured else [])]
    return page.Section("quality", "Quality on additional rows", blocks)


def _dependence(rows: GivenRows, classes: Sequence[str]) -> page.Section:
    if not rows.dependence:
        return page.Section("dependence", "Partial dependence", [page.note("No feature is used in a split.")])
    about = (
        f"Mean prediction over the rows of {rows.source} if one column is set to each value in turn, for the "
        "features with the highest gain. It shows how the model behaves, not causal effects."
    )
    numbers = [_dependence_chart(each, classes) for each in rows.dependence if not each.is_categorical]
    levels = [_dependence_table(each, classes) for each in rows.dependence if each.is_categorical]
    return page.Section(
        "dependence", "Partial dependence", [page.SideBySide(numbers), *levels, page.note(about)]
    )


def _dependence_chart(each: Dependence, classes: Sequence[str]) -> page.Lines:
    grid, outputs = [*map(float, each.grid)], each.means.T.tolist()
    names = [f"class {name}" for name in classes] if len(outputs) > 1 else ["prediction"]
    series = [
        page.Series(name, [*zip(grid, means, strict=True)])
        for name, means in zip(names, outputs, strict=True)
    ]
    return page.Lines(f"Prediction by {each.feature}", series, each.feature, "mean prediction")


def _dependence_table(each: Dependence, classes: Sequence[str]) -> page.Table:
    headings = [each.feature, *(classes if each.means.shape[1] > 1 else ["mean prediction"])]
    rows = [
        (str(level), *map(number, row)) for level, row in zip(each.grid, each.means.tolist(), strict=True)
    ]
    return page.Table(f"Prediction by {each.feature}", headings, rows)


# ---- Trees, signatures, the session ---------------------------------------------------------------------


def _trees(result: ModelReport) -> page.Section:
    if not result.trees:
        return page.Section("trees", "The first trees", [page.note("The model has no trees.")], folded=True)
    about = (
        "A row moves from left to right, along “yes” or “no”, to a leaf, whose value is added to the row's "
        f"margin. Use fedboost explain --tree to draw any of the {counted(result.model.trees, 'tree')}."
    )
    first, *others = result.trees
    folds = [page.Section(f"tree-{n}", t.title, [*_tree(t)], folded=True) for n, t in enumerate(others, 1)]
    return page.Section(
        "trees", "The first trees", [page.Paragraph(about), *_tree(first), *folds], folded=True
    )


def _tree(tree: DrawnTree) -> Iterator[page.Block]:
    if tree.picture:
        scrolled = {"class_": "scroll", "tabindex": "0", "role": "group", "aria_label": tree.title}
        picture = page.element("div", page.Markup(tree.picture), **scrolled)
        yield page.element("figure", page.element("figcaption", tree.title), picture, class_="tree")
    else:
        yield page.note(f"{tree.title} has {tree.leaves} leaves, which are too many to draw on this page.")


def _parties(result: ModelReport) -> Iterator[page.Block]:
    model, known = result.model, result.verification
    if known is not None:
        outcome = "The signatures are valid" if known.holds else "The signatures are NOT valid"
        asked = f" Analyst {known.analyst} requested the session on {known.asked}." if known.analyst else ""
        yield page.Paragraph(f"{outcome}: {known.conclusion}.{asked}")
    parties = dict.fromkeys((*model.terms.parties, *model.signed_by))
    rows = [(party, part_of(model.terms, party), _signature(result, party)) for party in parties]
    yield page.Table("Parties", ["party", "takes part with", "signature"], rows, ())
    yield page.Paragraph(("Fingerprint of the model, which the parties sign: ", page.Code(model.fingerprint)))


def _signature(result: ModelReport, party: str) -> str:
    if party not in result.model.signed_by:
        return "none"
    if result.verification is None:
        return "present, not checked"
    fault = result.verification.faults.get(party, "")
    return f"INVALID: {fault}" if fault else "valid"


def _session(result: ModelReport) -> Iterator[page.Block]:
    absent = [f"{capital(line)}." for line in absences(result.model)]
    yield page.Items(absent) if absent else page.Paragraph("The sums of every round were over all parties.")
    if result.session is None:
        yield page.note(
            "Model files do not contain traffic and time. fedboost train prints them at the end and, with "
            "--report, writes them to a page."
        )
    else:
        yield from traffic(result.session)


# ---- Metrics of a round, signatures, participation ------------------------------------------------------


def figures(row: Row, terms: Terms, between: str = " ") -> str:
    """Return the metrics in a row of the history as text. In tuning, return only the best candidate's value
    of the metric that decides. between: separator between the metrics."""
    if terms.task.takes_candidates:
        return _best_of_candidates(row, terms)
    return one_line(between.join(f"{name} {value}" for name, value in _values(row, terms).items()))


def _values(row: Row, terms: Terms) -> dict[str, str]:
    """Return name -> formatted value of each metric over the rows of all parties, from a row of the history.
    A value that was not published is a dash."""
    whole = [rows for rows in terms.sets if metrics.OF_PARTY not in rows]
    names = [("" if rows == metrics.TRAIN else f"{rows}-") + name for rows in whole for name in terms.metrics]
    return dict.fromkeys(names, "-") | {name: f"{value:.5f}" for name, value in metrics_of(row).items()}


def _best_of_candidates(row: Row, terms: Terms) -> str:
    watched = own_name(terms.metrics[-1])
    names = {
        f"{metrics.VALIDATION}-{number}/{watched}": number
        for number in range(len(terms.objective.candidates))
    }
    values = {name: row[name] for name in names if name in row}
    if not values:
        return f"{watched} -"
    best = (max if grows(watched) else min)(values, key=values.__getitem__)
    return f"best {watched} {values[best]:.5f} (trial {names[best]})"


def signatures(model: ModelSummary) -> str:
    """Return a clause with the protection of a model, the parties that signed it, and the parties that did
    not."""
    parties, signed, protection = model.terms.parties, model.signed_by, model.terms.hiding.protection
    missing = [party for party in parties if party not in signed]
    if len(missing) == len(parties):
        return f"{protection}, not signed by any party"
    return f"{protection}, signed by {', '.join(signed)}" + (
        f", NOT by {', '.join(missing)}" if missing else ""
    )


def absences(model: ModelSummary) -> Iterator[str]:
    """Yield a clause for each change of the roster (the parties that take part): the first round of the new
    roster, and the parties that are missing from it."""
    for first, roster in model.rosters.items():
        away = [party for party in model.terms.parties if party not in roster]
        yield f"from round {first + 1}: " + (
            f"without {', '.join(away)}" if away else "with all parties again"
        )


# ---- The end of training --------------------------------------------------------------------------------


OF_ROWS = {True: "on held-out rows", False: "on training rows"}
"""Maps whether rows were held out to a description of the rows on which a metric is computed."""


def training(end: Training) -> page.Document:
    model = end.outline
    values, held_out = _values(model.last_row, model.terms), f"{metrics.VALIDATION}-"
    measured = [
        page.Figure(n.removeprefix(held_out), v, OF_ROWS[n.startswith(held_out)]) for n, v in values.items()
    ]
    names = [*dict.fromkeys(name for own in end.party_metrics.values() for name in own)]
    own = {party: end.party_metrics.get(party, {}) for party in model.terms.holders}
    rows = [(party, *(f"{of[n]:.5f}" if n in of else "-" for n in names)) for party, of in own.items()]
    total = size(sum(each.sent + each.received for each in end.traffic.values()))
    since = "since the aggregator was restarted" if end.traffic_since_restart else "in all"
    traffic = page.Figure("traffic", total, since)
    return page.Document(
        "Training",
        "",
        [
            page.Verdict(f"{counted(model.trees, 'tree')}: {_saved(end)}", more=[*_stopped(model)]),
            page.Figures([*measured, traffic]),
            *([page.Table("Metrics of each party", ["party", *names], rows)] if names else []),
            _traffic(end),
            page.Entries([*_who(end)]),
        ],
    )


def _saved(end: TrainingEnd) -> str:
    if end.model is None:
        return "not saved (use --out model.json to save it)"
    form = (
        "XGBoost JSON" if end.outline.shares is None else "only its structure: each party keeps its own part"
    )
    return f"{end.model} ({form})"


def _stopped(model: ModelSummary) -> Iterator[str]:
    if model.kept < model.trained:
        yield f"Training stopped after {model.trained} rounds: the best round, {model.kept}, is the last."
    elif model.trained < model.terms.trees.rounds:
        yield f"Training stopped after {model.trained} of {model.terms.trees.rounds} rounds."


def _traffic(end: TrainingEnd) -> page.Table:
    return by_party({party: (each.sent, each.received) for party, each in end.traffic.items()})


def _who(end: TrainingEnd) -> Iterator[tuple[str, page.Line]]:
    """Yield lines with the protection and signers, absent parties and, if each party keeps a part of the
    model, the share of the gain that comes from each party's columns."""
    yield "protection", signatures(end.outline)
    yield from (("", text) for text in absences(end.outline))
    if end.outline.shares:
        by_party = ", ".join(f"{party} {share:.0%}" for party, share in end.outline.shares.items())
        yield "gain", f"share of each party's columns: {by_party}"


# ---- Demos ----------------------------------------------------------------------------------------------


def beginning(demo: Mapping[str, Any], terms: Terms) -> Iterator[str]:
    """Yield lines about the columns that the parties of a demo hold, and the protection. demo: fields of
    `ColumnsDemo`."""
    indent = max(map(len, demo["columns"])) + 2
    for party, names in demo["columns"].items():
        label = f" and the label {terms.columns.label}" if terms.blocks.has_labels(party) else ""
        columns = f"{demo['rows'][party]} patients, {len(names)} columns{label}: {', '.join(names)}"
        yield entry(party, columns, indent)
    common, new = demo["rows_in_common"], demo["rows_held_out"]
    matched = f"{common} patients are common to both, matched by column {terms.columns.row_id}"
    yield f"{matched}; {new} new patients are held out"
    hiding = terms.hiding
    quick = f", key_bits = {hiding.key_bits} (the minimum, for speed)" if hiding.key_bits else ""
    yield f"protection {hiding.protection}{quick}"


def demo(end: Demo) -> page.Document:
    """Return the document shown at the end of a demo, which compares the federated model with others."""
    terms = end.outline.terms
    joined, title, log = "federated", "On the same held-out rows", "the first site"
    kept: list[tuple[str, page.Line]] = [
        ("model", f"{end.model} (XGBoost JSON; terms, files and logs are in the same folder)")
    ]
    if isinstance(end, ColumnsDemo):
        joined, title, log = "joined", f"On the {end.rows_held_out} new patients", terms.parties[-1]
        kept = [
            ("model", f"{end.model} (for the analyst: metrics, signatures and the structure of the trees)")
        ]
        for party, file in end.parts.items():
            leaves = " and the leaf values" if terms.blocks.has_labels(party) else ""
            kept.append(("", f"{party} keeps its own splits{leaves}: {file}"))
    answer = "equals" if end.equal else "DIFFERS from"
    names = [*end.held_out["pooled"]]
    rows = [(model, *(f"{values[name]:.4f}" for name in names)) for model, values in end.held_out.items()]
    return page.Document(
        "Demo",
        "",
        [
            page.Verdict(f"The {joined} model {answer} the pooled model", "good" if end.equal else "bad"),
            page.Table(title, ["model", *names], rows),
            _traffic(end),
            page.Entries([*_who(end), *kept]),
            page.Paragraph(f"To see what left {log}, run:"),
        ],
    )


# ---- A model: the features it uses, and who signed it ---------------------------------------------------


def importances(booster: Booster, terms: Terms, by_feature: Mapping[str, Sequence[float]]) -> page.Document:
    """Return a document that shows feature importance, and a warning if noise divides it among splits.
    by_feature: maps each feature to its values of the measures in IMPORTANCES; features with the highest gain
    come first."""
    rows = [(name, *(f"{value:.6g}" for value in values)) for name, values in by_feature.items()]
    trees = counted(len(booster.trees), "tree")
    split = f"{len(by_feature)} of {counted(len(booster.features), 'feature')} used in {trees}"
    return page.Document(
        "Importance",
        booster.objective,
        [
            page.Verdict(
                f"{split}, {listed([*by_feature][:1])} with the highest gain" if by_feature else split
            ),
            *page.warnings([f"{DIVIDED}; so does --shap."] if terms.noise is not None else []),
            *([page.Table("Importance", ["feature", *IMPORTANCES], rows)] if rows else []),
        ],
    )


def verification(found: Verification) -> page.Document:
    terms, rows = found.terms, list[Sequence[page.Line]]()
    for party in dict.fromkeys((*terms.parties, *found.faults)):
        fault = found.faults.get(party)
        wrong = page.Badge(f"INVALID: {fault}", "bad") if fault else page.Badge("valid", "good")
        rows.append((party, "none" if fault is None else wrong))
    model = f"{found.file}: {terms.objective.name}, {counted(found.trees, 'tree')}, {terms.hiding.protection}"
    about: list[tuple[str, page.Line]] = [
        ("model", model),
        ("fingerprint", page.Code(found.fingerprint)),
        ("terms digest", page.Code(terms.digest)),
    ]
    if found.analyst:
        about.append(("requested", f"by analyst {found.analyst} on {found.asked}"))
    outcome = "valid" if found.holds else "NOT valid"
    blocks: list[page.Block] = [
        page.Verdict(f"The signatures are {outcome}: {found.conclusion}.", "good" if found.holds else "bad"),
        page.Table("Signatures", ["party", "signature"], rows, ()),
        page.Entries(about),
    ]
    if found.holds:
        blocks.append(
            page.note("Metrics, gains and covers are not signed; predictions do not depend on them.")
        )
    return page.Document("Signatures of a model", model, blocks)
