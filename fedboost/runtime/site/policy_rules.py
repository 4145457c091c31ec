"""The rules of a site's policy: one function a rule, which returns the breach of it by some terms, or None.

Promises: every rule is checked against the terms alone; of a model in them also against the names whose
signature of it holds. Rules of parties with different columns stand in `policy_by_columns`, of leaves in
`policy_leaves`, of models that are measured in `policy_models`.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from fedboost.errors import quoted
from fedboost.gbdt.metrics.registry import EDGES, is_at_threshold, own_name
from fedboost.people.summary import columns_by_role
from fedboost.privacy.masked.keys import Group
from fedboost.runtime.site.policy_breach import (
    Breach,
    allowing,
    beyond,
    brackets,
    choices,
    not_among,
    not_chosen,
)
from fedboost.runtime.site.policy_by_columns import breaches_by_columns
from fedboost.runtime.site.policy_keys import ColumnRules, PolicyKeys
from fedboost.runtime.site.policy_leaves import min_rows_per_leaf, quantile_leaves
from fedboost.runtime.site.policy_levels import max_category_levels, target_means
from fedboost.runtime.site.policy_models import UNCHECKED, ModelSigners, breaches_of_model
from fedboost.terms.session import TO_DESCRIBE, TO_DRIFT, TO_EVALUATE, TO_PREDICT
from fedboost.terms.terms import Terms, have_folds

Rule = Callable[[PolicyKeys, Terms], Breach | None]


def breaches(
    policy: PolicyKeys,
    terms: Terms,
    analyst: str = "",
    party: str = "",
    signers: ModelSigners = UNCHECKED,
) -> Iterator[Breach]:
    """Every rule that the terms break, but for approval by a person. party: this site's name in the terms;
    signers: who signed the model in them."""
    named = _parties(policy, terms), _analysts(policy, terms, analyst), _tasks(policy, terms)
    yield from filter(None, named)
    yield from _columns(policy, terms, party)
    yield from breaches_by_columns(policy, terms, party)
    yield from breaches_of_model(policy, terms, party, signers)
    rules = OF_OTHER_TASKS.get(terms.task, RULES)
    yield from filter(None, (rule(policy, terms) for rule in rules))


# ---- names -------------------------------------------------------------------------------------------


def _parties(policy: PolicyKeys, terms: Terms) -> Breach | None:
    if policy.parties == "any":
        return None
    return not_among("parties", policy.parties, terms.parties)


def _analysts(policy: PolicyKeys, terms: Terms, analyst: str) -> Breach | None:
    if terms.vertical.predicts:
        return None  # the label holder asks for itself, and `label_holders` names it
    if not analyst or policy.analysts == "any" or analyst in (policy.analysts or ()):
        return None
    why = f"the analyst is {quoted(analyst)}"
    return Breach(
        "analysts", brackets(policy.analysts), why, allow=(analyst,), detail=allowing(policy.analysts)
    )


def _tasks(policy: PolicyKeys, terms: Terms) -> Breach | None:
    if terms.task in policy.tasks:
        return None
    why = f"the session is to {terms.task}"
    return Breach("tasks", choices(policy.tasks), why, allow=(terms.task,))


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
    has_keys, bits = terms.protection.has_key_sizes, terms.hiding.key_bits
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


def _max_rounds(policy: PolicyKeys, terms: Terms) -> Breach | None:
    rounds, limit = terms.trees.rounds, policy.max_rounds
    return beyond("rounds", rounds, "max_rounds", limit) if rounds > limit else None


def _max_depth(policy: PolicyKeys, terms: Terms) -> Breach | None:
    depth, limit = terms.trees.max_depth, policy.max_depth
    return beyond("max_depth", depth, "max_depth", limit) if depth > limit else None


def _max_trees_per_round(policy: PolicyKeys, terms: Terms) -> Breach | None:
    trees, limit = len(terms.roots), policy.max_trees_per_round
    if trees <= limit:
        return None
    why, instead = f"the terms have {trees} trees a round", "lower num_parallel_tree or num_class"
    return Breach("max_trees_per_round", str(limit), why, instead, trees)


def _max_trials(policy: PolicyKeys, terms: Terms) -> Breach | None:
    trials, limit = len(terms.objective.candidates), policy.max_trials
    if trials <= limit:
        return None
    return Breach("max_trials", str(limit), f"the terms have {trials} candidates", "take some away", trials)


def _vote_top_k(policy: PolicyKeys, terms: Terms) -> Breach | None:
    votes, limit = terms.histograms.vote_top_k, policy.vote_top_k
    return beyond("vote_top_k", votes, "vote_top_k", limit) if votes > limit else None


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
    if terms.task == TO_DESCRIBE and terms.noise is not None and policy.budget is None and limit > 1:
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


def _max_metrics(policy: PolicyKeys, terms: Terms) -> Breach | None:
    number, limit = len(terms.metrics) // max(1, len(terms.objective.candidates)), policy.max_metrics
    if number <= limit:
        return None
    return Breach("max_metrics", str(limit), f"the terms ask for {number} metrics", "take some away", number)


def _metrics_at_thresholds(policy: PolicyKeys, terms: Terms) -> Breach | None:
    default = terms.objective.loss.default_metric
    names = map(own_name, terms.metrics)
    chosen = [name for name in names if is_at_threshold(name) and name != default]
    if policy.metrics_at_thresholds:
        return None
    if terms.task == TO_EVALUATE and terms.evaluation.threshold not in EDGES:
        why = f"the terms have threshold = {terms.evaluation.threshold:g}"
        near = min(EDGES, key=lambda edge: abs(edge - terms.evaluation.threshold))
        return Breach("metrics_at_thresholds", "false", why, f"set {near:g}, an edge of its bins", True)
    if not chosen:
        return None
    why = f"the terms ask for the metric {quoted(chosen[0])}"
    return Breach("metrics_at_thresholds", "false", why, "leave it out", True)


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


RULES: tuple[Rule, ...] = (
    _protections,
    _on_loss,
    _min_parties,
    _colluding,
    _min_key_bits,
    _placements,
    _budget,
    _max_rounds,
    _max_depth,
    _max_trees_per_round,
    _max_trials,
    _vote_top_k,
    _subsample,
    _continue_models,
    _base_margin,
    quantile_leaves,
    min_rows_per_leaf,
    max_category_levels,
    target_means,
    _max_metrics,
    _metrics_at_thresholds,
    _party_metrics,
    _validation,
    _few_rows,
)
"""In the order in which breaches are told: a site refuses for the first."""
OF_PREDICTIONS: tuple[Rule, ...] = (_protections, _on_loss, _min_parties, _colluding, _min_key_bits)
"""The rules for terms that predict, in place of all of RULES: the others are about what training tells of the
rows, and nothing is trained. What predictions tell is bounded by max_predicted_rows alone: no noise goes on
them, and no budget of epsilon is charged."""

OF_DESCRIPTIONS: tuple[Rule, ...] = (*OF_PREDICTIONS, _placements, _budget, max_category_levels, _min_count)
"""The rules for terms that describe rows: no tree grows, and no metric is computed."""

OF_EVALUATIONS: tuple[Rule, ...] = (
    *(*OF_DESCRIPTIONS, _base_margin, _max_metrics, _metrics_at_thresholds, _party_metrics, _subgroups),
    _evaluated_rows,
)
"""The rules for terms that evaluate a model: no tree grows. Which models may be evaluated stands in
`policy_models`."""

OF_OTHER_TASKS = {
    TO_PREDICT: OF_PREDICTIONS,
    TO_DESCRIBE: OF_DESCRIPTIONS,
    TO_EVALUATE: OF_EVALUATIONS,
    TO_DRIFT: (*OF_DESCRIPTIONS, _base_margin),
}
"""The rules for terms that train nothing."""
