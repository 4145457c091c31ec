"""Discrete Gaussian noise: whole numbers, so that it adds to vectors of integers under any protection.

Promises: exactly distributed, from a cryptographic stream (AES-256 in counter mode) of a secret key; the same
key gives the same noise, so a repeated answer has the same bytes in every process.
Refuses: a standard deviation that is no whole number of at least 1 (ValueError).
"""

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedboost.fixedpoint import Int64
from fedboost.privacy import kernels

MAX_SIGMA = 1 << 52
"""Largest standard deviation: no practical sum of such numbers is beyond 64 bits."""
_WORDS = 48
"""Words that a number takes on average; more are drawn where they do not suffice."""
_MAX_WORDS = 1 << 20


def noise_of(key: bytes, sigma: int, count: int) -> Int64:
    """Independent discrete Gaussians of this standard deviation: int64 [count].

    key: 32 secret bytes, used for nothing else.
    """
    if not 1 <= sigma <= MAX_SIGMA:
        raise ValueError(f"a standard deviation of {sigma}: it must be 1 to {MAX_SIGMA}")
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    out, filled = np.empty(count, np.int64), 0
    words = np.empty(0, np.uint64)
    while filled < count:
        more = min(_WORDS * (count - filled) + _WORDS, _MAX_WORDS)
        words = np.concatenate([words, np.frombuffer(stream.update(bytes(8 * more)), np.uint64)])
        done, used = kernels.gaussians(words, sigma, out[filled:])
        filled, words = filled + done, words[used:]
    return out
