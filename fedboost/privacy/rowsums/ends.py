"""Protection `paillier` where parties hold different columns: the label holder encrypts the gradient of each
row, others report sums that they cannot read, and the label holder opens them without reading them, either.

A turn, with ctx = everything that the aggregator and the label holder must agree on:

    report   each party: its own integers in plain; a feature holder the sums of its columns, encrypted
    blind    the aggregator hides each ciphertext, its plaintext and what randomised it (openings.py)
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
from typing import Any

import numpy as np
import numpy.typing as npt

from fedboost.errors import PeerError, Refused, RosterTooSmall, SessionFailed
from fedboost.fixedpoint import Int64
from fedboost.privacy import fields
from fedboost.privacy.bit_packing import signed
from fedboost.privacy.masked.keys import BENEATH, Group, RandomBytes, context
from fedboost.privacy.plain import PlainOpener, PlainSealer
from fedboost.privacy.protection import HiddenSums, Tag, check_newer
from fedboost.privacy.rowsums.openings import Blinded, blind, open_blinded, unblind
from fedboost.privacy.rowsums.scheme import Piece, Result, Slots
from fedboost.privacy.rowsums.sums import Engine, engine_of

Flags = npt.NDArray[np.bool_]
MAX_OPENING_BYTES = 4_000_000
"""Bytes of an answer of the label holder, which is one message."""


class ColumnsSealer(PlainSealer):
    """The end at a party: its own integers in plain. The label holder also helps to open what others hid.

    Refuses (PeerError): help without the secret key, of another turn, with another request than before, and
    more often than the terms have sums."""

    def __init__(
        self, group: Group, session: bytes, secret: Any, max_openings: int, sparsely: bool = True
    ) -> None:
        super().__init__(sparsely)
        self._group = group
        self._session = session
        self._secret = secret
        self._most = max_openings
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
        ctx, sealed = _two(request)
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

    def __init__(
        self,
        tag: Tag,
        public: Any,
        label_holder: str,
        group: Group,
        session: bytes,
        draw: RandomBytes,
        hidden: HiddenSums | None,
    ) -> None:
        """hidden: the sums that are reported encrypted, where there are any."""
        super().__init__(tag)
        self._public = public
        self._label_holder = label_holder
        self._context = context(BENEATH, session, group, tag)
        self._draw = draw
        self._hidden = hidden
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
            self._check_number(sum(map(self._ciphertexts, hidden.places)))
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

    def _check_number(self, ciphertexts: int) -> None:
        most = MAX_OPENING_BYTES // (2 * int(self._public.bytes))
        if ciphertexts > most:
            raise Refused(
                f"{ciphertexts:,} encrypted sums in a turn, the label holder opens {most:,} at most: lower "
                f"max_bin or max_depth, or have fewer columns"
            )

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
            self._request = fields.pack(self._context, sealed)
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


def _two(request: bytes) -> tuple[bytes, bytes]:
    parts = fields.unpack(request)
    if len(parts) != 2:
        raise PeerError("a request for help that asks for no sum")
    return parts[0], parts[1]
