"""The scheme of Brakerski, Fan and Vercauteren, 8192 cells in a ciphertext, by TenSEAL (Microsoft SEAL).

Promises: sums are exact, for no more than 256 parties: the noise of 256 ciphertexts and of the blind's
leaves 14 of 18 bits of its budget; the secret key is in no bytes that this file makes.
Refuses: keys and ciphertexts of other parameters than these, and what SEAL cannot read (PeerError).

N = 8192, ciphertexts modulo two primes of 40 bits (a third of the same size is SEAL's own): 120 bits in all,
where 128 bits of security allow 218. Plaintexts are N numbers modulo MODULUS, a prime that is 1 modulo 2 N. A
cell whose sum does not fit one of them is cut into limbs, each in a number of its own.

The blind is encrypted, not only added, so that the sum's noise is not what the parties' noises add up to.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import tenseal as ts
import tenseal.sealapi  # without it, SEAL's parameters have no type in Python

from fedboost.errors import PeerError, SessionFailed
from fedboost.fixedpoint import Int64
from fedboost.privacy import packing
from fedboost.privacy.encrypted.scheme import IMPOSSIBLE
from fedboost.privacy.masked.keys import RandomBytes
from fedboost.privacy.packing import Chunk, Words

DEGREE = 8192
PRIMES = (40, 40, 40)
"""Bits of the primes of the ciphertexts' modulus."""
MODULUS = 0x3FFFFFFFEF8001
"""The largest prime of 54 bits that is 1 modulo 16,384: cells of 45 bits of 256 parties, or 52 of three, take
one number and not two, and the noise leaves that much room."""
PLAIN_BYTES = 7
"""Of a number below MODULUS, as plaintexts travel."""
MAX_CIPHERTEXT_BYTES = 2 * 2 * 8 * DEGREE + 4096
"""Two polynomials modulo two primes, not compressed, and their header."""
MAX_KEY_BYTES = 1 << 20


class Bfv:
    """The scheme `bfv`."""

    def new_secret(self, bits: int) -> "BfvSecret":
        """A new key pair; there is one size."""
        return BfvSecret()

    def read_public(self, data: bytes, min_bits: int) -> "BfvPublic":
        """A key in TenSEAL's form; PeerError if it has other parameters, or a secret in it."""
        if len(data) > MAX_KEY_BYTES:
            raise PeerError(f"a BFV key of {len(data)} bytes, more than any has")
        try:
            context = ts.context_from(data)
        except (ValueError, RuntimeError) as error:
            raise PeerError(f"bytes that are no BFV key: {error}") from None
        if context.has_secret_key():
            raise PeerError("a public BFV key that came with its secret key")
        key = context.seal_context().data.key_context_data().parms()
        primes = tuple(prime.bit_count() for prime in key.coeff_modulus())
        parameters = str(key.scheme()), key.poly_modulus_degree(), key.plain_modulus().value(), primes
        if parameters != ("SCHEME_TYPE.BFV", DEGREE, MODULUS, PRIMES) or not context.has_public_key():
            raise PeerError("a BFV key of other parameters than fedboost's")
        return BfvPublic(context, data)


class BfvPublic:
    """A context of TenSEAL without its secret key."""

    def __init__(self, context: Any, data: bytes) -> None:
        self.context = context
        self._data = data

    def __repr__(self) -> str:
        return "BfvPublic()"

    @cached_property
    def level(self) -> list[int]:
        """SEAL's identifier of the parameters of a new ciphertext."""
        return list(self.context.seal_context().data.first_parms_id())

    def to_bytes(self) -> bytes:
        """The key in TenSEAL's form, 0.3 MB."""
        return self._data

    def cipher(self, chunk: Chunk, parties: int) -> "BfvCipher":
        """Encryption of one chunk."""
        return BfvCipher(self, Limbs(chunk.pieces, parties))

    def prepare(self) -> None:
        """Do nothing: there is nothing to prepare."""

    def close(self) -> None:
        """Do nothing: nothing runs in the background."""


class Limbs:
    """Cells as numbers whose sums over `parties` stay below MODULUS: each in as few limbs as that takes.

    pieces: int64 [P, 2], cells and bits (1 to 64) of each. The limbs of a piece follow one another, the
    lowest of all its cells first.
    """

    def __init__(self, pieces: Int64, parties: int) -> None:
        self._parties = parties
        self._pieces = pieces.tolist()
        self._most = (MODULUS // parties).bit_length() - 1
        self.numbers: int = sum(cells * -(-bits // self._most) for cells, bits in self._pieces)
        self.cells = sum(cells for cells, _ in self._pieces)

    def _limbs(self) -> Iterator[tuple[slice, slice, int, int]]:
        """Each limb as its cells, its numbers, its lowest bit in the cell, its bits."""
        cell, number = 0, 0
        for cells, bits in self._pieces:
            size = -(-bits // -(-bits // self._most)) if bits else 0
            for low in range(0, bits, size):
                limb = min(size, bits - low)
                yield slice(cell, cell + cells), slice(number, number + cells), low, limb
                number += cells
            cell += cells

    def split(self, words: Words) -> Int64:
        """The limbs, int64 [numbers], of cells below 2**bits, uint64 [cells]."""
        out = np.empty(self.numbers, np.int64)
        for cells, numbers, low, size in self._limbs():
            out[numbers] = (words[cells] >> np.uint64(low)) & np.uint64((1 << size) - 1)
        return out

    def joined(self, sums: Int64) -> Words:
        """The lowest 64 bits of each cell, uint64 [cells], from the sums of its limbs."""
        out = np.zeros(self.cells, np.uint64)
        for cells, numbers, low, size in self._limbs():
            if (sums[numbers] >> size >= self._parties).any():
                raise SessionFailed(IMPOSSIBLE)
            out[cells] += sums[numbers].astype(np.uint64) << np.uint64(low)
        return out


class BfvCipher:
    """Ciphertexts of 8192 numbers each, the last filled up with zeros: fields of TenSEAL's bytes."""

    def __init__(self, public: BfvPublic, limbs: Limbs) -> None:
        self._public = public
        self._limbs = limbs
        self._rows: int = -(-limbs.numbers // DEGREE)

    def most_bytes(self) -> int:
        """Largest size of what `encrypt` returns; SEAL compresses."""
        return self._rows * MAX_CIPHERTEXT_BYTES

    def encrypt(self, words: Words) -> bytes:
        """Cut the cells into limbs and encrypt them."""
        return self._written(self._encrypted(self._limbs.split(words)))

    def _encrypted(self, numbers: Int64) -> list[Any]:
        """Ciphertexts of the numbers, each full, the last padded with zeros: blinds must cover all of it."""
        padded = np.zeros(self._rows * DEGREE, np.int64)
        padded[: numbers.size] = numbers
        rows, context = padded.reshape(-1, DEGREE), self._public.context.data
        # As ts.bfv_vector, which copies every list twice.
        return [ts.BFVVector(data=ts._ts_cpp.BFVVector(context, row.tolist())) for row in rows]

    def read(self, sealed: bytes) -> list[Any]:
        """The ciphertexts, new ones of these parameters."""
        rows = packing.unpack(sealed)
        if len(rows) != self._rows:
            raise PeerError(f"{len(sealed)} bytes of {len(rows)} ciphertexts where {self._rows} were due")
        return [self._vector(row) for row in rows]

    def _vector(self, data: bytes) -> Any:
        if not 0 < len(data) <= MAX_CIPHERTEXT_BYTES:
            raise PeerError(f"{len(data)} bytes of a ciphertext")
        try:
            vector = ts.bfv_vector_from(self._public.context, data)
        except (ValueError, RuntimeError) as error:
            raise PeerError(f"bytes that are no ciphertext: {error}") from None
        ciphertexts = vector.ciphertext()
        if vector.size() != DEGREE or len(ciphertexts) != 1 or ciphertexts[0].size() != 2:
            raise PeerError("a ciphertext of another size")
        first = ciphertexts[0]
        if list(first.parms_id()) != self._public.level or first.is_ntt_form() or first.is_transparent():
            raise PeerError("a ciphertext that no encryption gives")
        return vector

    def add(self, total: list[Any], more: list[Any]) -> list[Any]:
        """Add `more` to `total`, in place."""
        for left, right in zip(total, more, strict=True):
            left.add_(right)
        return total

    def blind(self, total: list[Any], draw: RandomBytes) -> tuple[bytes, Int64]:
        """Add a number below MODULUS to each."""
        blinds = uniform(self._rows * DEGREE, draw)
        return self._written(self.add(total, self._encrypted(blinds))), blinds

    def unblind(self, answer: bytes, blind: Int64) -> Words:
        """The sums of the cells, as far as 64 bits hold them."""
        if len(answer) != blind.size * PLAIN_BYTES:
            raise PeerError(f"{len(answer)} bytes of plaintexts where {blind.size * PLAIN_BYTES} were due")
        sums = _numbers(answer)
        if sums.size and sums.max() >= MODULUS:
            raise PeerError("a plaintext that is out of range")
        sums -= blind
        sums[sums < 0] += MODULUS
        if sums[self._limbs.numbers :].any():
            raise SessionFailed(IMPOSSIBLE)
        return self._limbs.joined(sums[: self._limbs.numbers])

    @staticmethod
    def _written(vectors: list[Any]) -> bytes:
        return packing.pack(*(vector.serialize() for vector in vectors))


def uniform(count: int, draw: RandomBytes) -> Int64:
    """Uniform numbers below MODULUS: int64 [count]."""
    out = np.empty(0, np.int64)
    while out.size < count:
        numbers = _numbers(draw(PLAIN_BYTES * (count - out.size))) & ((1 << MODULUS.bit_length()) - 1)
        out = np.concatenate([out, numbers[numbers < MODULUS]])
    return out


def _numbers(data: bytes) -> Int64:
    """Little-endian numbers of PLAIN_BYTES bytes each."""
    out = np.zeros((len(data) // PLAIN_BYTES, 8), np.uint8)
    out[:, :PLAIN_BYTES] = np.frombuffer(data, np.uint8).reshape(-1, PLAIN_BYTES)
    return out.view("<i8").reshape(-1).astype(np.int64, copy=False)


class BfvSecret:
    """A key pair, in a context of TenSEAL that is never written whole."""

    def __init__(self) -> None:
        self._context = ts.context(
            ts.SCHEME_TYPE.BFV,
            poly_modulus_degree=DEGREE,
            plain_modulus=MODULUS,
            coeff_mod_bit_sizes=list(PRIMES),
        )
        self._key = self._context.secret_key()

    def __repr__(self) -> str:
        return "BfvSecret()"

    @cached_property
    def public(self) -> BfvPublic:
        """The public key, from the bytes that others get."""
        data: bytes = self._context.serialize(
            save_public_key=True, save_secret_key=False, save_galois_keys=False, save_relin_keys=False
        )
        return BfvPublic(ts.context_from(data), data)

    def decrypt(self, ciphertexts: list[Any]) -> bytes:
        """All numbers of the ciphertexts, padding included."""
        return b"".join([self._plain(vector) for vector in ciphertexts])

    def _plain(self, vector: Any) -> bytes:
        numbers = np.fromiter(vector.decrypt(self._key), "<i8", DEGREE)
        numbers += (numbers >> 63) & MODULUS  # SEAL's are signed
        return numbers.view(np.uint8).reshape(-1, 8)[:, :PLAIN_BYTES].tobytes()
