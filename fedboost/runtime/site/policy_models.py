"""The rules of a site's policy about a model that is measured, in terms that evaluate or compare rows.

Promises: with evaluate = "own" a model is measured only if this site, or a party that it names, signed all of
its trees, and the terms that were signed promise min_rows_per_leaf. A leaf of one row would tell of that row
by the scores, however many rows a count is of.
Refuses: nothing by itself. What is signed is the terms of the training and the trees; covers are in the file
alone, so that they prove nothing: they are only held against the terms.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from fedboost.gbdt.tree import NO_CHILD
from fedboost.people.facts import OriginFacts
from fedboost.runtime.site.policy_breach import Breach, allowing
from fedboost.runtime.site.policy_keys import PolicyKeys
from fedboost.runtime.site.policy_leaves import few_rows_per_leaf, rows_per_leaf
from fedboost.terms.session import MEASURING
from fedboost.terms.tasks import rows_readable
from fedboost.terms.terms import Terms


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
    if terms.task not in MEASURING or policy.evaluate == "any":
        return
    if not _accepted(policy, party, signers) or terms.trained is None:
        yield _unsigned(policy, signers)
        return
    yield from filter(None, (_continued(policy, terms.trained), _few_rows(policy, terms.trained)))
    if contradiction := _contradiction(terms, terms.trained):
        yield Breach("evaluate", _OWN, contradiction, allow="any")


def origin_of(policy: PolicyKeys, terms: Terms, party: str, signers: ModelSigners) -> OriginFacts | None:
    """Facts for a person of who made the model that terms measure; None where they measure none."""
    if terms.task not in MEASURING:
        return None
    accepted, rows = _accepted(policy, party, signers), 1
    if accepted and terms.trained is not None and terms.trained.earlier is None:
        rows = 1 if _contradiction(terms, terms.trained) else rows_per_leaf(terms.trained)[0]
    others = tuple(sorted(accepted - {party}))
    return OriginFacts(party in accepted, others, signers.unknown, rows, rows_readable(terms))


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


def _few_rows(policy: PolicyKeys, trained: Terms) -> Breach | None:
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
