"""Protection `paillier` where parties hold different columns. The label holder encrypts each row's gradient,
other parties report sums that they cannot read, and the label holder decrypts the blinded sums, which it
cannot read either.

A turn, where ctx stands for everything that the aggregator and the label holder must agree on:

    report   each party: its own integers, unencrypted; a feature holder: the sums of its columns, encrypted
    blind    the aggregator hides the plaintext of each ciphertext, and the number that randomised it
    assist   the label holder decrypts the blinded numbers once per turn, proves the result, counts answers
    open     the aggregator checks the proof, removes the blinds, and puts the sums in their cells

Guarantees: the label holder learns nothing about sums, not even with a forged key or forged ciphertexts. The
aggregator learns sums, but no row's gradient. The same request gets the same answer; a different one in the
same turn is rejected. Raises: PeerError, naming the party, for reports with a wrong number of ciphertexts, or
with ciphertexts that are out of range or not units; for unencrypted numbers where sums are encrypted; for
wrong answers from the label holder; and for more openings than the terms require. Refused for more
ciphertexts than fit in an answer."""

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
# Guarantees, if the key has passed `check`: a blinded ciphertext is a uniform unit modulo n**2, regardless of
# what it was, so the label holder learns nothing from any number of them. A wrong plaintext is detected,
# except with probability 2**-128.
# Raises: PeerError, naming the label holder, for wrong answers, and PeerError for requests and answers that
# are out of range or not units.
# (m, r) -> (1 + n)**m * r**n maps Z_n x Z_n* one to one onto the units modulo n**2 if gcd(n, phi(n)) = 1 (P.
# Paillier, "Public-key cryptosystems based on composite degree residuosity classes", EUROCRYPT 1999). So a
# uniform pair blinds like a one-time pad, and a ciphertext has only one opening (m, r). An answer is checked
# with random exponents (M. Bellare, J. Garay, T. Rabin, "Fast batch verification for modular exponentiation
# and digital signatures", EUROCRYPT 1998): with plaintexts m', the check needs sum(e_i (m_i - m'_i)) = 0
# modulo n. If some m_i is wrong, then modulo some prime factor p of n, and at most one value of e_i modulo p
# passes. All exponents of 16 bits differ modulo p, since p > 2**16 (`check`). Longer ones would not: see
# docs/decisions/0023.


ROUNDS = 8
"""Number of rounds in which openings are checked, each with random exponents of FACTOR_BITS bits. A wrong
plaintext passes each round with a probability of at most 2**-16."""


class Blinded(NamedTuple):
    """The aggregator's record of a request: the blinded ciphertexts, and what was added to each plaintext."""

    ciphertexts: list[Any]
    added: list[Any]

    def __repr__(self) -> str:
        return f"Blinded({len(self.ciphertexts)} numbers)"


def blind(
    public: PaillierPublic, numbers: list[Any], draw: RandomBytes, engine: Engine | None = None
) -> tuple[bytes, Blinded]:
    """Blind ciphertexts (units modulo n**2). Returns the request for their plaintexts, and the record for
    `unblind`. engine: computes powers modulo n**2 (default: gmpy2).

    Each ciphertext is multiplied by a fresh (1 + n)**added * rho**n, where rho is a random unit. Powers of a
    fixed base would not suffice for rho**n: they are all in one subgroup, and a party that knows the factors
    of n can distinguish the cosets of this subgroup."""
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
    """Return the n-th powers of these numbers modulo n**2."""
    if engine is None:
        return [gmpy2.powmod(unit, public.n, public.square) for unit in units]
    return engine.values(engine.powers(engine.read(public.written(units)), public.n))


def open_blinded(secret: PaillierSecret, request: bytes, count: int) -> bytes:
    """Return the label holder's answer to a request with `count` ciphertexts: all plaintexts m, then all
    roots r, each with as many bytes as n.

    Raises PeerError if the request is malformed. Raises SessionFailed if this machine made an arithmetic
    error: an answer that is correct modulo only one prime would reveal that prime to the aggregator."""
    public, ones = secret.public, [1] * count
    n, square = public.n, public.square
    numbers = public.read(request, count)
    plain = secret.decrypt(numbers)
    roots = secret.roots([number % n for number in numbers])
    total = sum(split(plain, public.bytes, count)) % n
    if not _opens(public, _product(numbers, ones, square), total, _product(roots, ones, n)):
        raise SessionFailed(
            "decrypted-wrongly",
            "this machine computed a wrong decryption; check its memory (RAM) and start again",
        )
    return plain + b"".join([root.to_bytes(public.bytes, "little") for root in roots])


def unblind(
    public: PaillierPublic, answer: bytes, kept: Blinded, label_holder: str, draw: RandomBytes
) -> list[Any]:
    """Check the label holder's answer and return the plaintexts without their blinds, as numbers below n.

    `draw` returns the random exponents of the check. It is called after the answer has arrived, so the label
    holder cannot know them. Raises PeerError, naming the label holder, if a plaintext is wrong."""
    count = len(kept.ciphertexts)
    if len(answer) != 2 * count * public.bytes:
        raise PeerError(
            "openings-length",
            f"{label_holder} answered with {len(answer)} bytes instead of {count} openings of "
            f"{2 * public.bytes} bytes each",
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
            "opening-wrong",
            f"{label_holder} sent a wrong plaintext for ciphertext {wrong} of {count}, so its answer was "
            "discarded; contact the party's operator before you train with this party again",
        )
    return [(m - taken) % public.n for m, taken in zip(plain, kept.added, strict=True)]


def _right(
    public: PaillierPublic, ciphertexts: list[Any], plain: list[Any], roots: list[Any], draw: RandomBytes
) -> bool:
    """Return True if all openings are correct. Checks them in rounds of random exponents, or one by one if
    there are at most ROUNDS openings."""
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
    """Return the product of the numbers, each raised to its exponent, by joint squaring and multiplying."""
    product = mpz(1)
    for bit in reversed(range(max(exponents, default=0).bit_length())):
        product = product * product % modulus
        for number, exponent in zip(numbers, exponents, strict=True):
            if exponent >> bit & 1:
                product = product * number % modulus
    return product


# ---- Proof that a Paillier key hides what is blinded under it from the party that made it ---------------
# Guarantees: a key that passes has gcd(n, phi(n)) = 1, except with probability 2**-128 for each key and
# context that its maker tries. The proof reveals nothing else about the key, if SHAKE256 is a random oracle.
# Raises: PeerError for keys with a prime factor below 2**16, proofs for another key or context, and malformed
# proofs.
# The proof is the n-th roots modulo n of PROOFS numbers hashed from n and the context. If a prime d divides n
# and phi(n), at most one in d units has an n-th root. d is above 2**16, so all PROOFS numbers have one with
# probability below 2**(-16 * PROOFS). Source: S. Goldberg, L. Reyzin, O. Sagga, F. Baldimtsi, "Efficient
# noninteractive certification of RSA moduli and beyond", ASIACRYPT 2019, section 3.2.


PROOFS = 8
"""Number of roots in a proof: 128 bits of soundness, 16 bits for each root."""
_SPARE_BITS = 16
"""Number of bytes (not bits) hashed in addition to those of n, so that the remainder modulo n is uniform to
within 2**-128."""
_LABEL = b"fedboost Paillier key proof 1"


def prove(secret: PaillierSecret, context: bytes) -> bytes:
    """Return a proof that a key hides blinded values from its owner: PROOFS numbers as long as n. context:
    the session, attempt and party to which the proof is bound."""
    public = secret.public
    roots = secret.roots(_hashed(public, context))
    return b"".join([root.to_bytes(public.bytes, "little") for root in roots])


def check(public: PaillierPublic, context: bytes, proof: bytes) -> None:
    """Raise PeerError if the proof is not for this key and context, or the key has a small prime factor."""
    n = public.n
    if n < 2 or gmpy2.gcd(n, SMALL_PRIMES) != 1:
        raise PeerError("paillier-key-invalid", f"the Paillier key has a prime factor below 2**{FACTOR_BITS}")
    if len(proof) != PROOFS * public.bytes:
        raise PeerError(
            "key-proof-length", f"the key proof has {len(proof)} bytes, not {PROOFS * public.bytes}"
        )
    roots = split(proof, public.bytes, PROOFS)
    for at, (root, number) in enumerate(zip(roots, _hashed(public, context), strict=True), 1):
        if not 1 <= root < n or gmpy2.gcd(number, n) != 1 or gmpy2.powmod(root, n, n) != number:
            raise PeerError(
                "key-proof-wrong",
                f"root {at} of {PROOFS} in the proof of the Paillier key is wrong: the key could reveal "
                "blinded values to its owner, or the proof is for a different session, attempt or party",
            )


def _hashed(public: PaillierPublic, context: bytes) -> list[Any]:
    """Hash the key and the context to PROOFS numbers below n."""
    n, wide = public.to_bytes(), public.bytes + _SPARE_BITS
    stream = hashlib.shake_256(_LABEL + len(n).to_bytes(4) + n + context).digest(PROOFS * wide)
    return [mpz.from_bytes(stream[at : at + wide], "little") % public.n for at in range(0, len(stream), wide)]


# ---- Protection `paillier` where parties hold different columns -----------------------------------------


Flags = npt.NDArray[np.bool_]
MAX_OPENING_BYTES = 4_000_000
"""Maximum size in bytes of the label holder's answer, which is a single message."""


class ColumnsSealer(PlainSealer):
    """The party's end: packs the party's own integers unencrypted. At the label holder, it also decrypts
    blinded sums.

    Raises PeerError for requests to decrypt if this party does not have the secret key, for requests about
    another turn, for a second, different request in a turn, and for requests for more sums than the terms
    require."""

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
        check_newer(tag, self._tag)
        self._tag = tag
        self._request, self._answer = b"", b""
        return super().seal(values, tag)

    def assist(self, request: bytes) -> bytes:
        if self._secret is None:
            raise PeerError(
                "secret-key-missing",
                "the aggregator asked this party to decrypt a sum, but this party lacks the secret key",
            )
        parts = packing.unpack(request)
        if len(parts) != 2:
            raise PeerError("help-request-empty", "the aggregator sent an incomplete request to open a sum")
        ctx, sealed = parts
        tag = self._tag
        if tag is None or not hmac.compare_digest(ctx, context(BENEATH, self._session, self._group, tag)):
            raise PeerError(
                "help-stale", "the aggregator asked for a sum that is not the last one of this session"
            )
        digest = hashlib.sha256(request).digest()
        if self._request:
            if not hmac.compare_digest(digest, self._request):
                raise PeerError(
                    "opening-other",
                    f"the aggregator asked twice for the sum of turn {tag.turn}, with different requests",
                )
            return self._answer
        if self._openings >= self._most:
            raise PeerError(
                "openings-exceeded",
                f"the aggregator asked for more than the {self._most} sums that the terms allow",
            )
        count, rest = divmod(len(sealed), 2 * self._secret.public.bytes)
        if rest or not 0 < count <= tag.cells:
            raise PeerError(
                "openings-length",
                f"the aggregator sent {len(sealed)} bytes of sums, which is not a valid length for "
                f"{tag.cells} cells",
            )
        # Set before the answer is computed, so that even after a failure below no other ciphertexts are
        # decrypted. There are never more of them than cells: an aggregator has nothing else to open in a
        # turn.
        self._request = digest
        self._openings += 1
        self._answer = open_blinded(self._secret, sealed, count)
        return self._answer


class ColumnsOpener(PlainOpener):
    """The aggregator's end: adds unencrypted integers, and has the label holder decrypt the blinded sums of
    other parties.

    Raises RosterTooSmall if the label holder is lost, because no other party can decrypt sums. Raises Refused
    if there are more encrypted sums than fit in an answer."""

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
        """Cells that must be 0 in an unencrypted report: encrypted sums, and marks of other parties."""
        self._zero_of: dict[str, Flags] = {}
        """The same cells, for each party that reports encrypted sums."""
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
                    "sums-too-many",
                    f"this turn has {ciphertexts:,} encrypted sums, but the label holder decrypts at most "
                    f"{most:,} per turn: lower max_bin or max_depth, or use fewer columns",
                )
            places, own = np.concatenate([*hidden.places.values()]), hidden.marks.values()
            self._zero = self._cells_of(hidden, places, places + 1, *own)
            self._zero_of = {
                party: ~self._cells_of(hidden, hidden.marks.get(party, places[:0])) for party in hidden.places
            }

    @staticmethod
    def _cells_of(hidden: HiddenSums, *places: Int64) -> Flags:
        """Return which sealed cells contain these elements of an answer, bool [cells]."""
        chosen = np.zeros(hidden.cells, np.int64)
        chosen[np.concatenate(places)] = 1
        sealed: Flags = hidden.to_cells(chosen) != 0
        return sealed

    def _ciphertexts(self, party: str) -> int:
        assert self._slots is not None
        assert self._hidden is not None
        return self._slots.ciphertexts(self._hidden.places[party].size)

    def add(self, party: str, number: int, cells: bytes) -> None:
        """Add a chunk of a party's unencrypted integers. Raises PeerError for nonzero numbers in cells whose
        sums must be encrypted. With such numbers, the label holder could change the sums of another party's
        columns without being detected by the check of its openings."""
        chunk = self._tag.chunk(number)
        total = chunk.of(self._sum)
        zero = self._zero_of.get(party, self._zero)[chunk.start : chunk.start + chunk.cells]
        before = chunk.residues(total)[zero]
        super().add(party, number, cells)
        if not np.array_equal(chunk.residues(total)[zero], before):
            raise PeerError("cells-not-encrypted", f"it sent unencrypted sums in turn {self._tag.turn}")

    def note(self, party: str, note: bytes) -> None:
        if self._hidden is None or party not in self._hidden.places:
            return super().note(party, note)
        self._reports[party] = self._public.read(note, self._ciphertexts(party))
        return None

    def lose(self, party: str) -> None:
        self._lost |= party == self._label_holder

    def requests(self) -> dict[str, bytes]:
        """Return the request to the label holder, always the same bytes, or {} once it has answered."""
        if self._hidden is None or not self._reports:
            return {}
        if self._lost:
            raise RosterTooSmall(
                "key-holder-lost", f"{self._label_holder} disconnected, and no other party can decrypt sums"
            )
        if not self._request:
            numbers = [number for party in self._hidden.places for number in self._reports[party]]
            sealed, self._blinded = blind(self._public, numbers, self._draw, _engine(self._public.n))
            self._request = packing.pack(self._context, sealed)
        return {self._label_holder: self._request}

    def assist(self, party: str, answer: bytes) -> None:
        """Check the label holder's answer and add the sums. Raises PeerError, naming the label holder, if the
        answer is wrong, and SessionFailed if the reports do not contain sums."""
        if party != self._label_holder or self._blinded is None or not self._reports:
            raise PeerError("help-unexpected", "it sent an answer that was not requested")
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
                    "sums-impossible",
                    f"the report of {holder} contains numbers that cannot be sums of gradients: {holder} "
                    f"made them up, or {self._label_holder} did not encrypt gradients; contact both before "
                    f"you train with them again",
                ) from None
            sums[places], sums[places + 1] = pairs.T
        self._sum += self._hidden.to_cells(sums).view(np.uint64)
        self._reports = {}

    def open(self) -> Int64:
        return signed(self._sum, self._tag.segments)


class _Alone:
    """Runs work in the calling thread (`Threads` with one thread)."""

    number = 1

    def each(self, work: Callable[[Piece], Result], pieces: Iterable[Piece]) -> list[Result]:
        return [work(piece) for piece in pieces]


@lru_cache(maxsize=4)
def _engine(n: Any) -> Engine:
    """Return the engine for a key. Engines are cached for the sessions in progress."""
    return engine_of(n, _Alone())
