"""A site's own policy, the `[policy]` table of party.toml: its rules, and which terms break them.

Promises: `permit` is asked before any row is read, whatever the aggregator says of the terms; every rule is
checked against the terms and the signers of a model in them alone, and a person is asked last, about terms
that every other rule allows. Until a site names parties, analysts and columns, or approves terms (`fedboost
approve`), nothing is allowed.
Refuses: terms that break a rule, with one sentence that names the site, the key, its value and what to do
(Refused). The names a site allows stay at the site: they are in the error's `detail`.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from fedboost.errors import Refused, quoted
from fedboost.gbdt.metrics import EDGES, is_at_threshold, own_name
from fedboost.gbdt.objectives.registry import OBJECTIVES
from fedboost.gbdt.tree import NO_CHILD
from fedboost.privacy.pairwise import Group
from fedboost.protocol.site import Limits, splits_by
from fedboost.results.site import ModelOrigin
from fedboost.runtime.site.policy_keys import (
    COMMAND,
    MAX_ROWS_PER_LEAF,
    MIN_ROWS_PER_BIN,
    Breach,
    ColumnRules,
    PolicyKeys,
    allowing,
    beyond,
    brackets,
    choices,
    not_among,
    not_chosen,
)
from fedboost.terms.tasks import rows_readable
from fedboost.terms.terms import Terms, have_folds
from fedboost.views.approval import columns_by_role, summary
from fedboost.views.words import delimited

# ---- Rules for parties that hold different columns, and for joint predictions ---------------------------
# Promises: every rule is checked against the terms and the name of this site in them alone. What the label
# holder asks of others is no rule for the label holder's own site, and the other way round.


RuleByColumns = Callable[[PolicyKeys, Terms, str], Breach | None]


def _helps(terms: Terms, party: str) -> bool:
    """True for a feature holder: another party has the labels of its rows."""
    return not terms.blocks.has_labels(party)


def _label_holders(policy: PolicyKeys, terms: Terms, party: str) -> Breach | None:
    block = terms.blocks.of(party)
    if block is None or policy.label_holders == "any" or not _helps(terms, party):
        return None
    return not_among("label_holders", policy.label_holders, (block.label_holder,))


def _by_columns(policy: PolicyKeys, terms: Terms, party: str) -> Breach | None:
    if policy.by_columns:
        return None
    why = f"the terms have {terms.vertical.key}"
    return Breach("by_columns", "false", why, "give every party all columns", True)


def _rows(policy: PolicyKeys, terms: Terms, party: str) -> Breach | None:
    rows = terms.vertical.rows or "common"
    if not _helps(terms, party) or rows in policy.rows:
        return None
    return not_chosen("rows", policy.rows, "rows", rows)


def _min_common_rows(policy: PolicyKeys, terms: Terms, party: str) -> Breach | None:
    rows, limit = terms.vertical.fewest_common_rows, policy.min_common_rows
    if not terms.vertical.aligns or rows >= limit:
        return None
    why = f"the terms are content with {rows:,} rows in common"
    return Breach("min_common_rows", str(limit), why, f"set min_common_rows = {limit}", rows)


def _min_common_rows_of_prediction(policy: PolicyKeys, terms: Terms, party: str) -> Breach | None:
    breach = _min_common_rows(policy, terms, party)
    return breach and replace(breach, instead=f"--min-common-rows {policy.min_common_rows}")


def _repeated_ids(policy: PolicyKeys, terms: Terms, party: str) -> Breach | None:
    if policy.repeated_ids or not terms.vertical.repeated_ids:
        return None
    why = "the terms have repeated_ids = true"
    return Breach("repeated_ids", "false", why, "keep one row of each id", True)


def _max_foreign_ids(policy: PolicyKeys, terms: Terms, party: str) -> Breach | None:
    ids, limit = terms.vertical.most_ids, policy.max_foreign_ids
    if not terms.vertical.aligns or ids <= limit:
        return None
    return beyond("max_ids", ids, "max_foreign_ids", limit)


def _max_predicted_rows(policy: PolicyKeys, terms: Terms, party: str) -> Breach | None:
    rows, limit = terms.vertical.predict_rows or 0, policy.max_predicted_rows
    if rows <= limit or not _helps(terms, party):
        return None
    if limit:
        why, instead = f"the terms have predict_rows = {rows}", f"predict at most {limit}"
        return Breach("max_predicted_rows", str(limit), why, instead, rows)
    why = f"the terms predict {rows} rows with this site's columns: predictions are off here"
    return Breach("max_predicted_rows", "0", why, "", rows)


def _max_splits(policy: PolicyKeys, terms: Terms, party: str) -> Breach | None:
    splits, limit = splits_by(terms, party), policy.max_splits
    if splits <= limit:
        return None
    alone = terms.vertical.alone_rounds
    rounds = alone + limit * (terms.trees.rounds - alone) // splits
    why = f"the terms could have {splits:,} splits by its columns"
    instead = f"set rounds = {rounds}" if rounds > alone else "set a lower max_depth"
    return Breach("max_splits", str(limit), why, instead, splits)


def _model(policy: PolicyKeys, terms: Terms, party: str) -> Breach | None:
    if not terms.hides_columns or terms.keeps_parts or policy.model == "whole":
        return None
    why = 'the terms have model = "whole", which gives the analyst the thresholds of all columns'
    return Breach("model", '"parties"', why, 'set model = "parties"', "whole")


def _min_alone_rounds(policy: PolicyKeys, terms: Terms, party: str) -> Breach | None:
    rounds, limit = terms.vertical.alone_rounds, policy.min_alone_rounds
    if rounds >= limit or _helps(terms, party):
        return None
    why = f"the terms have alone_rounds = {rounds}"
    return Breach("min_alone_rounds", str(limit), why, f"set alone_rounds = {limit}", rounds)


def _max_label_epsilon(policy: PolicyKeys, terms: Terms, party: str) -> Breach | None:
    epsilon, limit = terms.vertical.label_epsilon, policy.max_label_epsilon
    if limit is None or _helps(terms, party):
        return None
    if epsilon is not None and epsilon <= limit:
        return None
    why = "no noise goes on labels" if epsilon is None else f"the terms have label_epsilon = {epsilon:g}"
    return Breach("max_label_epsilon", f"{limit:g}", why, f"set label_epsilon = {limit:g}", epsilon)


def _min_rows_per_bin(policy: PolicyKeys, terms: Terms, party: str) -> Breach | None:
    rows, limit = terms.vertical.min_rows_per_bin, policy.min_rows_per_bin
    if limit is None:
        limit = MIN_ROWS_PER_BIN if terms.hides_columns else 1
    if rows >= limit:
        return None
    why = f"the terms have min_rows_per_bin = {rows}" if rows > 1 else "the terms let a bin have one row"
    return Breach("min_rows_per_bin", str(limit), why, f"set min_rows_per_bin = {limit}", rows)


BY_COLUMNS: dict[str, tuple[RuleByColumns, ...]] = {
    "train": (
        *(_label_holders, _by_columns, _rows, _min_common_rows, _repeated_ids, _max_foreign_ids, _max_splits),
        *(_model, _min_alone_rounds, _min_rows_per_bin, _max_label_epsilon),
    ),
    "predict": (
        *(_label_holders, _by_columns, _min_common_rows_of_prediction, _max_foreign_ids),
        _max_predicted_rows,
    ),
}
"""The rules for each task that there is where parties hold different columns, in the order in which breaches
are told."""


# ---- The rules of a site's policy about levels ----------------------------------------------------------
# How many are declared, and labels that are summed by level.


def within_a_budget(policy: PolicyKeys, terms: Terms) -> bool:
    """Tell if noise hides the rows of a leaf, and a budget says how well."""
    return terms.noise is not None and terms.noise.placement != "central" and policy.budget is not None


def max_category_levels(policy: PolicyKeys, terms: Terms) -> Breach | None:
    """Levels that are declared."""
    counts = {name: len(levels) for name, levels in terms.blocks.columns.levels.items()}
    count, limit = max(counts.values(), default=0), policy.max_category_levels
    if within_a_budget(policy, terms) or count <= limit:
        return None
    column = next(name for name, levels in counts.items() if levels == count)
    why = f"the terms declare {count} categories of {quoted(column)!r}"
    return Breach("max_category_levels", str(limit), why, "group rare levels in the tables", count)


def target_means(policy: PolicyKeys, terms: Terms) -> Breach | None:
    """Labels that are summed by level. Another task reads the means of a model that is there."""
    names = [*terms.columns.target_means]
    if not names or policy.target_means or within_a_budget(policy, terms):
        return None
    why = f"the terms sum labels by level of {quoted(names[0])!r} (columns.target_means)"
    return Breach("target_means", "false", why, "leave it out", True)


# ---- The rules of a site's policy about leaves: how many rows they have, and what their values tell -----
# What `min_rows_per_leaf` can and cannot do. The sum of hessians in both children of a split must reach
# min_child_weight, and no row has a hessian of more than 1/4 (binary:logistic), 1/2 (multi:softprob) or
# other than 1 (reg:squarederror, reg:absoluteerror, reg:quantileerror) if every row has weight 1 and
# scale_pos_weight is not given. The sums are of rounded hessians, and rounding adds nothing to these
# bounds: they are multiples of the fixed-point unit (or, for a unit so coarse that they are not, at most
# half of it, which rounds to zero). So a split under min_child_weight w leaves at least 4 w, 2 w or w rows
# on each side, counted over all parties. It cannot stop an aggregator that lies about the sums or the
# splits, nor a party that adds rows of its own; it says nothing of a tree that does not split, of how many
# rows *this* site has in a leaf, nor of the bins of a histogram, in each of which a single row may lie. Row
# weights or a custom program leave nothing to rely on: with them the rule refuses.


def quantile_leaves(policy: PolicyKeys, terms: Terms) -> Breach | None:
    if terms.objective.loss.quantile is None or policy.quantile_leaves:
        return None
    why = f"with {quoted(terms.objective.name)} a leaf's value is about the label of one row"
    return Breach("quantile_leaves", "false", why, "choose another objective", True)


def min_rows_per_leaf(policy: PolicyKeys, terms: Terms) -> Breach | None:
    return None if within_a_budget(policy, terms) else few_rows_per_leaf(policy, terms)


def few_rows_per_leaf(policy: PolicyKeys, terms: Terms) -> Breach | None:
    """The breach by leaves that may have few rows, whatever noise hides."""
    limit, (rows, why) = policy.min_rows_per_leaf, rows_per_leaf(terms)
    if rows >= limit:
        return None
    instead = ""
    if not why:
        instead = f"set min_child_weight = {limit / (_rows_per_hessian(terms) or 1):.12g}"
        why = (
            f"the terms have min_child_weight = {terms.trees.min_child_weight:g}, which with "
            f"{terms.objective.name} leaves {rows} row{'s' * (rows > 1)} in a leaf"
        )
    return Breach("min_rows_per_leaf", str(limit), why, instead, rows)


def rows_per_leaf(terms: Terms) -> tuple[int, str]:
    """The fewest rows, of all parties, in a leaf of a tree that splits; and why it is one, where
    min_child_weight promises nothing."""
    weight = terms.columns.weight
    if weight is not None:
        return 1, f"with the row weights of column {quoted(weight)!r} no leaf is sure of it"
    if terms.objective.scale_pos_weight is not None:
        return 1, "with a scale_pos_weight no leaf is sure of it"
    if terms.draws.sampling_method != "uniform":
        rows_drawn = (
            f'the rows that sampling_method = "{terms.draws.sampling_method}" draws weigh more than 1'
        )
        return 1, f"{rows_drawn}: no leaf is sure of it"
    if terms.noise is not None:
        return 1, "no leaf is sure of it with noise, which only counts under a budget (epsilon, delta)"
    per = _rows_per_hessian(terms)
    is_own = terms.task.trains and terms.session.is_built_in
    if not is_own or per is None:
        what = "objective" if is_own else "program"
        return 1, f"{what} {quoted(terms.flat[what])!r} does not promise it"
    rows = min(terms.trees.min_child_weight * per, float(MAX_ROWS_PER_LEAF))
    return max(1, math.ceil(rows)), ""


def _rows_per_hessian(terms: Terms) -> int | None:
    """The fact of a registered objective; nothing is taken on trust from that of a package."""
    return terms.objective.loss.rows_per_hessian if terms.objective.name in OBJECTIVES else None


# ---- Rules about a model that is measured ---------------------------------------------------------------
# Promises: with evaluate = "own" a model is measured only if this site, or a party that it names, signed
# all of its trees, and the terms that were signed promise min_rows_per_leaf. A leaf of one row would tell
# of that row by the scores, however many rows a count is of.


@dataclass(frozen=True)
class ModelSigners:
    """Parties whose signature on the model of some terms was checked and holds. unknown: why none could be
    checked, '' where they were."""

    names: frozenset[str] = frozenset()
    unknown: str = ""


UNCHECKED = ModelSigners(unknown="this site has no keys, so that it can check no signature of the model")


def breaches_of_model(
    policy: PolicyKeys, terms: Terms, party: str, signers: ModelSigners
) -> Iterator[Breach]:
    """The breaches by the model in terms that measure one."""
    if not terms.task.measures or policy.evaluate == "any":
        return
    if not _accepted(policy, party, signers) or terms.trained is None:
        yield _unsigned(policy, signers)
        return
    yield from filter(None, (_continued(policy, terms.trained), _few_rows_in_leaves(policy, terms.trained)))
    if contradiction := _contradiction(terms, terms.trained):
        yield Breach("evaluate", _OWN, contradiction, allow="any")


def origin_of(policy: PolicyKeys, terms: Terms, party: str, signers: ModelSigners) -> ModelOrigin | None:
    """Who made the model that terms measure, for a person; None where they measure none."""
    if not terms.task.measures:
        return None
    accepted, rows = _accepted(policy, party, signers), 1
    if accepted and terms.trained is not None and terms.trained.earlier is None:
        rows = 1 if _contradiction(terms, terms.trained) else rows_per_leaf(terms.trained)[0]
    others = tuple(sorted(accepted - {party}))
    return ModelOrigin(
        own=party in accepted,
        others=others,
        unknown=signers.unknown,
        rows=rows,
        readable=rows_readable(terms),
    )


_OWN = '"own"'


def _accepted(policy: PolicyKeys, party: str, signers: ModelSigners) -> frozenset[str]:
    return signers.names & {party, *policy.evaluate_signers}


def _unsigned(policy: PolicyKeys, signers: ModelSigners) -> Breach:
    others = " or of a party in evaluate_signers" if policy.evaluate_signers else ""
    why = f"the model has no signature of this site{others} that covers all of its trees"
    instead = "name a model that this site helped to train"
    if signers.unknown:
        why, instead = signers.unknown, 'run it with keys, or set evaluate = "any" in its policy'
    return Breach("evaluate", _OWN, why, instead, "any", allowing(policy.evaluate_signers))


def _continued(policy: PolicyKeys, trained: Terms) -> Breach | None:
    if trained.earlier is None or policy.continue_models:
        return None
    why = "the training of the model continued another, whose trees may part single rows"
    return Breach("continue_models", "false", why, "name a model that continues none", True)


def _few_rows_in_leaves(policy: PolicyKeys, trained: Terms) -> Breach | None:
    if (breach := few_rows_per_leaf(policy, trained)) is None:
        return None
    instead = breach.instead and f"in its training {breach.instead}"
    return replace(breach, why=f"in the training of the model {breach.why}", instead=instead)


def _contradiction(terms: Terms, trained: Terms) -> str:
    """How the covers in the file contradict the terms of the training; '' if they do not."""
    assert terms.earlier is not None
    least = np.float32(trained.trees.min_child_weight)
    first = len(trained.roots) * trained.constant_rounds
    for number, tree in enumerate(terms.earlier.trees[first:], first + 1):
        leaves = (c for c, left in zip(tree.cover, tree.left, strict=True) if left == NO_CHILD)
        if len(tree.left) > 1 and (low := min(leaves)) < least:
            promised = f"min_child_weight = {trained.trees.min_child_weight:g} of its training"
            return f"tree {number} of the model has a leaf of cover {low:g}, below the {promised}"
    return ""


# ---- The rules of a policy: one function a rule, which returns the breach of it by some terms, or None --
# Promises: every rule is checked against the terms alone; of a model in them also against the names whose
# signature of it holds.


Rule = Callable[[PolicyKeys, Terms], Breach | None]


# ---- names -------------------------------------------------------------------------------------------


def _parties(policy: PolicyKeys, terms: Terms) -> Breach | None:
    if policy.parties == "any":
        return None
    return not_among("parties", policy.parties, terms.parties)


def _analysts(policy: PolicyKeys, terms: Terms, analyst: str) -> Breach | None:
    if not terms.task.by_analyst:
        return None  # the label holder asks for itself, and `label_holders` names it
    if not analyst or policy.analysts == "any" or analyst in (policy.analysts or ()):
        return None
    why = f"the analyst is {quoted(analyst)}"
    return Breach(
        "analysts", brackets(policy.analysts), why, allow=(analyst,), detail=allowing(policy.analysts)
    )


def _tasks(policy: PolicyKeys, terms: Terms) -> Breach | None:
    name = terms.task.name
    if name in policy.tasks:
        return None
    return Breach("tasks", choices(policy.tasks), f"the session is to {name}", allow=(name,))


def _columns(policy: PolicyKeys, terms: Terms, party: str) -> Iterator[Breach]:
    """The breach of each role's columns, of those that this site holds."""
    if policy.columns == "any":
        return
    allowed = policy.columns or ColumnRules()
    for role, names in columns_by_role(terms, party).items():
        if breach := not_among(f"columns.{role}", getattr(allowed, role), names):
            yield breach


# ---- protection and parties --------------------------------------------------------------------------


def _protections(policy: PolicyKeys, terms: Terms) -> Breach | None:
    protection = terms.hiding.protection
    if protection in policy.protections:
        return None
    breach = not_chosen("protections", policy.protections, "protection", protection)
    return replace(breach, instead="") if terms.blocks else breach  # no other protection goes with these


def _on_loss(policy: PolicyKeys, terms: Terms) -> Breach | None:
    if not terms.protection.hides or terms.session.on_loss in policy.on_loss:
        return None
    return not_chosen("on_loss", policy.on_loss, "on_loss", terms.session.on_loss)


def _min_parties(policy: PolicyKeys, terms: Terms) -> Breach | None:
    limit, holders = policy.min_parties, len(terms.holders)
    if holders < limit:
        rows = " with rows" if holders < len(terms.parties) else ""
        return Breach("min_parties", str(limit), f"the terms name {holders}{rows}", "name more", holders)
    if terms.min_roster < limit:
        why = f'the terms have on_loss = "shrink" to {terms.min_roster}'
        return Breach("min_parties", str(limit), why, f"set quorum = {limit}", terms.min_roster)
    return None


def _colluding(policy: PolicyKeys, terms: Terms) -> Breach | None:
    floor = Group.of(terms.parties).colluding if policy.colluding is None else policy.colluding
    if not terms.protection.hides:
        return None
    tolerated = Group.of(terms.parties, terms.hiding.colluding).colluding
    if tolerated >= floor:
        return None
    why = f"under the terms {tolerated} may collude and learn nothing"
    return Breach("colluding", str(floor), why, f"set colluding = {floor}", tolerated)


def _min_key_bits(policy: PolicyKeys, terms: Terms) -> Breach | None:
    has_keys, bits = terms.protection.uses_key_holder, terms.hiding.key_bits
    if not has_keys or bits >= policy.min_key_bits:
        return None
    return beyond("key_bits", bits, "min_key_bits", policy.min_key_bits)


# ---- noise -------------------------------------------------------------------------------------------


def _placements(policy: PolicyKeys, terms: Terms) -> Breach | None:
    noise = terms.noise
    if noise is None or noise.placement in policy.placements:
        return None
    effect = ", which gives the aggregator exact sums" if noise.placement == "central" else ""
    return Breach(
        "placements",
        choices(policy.placements),
        f'the noise of the terms is "{noise.placement}"{effect}',
        f'set noise.placement = "{policy.placements[0]}"',
        (noise.placement,),
    )


def _budget(policy: PolicyKeys, terms: Terms) -> Breach | None:
    budget, noise = policy.budget, terms.noise
    if budget is None:
        return None
    epsilon, delta = f"{budget.epsilon:g}", f"{budget.delta:g}"
    if noise is None:
        why = "the terms have no noise, which costs more than any budget"
        return Breach("epsilon", epsilon, why, f"add noise with delta = {delta}")
    if noise.placement == "central":
        why = "what leaves the site has no noise if the aggregator draws it, and costs more than any budget"
        return Breach("epsilon", epsilon, why, 'set noise.placement = "distributed"')
    if noise.delta > budget.delta:
        why = f"the noise of the terms has delta = {noise.delta:g}"
        return Breach("delta", delta, why, f"set noise.delta = {delta}")
    return None


# ---- trees and leaves --------------------------------------------------------------------------------


_AT_MOST: dict[str, tuple[Callable[[Terms], int], str, str]] = {
    "max_rounds": (lambda terms: terms.trees.rounds, "have rounds = {}", "set rounds = {}"),
    "max_depth": (lambda terms: terms.trees.max_depth, "have max_depth = {}", "set max_depth = {}"),
    "max_trees_per_round": (
        *(lambda terms: len(terms.roots), "have {} trees a round"),
        "lower num_parallel_tree or num_class",
    ),
    "max_trials": (lambda terms: len(terms.objective.candidates), "have {} candidates", "take some away"),
    "vote_top_k": (lambda terms: terms.histograms.vote_top_k, "have vote_top_k = {}", "set vote_top_k = {}"),
    "max_metrics": (
        *(lambda terms: len(terms.metrics) // max(1, len(terms.objective.candidates)), "ask for {} metrics"),
        "take some away",
    ),
}
"""Keys that are the largest number that terms may have: that of the terms, what they have, the remedy."""


def _at_most(key: str) -> Rule:
    number_of, what, instead = _AT_MOST[key]

    def rule(policy: PolicyKeys, terms: Terms) -> Breach | None:
        number, limit = number_of(terms), getattr(policy, key)
        if number <= limit:
            return None
        return Breach(key, str(limit), f"the terms {what.format(number)}", instead.format(limit), number)

    return rule


def _subsample(policy: PolicyKeys, terms: Terms) -> Breach | None:
    share = terms.draws.share_drawn
    if not (terms.protection.hides or terms.hides_columns) or share >= policy.subsample:
        return None
    why = f"the terms have subsample = {terms.draws.subsample:g}"
    if terms.draws.sampling_method == "bootstrap":
        why += f" with a bootstrap, which draws {share:.2g} of the rows"
    return Breach("subsample", f"{policy.subsample:g}", why, "draw more rows", share)


def _continue_models(policy: PolicyKeys, terms: Terms) -> Breach | None:
    if terms.xgb_model is None or policy.continue_models:
        return None
    why = "the terms continue a model (xgb_model), whose trees may part single rows"
    return Breach("continue_models", "false", why, "leave xgb_model out", True)


def _base_margin(policy: PolicyKeys, terms: Terms) -> Breach | None:
    if terms.columns.base_margin is None or policy.base_margin:
        return None
    why = f"the terms have the base margin {quoted(terms.columns.base_margin)!r}"
    return Breach("base_margin", "false", why, "leave columns.base_margin out", True)


def _min_count(policy: PolicyKeys, terms: Terms) -> Breach | None:
    count, limit = terms.evaluation.min_count, policy.min_count
    if terms.noise is not None and policy.budget is None and limit > 1:
        why = "counts with noise are not rounded: without a budget sessions average the noise away"
        return Breach("min_count", str(limit), why, "describe without noise", 1)
    if count >= limit:
        return None
    why = f"the terms have min_count = {count}"
    return Breach("min_count", str(limit), why, f"set min_count = {limit}", count)


def _few_rows(policy: PolicyKeys, terms: Terms) -> Breach | None:
    """What a training tells beside its trees: a reference, and means of levels."""
    tells = terms.evaluation.reference or have_folds(terms)
    return _min_count(policy, terms) if tells else None


# ---- metrics -----------------------------------------------------------------------------------------


def _metrics_at_thresholds(policy: PolicyKeys, terms: Terms) -> Breach | None:
    default = terms.objective.loss.default_metric
    names = map(own_name, terms.metrics)
    chosen = [name for name in names if is_at_threshold(name) and name != default]
    if policy.metrics_at_thresholds or not chosen:
        return None
    why = f"the terms ask for the metric {quoted(chosen[0])}"
    return Breach("metrics_at_thresholds", "false", why, "leave it out", True)


def _threshold(policy: PolicyKeys, terms: Terms) -> Breach | None:
    """What an evaluation reads at a threshold: rows of either side of it, then metrics."""
    threshold = terms.evaluation.threshold
    if policy.metrics_at_thresholds or threshold in EDGES:
        return _metrics_at_thresholds(policy, terms)
    near, why = (
        min(EDGES, key=lambda edge: abs(edge - threshold)),
        f"the terms have threshold = {threshold:g}",
    )
    return Breach("metrics_at_thresholds", "false", why, f"set {near:g}, an edge of its bins", True)


def _party_metrics(policy: PolicyKeys, terms: Terms) -> Breach | None:
    if not terms.protection.hides or not terms.evaluation.party_metrics or policy.party_metrics:
        return None
    return Breach("party_metrics", "false", "the terms have party_metrics = true", "leave it out", True)


def _subgroups(policy: PolicyKeys, terms: Terms) -> Breach | None:
    if not terms.evaluation.subgroups or policy.subgroups:
        return None
    why = f"the terms have subgroups by {', '.join(map(quoted, terms.evaluation.subgroups))}"
    return Breach("subgroups", "false", why, "leave subgroups out", True)


def _validation(policy: PolicyKeys, terms: Terms) -> Breach | None:
    if not terms.validates or policy.validation:
        return None
    why = f"the terms have validation_fraction = {terms.evaluation.validation_fraction:g}"
    if terms.columns.validation is not None:
        why = f"the terms have the validation column {quoted(terms.columns.validation)!r}"
    return Breach("validation", "false", why, "have no validation rows", True)


def _evaluated_rows(policy: PolicyKeys, terms: Terms) -> Breach | None:
    if terms.evaluation.evaluate_rows == "all" or policy.validation:
        return None
    why = f"the terms measure a model on {terms.evaluation.evaluate_rows} rows"
    return Breach("validation", "false", why, 'set evaluate_rows = "all" (--rows all)', True)


_OF_EVERY_TASK: tuple[Rule, ...] = (_protections, _on_loss, _min_parties, _colluding, _min_key_bits)
_OF_TRAINING: tuple[Rule, ...] = (
    *_OF_EVERY_TASK,
    *(_placements, _budget, _at_most("max_rounds"), _at_most("max_depth"), _at_most("max_trees_per_round")),
    *(_at_most("max_trials"), _at_most("vote_top_k")),
    *(_subsample, _continue_models, _base_margin, quantile_leaves, min_rows_per_leaf, max_category_levels),
    *(target_means, _at_most("max_metrics"), _metrics_at_thresholds, _party_metrics, _validation, _few_rows),
)
_OF_COUNTS: tuple[Rule, ...] = (*_OF_EVERY_TASK, _placements, _budget, max_category_levels, _min_count)
_OF_EVALUATIONS: tuple[Rule, ...] = (
    *(*_OF_COUNTS, _base_margin, _at_most("max_metrics"), _threshold, _party_metrics, _subgroups),
    _evaluated_rows,
)

RULES: dict[str, tuple[Rule, ...]] = {
    "train": _OF_TRAINING,
    "tune": _OF_TRAINING,
    "describe": _OF_COUNTS,
    "evaluate": _OF_EVALUATIONS,
    "drift": (*_OF_COUNTS, _base_margin),
    "predict": _OF_EVERY_TASK,
}
"""The rules for each task, in the order in which breaches are told: a site refuses for the first. Of a model
that is measured, `breaches_of_model` decides which. What predictions tell is bounded by max_predicted_rows
alone: no noise goes on them, and no budget of epsilon is charged."""


# ---- A site's own policy, the `[policy]` table of party.toml: which terms this site takes part under ----


class Policy(PolicyKeys):
    """The terms this site takes part under, by its keys and their rules."""

    def permit(
        self,
        terms: Terms,
        party: str,
        ask: Callable[[str], bool] | None = None,
        analyst: str = "",
        signers: ModelSigners = UNCHECKED,
    ) -> Limits:
        """Return the limits of all sessions over these rows. Refused unless this policy, of the site called
        `party`, allows the terms.

        analyst: who signed the request, '' where nothing is signed. ask: called with a summary of the terms
        if approval is "ask"; returns True if the person agrees. None where there is nobody to ask. It may
        raise Refused itself. signers: of the model that the terms measure.
        """
        if broken := [*self.breaches(terms, analyst, party, signers)]:
            raise broken[0].refusal(party, () if terms.task.by_analyst else broken)
        if self.approval == "ask":
            refused = f'site {party} refuses: its policy has approval = "ask", and '
            if ask is None:
                raise Refused(f"{refused}nobody can be asked; run there `{COMMAND}`")
            who = f"\nAnalyst {delimited(analyst)} asks for this session." if analyst else ""
            origin = origin_of(self, terms, party, signers)
            try:
                agreed = ask(summary(terms, (analyst,) if analyst else (), origin=origin) + who)
            except Refused as error:
                raise Refused(f"{refused}{error.public}; run there `{COMMAND}`") from None
            if not agreed:
                raise Refused(f"{refused}the person asked said no to the terms with digest {terms.digest}")
        return Limits(
            self.max_sessions, self.similar_groups, self.max_predicted_rows, self.max_splits, self.min_count
        )

    def breaches(
        self, terms: Terms, analyst: str = "", party: str = "", signers: ModelSigners = UNCHECKED
    ) -> Iterator[Breach]:
        """Every rule that the terms break, but for approval by a person. party: this site's name in the
        terms; signers: who signed the model in them."""
        named = _parties(self, terms), _analysts(self, terms, analyst), _tasks(self, terms)
        yield from filter(None, named)
        yield from _columns(self, terms, party)
        if terms.blocks:
            yield from filter(None, (rule(self, terms, party) for rule in BY_COLUMNS[terms.task.name]))
        yield from breaches_of_model(self, terms, party, signers)
        yield from filter(None, (rule(self, terms) for rule in RULES[terms.task.name]))
