"""Terms in plain words, for a person who decides on them.

Promises: every party, column, metric, category and label value that the terms name is shown, whole, within 80
columns, and every setting that is not its default; no name can pose as another line or move the cursor.
Refuses: nothing.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from fedboost.boosting.queries.labels import EVALUATION_BY_PARTY
from fedboost.boosting.queries.trees import BY_PARTY
from fedboost.boosting.queries.union import Query
from fedboost.errors import printable, quoted
from fedboost.gbdt.metrics import own_name
from fedboost.gbdt.tree import NO_CHILD
from fedboost.privacy.pairwise import Group
from fedboost.privacy.protections import PROTECTIONS
from fedboost.protocol.contracts import AND
from fedboost.protocol.site import HELP, OPENINGS, THRESHOLDS
from fedboost.terms.tasks import class_names, is_binary
from fedboost.terms.terms import Terms
from fedboost.views.facts import ApprovalFacts, OriginFacts, RuleFacts, SiteFacts
from fedboost.views.words import delimited, entry, listed, paragraph

# ---- Words for people, looked up by name; those of a query stand in its class ---------------------------
# Of a protection in its row of the table of protections.
# Promises: every question that a party can answer, and every release of noise, has its words.


UNASKED = frozenset({HELP, OPENINGS, THRESHOLDS})
"""The names of releases that answer no question."""

QUERIES: dict[str, str] = {
    **{kind.__name__: kind.description for kind in get_args(Query)},
    BY_PARTY: "error of the model: all rows, this site's",
    EVALUATION_BY_PARTY: "error of a model: all rows, this site's",
    HELP: "help to open a sum: keys, no data",
    OPENINGS: "others' sums, opened and not read here",
    THRESHOLDS: "thresholds of this site's own splits",
}
"""The content of an answer, by the name of its query."""


OF_ONE_SITE = frozenset({BY_PARTY, EVALUATION_BY_PARTY})
"""Queries that include metrics of this site's rows alone, which the aggregator sees whatever hides sums."""


def queries_of(name: str) -> list[str]:
    """The queries that a release answers, by its name: several may share a turn."""
    return name.split(AND)


OF_LABELS = frozenset({"RowsQuery", "StartQuery", "EndRoundQuery", "ResidualQuery", BY_PARTY})
OF_LABEL_HOLDER = frozenset({"PlacesQuery", "ReachQuery"})
"""Queries that a feature holder answers with zeros: what is about labels, and what the label holder tells for
all."""

ENCRYPTED_SUMS = "sums over groups of rows, encrypted"
"""The answer of a feature holder to `HistogramQuery` where gradients are encrypted."""

RELAYED = {
    "which rows it has": "for each of {rows} people (row ids) asked about, whether it is known here",
    "leaf bits": "for each of {rows} people (row ids) asked about, on which side of each split of this site "
    "it falls",
}
"""What other parties get by a relay, by its kind, where the kind alone does not say it."""

APPROVE = "fedboost approve terms.toml"
"""The command by which a site allows terms, as refusals name it."""

MADE = {
    "train": "model",
    "tune": "result",
    "describe": "description",
    "evaluate": "evaluation",
    "drift": "comparison of rows",
    "predict": "prediction",
}
"""What a session ends with, by what it does."""

NO_METRICS = "end of a round: no metrics, no numbers"
"""The end of a round where the terms want no metrics, as those with noise do."""

NOT_HIDDEN = "the aggregator sees each party's own counts, histograms and metric sums"
"""A warning about protections that hide nothing, where each party has all columns."""

PREDICTION_SEEN = "passes on what it cannot read, and learns how many rows there are"
"""What the aggregator of a prediction does and learns, whatever protection the terms name."""

PLACEMENTS = {
    "distributed": "; each site added a share of it",
    "local": "; this site added it",
    "central": " for the model alone: the aggregator added the noise itself",
}
"""The end of a sentence about noise, by the placement of noise."""

RELAXED: dict[tuple[str, object], str] = {
    **{
        ("protections", protection.name): "THE AGGREGATOR SEES THIS SITE'S OWN NUMBERS: no mask hides them."
        for protection in PROTECTIONS.values()
        if not protection.hides
    },
    ("by_columns", True): "OTHER PARTIES LEARN OF SINGLE ROWS: which go left, and under plain their labels.",
    ("model", "whole"): "THE ANALYST GETS CUT POINTS OF THIS SITE'S COLUMNS: with the whole model.",
    ("evaluate", "any"): "THE ANALYST MAY READ VALUES OF SINGLE ROWS: the model may have leaves of one row.",
    ("target_means", True): "THE AGGREGATOR SEES LABELS BY LEVEL: of a level of one row that row's own.",
    ("placements", "central"): "THE AGGREGATOR SEES EXACT SUMS: the noise is not on what leaves.",
}
"""A loud sentence besides, by a rule of a policy and the value that an approval relaxes it to."""


# ---- Terms of sessions that train nothing, in plain words -----------------------------------------------
# Promises: what is asked of the rows of all sites, and who is given what.


_OF_FEATURES = ("base margin", "features", "categories")
"""The lines about columns that rows without a label have."""
Lines = Sequence[tuple[str, str]]


def of_other_tasks(
    terms: Terms,
    analysts: Sequence[str],
    participants: Lines,
    columns: Lines,
    origin: OriginFacts | None = None,
) -> list[tuple[str, str]]:
    """What a session does with rows, and who learns what by it. participants, columns: lines about them."""
    does, given = _of_task(terms)
    return [
        ("terms", terms.digest),
        *does,
        *([] if origin is None else _origin(origin)),
        *([("analyst", f"{listed(analysts)}: may ask for it")] if analysts else []),
        ("is given", f"{given}; {few_rows(terms)}"),
        *(line for line in participants if line[0] != "other sites"),
        *(line for line in columns if line[0] in _OF_FEATURES or terms.task.reads_labels),
    ]


def given_to_analyst(terms: Terms) -> str:
    """What the analyst gets of all rows."""
    return f"{_of_task(terms)[1]}; {few_rows(terms)}"


def _of_task(terms: Terms) -> tuple[Lines, str]:
    """Lines about what is done, and what the analyst is given."""
    tasks = {"describe": _description, "evaluate": _evaluation, "drift": _drift}
    return tasks[terms.task.name](terms)


def few_rows(terms: Terms) -> str:
    """What is left out."""
    return f"counts of fewer than {terms.evaluation.min_count} rows are left out"


def _description(terms: Terms) -> tuple[Lines, str]:
    of_label = "rows of each value" if class_names(terms) else "quantiles"
    return [("describes", "the rows of all sites together; nothing is trained")], (
        "rows, missing values, rows of each level that is declared and of all others, quantiles of numbers; "
        f"of the label {delimited(terms.columns.label)} {of_label}"
    )


def _evaluation(terms: Terms) -> tuple[Lines, str]:
    evaluation, by = terms.evaluation, listed(terms.evaluation.subgroups)
    given = listed(terms.metrics)
    if is_binary(terms):
        given += "; ROC curve, calibration, rows by label and prediction at threshold "
        given += f"{evaluation.threshold:g}"
    elif class_names(terms):
        given += "; rows by class and predicted class"
    parts = [f"of the levels of {by}"] * bool(by) + ["of each site alone"] * evaluation.party_metrics
    given += f"; also {' and '.join(parts)}" if parts else ""
    which = {
        "all": "the rows",
        "held-out": "the rows that its training held out",
        "new": "the rows that were added",
    }
    of = which[evaluation.evaluate_rows]
    return [
        ("evaluates", f"a model on {of} of all sites together; nothing is trained"),
        _measured_model(terms),
    ], given


def _drift(terms: Terms) -> tuple[Lines, str]:
    does = "the rows of all sites together against those that a model was trained on; labels are not read"
    return [("holds", does), _measured_model(terms)], "rows by bin of each column and of the score"


def _measured_model(terms: Terms) -> tuple[str, str]:
    trees = terms.earlier.trees if terms.earlier else ()
    leaves = sum(tree.left.count(NO_CHILD) for tree in trees)
    parts = f"{len(trees)} trees with {leaves:,} leaves, which are in the terms"
    return "model", f"{delimited(terms.objective.name)}, {parts}"


def _origin(origin: OriginFacts) -> Lines:
    """Who signed the model, and what its leaves could tell."""
    signed = f"{listed(origin.others)}, whose signature this site accepts (evaluate_signers)"
    if origin.own:
        signed = "this site, which took part in its training"
    elif origin.unknown:
        signed = f"not known: {origin.unknown}"
    elif not origin.others:
        signed = "neither this site nor a party whose signature it accepts (evaluate_signers)"
    leaves = f"each leaf of its trees has at least {origin.rows} rows of its training"
    if origin.rows == 1:
        leaves = (
            "this model may have leaves of single rows; the analyst can read at most "
            f"{origin.readable:,} values of single people per session"
        )
    return [("signed by", signed), ("leaves", leaves)]


# ---- Terms in plain words, for a person who decides on them ---------------------------------------------


IN_LINES = {
    *("columns", "parties", "objective", "objective_package", "rounds", "max_depth", "min_child_weight"),
    *("max_bin", "cut_points", "num_class", "vote_top_k", "eval_metric", "party_metrics", "xgb_model"),
    *("validation_fraction", "protection", "keyholder", "noise", "program", "label_holder", "blocks"),
    *("rows", "min_common_rows", "max_ids", "repeated_ids", "id_form", "model"),
    *("predict_with", "predict_rows", "min_count", "candidates", "subgroups", "threshold", "reference"),
    "evaluate_rows",
}
"""Settings with words of their own; the others are shown where they are not their defaults."""


SENDS_GRADIENTS = "SENDS EVERY ROW'S GRADIENT, WHICH SHOWS ITS LABEL,"


@dataclass(frozen=True)
class Counts:
    """The rows of a site, counted.

    categories: for each categorical column those that each declared category has; for the label those that
    each of its values has, where it is of two values or of classes; columns of other parties are left out;
    undeclared: for each categorical column that has other categories, the rows with one; few: what has fewer
    rows is marked.
    """

    categories: Mapping[str, Mapping[str, int]]
    undeclared: Mapping[str, int]
    few: int


def columns_by_role(terms: Terms, party: str = "") -> dict[str, tuple[str, ...]]:
    """Every column the terms name, by its role; those that a party holds, if it is named and holds some
    alone."""
    columns = terms.blocks.columns_of(party)
    others = {
        "weight": columns.weight,
        "base_margin": columns.base_margin,
        "group": columns.group,
        "validation": columns.validation,
        "row_id": columns.row_id,
        "label_upper_bound": columns.label_upper_bound,
    }
    label = {"label": (columns.label,)} if columns.label else {}
    roles: dict[str, tuple[str, ...]] = {**label, "features": columns.features}
    roles |= {"subgroups": (*columns.subgroups,)} if columns.subgroups else {}
    return {**roles, **{role: (name,) for role, name in others.items() if name is not None}}


def columns_of(terms: Terms) -> tuple[str, ...]:
    """Every column that a session under the terms takes."""
    columns = terms.task.read(terms.columns)
    return (*columns.others, *columns.features)


def summary(
    terms: Terms,
    analysts: Sequence[str] = (),
    counts: Counts | None = None,
    origin: OriginFacts | None = None,
) -> str:
    """The terms in plain words, for a person who decides on them.

    analysts: who may train under them, where that is known; counts: rows of this site, where there are any;
    origin: that of the model which they measure, where a site looked at it.
    """
    return "\n".join(entry(*line) for line in summary_lines(terms, analysts, counts, origin))


def summary_lines(
    terms: Terms,
    analysts: Sequence[str] = (),
    counts: Counts | None = None,
    origin: OriginFacts | None = None,
) -> list[tuple[str, str]]:
    """The same as keys, each with the words about it; a line without a key goes on with the one before."""
    if not terms.task.by_analyst:
        return [("terms", terms.digest), *_prediction(terms)]
    if not terms.task.trains:
        shown = _participants(terms), [*_columns(terms), *_categories(terms, counts)]
        return of_other_tasks(terms, analysts, *shown, origin)
    get = "gets" if len(analysts) == 1 else "get"
    model = "the structure of the model" if terms.keeps_parts else "the model"
    model = "the settings that are best" if terms.task.takes_candidates else model
    return [
        ("terms", terms.digest),
        *([("analyst", f"{listed(analysts)}: {get} {model} and the metrics")] if analysts else []),
        *_participants(terms),
        *_model(terms),
        *_noise(terms),
        *_metrics(terms),
        *_columns(terms),
        *_categories(terms, counts),
    ]


def _prediction(terms: Terms) -> list[tuple[str, str]]:
    """What a joint prediction is, and who learns what by it."""
    vertical, columns = terms.vertical, terms.columns
    held = "; ".join(f"{delimited(party)} {listed(names)}" for party, names in columns.held.items())
    return [
        (
            "predicts",
            f"{vertical.predict_rows:,} rows of {delimited(vertical.label_holder or '')}, nothing is trained",
        ),
        ("model", f"{vertical.predict_with}: each party's own part of it"),
        ("parties", f"{len(terms.parties)}: {listed(terms.parties)}"),
        ("held apart", held),
        ("rows", rows_of_blocks(terms)),
        (
            "label holder",
            "asks for it with its own certificate; learns of each of these rows which leaves of each tree "
            "the splits of each other site leave open: how the row falls there",
        ),
        ("aggregator", PREDICTION_SEEN),
        ("row id", f"{delimited(columns.row_id or '')}: by which rows are matched"),
        ("features", f"{len(columns.features)}: {listed(columns.features)}"),
    ]


def _participants(terms: Terms) -> list[tuple[str, str]]:
    holders, keyholder = len(terms.holders), terms.keyholder
    parties = f"{len(terms.parties)}: {listed(terms.parties)}"
    if keyholder is not None:
        parties += f"; {delimited(keyholder)} decrypts sums" + (
            " and has no rows" if holders < len(terms.parties) else ""
        )
    if terms.session.on_loss == "shrink":
        parties += f"; if some are lost, {terms.min_roster} may go on"
    hidden = terms.evaluation.party_metrics and terms.protection.hides
    return [
        ("parties", parties),
        (
            "protection",
            terms.hiding.protection
            + (f", keys of {terms.hiding.key_bits} bits" if terms.protection.uses_key_holder else ""),
        ),
        (
            "aggregator",
            f"sees {terms.protection.aggregator_observes}" + (", but for its metrics" if hidden else ""),
        ),
        *_other_sites(terms),
        (
            "colluders",
            _colluders(terms) + (", two parties allowed" if terms.hiding.allow_two_parties else ""),
        ),
    ]


def _other_sites(terms: Terms) -> list[tuple[str, str]]:
    """What other sites see."""
    if not terms.blocks:
        return [("other sites", "see the model as it grows: every split, every leaf value")]
    lines = []
    for block in terms.blocks:
        held = "; ".join(
            f"{delimited(party)} {listed(terms.columns.held[party])}" for party in block.feature_holders
        )
        lines.append(
            (
                "held apart",
                f"label holder {delimited(block.label_holder)} has the labels; of the same rows {held}",
            )
        )
    return [
        *lines,
        ("rows", rows_of_blocks(terms)),
        (
            "label holder",
            ("sends every row's gradient, encrypted," if terms.hides_columns else SENDS_GRADIENTS)
            + " to the other parties of its rows; sees which rows go left at each of their splits",
        ),
        (
            "other sites",
            "with the same rows see which go left at each split, not leaf values; "
            + (
                "each keeps its own part of the model"
                if terms.keeps_parts
                else "the analyst sees the whole model"
            ),
        ),
    ]


def _colluders(terms: Terms) -> str:
    if terms.hides_columns:
        return (
            "the aggregator and the label holder together learn the other sites' columns, bin by bin; the "
            "aggregator and another site the labels: none of them should run the aggregator"
        )
    if not terms.protection.hides:
        return "the aggregator needs none"
    number = Group.of(terms.parties, terms.hiding.colluding).colluding
    if not number:
        holder = " and the key holder" if terms.protection.uses_key_holder else ""
        return f"if another site works with the aggregator{holder}, they can learn this site's numbers"
    others = "1 other site" if number == 1 else f"up to {number} other sites"
    return f"{others} may work with the aggregator without learning this site's numbers" + (
        ", the key holder counted first" if terms.protection.uses_key_holder else ""
    )


def _model(terms: Terms) -> list[tuple[str, str]]:
    model = (
        delimited(terms.objective.name)
        + (f" of {delimited(terms.objective.package)}" if terms.objective.package else "")
        + f", {terms.trees.rounds} rounds of depth {terms.trees.max_depth}"
        + (f", {len(terms.roots)} trees each" if len(terms.roots) > 1 else "")
        + (f", after {len(terms.earlier.trees)} trees of another model" if terms.earlier else "")
        + ("" if terms.session.is_built_in else f", by the program {delimited(terms.session.program)}")
    )
    settings = [
        f"min_child_weight {terms.trees.min_child_weight:g}",
        f"max_bin {terms.histograms.max_bin}",
        f"cut_points {terms.histograms.cut_points}",
    ]
    if terms.draws.draws_for_trees:
        settings.append(f"each tree grows on {terms.draws.share_drawn:.2g} of the rows")
    if terms.histograms.vote_top_k:
        settings.append(f"vote_top_k {terms.histograms.vote_top_k}: parties vote for features")
    settings += _other_settings(terms)
    candidates = terms.objective.candidates
    tried = "; ".join(", ".join(f"{name} {value:g}" for name, value in each.items()) for each in candidates)
    trials = [("candidates", f"{len(candidates)}, trained side by side: {tried}")] if candidates else []
    return [("model", model), ("settings", ", ".join(settings)), *trials]


def _other_settings(terms: Terms) -> list[str]:
    """The settings that have no words of their own and are not their defaults."""
    changed = terms.model_dump(mode="json", exclude_defaults=True)
    columns, noise = changed["columns"], changed.get("noise") or {}
    others = {name: value for name, value in changed.items() if name not in IN_LINES}
    others |= {f"columns.{name}": columns[name] for name in ("ranges", "label_range") if name in columns}
    others |= {f"noise.{name}": noise[name] for name in ("method",) if name in noise}
    return [f"{name} {printable(json.dumps(value, ensure_ascii=False))}" for name, value in others.items()]


def _noise(terms: Terms) -> list[tuple[str, str]]:
    if terms.noise is None:
        return [("noise", "none: sums over few rows, and the model, speak of these rows")]
    noise, releases = terms.noise, sum(release.times for release in terms.plan.releases.values())
    strength = f"epsilon {noise.epsilon:g} at delta {noise.delta:g} for any one row, {releases} sums"
    if noise.placement == "central":
        return [("noise", f"{strength}, central: THE AGGREGATOR SEES EXACT SUMS and adds it afterwards")]
    return [("noise", f"{strength}, {noise.placement}: added here, before anything leaves")]


def _metrics(terms: Terms) -> list[tuple[str, str]]:
    if not terms.metrics:
        return [("metrics", "none")]
    rows = "the rows of all parties" + (", and of each party alone" if terms.evaluation.party_metrics else "")
    names = listed(dict.fromkeys(map(own_name, terms.metrics)))
    each = " of each candidate" if terms.objective.candidates else ""
    reference = f"after the last round rows by bin of each column and of the score, {few_rows(terms)}"
    lines = [("metrics", f"{names}{each}; after each round, over {rows}")]
    return [
        *lines,
        *([("reference", reference)] if terms.evaluation.reference and terms.task.makes_model else []),
    ]


def _columns(terms: Terms) -> list[tuple[str, str]]:
    columns = terms.columns
    lines = [
        (
            "label",
            delimited(columns.label)
            + (f", {terms.objective.num_class} classes" if terms.objective.num_class else ""),
        ),
        (
            "to",
            columns.label_upper_bound and f"{delimited(columns.label_upper_bound)}: the label's upper bound",
        ),
        ("weight", columns.weight and delimited(columns.weight)),
        ("base margin", columns.base_margin and f"{delimited(columns.base_margin)}: where boosting begins"),
        ("group", columns.group and f"{delimited(columns.group)}: rows ranked against each other"),
        (
            "row id",
            columns.row_id and f"{delimited(columns.row_id)}: by which rows are {use_of_ids(terms)}",
        ),
        (
            "validation",
            columns.validation and f"{delimited(columns.validation)}: 1 marks rows for metrics alone",
        ),
    ]
    if terms.evaluation.validation_fraction:
        lines.append(
            ("validation", f"{terms.evaluation.validation_fraction:g} of the rows, for metrics alone")
        )
    if columns.positive is not None:
        lines.append(("positive", f"{delimited(columns.positive)}: the label value that counts as 1"))
    if columns.classes:
        lines.append(("classes", listed(columns.classes)))
    for name, levels in terms.task.read(columns).subgroups.items():
        lines.append(("beside", f"{delimited(name)}, no feature: {listed(levels)}"))
    if columns.target_means:
        lines.append(("target means", _target_means(terms)))
    lines.append(("features", f"{len(columns.features)}: {listed(columns.features)}"))
    return [(key, text) for key, text in lines if text]


def _target_means(terms: Terms) -> str:
    """What labels by level tell, and whom."""
    named = ", ".join(
        f"{delimited(name)} in {buckets} buckets" for name, buckets in terms.columns.target_means.items()
    )
    if not terms.task.trains:
        return f"{named}: of the model"
    if terms.noise is not None:
        return f"{named}: sums of labels by level get noise"
    return (
        f"{named}: the aggregator sees sums of labels by level and fold; the model has the mean of each "
        f"level of {terms.evaluation.min_count} rows or more"
    )


def _categories(terms: Terms, counts: Counts | None) -> list[tuple[str, str]]:
    """The categories of each categorical feature, with their rows where those are known, and the rows by
    value of the label."""
    columns = terms.columns
    declared = {
        name: ("categories", f"{delimited(name)}: {listed(categories)}")
        for name, categories in columns.categorical.items()
    }
    if counts is None:
        return [*declared.values()]
    lines = [line for name, line in declared.items() if name not in counts.categories]
    marked, few = False, counts.few
    for name in (columns.label, *columns.categorical):
        if rows := counts.categories.get(name):
            shown = (
                f"{delimited(value)} {count}{' (!)' * (0 < count < few)}" for value, count in rows.items()
            )
            key = "label, rows" if name == columns.label else "categories"
            missing = counts.undeclared.get(name, 0)
            others = "1 row with another category counts as missing"
            if missing > 1:
                others = f"{missing} rows with other categories count as missing"
            lines.append((key, f"{delimited(name)}: {', '.join(shown)}{f'; {others}' * (missing > 0)}"))
            marked = marked or any(0 < count < few for count in rows.values())
    if marked:
        lines.append(("", f"(!) fewer than {few} rows here: what is learned of that value is about them"))
    return lines


# ---- A sentence about what a training does not hide of single parties -----------------------------------
# From the aggregator and from each other.
# Promises: where every party learns all labels, that comes first, and loud.


def not_hidden(terms: Terms) -> str:
    """Return what others see, under terms whose protection does not hide each party's numbers."""
    if not terms.blocks:
        return NOT_HIDDEN
    return _encrypted(terms) if terms.hides_columns else _plain(terms)


def _encrypted(terms: Terms) -> str:
    sums = _sums(terms, "of no row by itself unless it is alone in a bin")
    learn = "feature holders learn which rows go left, no gradients"
    return f"the aggregator sees {sums}; {learn}"


def _plain(terms: Terms) -> str:
    labels = "ALL LABELS"
    if len(terms.blocks) > 1:
        labels += " OF ITS ROWS"
    if terms.vertical.label_epsilon is not None:
        labels += " AS THE NOISE LEAVES THEM"
    sums = _sums(terms, "of a row alone in a bin its own")
    return (
        f"EVERY PARTY LEARNS {labels}; the aggregator sees of every column how many rows lie in each "
        f"interval, {sums}, and the metrics"
    )


def _sums(terms: Terms, alone: str) -> str:
    """Return the sums of gradients that are told. alone: what they show of a row, where no floor is under
    bins."""
    fewest = terms.vertical.min_rows_per_bin
    sums = f"sums of gradients by bin, {alone}"
    if fewest > 1:
        sums = f"sums of gradients over groups of bins, each of {fewest} rows at least, or none"
    if terms.objective.loss.quantile is None:
        return sums
    return f"{sums}, and of each leaf how many rows have residuals of which size"


# ---- Terms that a person at a site approves, in words: rules that they break, and an earlier approval ----
# Promises: for each rule that terms break: why, what the rule is for, and a change of the terms that would
# do.


def site(facts: SiteFacts) -> Iterator[str]:
    """Yield the rows of the site, if it has any, and its sessions so far."""
    if facts.file is not None:
        yield entry("this site", f"{facts.name}, {facts.rows} rows of {facts.file}")
    if facts.renamed:
        yield entry("its columns", facts.renamed)
    if facts.predicted is None:
        yield entry("sessions", f"{facts.took_part} of {facts.max_sessions} used (max_sessions)")
    else:
        used, most = facts.predicted
        yield entry("predictions", f"{used:,} of {most:,} rows used (max_predicted_rows)")


def approval(facts: ApprovalFacts) -> Iterator[str]:
    """Yield the rules that terms break, and the approval that they have already."""
    if facts.rules or not facts.impossible:
        yield _rules(facts) + "\n"
    if facts.earlier is None:
        return
    time, kept = facts.earlier
    when = quoted(time).replace("T", " ").replace("+00:00", " UTC")
    text = f"already approved at {when}" + (f" for {listed(kept)}" if kept else "")
    added = [name for name in facts.analysts if name not in kept]
    if added:
        text += f"; {listed(added)} {'is' if len(added) == 1 else 'are'} added"
    yield paragraph(text) + "\n"


def _rules(facts: ApprovalFacts) -> str:
    """Return the rules that terms break, what for, and what is given up."""
    if not facts.rules:
        return paragraph("The policy of this site has nothing against these terms; their names are pinned.")
    rules = "a rule" if len(facts.rules) == 1 else f"{len(facts.rules)} rules"
    yes = ":" if facts.impossible else ". Yes allows it for these terms alone:"
    lines = [paragraph(f"The terms break {rules} of this site's policy{yes}")]
    return "\n".join([*lines, *(line for rule in facts.rules for line in _rule(rule))])


def _rule(rule: RuleFacts) -> Iterator[str]:
    yield f"\n  {rule.key} = {rule.value}"
    yield paragraph(f"{rule.reason}.", "    ")
    if rule.names:
        yield paragraph(f"All {len(rule.names)}: {listed(rule.names)}.", "    ")
    yield paragraph(f"Why the rule: {rule.purpose}.", "    ")
    if rule.instead:
        yield paragraph(f"If you say no, the analyst can: {rule.instead}.", "    ")
    if rule.loud:
        yield paragraph(rule.loud, "    ")


# ---- Rows that parties with different columns have in common, in words ----------------------------------


def rows_of_blocks(terms: Terms) -> str:
    """Which rows of the parties belong together."""
    if not terms.vertical.aligns:
        return "those of all tables, in the order in which they stand"
    vertical, name = terms.vertical, delimited(terms.columns.row_id or "")
    sites = "all sites of a block" if len(terms.blocks) > 1 else "all sites"
    form = {"digits": ", their digits alone", "lower": ", in lower case"}.get(vertical.id_form or "", "")
    if vertical.takes_all_rows:
        holder = delimited(vertical.label_holder or "")
        return (
            f"all of label holder {holder}, matched by {name}{form}: where another site does not have one, "
            f"its columns are missing values, and {holder} learns which rows these are; each other site has "
            f"{vertical.fewest_common_rows:,} at least, and learns which of its own; a site enters "
            f"{vertical.most_ids:,} ids at most; the aggregator learns how many each site has, and how many "
            f"are common to which sites{_repeats(terms)}"
        )
    return (
        f"those whose {name} {sites} have{form}: {vertical.fewest_common_rows:,} at least; a site enters "
        f"{vertical.most_ids:,} ids at most, and learns which of them all others have; the "
        f"aggregator learns how many each site has, and how many are common to which sites{_repeats(terms)}"
    )


def _repeats(terms: Terms) -> str:
    """What it means that rows of a label holder may have the same id."""
    if not terms.vertical.repeated_ids:
        return ""
    if not terms.task.trains:
        return "; the label holder may have several rows of one"
    return "; the label holder may have several rows of one, and each other site is told how many of each"


def use_of_ids(terms: Terms) -> str:
    """What row ids are for."""
    if not terms.vertical.aligns:
        return "drawn"
    return "matched and drawn" if terms.draws_rows else "matched"
