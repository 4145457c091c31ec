"""Terms in plain words, for a person who decides on them.

Guarantees: every party, column, metric, category and label value in the terms is shown in full, on lines of
at most 80 terminal columns. Every setting that differs from its default is shown, too. No name can imitate
another line or move the cursor.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, get_args

from fedboost.boosting.queries import Query
from fedboost.boosting.queries.columns import SUMMARY_BY_PARTY, groups_of
from fedboost.boosting.queries.labels import EVALUATION_BY_PARTY
from fedboost.boosting.queries.trees import BY_PARTY
from fedboost.errors import printable
from fedboost.gbdt.metrics import own_name, time_of
from fedboost.gbdt.survival import CINDEX
from fedboost.privacy.pairwise import Group
from fedboost.privacy.protections import PROTECTIONS
from fedboost.protocol.contracts import AND
from fedboost.protocol.site import HELP, OPENINGS, THRESHOLDS
from fedboost.results.site import ApprovalView, Counts, ModelOrigin, Rule
from fedboost.terms.continuation import id_of
from fedboost.terms.tasks import class_names, is_binary
from fedboost.terms.terms import Terms
from fedboost.views import document as page
from fedboost.views.words import capital, counted, delimited, entry, listed, moment

# ---- Words for people, looked up by name ----------------------------------------------------------------
# The description of a query is in its class, that of a protection in its row of the table of protections.
# Guarantees: every query that a party can answer, and every noisy release, has a description.


QUERIES: dict[str, str] = {
    **{kind.__name__: kind.description for kind in get_args(Query)},
    BY_PARTY: "model error: all rows and this site's rows",
    EVALUATION_BY_PARTY: "evaluation: all rows and this site's rows",
    SUMMARY_BY_PARTY: "row counts: all rows and this site's rows",
    HELP: "help with revealing a sum: keys, no data",
    OPENINGS: "blinded sums, decrypted for other parties",
    THRESHOLDS: "thresholds of this site's own splits",
}
"""Maps the name of a query to a description of what the answer contains."""


OF_ONE_SITE = frozenset({BY_PARTY, EVALUATION_BY_PARTY, SUMMARY_BY_PARTY})
"""Queries for metrics over only this site's rows. The aggregator sees these metrics under any protection."""


def queries_of(name: str) -> list[str]:
    """Return the names of the queries that a release answers. If several queries share a turn, the release's
    name contains all their names."""
    return name.split(AND)


OF_LABELS = frozenset(
    {
        *("RowsQuery", "StartQuery", "EndRoundQuery", "ResidualQuery", BY_PARTY),
        *("MagnitudesQuery", "EvaluationQuery"),
    }
)
OF_LABEL_HOLDER = frozenset({"PlacesQuery", "ReachQuery"})
"""Queries that a feature holder answers with zeros, because they are about labels or because the label holder
answers them for all parties."""

ENCRYPTED_SUMS = "sums over groups of rows, encrypted"
"""Description of a feature holder's answer to `HistogramQuery` if gradients are encrypted."""

RELAYED = {
    "which rows it has": "for each of {rows} requested row ids (people), whether this site has it",
    "leaf bits": "for each of {rows} requested row ids (people), which way it goes at each of this site's "
    "splits",
}
"""Maps the kind of a relay to what other parties receive. Kinds with self-explanatory names are left out."""

APPROVE = "fedboost approve terms.toml"
"""The command with which a site approves terms, as quoted in refusals."""


class TaskWords(NamedTuple):
    """Description of a task. name: the kind of session; made: its outcome; verb, work: what the parties agree
    to do, with placeholders for objective and rounds; told: what each site learns in addition to the terms,
    if the session has a result."""

    name: str
    made: str
    verb: str
    work: str
    told: str = ""


TASK_WORDS = {
    "train": TaskWords("training", "model", "to train", "{objective}, at most {rounds}"),
    "tune": TaskWords(
        "tuning",
        "result",
        "to tune",
        "{objective}, candidates in parallel, at most {rounds}",
        ", who takes part, and the trees of all candidates as they grow",
    ),
    "describe": TaskWords(
        "description",
        "description",
        "to describe",
        "rows of all parties: counts and quantiles of columns",
        ", the total number of rows, and in which ranges their values lie",
    ),
    "evaluate": TaskWords(
        "evaluation",
        "evaluation",
        "to evaluate",
        "a {objective} model on the rows of all parties",
        ", including the model, and the total number of rows",
    ),
    "drift": TaskWords(
        "drift check",
        "comparison of rows",
        "to compare",
        "rows of all parties with the training rows of a {objective} model",
        ", including the model",
    ),
    "predict": TaskWords(
        "prediction", "prediction", "to predict", "rows of the label holder, with a {objective} model"
    ),
}
"""Description of each task, in the order of the table of tasks."""

NO_METRICS = "end of a round: no metrics, no numbers"
"""Description of a round's end under terms without metrics, such as terms with noise."""

NOT_HIDDEN = "the aggregator sees each party's own counts, histograms and metric sums"
"""Warning about a protection that hides nothing, if each party has all columns."""

PREDICTION_SEEN = "relays messages that it cannot read, and learns the number of rows"
"""What the aggregator of a prediction session does and learns, under any protection."""

JOINTLY_DESCRIBED = "sees the figures that the analyst gets, and which site sends them"
JOINTLY_MEASURED = (
    "sees the exact counts and sums over the label holder's rows that the metrics are computed from"
)
JOINTLY_TOLD = (
    "learns for each of its rows which leaves of each tree the splits of each other site rule out, i.e. "
    "which way the row goes at these splits"
)
"""What the aggregator of a joint evaluation sees, and what the label holder learns from predictions."""

PLACEMENTS = {"distributed": "; each site added a share of it", "local": "; this site added it"}
"""Maps the placement of noise to the end of a sentence about the noise."""

RELAXED: dict[tuple[str, object], str] = {
    **{
        ("protections", protection.name): "THE AGGREGATOR SEES THIS SITE'S OWN NUMBERS: no mask hides them."
        for protection in PROTECTIONS.values()
        if not protection.hides
    },
    ("by_columns", True): "OTHER PARTIES LEARN ABOUT INDIVIDUAL ROWS: which of them all parties have, in a "
    "training which way they go at splits, and under plain the labels.",
    ("model", "whole"): "THE ANALYST GETS CUT POINTS OF THIS SITE'S COLUMNS: the whole model contains them.",
    (
        "evaluate",
        "any",
    ): "THE ANALYST MAY READ VALUES OF INDIVIDUAL ROWS: some leaves of the model may contain one row.",
    (
        "target_means",
        True,
    ): "THE AGGREGATOR SEES LABELS BY LEVEL: if a level has a single row, that row's label.",
    (
        "risk_sums",
        True,
    ): "OTHER SITES LEARN SUMS OVER THE ROWS AT RISK: all but one together know those of this site.",
}
"""Maps (policy rule, value to which an approval relaxes it) to an additional warning, partly in capitals."""


# ---- Terms of sessions that do not train, in plain words ------------------------------------------------
# Guarantees: the view shows what the session computes from the rows of all sites, and who receives what.


_OF_FEATURES = ("base margin", "features", "absent", "categories")
"""Keys of the lines about columns that are needed even if labels are not read."""
Entry = tuple[str, page.Line]
Lines = Sequence[Entry]
"""Lines, each with a key and a text. A line with an empty key continues the previous one."""


def _of_other_tasks(
    terms: Terms, analysts: Sequence[str], participants: Lines, origin: ModelOrigin | None = None
) -> list[Entry]:
    """Return lines that say what a session does with the rows, and who learns what from it. participants:
    lines about the parties, from `_participants`; origin: origin of the model that the session evaluates, if
    a site has examined the model."""
    does, given = {"describe": _description, "evaluate": _evaluation, "drift": _drift}[terms.task.name](terms)
    return [
        *does,
        *([] if origin is None else _origin(origin)[: 2 if terms.noise is None else 1]),
        *([("analyst", f"{listed(analysts)}: may request this session")] if analysts else []),
        ("analyst gets", f"{given}; {few_rows(terms)}"),
        *(_noise(terms) if terms.noise else []),
        *participants,
    ]


def few_rows(terms: Terms) -> str:
    """Return a clause that says which counts are left out, or how much noise counts have."""
    if terms.noise is not None:
        releases = terms.plan.releases.values()
        noise = (f"noise {each.sigma:.3g}, of a row at most {each.sensitivity:.3g}" for each in releases)
        named = (f"{each.what} ({words})" for each, words in zip(releases, noise, strict=True))
        return f"all from {' and '.join(named)}"
    return f"counts of fewer than {terms.evaluation.min_count} rows are left out"


def _description(terms: Terms) -> tuple[Lines, str]:
    is_time = terms.objective.loss.risk_sign and terms.noise is None
    of_times = "Kaplan-Meier curve with numbers at risk" if is_time else "quantiles"
    of_label = "rows of each value" if class_names(terms) else of_times
    of = "the rows that the sites have in common" if terms.blocks else "the rows of all sites together"
    does = [("describes", f"{of}; nothing is trained")]
    if terms.evaluation.level_names:
        halves = " and in ".join(f"({listed(group)})" for group in groups_of(terms.parties))
        known = f"each that at least {terms.evaluation.min_count} rows in {halves} have, even undeclared ones"
        who = "the aggregator, which adds up each group, and the analyst read them; two sites, one of each "
        who += "group, could together have any level named"
        names = f"NAMES OF LEVELS of {listed(terms.evaluation.level_names)} LEAVE THIS SITE"
        does.append(("level names", f"{names}: {known}; {who}"))
    by_site = "; FOR EACH SITE SEPARATELY, its rows, and those without a declared value of each feature"
    by_site *= terms.evaluation.party_metrics
    return does, (
        "number of rows, missing values, rows of each declared level and of other levels, quantiles of "
        f"numeric columns; for the label {delimited(terms.columns.label)}, {of_label}{by_site}"
    )


def _evaluation(terms: Terms) -> tuple[Lines, str]:
    evaluation, by = terms.evaluation, listed(terms.evaluation.subgroups)
    given = listed(terms.metrics)
    if is_binary(terms):
        given += "; ROC curve, calibration, rows by label and prediction at threshold "
        given += f"{evaluation.threshold:g}"
    elif class_names(terms):
        given += "; rows by class and predicted class"
    elif CINDEX in terms.metrics:
        given += "; survival curves by predicted risk, with numbers at risk"
    parts = [f"for each level of {by}"] * bool(by) + ["for each site separately"] * evaluation.party_metrics
    in_parts = any(time_of(name) is None for name in terms.metrics)  # survival figures are of all rows
    given += f"; also {' and '.join(parts)}" if parts and in_parts else ""
    which = {
        "all": "the rows of all sites",
        "held-out": "the rows of all sites that were held out in its training",
        "new": "the rows of all sites that were added since its training",
    }
    of = which[evaluation.evaluate_rows]
    if terms.evaluates_jointly:
        of = f"rows of {delimited(terms.vertical.label_holder or '')} that all sites have"
        if terms.vertical.rows == "label_holder":
            of = f"all rows of {delimited(terms.vertical.label_holder or '')}"
        of += f", of at most {terms.vertical.predict_rows:,} ids"
    return [("evaluates", f"a model on {of}; nothing is trained"), _measured_model(terms)], given


def _drift(terms: Terms) -> tuple[Lines, str]:
    does = "the rows of all sites, taken together, to the training rows of a model; labels are not read"
    return [
        ("compares", does),
        _measured_model(terms),
    ], "number of rows in each bin of each column and of the score"


def _measured_model(terms: Terms) -> tuple[str, str]:
    if terms.evaluates_jointly and terms.vertical.predict_with is not None:
        return "model", f"{terms.vertical.predict_with}: each party's own part of it"
    trees = terms.earlier.trees if terms.earlier else ()
    leaves = sum(len(tree.leaves) for tree in trees)
    parts = f"{len(trees)} trees with {leaves:,} leaves, which are part of the terms"
    return "model", f"{delimited(terms.objective.name)}, {parts}"


def _origin(origin: ModelOrigin) -> Lines:
    """Return lines that say who signed the model, and what its leaves could reveal."""
    signed = f"{listed(origin.others)}, whose signature this site accepts (evaluate_signers)"
    if origin.own:
        signed = "this site, which took part in its training"
    elif origin.unknown:
        signed = f"unknown: {origin.unknown}"
    elif not origin.others:
        signed = "neither this site nor a party whose signature it accepts (evaluate_signers)"
    leaves = f"each leaf of its trees has at least {origin.rows} training rows"
    if origin.rows == 1:
        leaves = (
            "some leaves of this model may contain a single row; the analyst can learn the values of at most "
            f"{origin.readable:,} individual people per session"
        )
    return [("signed by", signed), ("leaves", leaves)]


# ---- Terms in plain words, for a person who decides on them ---------------------------------------------


IN_LINES = {
    *("columns", "parties", "objective", "objective_package", "rounds", "max_depth", "min_child_weight"),
    *("max_bin", "num_class", "vote_top_k", "eval_metric", "party_metrics", "xgb_model"),
    *("validation_fraction", "protection", "keyholder", "noise", "program", "label_holder", "blocks"),
    *("rows", "min_common_rows", "max_ids", "repeated_ids", "id_form", "model"),
    *("predict_with", "predict_rows", "min_count", "candidates", "subgroups", "threshold", "reference"),
    *("evaluate_rows", "subsample", "level_names"),
}
"""Settings that have their own lines. Others are listed if they differ from their defaults."""


WHO_LEARNS_WHAT, COLUMNS = "Who learns what", "Columns"
"""Titles of groups of lines."""


_TELL_ROWS = "validation", "row_id", "group"
"""Roles of columns that may determine which rows a training holds out."""


def columns_by_role(terms: Terms, party: str = "") -> dict[str, tuple[str, ...]]:
    """Return role -> columns with this role in the terms. party: if parties hold different columns, return
    only the columns of this party ("" for all). If held-out rows are measured, the columns of the training
    that tell which rows these are count, too."""
    columns = terms.blocks.columns_of(party)
    drawn = terms.trained if terms.evaluation.evaluate_rows == "held-out" else None
    trained = {} if drawn is None else {role: getattr(drawn.columns, role) for role in _TELL_ROWS}
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
    for role, name in others.items():
        if names := (*dict.fromkeys(filter(None, (name, trained.get(role)))),):
            roles[role] = names
    return roles


def columns_of(terms: Terms) -> tuple[str, ...]:
    """Return all columns that a session under the terms uses."""
    columns = terms.task.read(terms.columns)
    return (*columns.others, *columns.features)


def summary(terms: Terms, analysts: Sequence[str] = (), origin: ModelOrigin | None = None) -> str:
    """Return the complete terms in plain words, for a person who decides on them. analysts: analysts who may
    use the terms, if known; origin: origin of the model that the session evaluates, if a site has examined
    the model."""
    lines = (line for _, group in groups(terms, analysts, None, origin) for line in group)
    return "\n".join(entry(key, page.plain(line)) for key, line in (("terms", terms.digest), *lines))


def groups(
    terms: Terms,
    analysts: Sequence[str] = (),
    counts: Counts | None = None,
    origin: ModelOrigin | None = None,
) -> list[tuple[str, Lines]]:
    """Return the terms in plain words, as titled groups of lines: who learns what, the model, the columns.
    All names are included, and all settings that differ from their defaults.

    Args:
        analysts: analysts who may use the terms, if known.
        counts: row counts of the site, shown next to the categories, if known.
        origin: origin of the model that the session evaluates, if a site has examined the model.
    """
    columns = [*_columns(terms), *_categories(terms, counts)]
    if not terms.task.by_analyst:
        row_id = f"{delimited(terms.columns.row_id or '')}: the id by which rows are matched"
        return [(WHO_LEARNS_WHAT, _prediction(terms)), (COLUMNS, [("row id", row_id), _features(terms)])]
    if not terms.task.trains:
        columns = [line for line in columns if line[0] in _OF_FEATURES or terms.task.reads_labels]
        participants = _of_joint_counts(terms) if terms.counts_jointly else _participants(terms)
        return [
            (WHO_LEARNS_WHAT, _of_other_tasks(terms, analysts, participants, origin)),
            (COLUMNS, columns),
        ]
    get = "gets" if len(analysts) == 1 else "get"
    model = "the structure of the model" if terms.keeps_parts else "the model"
    model = "the best settings" if terms.task.takes_candidates else model
    model += " and the metrics" if terms.metrics else ""
    analyst = [("analyst", f"{listed(analysts)}: {get} {model}")] if analysts else []
    return [
        (WHO_LEARNS_WHAT, [*analyst, *_participants(terms)]),
        ("Model and settings", [*_model(terms), *_noise(terms), *_metrics(terms)]),
        (COLUMNS, columns),
    ]


def _prediction(terms: Terms) -> list[Entry]:
    """Return lines that say what a joint prediction does, and who learns what from it."""
    vertical = terms.vertical
    return [
        (
            "predicts",
            f"{vertical.predict_rows:,} rows of {delimited(vertical.label_holder or '')}; nothing is trained",
        ),
        ("model", f"{vertical.predict_with}: each party's own part of it"),
        *_of_predicted(terms, "requests the session with its own certificate"),
        ("aggregator", PREDICTION_SEEN),
    ]


def _of_predicted(terms: Terms, holder_does: str) -> list[Entry]:
    """Return lines about the parties of a joint prediction or evaluation, and what the label holder learns.
    holder_does: what the label holder does besides."""
    return [*_of_matched(terms), ("label holder", f"{holder_does}; {JOINTLY_TOLD}")]


def _of_matched(terms: Terms) -> list[Entry]:
    return [
        ("parties", f"{len(terms.parties)}: {listed(terms.parties)}"),
        ("columns held", _listed(terms.columns.held)),
        ("rows", rows_of_blocks(terms)),
    ]


def _of_joint_counts(terms: Terms) -> list[Entry]:
    """Return lines about the parties of a joint description or evaluation, and who learns what."""
    epsilon = terms.vertical.label_epsilon
    noise = "" if epsilon is None else f", from labels with noise (label_epsilon = {epsilon:g})"
    if terms.task.counts_values:
        figures = f"computes what the analyst gets about its own columns{noise}; sends that and blinded ids"
        return [*_of_matched(terms), ("each site", figures), ("aggregator", JOINTLY_DESCRIBED)]
    return [
        *_of_predicted(terms, f"alone computes all counts and sums{noise}"),
        ("other sites", "tell the label holder this, and answer with zeros otherwise; learn no label"),
        (
            "aggregator",
            f"{JOINTLY_MEASURED}, not only the coarse figures that the analyst gets; cannot read what the "
            f"sites tell each other",
        ),
    ]


def _listed(held: Mapping[str, Sequence[str]], verb: str = "has") -> tuple[page.Inline, ...]:
    """Return a line that lists columns of each party."""
    parts = [
        part
        for party, names in held.items()
        for part in ("; ", f"{delimited(party)} {verb} ", page.Names(names))
    ]
    return tuple(parts[1:])


def _features(terms: Terms) -> Entry:
    features = terms.columns.features
    return "features", (f"{len(features)}: ", page.Names(features))


def _participants(terms: Terms) -> list[Entry]:
    holders, keyholder = len(terms.holders), terms.keyholder
    parties = f"{len(terms.parties)}: {listed(terms.parties)}"
    if keyholder is not None:
        parties += f"; {delimited(keyholder)} decrypts sums" + (
            " and has no rows" if holders < len(terms.parties) else ""
        )
    if terms.session.on_loss == "shrink":
        parties += f"; if some are lost, the session continues with at least {terms.min_roster}"
    hidden = terms.evaluation.party_metrics and terms.protection.hides
    seen = [f"the {'counts' if terms.task.counts_values else 'metrics'} of any one site"] * hidden
    columns, trees = terms.columns, terms.task.trains
    alone = [site for site in columns.absent if columns.group_of(site, terms.holders, trees) == 1]
    if columns.absent and terms.protection.hides:
        some = f"{listed(alone)} alone" if alone else "only the parties that have, or lack, a column"
        seen.append(f"sums over {some}")
    excepted = f", except {' and '.join(seen)}" if seen else ""
    return [
        ("parties", parties),
        (
            "protection",
            terms.hiding.protection
            + (f", keys of {terms.hiding.key_bits} bits" if terms.protection.uses_key_holder else ""),
        ),
        ("aggregator", f"sees {terms.protection.aggregator_observes}{excepted}"),
        *_other_sites(terms),
        (
            "colluders",
            _colluders(terms)
            + ("; not for sums over only some parties" if columns.absent else "")
            + ("; a session of only two parties is allowed" if terms.hiding.allow_two_parties else ""),
        ),
    ]


def _other_sites(terms: Terms) -> list[Entry]:
    """Return lines that say what other sites see."""
    if not terms.blocks:
        told = TASK_WORDS[terms.task.name].told
        model = "see the model as it grows: every split, every leaf value"
        model += ", and the rounded risks by time" * terms.sums_risk
        told = told if terms.noise is None else told.removesuffix(", and the total number of rows")
        return [("other sites", f"see the terms{told}" if told else model)]
    lines: list[Entry] = []
    for block in terms.blocks:
        labels = f"label holder {delimited(block.label_holder)} has the labels; for the same rows, "
        held = _listed({party: terms.columns.held[party] for party in block.feature_holders})
        lines.append(("columns held", (labels, *held)))
    return [
        *lines,
        ("rows", rows_of_blocks(terms)),
        ("label holder", _label_holder(terms)),
        (
            "other sites",
            "see which of the rows that they share go left at each split, but no leaf values; "
            + (
                "each keeps its own part of the model"
                if terms.keeps_parts
                else f"the analyst sees {'the metrics' if terms.task.takes_candidates else 'the whole model'}"
            ),
        ),
    ]


def _label_holder(terms: Terms) -> str:
    """Describe what a label holder sends and sees."""
    loud = "SENDS EVERY ROW'S GRADIENT, WHICH REVEALS ITS LABEL,"
    sends = "sends every row's gradient, encrypted," if terms.hides_columns else loud
    sees = "sees which rows go left at each of their splits"
    sees += f"; also {JOINTLY_TOLD} of the model that is continued" if terms.earlier else ""
    return f"{sends} to the other parties that hold its rows; {sees}"


def _colluders(terms: Terms) -> str:
    """Describe what the aggregator and colluding parties learn together."""
    if terms.hides_columns:
        return (
            "the aggregator and the label holder together learn the other sites' columns, bin by bin; the "
            "aggregator and another site together learn the labels; no party should run the aggregator"
        )
    if not terms.protection.hides:
        return "the aggregator sees this site's numbers without colluding with anyone"
    key_holder, group = terms.protection.uses_key_holder, Group.of(terms.parties, terms.hiding.colluding)
    if not group.colluding:
        holder = " and the key holder" if key_holder else ""
        return f"if another site colludes with the aggregator{holder}, they can learn this site's numbers"
    others = "1 other site" if group.colluding == 1 else f"up to {group.colluding} other sites"
    first = "; the key holder counts as the first of them" if key_holder else ""
    return f"{others} may collude with the aggregator without learning this site's numbers{first}"


def _model(terms: Terms) -> list[tuple[str, str]]:
    model = (
        delimited(terms.objective.name)
        + (f" of {delimited(terms.objective.package)}" if terms.objective.package else "")
        + f", {counted(terms.trees.rounds, 'round')} of depth {terms.trees.max_depth}"
        + (f", {len(terms.roots)} trees each" if len(terms.roots) > 1 else "")
        + (f", continuing a model of {len(terms.earlier.trees)} trees" if terms.earlier else "")
        + (f", {id}, of which each party has its own part" if (id := id_of(terms.xgb_model)) else "")
        + ("" if terms.session.is_built_in else f", using the program {delimited(terms.session.program)}")
    )
    settings = [f"min_child_weight {terms.trees.min_child_weight:g}", f"max_bin {terms.histograms.max_bin}"]
    if terms.draws.draws_for_trees:
        drawn = terms.draws
        share = "this fraction" if drawn.share_drawn == drawn.subsample else f"about {drawn.share_drawn:.2g}"
        settings.append(f"subsample {drawn.subsample} (each tree is trained on {share} of the rows)")
    if terms.histograms.vote_top_k:
        settings.append(f"vote_top_k {terms.histograms.vote_top_k}: parties vote for features")
    settings += _other_settings(terms)
    candidates = terms.objective.candidates
    tried = "; ".join(", ".join(f"{name} {value:g}" for name, value in each.items()) for each in candidates)
    trials = [("candidates", f"{len(candidates)}, trained in parallel: {tried}")] if candidates else []
    return [("model", model), ("settings", ", ".join(settings)), *trials]


def _other_settings(terms: Terms) -> list[str]:
    """Return the settings without lines of their own that differ from their defaults."""
    changed = terms.model_dump(mode="json", exclude_defaults=True)
    columns = changed["columns"]
    others = {name: value for name, value in changed.items() if name not in IN_LINES}
    others |= {f"columns.{name}": columns[name] for name in ("ranges", "label_range") if name in columns}
    return [f"{name} {printable(json.dumps(value, ensure_ascii=False))}" for name, value in others.items()]


def _noise(terms: Terms) -> list[tuple[str, str]]:
    if terms.noise is None:
        return [("noise", "none: the model, and sums over few rows, reveal something about these rows")]
    noise, releases = terms.noise, terms.plan.releases.values()
    sums = ", ".join(f"{release.what} ({counted(release.times, 'time')})" for release in releases)
    strength = f"epsilon {noise.epsilon:g} at delta {noise.delta:g} for every single row, over {sums}"
    return [("noise", f"{strength}; {noise.placement}: added at this site, before anything leaves it")]


def _metrics(terms: Terms) -> list[tuple[str, str]]:
    if not terms.metrics:
        return [("metrics", "none")]
    rows = "the rows of all parties" + ", and of each party separately" * terms.evaluation.party_metrics
    names = listed(dict.fromkeys(map(own_name, terms.metrics))) + " of each candidate" * bool(
        terms.objective.candidates
    )
    lines = [("metrics", f"{names}; after each round, over {rows}")]
    if terms.evaluation.reference and terms.task.makes_model:
        lines += [
            (
                "reference",
                f"after the last round, number of rows in each bin of each column and of the score; "
                f"{few_rows(terms)}",
            )
        ]
    return lines


_ROLES = {
    "upper bound": ("label_upper_bound", ": the upper bound of the label"),
    "weight": ("weight", ""),
    "base margin": ("base_margin", ": the margin from which boosting starts"),
    "group": ("group", ": rows that are ranked against each other"),
    "row id": ("row_id", ": the id by which rows are {ids}"),
    "validation": ("validation", ": 1 marks rows for metrics only"),
}
"""Columns other than the label and the features: key of the line -> (role, description)."""


def _columns(terms: Terms) -> list[Entry]:
    columns, classes = terms.columns, terms.objective.num_class
    lines: list[Entry] = [("label", delimited(columns.label) + (f", {classes} classes" if classes else ""))]
    for key, (role, words) in _ROLES.items():
        if name := getattr(columns, role):
            lines.append((key, delimited(name) + words.format(ids=use_of_ids(terms))))
    if terms.evaluation.validation_fraction:
        lines.append(
            ("validation", f"{terms.evaluation.validation_fraction:g} of the rows, for metrics only")
        )
    if columns.positive is not None:
        lines.append(("positive", f"{delimited(columns.positive)}: the label value that is read as 1"))
    if columns.classes:
        lines.append(("classes", page.Names(columns.classes)))
    for name, levels in terms.task.read(columns).subgroups.items():
        lines.append(("subgroup", (f"{delimited(name)}, not a feature: ", page.Names(levels))))
    if columns.target_means:
        lines.append(("target means", _target_means(terms)))
    if terms.sums_risk:
        lines.append(("risk sets", _risk_sets(terms)))
    lines.append(_features(terms))
    if columns.absent:
        lines.append(("absent", (*_listed(columns.absent, "lacks"), "; these values count as missing")))
    return lines


def _risk_sets(terms: Terms) -> str:
    return (
        "each round sums the risks (e**margin) of the rows by time, in intervals of at least "
        f"{terms.evaluation.min_count} events. The aggregator sees these sums, each site about three digits"
    )


def _target_means(terms: Terms) -> str:
    """Describe what target means (mean labels by category) reveal, and to whom."""
    named = ", ".join(
        f"{delimited(name)} in {buckets} buckets" for name, buckets in terms.columns.target_means.items()
    )
    if not terms.task.trains:
        return f"{named}: taken from the model"
    if terms.noise is not None:
        return f"{named}: noise is added to the sums of labels by level"
    return (
        f"{named}: the aggregator sees sums of labels by level and fold; the model contains the mean of each "
        f"level of {terms.evaluation.min_count} rows or more"
    )


def _categories(terms: Terms, counts: Counts | None) -> list[Entry]:
    """Return lines with the categories of each categorical feature and, if `counts` are known, the number of
    rows of each category and of each value of the label."""
    columns, known, marked = terms.columns, (counts.categories if counts else None) or {}, _marked(counts)
    lines: list[Entry] = [
        ("categories", (f"{delimited(name)}: ", page.Names(categories)))
        for name, categories in columns.categorical.items()
        if name not in known
    ]
    for name in (columns.label, *columns.categorical):
        if counts is not None and (rows := known.get(name)):
            few = {value for column, value in marked if column == name}
            order = (
                sorted(rows, key=lambda value: value not in few) if len(rows) > page.MAX_NAMES else [*rows]
            )
            remarks = [f" {rows[value]}{' (!)' * (value in few)}" for value in order]
            missing = counts.undeclared.get(name, 0)
            others = "; 1 row with another category is treated as missing"
            if missing > 1:
                others = f"; {missing} rows with other categories are treated as missing"
            key = "label, rows" if name == columns.label else "categories"
            lines.append((key, (f"{delimited(name)}: ", page.Names(order, remarks), others * (missing > 0))))
    if counts is not None and marked:
        few_here = (
            f"(!) fewer than {counts.few} rows at this site: sums for this value are about these few rows"
        )
        lines.append(("", few_here))
    return lines


def _marked(counts: Counts | None) -> dict[tuple[str, str], int]:
    """Return (column, value) -> number of rows, for the values that only a few rows have."""
    known = (counts.categories if counts else None) or {}
    rows = {(name, value): n for name, values in known.items() for value, n in values.items()}
    return {key: n for key, n in rows.items() if counts is not None and 0 < n < counts.few}


# ---- What training does not hide about each party, from the aggregator and from each other --------------
# Guarantees: if every party learns all labels, that comes first, in capitals.


def not_hidden(terms: Terms) -> str:
    """Describe what others see of each party's values under terms whose protection does not hide them."""
    if not terms.blocks:
        return NOT_HIDDEN
    if terms.counts_jointly and terms.task.counts_values:
        return f"the aggregator {JOINTLY_DESCRIBED}"
    if terms.evaluates_jointly:
        return f"the aggregator {JOINTLY_MEASURED}; the label holder {JOINTLY_TOLD}"
    return _encrypted(terms) if terms.hides_columns else _plain(terms)


def _encrypted(terms: Terms) -> str:
    sums = _sums(terms, "which show a single row's gradient only if the row is alone in a bin")
    learn = "feature holders learn which rows go left, but no gradients"
    return f"the aggregator sees {sums}; {learn}"


def _plain(terms: Terms) -> str:
    labels = "ALL LABELS"
    if len(terms.blocks) > 1:
        labels += " OF ITS ROWS"
    if terms.vertical.label_epsilon is not None:
        labels += " WITH NOISE ADDED"
    sums = _sums(terms, "which show a single row's gradient if the row is alone in a bin")
    return (
        f"EVERY PARTY LEARNS {labels}; the aggregator sees how many rows lie in each interval of every "
        f"column, {sums}, and the metrics"
    )


def _sums(terms: Terms, alone: str) -> str:
    """Describe which sums of gradients the aggregator sees. alone: what the sums show about a single row if
    min_rows_per_bin does not set a minimum."""
    fewest = terms.vertical.min_rows_per_bin
    sums = f"sums of gradients by bin, {alone}"
    if fewest > 1:
        sums = f"sums of gradients over groups of bins, each with at least {fewest} rows or none"
    if terms.objective.loss.quantile is None:
        return sums
    return f"{sums}, and for each leaf the number of rows by size of the residual"


# ---- What a person at a site decides on -----------------------------------------------------------------
# Guarantees: rules that the terms break come first, each with the reason, its purpose, and a change of the
# terms that would satisfy it. All names are included; a terminal shows all of a long list only on request.


MAX_LEVELS_SHOWN = 5
"""Maximum number of categorical columns whose levels are shown unfolded."""


def approval(view: ApprovalView) -> page.Document:
    """Return the document that a person at a site reads to decide on terms."""
    blocks: list[page.Block] = [_verdict(view)]
    if view.rules:
        blocks.append(page.Entries([line for rule in view.rules for line in _rule(rule)]))
    if view.notes:
        blocks.append(page.Items(view.notes, warnings=True))
    if view.earlier is not None:
        blocks.append(page.Paragraph(_earlier(*view.earlier, view.analysts)))
    blocks.append(page.Section("site", "This site", [page.Entries([*_site(view)])]))
    for title, lines in groups(view.terms, view.analysts, view.counts, view.origin):
        of_title = _of_columns(lines, view.counts) if title == COLUMNS else [page.Entries(lines)]
        blocks.append(page.Section(title.split()[0].lower(), title, of_title))
    blocks.append(
        page.Section("digest", "Digest of the terms", [page.Paragraph(page.Code(view.terms.digest))])
    )
    return page.Document(f"Terms for {view.party}", f"terms {view.terms.digest}", blocks)


def _verdict(view: ApprovalView) -> page.Verdict:
    broken = f"The terms break {counted(len(view.rules), 'rule')} of this site's policy."
    loud = [rule.loud for rule in view.rules if rule.loud]
    if view.fault:
        why = capital(view.fault) + ("" if view.fault.endswith(".") else ".")
        more = [why, *([broken] if view.rules else []), *loud]
        return page.Verdict("No approval can allow these terms.", "bad", more)
    if view.rules:
        them = "it" if len(view.rules) == 1 else "them"
        return page.Verdict(broken, "bad", [*loud, f"An approval relaxes {them} for these terms only."])
    pins = "An approval covers exactly the parties, analysts and columns that they name."
    return page.Verdict("The terms break no rule of this site's policy.", "good", [pins])


def _rule(rule: Rule) -> Iterator[Entry]:
    yield f"{rule.key} = {rule.value}", f"{capital(rule.reason)}."
    if rule.names:
        yield (
            "",
            page.Shortened(f"All {len(rule.names)} names …", f"All {len(rule.names)}: {listed(rule.names)}."),
        )
    yield "", f"Purpose of the rule: {rule.purpose}."
    if rule.instead:
        yield "", f"If you refuse, the analyst can change the terms: {rule.instead}."


def _earlier(time: str, kept: Sequence[str], analysts: Sequence[str]) -> str:
    """Return a sentence about the existing approval, and about the analysts that a new approval would add."""
    text = f"Approved on {moment(time)}" + (f" for {listed(kept)}" if kept else "")
    added = [name for name in analysts if name not in kept]
    return f"{text}; a new approval adds {listed(added)}." if added else f"{text}."


def _site(view: ApprovalView) -> Iterator[Entry]:
    counts = view.counts
    if counts is None:
        yield "this site", view.party
    else:
        yield "this site", f"{view.party}, {counted(counts.rows, 'row')} of {counts.file}"
        if counts.categories is None:
            yield (
                "workers",
                "only the columns were checked; use `fedboost check` with --terms to check the rows",
            )
    if view.adders:
        seen = (
            ""
            if view.terms.protection.hides
            else "; THEY SEE THIS SITE'S OWN NUMBERS, as the aggregator does"
        )
        yield "through", f"adders {listed(view.adders)}{seen}"
    if view.renamed:
        yield "its columns", view.renamed
    if view.predicted is None or view.terms.task.trains:
        yield "sessions", "{} of {} used (max_sessions)".format(*view.sessions)
    if view.predicted is not None:
        used, most = view.predicted
        yield "predictions", f"{used:,} of {most:,} rows used (max_predicted_rows)"
    noise = view.terms.noise
    if view.budget is not None and noise is not None:
        left, epsilon, delta = view.budget
        asked = f"these terms need {noise.epsilon:g} at delta {noise.delta:g}"
        yield "budget", f"epsilon {left:.4g} of {epsilon:g} at delta {delta:g} is left; {asked}"


def _of_columns(lines: Lines, counts: Counts | None) -> Sequence[page.Block]:
    """Return the blocks about columns. If many columns are categorical, their levels are folded, and values
    with few rows are listed first."""
    levels = [line for line in lines if line[0] == "categories"]
    if len(levels) <= MAX_LEVELS_SHOWN:
        return [page.Entries(lines)]
    shown = [line for line in lines if line[0] not in ("categories", "")]
    folded = page.Section(
        "levels", f"Levels of {len(levels)} categorical columns", [page.Entries(levels)], folded=True
    )
    if marked := _marked(counts):
        names = page.Names([": ".join(key) for key in marked], [f" {rows}" for rows in marked.values()])
        shown.append(("few rows", (f"{counted(len(marked), 'value')} with few rows at this site: ", names)))
    return [page.Entries(shown), folded]


# ---- Matched rows of parties with different columns, in words -------------------------------------------


def rows_of_blocks(terms: Terms) -> str:
    """Describe how the rows of the parties are matched, and who learns what from the matching."""
    if not terms.vertical.aligns:
        return "all rows of all tables, which are in the same order"
    vertical, name = terms.vertical, delimited(terms.columns.row_id or "")
    sites = "all sites of a block" if len(terms.blocks) > 1 else "all sites"
    form = {"digits": " (compared by digits only)", "lower": " (compared in lower case)"}.get(
        vertical.id_form or "", ""
    )
    if vertical.takes_all_rows:
        holder = delimited(vertical.label_holder or "")
        return (
            f"all rows of label holder {holder}, matched by {name}{form}; if another site does not have a "
            f"row, its columns are treated as missing, and {holder} learns which rows these are; each other "
            f"site must have at least {vertical.fewest_common_rows:,} of the rows, and learns which of its "
            f"own rows these are; a site may enter at most {vertical.most_ids:,} ids; the aggregator learns "
            f"how many ids each site has, and how many are common to which sites{_repeats(terms)}"
        )
    return (
        f"rows whose {name} {sites} have{form}, at least {vertical.fewest_common_rows:,}; a site may enter "
        f"at most {vertical.most_ids:,} ids, and learns which of them all others have; the aggregator learns "
        f"how many ids each site has, and how many are common to which sites{_repeats(terms)}"
    )


def _repeats(terms: Terms) -> str:
    """Return a clause about repeated ids of the label holder, or "" if ids are unique."""
    if not terms.vertical.repeated_ids:
        return ""
    if not terms.task.trains:
        return "; the label holder may have several rows per id"
    return "; the label holder may have several rows per id, and each other site learns how many for each"


def use_of_ids(terms: Terms) -> str:
    """Return how the row ids are used: "matched", "drawn" or "matched and drawn"."""
    if not terms.vertical.aligns:
        return "drawn"
    return "matched and drawn" if terms.draws_rows else "matched"
