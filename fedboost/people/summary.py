"""Terms in plain words, for a person who decides on them.

Promises: every party, column, metric, category and label value that the terms name is shown, whole, within 80
columns, and every setting that is not its default; no name can pose as another line or move the cursor.
Refuses: nothing.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedboost.errors import printable
from fedboost.gbdt.metrics.registry import own_name
from fedboost.people.common_rows import rows_of_blocks, use_of_ids
from fedboost.people.facts import OriginFacts
from fedboost.people.other_tasks import few_rows, of_other_tasks
from fedboost.people.text import delimited, entry, listed
from fedboost.people.words import PREDICTION_SEEN
from fedboost.privacy.masked.keys import Group
from fedboost.terms.session import TO_TRAIN, TO_TUNE, TRAINING
from fedboost.terms.terms import Terms

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
    read = terms.session.read(terms.columns)
    columns = read.unlabelled() if terms.vertical.predicts else read
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
    if terms.vertical.predicts:
        return [("terms", terms.digest), *_prediction(terms)]
    if terms.task not in TRAINING:
        shown = _participants(terms), [*_columns(terms), *_categories(terms, counts)]
        return of_other_tasks(terms, analysts, *shown, origin)
    get = "gets" if len(analysts) == 1 else "get"
    model = "the structure of the model" if terms.keeps_parts else "the model"
    model = "the settings that are best" if terms.task == TO_TUNE else model
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
        + (
            ""
            if terms.session.program in ("boosting", TO_TUNE)
            else f", by the program {delimited(terms.session.program)}"
        )
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
        *([("reference", reference)] if terms.evaluation.reference and terms.task == TO_TRAIN else []),
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
    for name, levels in terms.session.read(columns).subgroups.items():
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
    if terms.task != TO_TRAIN:
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
