"""Protection `paillier` where parties hold different columns: the label holder encrypts the gradient of each
row, others report sums that they cannot read, and the label holder opens them without reading them, either.

A turn, with ctx = everything that the aggregator and the label holder must agree on:

    report   each party: its own integers in plain; a feature holder the sums of its columns, encrypted
    blind    the aggregator hides each ciphertext, its plaintext and what randomised it
    assist   the label holder opens what is uniform to it, once a turn, with proof, and counts
    open     the aggregator checks the proof, takes the blinds away, and puts the sums in their places

Promises: the label holder learns nothing of sums, not even by making its key or its ciphertexts up; the
aggregator learns sums and no row's gradient; the same request gets the same answer, another one of the same
turn gets none.
Refuses: reports of another number of ciphertexts, out of range or no units, numbers in plain in the place of
encrypted ones, and openings of something else, with the name of the party (PeerError); more openings than the
terms have sums (PeerError), and sums of more ciphertexts than one answer has room for (Refused).
"""

import hashlib
import hmac
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import gmpy2
import numpy as np
import numpy.typing as npt
from gmpy2 import mpz

from fedboost.errors import PeerError, Refused, RosterTooSmall, SessionFailed
from fedboost.fixedpoint import Int64
from fedboost.privacy import packing
from fedboost.privacy.ends import PlainOpener, PlainSealer
from fedboost.privacy.packing import RandomBytes, signed
from fedboost.privacy.paillier import (
    FACTOR_BITS,
    SMALL_PRIMES,
    PaillierPublic,
    PaillierSecret,
    below,
    split,
    unit,
)
from fedboost.privacy.pairwise import BENEATH, AggregatorSetup, PartySetup, context
from fedboost.privacy.protection import HiddenSums, Tag, check_newer
from fedboost.privacy.rowsums.scheme import Piece, Result, Slots
from fedboost.privacy.rowsums.sums import Engine, engine_of

# ---- Sums under a Paillier key, opened by the label holder for the aggregator ---------------------------
# Promises, if the key has passed `ends.check`: a blinded ciphertext is a uniform unit modulo n**2,
# whatever it was, so that the label holder learns nothing from any number of them; a plaintext other than
# that of the ciphertext is found, except with probability 2**-128.
# Refuses: requests and answers that are out of range or no units, and answers that are wrong (PeerError,
# which names the label holder).
# (m, r) -> (1 + n)**m * r**n is one to one from Z_n x Z_n* onto the units modulo n**2 if gcd(n, phi(n)) = 1
# (P. Paillier, "Public-key cryptosystems based on composite degree residuosity classes", EUROCRYPT 1999).
# So a uniform pair blinds as a one-time pad, and an opening (m, r) that gives the ciphertext is the only
# one. An answer is checked with random exponents (M. Bellare, J. Garay, T. Rabin, "Fast batch verification
# for modular exponentiation and digital signatures", EUROCRYPT 1998). Why in rounds of 16 bits:
# docs/decisions/0023.


ROUNDS = 8
"""Rounds of exponents of FACTOR_BITS bits each: a wrong plaintext passes each with at most 2**-16."""


class Blinded(NamedTuple):
    """What the aggregator keeps of a request: the blinded ciphertexts, and what each blind adds."""

    ciphertexts: list[Any]
    added: list[Any]

    def __repr__(self) -> str:
        return f"Blinded({len(self.ciphertexts)} numbers)"


def blind(
    public: PaillierPublic, numbers: list[Any], draw: RandomBytes, engine: Engine | None = None
) -> tuple[bytes, Blinded]:
    """The request for the plaintexts of ciphertexts, units modulo n**2, and what `unblind` needs. engine:
    modulo n**2, that computes powers; gmpy2 unless given.

    Each is multiplied by a new (1 + n)**added * rho**n. No power of a fixed base stands for rho**n: those
    stay in a subgroup, whose cosets the party that knows the factors of n tells apart.
    """
    n, square = public.n, public.square
    added, units = [], []
    for _ in numbers:
        added.append(below(n, draw))
        units.append(unit(n, draw))
    blinded = [
        number * (1 + n * plain) % square * power % square
        for number, plain, power in zip(numbers, added, _powers(public, units, engine), strict=True)
    ]
    return public.written(blinded), Blinded(blinded, added)


def _powers(public: PaillierPublic, units: list[Any], engine: Engine | None) -> list[Any]:
    """The n-th powers of numbers modulo n**2."""
    if engine is None:
        return [gmpy2.powmod(unit, public.n, public.square) for unit in units]
    return engine.values(engine.powers(engine.read(public.written(units)), public.n))


def open_blinded(secret: PaillierSecret, request: bytes, count: int) -> bytes:
    """The label holder's answer to a request of `count` numbers: all plaintexts m, then all roots r, each of
    the bytes of n.

    SessionFailed if this machine computed wrongly: an answer that is right modulo one prime alone shows it.
    """
    public, ones = secret.public, [1] * count
    n, square = public.n, public.square
    numbers = public.read(request, count)
    plain = secret.decrypt(numbers)
    roots = secret.roots([number % n for number in numbers])
    total = sum(split(plain, public.bytes, count)) % n
    if not _opens(public, _product(numbers, ones, square), total, _product(roots, ones, n)):
        raise SessionFailed("this machine decrypted wrongly: check its memory, then start again")
    return plain + b"".join([root.to_bytes(public.bytes, "little") for root in roots])


def unblind(
    public: PaillierPublic, answer: bytes, kept: Blinded, label_holder: str, draw: RandomBytes
) -> list[Any]:
    """The plaintexts of what was blinded, numbers below n. `draw` is asked after the answer is there.

    PeerError, with the name of the label holder, if it did not open what it was sent.
    """
    count = len(kept.ciphertexts)
    if len(answer) != 2 * count * public.bytes:
        raise PeerError(
            f"{label_holder} answered {len(answer)} bytes where {count} openings "
            f"of {2 * public.bytes} were due"
        )
    numbers = split(answer, public.bytes, 2 * count)
    plain, roots = numbers[:count], numbers[count:]
    if not _right(public, kept.ciphertexts, plain, roots, draw):
        wrong = next(
            at
            for at, opening in enumerate(zip(kept.ciphertexts, plain, roots, strict=True), 1)
            if not _opens(public, *opening)
        )
        raise PeerError(
            f"{label_holder} opened number {wrong} of {count} with something else than it holds: its answer "
            "is used for nothing; ask its operator before you train with it again"
        )
    return [(m - taken) % public.n for m, taken in zip(plain, kept.added, strict=True)]


def _right(
    public: PaillierPublic, ciphertexts: list[Any], plain: list[Any], roots: list[Any], draw: RandomBytes
) -> bool:
    """True if all openings are right: in rounds, or one by one where that is cheaper."""
    n, square = public.n, public.square
    if not all(m < n for m in plain) or not all(1 <= r < n for r in roots):
        return False
    if len(plain) <= ROUNDS:
        return all(_opens(public, *opening) for opening in zip(ciphertexts, plain, roots, strict=True))
    for _ in range(ROUNDS):
        size = FACTOR_BITS // 8
        stream = draw(size * len(plain))
        exponents = [int.from_bytes(stream[at : at + size]) for at in range(0, len(stream), size)]
        m = sum((m * e for m, e in zip(plain, exponents, strict=True)), mpz(0))
        if not _opens(public, _product(ciphertexts, exponents, square), m % n, _product(roots, exponents, n)):
            return False
    return True


def _opens(public: PaillierPublic, ciphertext: Any, m: Any, r: Any) -> bool:
    n, square = public.n, public.square
    if not (0 <= m < n and 1 <= r < n and gmpy2.gcd(r, n) == 1):
        return False
    return bool((1 + n * m) * gmpy2.powmod(r, n, square) % square == ciphertext)


def _product(numbers: list[Any], exponents: list[int], modulus: Any) -> Any:
    """The product of powers with exponents of at most FACTOR_BITS bits."""
    product = mpz(1)
    for bit in reversed(range(max(exponents, default=0).bit_length())):
        product = product * product % modulus
        for number, exponent in zip(numbers, exponents, strict=True):
            if exponent >> bit & 1:
                product = product * number % modulus
    return product


# ---- Proof that a Paillier key hides what is blinded under it from the party that made it ---------------
# Promises: a key that passes has gcd(n, phi(n)) = 1, except with probability 2**-128 for each key and
# context that its maker tries; the proof shows nothing else of the key, if SHAKE256 is a random oracle.
# Refuses: keys with a prime factor below 2**16; proofs for another key or context; whatever is no proof
# (PeerError).
# The proof is the n-th roots modulo n of PROOFS numbers, hashed from n and the context. If a prime d
# divides n and phi(n), at most one unit in d has an n-th root; d is above 2**16, so all PROOFS numbers have
# one with probability below 2**(-16 * PROOFS). Source: S. Goldberg, L. Reyzin, O. Sagga, F. Baldimtsi,
# "Efficient noninteractive certification of RSA moduli and beyond", ASIACRYPT 2019, section 3.2.


PROOFS = 8
"""Numbers to take a root of: 128 bits of soundness, 16 each."""
_SPARE_BITS = 16
"""Bytes hashed beyond those of n: the remainder modulo n is uniform, but for 2**-128."""
_LABEL = b"fedboost Paillier key proof 1"


def prove(secret: PaillierSecret, context: bytes) -> bytes:
    """The proof for a key, of PROOFS times the bytes of n. `context` says what it is for: the session, the
    attempt, the party's name."""
    public = secret.public
    roots = secret.roots(_hashed(public, context))
    return b"".join([root.to_bytes(public.bytes, "little") for root in roots])


def check(public: PaillierPublic, context: bytes, proof: bytes) -> None:
    """PeerError if the proof is not for this key and context, or the key has a small factor."""
    n = public.n
    if n < 2 or gmpy2.gcd(n, SMALL_PRIMES) != 1:
        raise PeerError(f"a Paillier key with a prime factor below 2**{FACTOR_BITS}")
    if len(proof) != PROOFS * public.bytes:
        raise PeerError(
            f"a proof of a Paillier key of {len(proof)} bytes in place of {PROOFS * public.bytes}"
        )
    roots = split(proof, public.bytes, PROOFS)
    for at, (root, number) in enumerate(zip(roots, _hashed(public, context), strict=True), 1):
        if not 1 <= root < n or gmpy2.gcd(number, n) != 1 or gmpy2.powmod(root, n, n) != number:
            raise PeerError(
                f"root {at} of {PROOFS} in the proof of a Paillier key is wrong: the key could show its "
                "maker what is blinded under it, or the proof is of another session, attempt or party"
            )


def _hashed(public: PaillierPublic, context: bytes) -> list[Any]:
    """PROOFS numbers below n."""
    n, wide = public.to_bytes(), public.bytes + _SPARE_BITS
    stream = hashlib.shake_256(_LABEL + len(n).to_bytes(4) + n + context).digest(PROOFS * wide)
    return [mpz.from_bytes(stream[at : at + wide], "little") % public.n for at in range(0, len(stream), wide)]


# ---- Protection `paillier` where parties hold different columns -----------------------------------------


Flags = npt.NDArray[np.bool_]
MAX_OPENING_BYTES = 4_000_000
"""Bytes of an answer of the label holder, which is one message."""


class ColumnsSealer(PlainSealer):
    """The end at a party: its own integers in plain. The label holder also helps to open what others hid.

    Refuses (PeerError): help without the secret key, of another turn, with another request than before, and
    more often than the terms have sums."""

    def __init__(self, setup: PartySetup) -> None:
        super().__init__(setup.sparse)
        self._group, self._session = setup.group, setup.session
        self._secret = setup.secret
        self._most = setup.max_openings
        self._openings = 0
        self._tag: Tag | None = None
        self._request, self._answer = b"", b""

    def __repr__(self) -> str:
        return f"ColumnsSealer({self._openings} of at most {self._most} sums opened)"

    def seal(self, values: Int64, tag: Tag) -> Iterator[bytes]:
        """The chunks of the vector as packed cells."""
        check_newer(tag, self._tag)
        self._tag = tag
        self._request, self._answer = b"", b""
        return super().seal(values, tag)

    def assist(self, request: bytes) -> bytes:
        """The openings of the blinded sums of the last turn."""
        if self._secret is None:
            raise PeerError("asked to open a sum without the secret key")
        parts = packing.unpack(request)
        if len(parts) != 2:
            raise PeerError("a request for help that asks for no sum")
        ctx, sealed = parts
        tag = self._tag
        if tag is None or not hmac.compare_digest(ctx, context(BENEATH, self._session, self._group, tag)):
            raise PeerError("asked to open a turn or attempt that is not the last, or another session's sum")
        digest = hashlib.sha256(request).digest()
        if self._request:
            if not hmac.compare_digest(digest, self._request):
                raise PeerError(f"asked to open turn {tag.turn} a second time, and with another request")
            return self._answer
        if self._openings >= self._most:
            raise PeerError(f"asked to open more than the {self._most} sums that the terms have")
        count, rest = divmod(len(sealed), 2 * self._secret.public.bytes)
        if rest or not 0 < count <= tag.cells:
            raise PeerError(f"asked to open {len(sealed)} bytes of ciphertexts, of {tag.cells} cells")
        self._request = digest  # no other request is answered from here on
        self._openings += 1
        self._answer = open_blinded(self._secret, sealed, count)
        return self._answer


class ColumnsOpener(PlainOpener):
    """The end at the aggregator. Raises RosterTooSmall when the label holder is lost: nobody else opens."""

    def __init__(self, tag: Tag, setup: AggregatorSetup) -> None:
        super().__init__(tag)
        assert setup.keyholder is not None
        assert setup.draw is not None
        assert setup.public is not None
        public, hidden = self._public, self._hidden = setup.public, setup.hidden
        self._label_holder, self._draw = setup.keyholder, setup.draw
        self._context = context(BENEATH, setup.session, setup.group, tag)
        self._slots: Slots | None = None
        self._zero = np.zeros(tag.cells, np.bool_)
        """The cells that are 0 in what parties tell in plain: sums that are reported encrypted, marks of
        others."""
        self._zero_of: dict[str, Flags] = {}
        """Those of parties that report encrypted sums."""
        self._reports: dict[str, list[Any]] = {}
        self._blinded: Blinded | None = None
        self._request = b""
        self._lost = False
        if hidden is not None:
            self._slots = Slots.of(hidden.limit, hidden.rows, public.n.bit_length())
            ciphertexts = sum(map(self._ciphertexts, hidden.places))
            most = MAX_OPENING_BYTES // (2 * public.bytes)
            if ciphertexts > most:
                raise Refused(
                    f"{ciphertexts:,} encrypted sums in a turn, the label holder opens {most:,} at most: "
                    f"lower max_bin or max_depth, or have fewer columns"
                )
            places, own = np.concatenate([*hidden.places.values()]), hidden.marks.values()
            self._zero = self._cells_of(hidden, places, places + 1, *own)
            self._zero_of = {
                party: ~self._cells_of(hidden, hidden.marks.get(party, places[:0])) for party in hidden.places
            }

    @staticmethod
    def _cells_of(hidden: HiddenSums, *places: Int64) -> Flags:
        """Where these cells of an answer are when it is sealed."""
        chosen = np.zeros(hidden.cells, np.int64)
        chosen[np.concatenate(places)] = 1
        sealed: Flags = hidden.to_cells(chosen) != 0
        return sealed

    def _ciphertexts(self, party: str) -> int:
        assert self._slots is not None
        assert self._hidden is not None
        return self._slots.ciphertexts(self._hidden.places[party].size)

    def add(self, party: str, number: int, cells: bytes) -> None:
        """Add one chunk. PeerError for numbers in plain where sums are reported encrypted: the label holder
        could choose what a foreign column shows, and no proof of its openings would tell."""
        chunk = self._tag.chunk(number)
        total = chunk.of(self._sum)
        zero = self._zero_of.get(party, self._zero)[chunk.start : chunk.start + chunk.cells]
        before = chunk.residues(total)[zero]
        super().add(party, number, cells)
        if not np.array_equal(chunk.residues(total)[zero], before):
            raise PeerError(f"it reports in plain what is encrypted, in turn {self._tag.turn}")

    def note(self, party: str, note: bytes) -> None:
        """Take in the encrypted sums of a party."""
        if self._hidden is None or party not in self._hidden.places:
            return super().note(party, note)
        self._reports[party] = self._public.read(note, self._ciphertexts(party))
        return None

    def lose(self, party: str) -> None:
        """Note that a party is disconnected: its vector is in the sum, only the label holder is needed
        again."""
        self._lost |= party == self._label_holder

    def requests(self) -> dict[str, bytes]:
        """The request to the label holder, until it has opened the sums. The same bytes in every call."""
        if self._hidden is None or not self._reports:
            return {}
        if self._lost:
            raise RosterTooSmall(f"{self._label_holder}, who alone can open the sums, is lost")
        if not self._request:
            numbers = [number for party in self._hidden.places for number in self._reports[party]]
            sealed, self._blinded = blind(self._public, numbers, self._draw, _engine(self._public.n))
            self._request = packing.pack(self._context, sealed)
        return {self._label_holder: self._request}

    def assist(self, party: str, answer: bytes) -> None:
        """Take in the openings. PeerError, with the label holder's name, if they are of something else;
        SessionFailed if what was reported holds no sums."""
        if party != self._label_holder or self._blinded is None or not self._reports:
            raise PeerError("help that was not asked for")
        assert self._slots is not None
        assert self._hidden is not None
        plain = unblind(self._public, answer, self._blinded, self._label_holder, self._draw)
        sums = np.zeros(self._hidden.cells, np.int64)
        for holder, places in self._hidden.places.items():
            count = self._ciphertexts(holder)
            opened, plain = plain[:count], plain[count:]
            try:
                pairs = self._slots.read(opened, places.size)
            except SessionFailed:
                raise SessionFailed(
                    f"what {holder} reported holds no sums of gradients: it made them up, or "
                    f"{self._label_holder} encrypted something else; ask there before you train with them "
                    f"again"
                ) from None
            sums[places], sums[places + 1] = pairs.T
        self._sum += self._hidden.to_cells(sums).view(np.uint64)
        self._reports = {}

    def open(self) -> Int64:
        """The sum, once `requests` is empty."""
        return signed(self._sum, self._tag.segments)


class _Alone:
    """One thread: the caller's."""

    number = 1

    def each(self, work: Callable[[Piece], Result], pieces: Iterable[Piece]) -> list[Result]:
        return [work(piece) for piece in pieces]


@lru_cache(maxsize=4)
def _engine(n: Any) -> Engine:
    """The engine of a key: of the sessions that run now."""
    return engine_of(n, _Alone())
