"""Which rows and which columns are drawn: hashes of a seed and a key, so everybody who knows the key agrees.

Promises: a row of a key is drawn or not whichever party holds it and whatever other rows there are; draws for
other rounds, or of another kind, are independent of it (as far as a 64-bit mix of SHA-256 salts is).
Refuses nothing: shares are those of the terms. These draws hide nothing, and need not.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def mixed(keys: Keys, *salt: int | str) -> Keys:
    """Numbers that look uniform below 2**64, one a key: the finaliser of SplitMix64 over key + salt."""
    digest = hashlib.sha256(repr(salt).encode()).digest()
    z: Keys = keys + np.uint64(int.from_bytes(digest[:8])) + _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    return z ^ (z >> np.uint64(31))


def drawn(keys: Keys, share: float, *salt: int | str) -> npt.NDArray[np.bool_]:
    """Which of these keys are drawn, each with probability `share`: bool [N]."""
    if share >= 1.0:
        return np.ones(keys.size, np.bool_)
    return mixed(keys, *salt) < np.uint64(int(share * 2.0**64))


def keys_of(site: str, rows: int) -> Keys:
    """Keys of a site's rows where they have none of their own: the site's name and the place in its table."""
    return mixed(np.arange(rows, dtype=np.uint64), "row", site)


def key_of(text: str) -> int:
    """The key of a row with this id."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])


def some_of(features: Sequence[int], share: float, *salt: int | str) -> tuple[int, ...]:
    """A share of these features, at least one, in their order."""
    if share >= 1.0:
        return tuple(features)
    order = np.argsort(mixed(np.array(features, np.uint64), *salt), kind="stable")
    chosen = order[: max(1, int(share * len(features)))]
    return tuple(features[place] for place in sorted(chosen.tolist()))
