"""The rules of a site's policy for terms of parties that hold different columns, and for joint predictions.

Promises: every rule is checked against the terms and the name of this site in them alone. What the label
holder asks of others is no rule for the label holder's own site, and the other way round.
"""

from collections.abc import Iterator

from fedboost.protocol.site import splits_by
from fedboost.runtime.site.policy_breach import Breach, beyond, not_among, not_chosen
from fedboost.runtime.site.policy_keys import MIN_ROWS_PER_BIN, PolicyKeys
from fedboost.terms.terms import Terms


def breaches_by_columns(policy: PolicyKeys, terms: Terms, party: str) -> Iterator[Breach]:
    """Every such rule that the terms break at the site called `party`, in the order they are told in."""
    if terms.blocks:
        yield from filter(None, (rule(policy, terms, party) for rule in RULES))


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
    if terms.vertical.predicts or not _helps(terms, party) or rows in policy.rows:
        return None
    return not_chosen("rows", policy.rows, "rows", rows)


def _min_common_rows(policy: PolicyKeys, terms: Terms, party: str) -> Breach | None:
    rows, limit = terms.vertical.fewest_common_rows, policy.min_common_rows
    if not terms.vertical.aligns or rows >= limit:
        return None
    why = f"the terms are content with {rows:,} rows in common"
    instead = f"--min-common-rows {limit}" if terms.vertical.predicts else f"set min_common_rows = {limit}"
    return Breach("min_common_rows", str(limit), why, instead, rows)


def _repeated_ids(policy: PolicyKeys, terms: Terms, party: str) -> Breach | None:
    if policy.repeated_ids or not terms.vertical.repeated_ids or terms.vertical.predicts:
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
    if terms.vertical.predicts or not terms.hides_columns or terms.keeps_parts or policy.model == "whole":
        return None
    why = 'the terms have model = "whole", which gives the analyst the thresholds of all columns'
    return Breach("model", '"parties"', why, 'set model = "parties"', "whole")


def _min_alone_rounds(policy: PolicyKeys, terms: Terms, party: str) -> Breach | None:
    rounds, limit = terms.vertical.alone_rounds, policy.min_alone_rounds
    if terms.vertical.predicts or rounds >= limit or _helps(terms, party):
        return None
    why = f"the terms have alone_rounds = {rounds}"
    return Breach("min_alone_rounds", str(limit), why, f"set alone_rounds = {limit}", rounds)


def _max_label_epsilon(policy: PolicyKeys, terms: Terms, party: str) -> Breach | None:
    epsilon, limit = terms.vertical.label_epsilon, policy.max_label_epsilon
    if limit is None or terms.vertical.predicts or _helps(terms, party):
        return None
    if epsilon is not None and epsilon <= limit:
        return None
    why = "no noise goes on labels" if epsilon is None else f"the terms have label_epsilon = {epsilon:g}"
    return Breach("max_label_epsilon", f"{limit:g}", why, f"set label_epsilon = {limit:g}", epsilon)


def _min_rows_per_bin(policy: PolicyKeys, terms: Terms, party: str) -> Breach | None:
    rows, limit = terms.vertical.min_rows_per_bin, policy.min_rows_per_bin
    if limit is None:
        limit = MIN_ROWS_PER_BIN if terms.hides_columns else 1
    if terms.vertical.predicts or rows >= limit:
        return None
    why = f"the terms have min_rows_per_bin = {rows}" if rows > 1 else "the terms let a bin have one row"
    return Breach("min_rows_per_bin", str(limit), why, f"set min_rows_per_bin = {limit}", rows)


RULES = (
    _label_holders,
    _by_columns,
    _rows,
    _min_common_rows,
    _repeated_ids,
    _max_foreign_ids,
    _max_predicted_rows,
    _max_splits,
    _model,
    _min_alone_rounds,
    _min_rows_per_bin,
    _max_label_epsilon,
)
"""In the order in which breaches are told."""
