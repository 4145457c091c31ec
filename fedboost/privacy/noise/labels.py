"""Noise on labels: randomised response, drawn once for each person and label.

Each label stays as it is with probability e**epsilon / (e**epsilon + classes - 1), and is else one of the
others, each as likely. What was drawn follows from a secret of the site, the person's id and the label, so
that it is the same whenever it is asked for: noise that is drawn anew each time averages out.

Promises: whatever is computed from the result alone, in however many sessions under one epsilon, is
epsilon-differentially private in the label of each id (for others than who has the secret); the chance to
keep a label is never above the one above, and each other label's is within 2**-60 of it.
Refuses: nothing.

Warner, Randomized response, https://doi.org/10.1080/01621459.1965.10480775.
"""

import hmac
import math
from collections.abc import Iterable

import numpy as np

from fedboost.fixedpoint import Float32
from fedboost.privacy import fields

_WORD = 8
_DOUBLE = 2.0**-50
"""More than a double loses in the probability: so much is taken from the chance that a label stays."""


def noised(labels: Float32, ids: Iterable[bytes], classes: int, epsilon: float, key: bytes) -> Float32:
    """Labels 0, 1, ..., classes - 1 with noise: float32 [rows]. ids: of each row; key: 32 secret bytes."""
    stays = math.floor((1 / (1 + (classes - 1) * math.exp(-epsilon)) - _DOUBLE) * 2.0**64)
    drawn = np.empty(len(labels), np.float32)
    for row, (label, row_id) in enumerate(zip(labels.astype(np.int64).tolist(), ids, strict=True)):
        draws = hmac.digest(key, fields.pack(row_id, fields.number(label)), "sha256")
        first, second = (int.from_bytes(draws[at : at + _WORD]) for at in (0, _WORD))
        drawn[row] = label if first < stays else (label + 1 + second % (classes - 1)) % classes
    return drawn
