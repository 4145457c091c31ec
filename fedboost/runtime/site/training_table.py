"""The table that the model in terms was trained on, as a site's memory knows it.

Refuses nothing: what is not known is None.
"""

from fedboost.holders.evaluation import TrainingTable
from fedboost.runtime.signed_model import session_of
from fedboost.runtime.site.memory import FileMemory
from fedboost.terms import continuation
from fedboost.terms.terms import Terms


def training_table(memory: FileMemory, terms: Terms) -> TrainingTable | None:
    """The table of the training of the model in these terms; None where this site took no part in it, or has
    another memory."""
    if terms.xgb_model is None or terms.trained is None:
        return None
    try:
        request = session_of(continuation.facts_of(terms.xgb_model)).request
    except (KeyError, ValueError, TypeError, AttributeError):
        return None
    known = memory.table_of(terms.trained, b"" if request is None else request.nonce)
    if known is None:
        return None
    rows, digest = known
    return TrainingTable(rows, lambda hashed: memory.hash_rows(hashed) == digest)
