"""Fixed-point encoding of floats as integers whose sums cannot overflow.

Guarantees: `Scale` encodes floats of bounded magnitude as integers of bounded magnitude. One unit is a power
of two, so decoding is exact. `cell_bits` returns the smallest cell width that holds the sum over all rows.
Raises: ConfigError if that sum does not fit into 64 bits.
`gbdt.kernels.histogram.quantise` is a compiled version of `Scale.encode`; a test checks that they agree.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedboost.errors import ConfigError

Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

MAX_CELL_BITS = 64


@dataclass(frozen=True)
class Scale:
    """Fixed-point format for numbers of magnitude at most 2**exponent, with `bits` bits including the sign.

    One unit is 2**(exponent - bits + 1). Encoded values lie in [-limit, limit], where limit is 2**(bits - 1).
    Values of larger magnitude are clipped, which bounds the contribution of each row."""

    exponent: int
    bits: int

    @property
    def limit(self) -> int:
        """Largest magnitude of an encoded value: 2**(bits - 1)."""
        # The limit itself is included, one more than a two's complement integer of `bits` bits holds.
        # `cell_bits` therefore takes the limit, not a number of bits.
        return 1 << (self.bits - 1)

    @property
    def factor(self) -> float:
        """Number of units per 1.0. It is a power of two, so multiplying and dividing by it is exact."""
        return math.ldexp(1.0, self.bits - 1 - self.exponent)

    def encode(self, values: Float64) -> Int64:
        """Encode floats: round each to the nearest unit (ties to even), then clip it to [-limit, limit].
        Returns int64, shaped like `values`."""
        # The factor is a power of two, so the product only shifts the exponent: rint is the only rounding.
        # The clip comes before the conversion, which is undefined for floats beyond int64.
        units = np.rint(np.asarray(values, np.float64) * self.factor)
        return np.clip(units, -self.limit, self.limit).astype(np.int64)

    def decode(self, total: int) -> float:
        """Convert a sum of encoded values to a float. The result is exact for sums of up to 2**53 units."""
        return float(total) / self.factor


UNIT = Scale(exponent=0, bits=1)
"""Scale of a plain count: 1.0 is encoded as 1."""


@functools.lru_cache(maxsize=256)
def cell_bits(limit: int, rows: int) -> int:
    """Return the smallest cell width, in bits, that holds any sum of `rows` integers of magnitude up to
    `limit`.

    Such a sum has a magnitude of at most limit * rows, and a signed cell of w bits holds magnitudes up to
    2**(w - 1) - 1. The sum can therefore be recovered from its residue modulo 2**w, no matter in which order
    the residues were added. Raises ConfigError if more than 64 bits are needed."""
    # A sum of magnitude m needs m <= 2**(w - 1) - 1, which is w = bit_length(m) + 1: two bits for m = 1, and
    # k + 2 bits for m = 2**k.
    bits = (limit * max(rows, 1)).bit_length() + 1
    if bits > MAX_CELL_BITS:
        raise ConfigError(
            "terms-cell-overflow",
            f"the sum of {rows} {limit.bit_length()}-bit values does not fit in a {MAX_CELL_BITS}-bit cell; "
            f"lower gradient_bits",
        )
    return bits


EXPONENT_CELLS = 128
_LOWEST_EXPONENT = -63


def exponent_counts(values: Float64) -> Int64:
    """Count values by binary exponent. Returns int64 [EXPONENT_CELLS]; zeros and NaN are not counted.

    Cell i counts values with 2**(e - 1) <= |value| < 2**e, where e = i - 63. Smaller values are counted in
    the first cell, larger ones in the last. Counts from different parties can be added together. The highest
    non-empty cell of the total then bounds the values of all parties (`bound_exponent`). This does not reveal
    any party's own maximum."""
    # frexp writes a value as f * 2**e with 1/2 <= f < 1, so 2**e is the next power of two above it. NaN fails
    # the comparison with 0.
    #     cell       0              1                     63             127
    #     |value|    below 2**-63   [2**-63, 2**-62) ...  [1/2, 1) ...   2**63 and more
    # frexp gives infinity the exponent 0, so it is replaced by the largest finite value.
    magnitudes = np.minimum(np.abs(np.asarray(values, np.float64)), np.finfo(np.float64).max)
    exponents = np.frexp(magnitudes[magnitudes > 0])[1].astype(np.int64)
    cells = np.clip(exponents - _LOWEST_EXPONENT, 0, EXPONENT_CELLS - 1)
    return np.bincount(cells, minlength=EXPONENT_CELLS).astype(np.int64)


def bound_exponent(counts: Int64, beyond: int = 0) -> int:
    """Return the smallest exponent e such that at most `beyond` counted values exceed 2**e in magnitude.
    Returns 0 if no more than `beyond` values are counted. counts: int64 [EXPONENT_CELLS], from
    `exponent_counts`."""
    # The cumulative sum from the right counts, at cell i, the values in this cell and above it. At most
    # `beyond` values lie above the last cell where it exceeds `beyond`. The last of all cells has no upper
    # end: values beyond 2**64 are clipped by `Scale.encode`.
    used = np.flatnonzero(np.cumsum(counts[::-1])[::-1] > beyond)
    return int(used[-1]) + _LOWEST_EXPONENT if used.size else 0


def lower_bound(counts: Int64) -> float:
    """Return the largest power of two that bounds all counted magnitudes from below. Returns 0.0 if there is
    no such bound: if no values are counted, or if the first cell, which has no lower end, is not empty.
    counts: int64 [EXPONENT_CELLS], from `exponent_counts`."""
    # The first cell has no lower end, so a count in it leaves no bound.
    used = np.flatnonzero(counts)
    return math.ldexp(1.0, int(used[0]) + _LOWEST_EXPONENT - 1) if used.size and used[0] else 0.0
