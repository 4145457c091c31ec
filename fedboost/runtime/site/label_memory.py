"""What noise on labels is drawn from: one secret a label column, kept with the site's memory.

Promises: the noise of a label is the same in every session: two draws for a label would tell more than one.
Refuses (Refused): another epsilon or other classes than before; a column that got noise from a memory that is
gone.
"""

import hashlib
import json

from fedboost.errors import Refused, quoted
from fedboost.runtime.site.memory import FileMemory
from fedboost.runtime.site.memory_file import put
from fedboost.terms.terms import Terms

_WHAT = b"fedboost/1/labels"


def label_key(memory: FileMemory, terms: Terms) -> bytes:
    """The secret that noise on the label of these terms is drawn from: 32 bytes. DurabilityError where it
    cannot be written down that it was."""
    columns, epsilon = terms.columns, terms.vertical.label_epsilon
    name = memory.party, columns.label
    key = memory.key_for(_WHAT, columns.label.encode())
    classes = json.dumps([terms.objective.num_class, columns.positive, columns.classes])
    row = epsilon, classes, hashlib.sha256(key).digest()
    with memory.transaction() as file:
        query = "SELECT epsilon, classes, mark FROM labels WHERE (party, label) = (?, ?)"
        known = file.execute(query, name).fetchone()
        if known is None:
            put(file, "labels", *name, *row)
    if known is not None and known[2] != row[2]:
        raise Refused(
            f"party {memory.party}: its labels got noise from a memory that is gone, and noise that is drawn "
            f"anew would tell more of them: put that memory back, or leave label_epsilon out of the terms"
        )
    if known is not None and known != row:
        raise Refused(
            f"party {memory.party}: its labels {quoted(columns.label)!r} got noise of label_epsilon = "
            f"{known[0]:g} before, and other noise, or of other classes, would tell more of them: set "
            f"label_epsilon and classes as they were"
        )
    return key
