"""Columns whose levels become means of the label: their slots, and the terms that cannot have them.

Refuses: terms with such columns under which labels have no mean, or no party sees a row's level and label
together (ValueError).
"""

from typing import TYPE_CHECKING

from fedboost.gbdt.objectives.registry import OBJECTIVES
from fedboost.gbdt.target_means import FOLDS, Slots
from fedboost.terms.session import TO_DESCRIBE, TO_TRAIN, TO_TUNE

if TYPE_CHECKING:
    from fedboost.terms.terms import Terms

KEY = "columns.target_means"
MAX_ENCRYPTED = 1 << 14
"""Most buckets in all where sums are encrypted: each takes a key holder some twenty numbers."""


def slots_of(terms: "Terms") -> dict[str, Slots]:
    """The slots of each column. With noise there are no folds: it hides what a row adds to the mean of its
    level, and each fold would have noise of its own."""
    folds = 1 if terms.noise is not None else FOLDS + 1
    return {name: Slots(buckets, folds) for name, buckets in terms.columns.target_means.items()}


def have_folds(terms: "Terms") -> bool:
    """True if each row is in a fold."""
    return terms.task == TO_TRAIN and terms.noise is None and bool(terms.columns.target_means)


def check(terms: "Terms") -> None:
    """ValueError unless the levels of these columns may become means."""
    if not terms.columns.target_means:
        return
    for is_so, setting, reason in _refused(terms):
        if is_so:
            raise ValueError(f"{KEY} with {setting}: {reason}")


def _refused(terms: "Terms") -> tuple[tuple[bool, str, str], ...]:
    """If it is so, the setting, and why not."""
    known = ", ".join(name for name, kind in OBJECTIVES.items() if kind.has_label_means)
    name, buckets = terms.objective.name, sum(terms.columns.target_means.values())
    trains = terms.task in (TO_TRAIN, TO_TUNE)
    return (
        (
            name not in OBJECTIVES or not OBJECTIVES[name].has_label_means,
            f"objective {name}",
            f"a level has no mean label; it is for {known}",
        ),
        (
            terms.vertical.is_used,
            terms.vertical.key,
            "labels and levels are at different parties; take it away, or declare levels in categorical",
        ),
        (
            terms.task == TO_DESCRIBE,
            "program describe",
            "levels by the thousand are not counted",
        ),
        (terms.task == TO_TUNE, "program tune", "it is for training with fixed settings; take it away"),
        (
            trains and terms.xgb_model is not None,
            "xgb_model",
            "the means of the model are of other rows; train from the beginning",
        ),
        (
            trains and terms.session.program != "boosting" and terms.noise is None,
            f"program {terms.session.program!r}",
            "only boosting is known",
        ),
        (
            trains and terms.protection.uses_key_holder and buckets > MAX_ENCRYPTED,
            f"{buckets} buckets under protection {terms.hiding.protection}",
            f"at most {MAX_ENCRYPTED} are encrypted; lower them, or set masked",
        ),
    )
