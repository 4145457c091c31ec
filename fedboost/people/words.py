"""Words for people, looked up by name; those of a query stand in its class, of a protection in its row of the
table of protections.

Promises: every question that a party can answer, and every release of noise, has its words.
Refuses: nothing; a name that is not here comes from another version.
"""

from typing import get_args

from fedboost.boosting.queries.labels import EVALUATION_BY_PARTY
from fedboost.boosting.queries.trees import BY_PARTY
from fedboost.boosting.queries.union import Query
from fedboost.privacy.protections import PROTECTIONS
from fedboost.protocol.several import AND
from fedboost.protocol.site import HELP, OPENINGS, THRESHOLDS
from fedboost.terms.noise import CUT_POINTS, LEVELS, START, SUMMARY, TREES
from fedboost.terms.session import TO_DESCRIBE, TO_DRIFT, TO_EVALUATE, TO_PREDICT, TO_TRAIN, TO_TUNE

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
    TO_TRAIN: "model",
    TO_PREDICT: "prediction",
    TO_DESCRIBE: "description",
    TO_EVALUATE: "evaluation",
    TO_DRIFT: "comparison of rows",
    TO_TUNE: "result",
}
"""What a session ends with, by what it does."""

NO_METRICS = "end of a round: no metrics, no numbers"
"""The end of a round where the terms want no metrics, as those with noise do."""

NOT_HIDDEN = "the aggregator sees each party's own counts, histograms and metric sums"
"""A warning about protections that hide nothing, where each party has all columns."""

PREDICTION_SEEN = "passes on what it cannot read, and learns how many rows there are"
"""What the aggregator of a prediction does and learns, whatever protection the terms name."""

RELEASES = {
    CUT_POINTS: "rows",
    SUMMARY: "rows",
    LEVELS: "gradients",
    START: "gradients",
    TREES: "gradients",
}
"""The unit that the noise of a release is stated in, by release."""

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
