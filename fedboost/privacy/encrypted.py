"""Protections `paillier` and `bfv`: parties encrypt, the aggregator adds without reading, a key holder opens.

Designed for: consortia whose rules ask for encryption, and an aggregator that keeps to the protocol. The
aggregator never has the secret key; the key holder, a party or a process of its own, never has a party's
ciphertexts. Together the two could open a single report, and so could an aggregator that has one opened in
the place of a sum: the key holder cannot tell the two apart. With `masked` neither can be.

A turn, with ctx = everything that tells this sum from every other:

    upload   each party: its cells, encrypted under the session's public key
    blind    the aggregator adds the ciphertexts up, adds a number drawn from all plaintexts to each, which
             randomises it anew, and sends them with ctx to the key holder
    assist   the key holder decrypts what is as good as noise, once a turn, and counts
    open     the aggregator takes its numbers away again

Promises: the key holder learns nothing of a sum but how many cells it has; a tag is sealed once; the same
request gets the same answer, another one of the same turn gets none.
Refuses: ciphertexts of another key, out of range or of another number than the cells have (PeerError), keys
that are too short or cannot be keys (PeerError), more openings than the terms have sums (PeerError).

What differs between the schemes is behind `Public`, `Secret` and `Cipher`: paillier.py and bfv.py.
"""

import hashlib
import hmac
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from fedboost.errors import ConfigError, LocalProtocolError, PeerError, RosterTooSmall
from fedboost.fixedpoint import Int64
from fedboost.privacy import fields
from fedboost.privacy.cells import WORD_BITS, Part, Words, signed
from fedboost.privacy.protection import Tag
from fedboost.privacy.shamir import Draw

SCHEMES = ("paillier", "bfv")
DIGEST_BYTES = 32
NAME_BYTES = 16
"""Of a public key's digest, before every sealed part."""
MOST_PARTIES = 256
"""A sum of more would need more room in a slot than it has."""


class Cipher(Protocol):
    """Encryption of the cells of one part of a vector. `Any` is a scheme's own form of its ciphertexts."""

    def encrypt(self, words: Words) -> bytes:
        """The ciphertexts of uint64 [cells], each below 2**bits."""
        ...

    def read(self, sealed: bytes) -> Any:
        """Ciphertexts that were received; PeerError if they cannot be those of this part."""
        ...

    def add(self, total: Any, more: Any) -> Any:
        """The ciphertexts of the sum."""
        ...

    def blind(self, total: Any, draw: Draw) -> tuple[bytes, Any]:
        """The ciphertexts of the sum and a number that is uniform over all plaintexts; and that number."""
        ...

    def unblind(self, answer: bytes, blind: Any) -> Words:
        """The lowest 64 bits of each sum; PeerError for another length, SessionFailed for what is no sum."""
        ...

    def most_bytes(self) -> int:
        """What `encrypt` makes is no longer."""
        ...


class Public(Protocol):
    """A key that encrypts and adds."""

    def to_bytes(self) -> bytes:
        """The key as it travels; there is no secret in it."""
        ...

    def cipher(self, part: Part, parties: int) -> Cipher:
        """Encryption of one part under this key, with room for the sum over so many parties."""
        ...

    def prepare(self) -> None:
        """Begin, in the background, what encryption will need."""
        ...

    def close(self) -> None:
        """End what runs in the background. It begins anew when it is needed."""
        ...


class Secret(Protocol):
    """A key pair."""

    @property
    def public(self) -> Public:
        """The half that everybody may have."""
        ...

    def decrypt(self, ciphertexts: Any) -> bytes:
        """The plaintexts, as they travel, of what `Cipher.read` gave."""
        ...


class Scheme(Protocol):
    """A way to encrypt: where keys come from."""

    def new_secret(self, bits: int) -> Secret:
        """A new key pair; `bits` counts where keys come in sizes. ConfigError if that is too small."""
        ...

    def read_public(self, data: bytes, least_bits: int) -> Public:
        """A public key that was received; PeerError if it is shorter than that, or cannot be one."""
        ...


def scheme_of(name: str) -> Scheme:
    """The scheme of this name, one of SCHEMES. ConfigError if what it needs is not installed."""
    try:
        if name == "paillier":
            from fedboost.privacy import paillier

            return paillier.Paillier()
        if name == "bfv":
            from fedboost.privacy import bfv

            return bfv.Bfv()
    except ImportError as error:
        raise ConfigError(
            f"protection {name} needs the package {error.name}, which is not installed: "
            f'pip install "fedboost[{name}]"'
        ) from None
    raise ConfigError(f"no encryption is named {name!r}; known: {', '.join(SCHEMES)}")


def digest_of(public: Public) -> bytes:
    """What a public key is known by: 32 bytes."""
    return hashlib.sha256(fields.pack(b"fedboost/1/public", public.to_bytes())).digest()


def context(digest: bytes, tag: Tag, parties: int) -> bytes:
    """Everything that tells the sum of this tag from every other: 32 bytes. digest: of the public key."""
    roster = fields.pack(*(party.encode() for party in sorted(tag.roster)))
    shape = (number for run in tag.runs for number in (run.cells, run.bits))
    numbers = (tag.turn, tag.attempt, tag.tree, parties, *shape)
    return hashlib.sha256(
        fields.pack(b"fedboost/1/sum", digest, roster, tag.transcript, *map(fields.number, numbers))
    ).digest()


# ---- whoever has the secret key ---------------------------------------------------------------------


class KeyHolder:
    """Opens blinded sums: of the tag that was announced last, and of each turn only one.

    Two rosters of the same turn would give away the party they differ by. So once a sum of a turn was opened,
    no other attempt of that turn is.
    """

    def __init__(self, secret: Secret, parties: int, most_openings: int) -> None:
        self._secret = secret
        self._parties = parties
        self._most = most_openings
        self._digest = digest_of(secret.public)
        self._tag: Tag | None = None
        self._opened_turn = -1
        self._request, self._answer = b"", b""
        self.openings = 0
        """Sums opened so far."""

    def __repr__(self) -> str:
        return f"KeyHolder({self.openings} of at most {self._most} sums opened)"

    def announce(self, tag: Tag) -> None:
        """The sum that may be asked for from now on. PeerError if it is not newer than the last."""
        _check_newer(tag, self._tag)
        if tag.turn <= self._opened_turn:
            raise PeerError(f"turn {tag.turn} was opened: no other attempt of it is")
        _check_roster(tag, self._parties)
        self._tag = tag
        self._request, self._answer = b"", b""

    def assist(self, request: bytes) -> bytes:
        """The plaintexts of the blinded sum of the tag announced last."""
        if not request:
            raise PeerError("a request for help that asks nothing")
        ctx, *sealed = fields.unpack(request)
        tag = self._tag
        if tag is None or not hmac.compare_digest(ctx, context(self._digest, tag, self._parties)):
            raise PeerError("asked to open a turn or attempt that is not the last, or another key's sum")
        asked = hashlib.sha256(request).digest()
        if self._request:
            if not self._answer or not hmac.compare_digest(asked, self._request):
                raise PeerError(f"asked to open turn {tag.turn} a second time, and with another request")
            return self._answer
        if self.openings >= self._most:
            raise PeerError(f"asked to open more than the {self._most} sums that the terms have")
        if len(sealed) != len(tag.parts):
            raise PeerError(f"asked to open {len(sealed)} parts of a vector of {len(tag.parts)} parts")
        ciphers = [self._secret.public.cipher(part, self._parties) for part in tag.parts]
        read = [cipher.read(part) for cipher, part in zip(ciphers, sealed, strict=True)]
        self._opened_turn, self._request = tag.turn, asked  # from here on, there is no other
        self.openings += 1
        self._answer = fields.pack(*map(self._secret.decrypt, read))
        return self._answer


# ---- at a party -------------------------------------------------------------------------------------


class EncryptedSealer:
    """Seals one party's vectors under the session's key; with the secret key it also helps to open the sums.

    Refuses, and says so (PeerError): a turn or attempt that is not greater than the last; a roster without
    this party, that names one twice or is larger than the session; help without the secret key, and what
    `KeyHolder` refuses.
    """

    def __init__(
        self, me: str, public: Public, secret: Secret | None, parties: int, most_openings: int
    ) -> None:
        self._me = me
        self._public = public
        self._parties = parties
        self._name = digest_of(public)[:NAME_BYTES]
        self._holder = None if secret is None else KeyHolder(secret, parties, most_openings)
        self._tag: Tag | None = None
        public.prepare()

    def __repr__(self) -> str:
        return f"EncryptedSealer({self._me!r})"

    @property
    def openings(self) -> int:
        """Sums that this party helped to open."""
        return self._holder.openings if self._holder else 0

    def seal(self, values: Int64, tag: Tag) -> Iterator[bytes]:
        """The encrypted parts of a vector."""
        _check_newer(tag, self._tag)
        if self._me not in tag.roster:
            raise PeerError("the roster lacks this party")
        _check_roster(tag, self._parties)
        if self._holder is not None:
            self._holder.announce(tag)
        self._tag = tag
        return self._parts(values.view(np.uint64), tag)

    def _parts(self, words: Words, tag: Tag) -> Iterator[bytes]:
        for part in tag.parts:
            cells = _shifted(part.of(words), part, times=1)
            yield self._name + self._public.cipher(part, self._parties).encrypt(cells)

    def note(self) -> bytes:
        """Nothing."""
        return b""

    def assist(self, request: bytes) -> bytes:
        """The plaintexts of the blinded sum of what was sealed last."""
        if self._holder is None:
            raise PeerError("asked to open a sum without the secret key")
        return self._holder.assist(request)


# ---- at the aggregator ------------------------------------------------------------------------------


class EncryptedOpener:
    """Adds encrypted parts into one running sum, has it opened by the key holder, and takes the blind away.

    Raises RosterTooSmall when the key holder is lost: nobody else can open the sum.
    """

    def __init__(self, tag: Tag, public: Public, keyholder: str, parties: int, draw: Draw) -> None:
        self.parts = len(tag.parts)
        self._tag = tag
        self._keyholder = keyholder
        self._draw = draw
        digest = digest_of(public)
        self._name, self._ctx = digest[:NAME_BYTES], context(digest, tag, parties)
        self._ciphers = [public.cipher(part, parties) for part in tag.parts]
        self._sums: list[Any] = [None] * self.parts
        self._blinds: list[Any] = []
        self._request = b""
        self._opened: Int64 | None = None
        self._lost = False
        public.prepare()

    def __repr__(self) -> str:
        return f"EncryptedOpener(turn {self._tag.turn}, key holder {self._keyholder!r})"

    def add(self, party: str, part: int, cells: bytes) -> None:
        """Add one encrypted part."""
        self._tag.part(part)
        cipher = self._ciphers[part]
        if len(cells) < NAME_BYTES:
            raise PeerError(
                f"{len(cells)} bytes of an encrypted part, which has {NAME_BYTES} of its key alone"
            )
        if not hmac.compare_digest(cells[:NAME_BYTES], self._name):
            raise PeerError("cells that were encrypted under another key than this session's")
        more, total = cipher.read(cells[NAME_BYTES:]), self._sums[part]
        self._sums[part] = more if total is None else cipher.add(total, more)

    def note(self, party: str, note: bytes) -> None:
        """There must be none."""
        if note:
            raise PeerError("a note where encrypted cells have none")

    def lose(self, party: str) -> None:
        """Its vector is in the sum; only the key holder is wanted once more."""
        self._lost |= party == self._keyholder

    def requests(self) -> dict[str, bytes]:
        """What the key holder is to decrypt, until it did. The same bytes, however often that is asked."""
        if self._opened is not None:
            return {}
        if self._lost:
            raise RosterTooSmall(f"{self._keyholder}, who alone can open the sum, is lost")
        if any(total is None for total in self._sums):
            raise LocalProtocolError("a sum that nobody has added to is not opened")
        if not self._request:
            blinded = [
                cipher.blind(total, self._draw)
                for cipher, total in zip(self._ciphers, self._sums, strict=True)
            ]
            self._blinds = [blind for _, blind in blinded]
            self._request = fields.pack(self._ctx, *(sealed for sealed, _ in blinded))
        return {self._keyholder: self._request}

    def assist(self, party: str, answer: bytes) -> None:
        """Take in the plaintexts; PeerError if they are not what was asked for, SessionFailed if they are no
        sum that the parties can have: whether the key holder or a party is to blame cannot be told."""
        if party != self._keyholder or not self._request or self._opened is not None:
            raise PeerError("help that was not asked for")
        answers = fields.unpack(answer)
        if len(answers) != self.parts:
            raise PeerError(f"{len(answers)} parts of plaintexts where {self.parts} were asked for")
        opened = np.empty(self._tag.cells, np.uint64)
        for part, cipher, plain, blind in zip(
            self._tag.parts, self._ciphers, answers, self._blinds, strict=True
        ):
            part.of(opened)[:] = _shifted(cipher.unblind(plain, blind), part, times=-len(self._tag.roster))
        self._opened = signed(opened, self._tag.runs)
        self._sums, self._blinds = [], []

    def open(self) -> Int64:
        """The sum, once `requests` is empty."""
        if self._opened is None:
            raise PeerError("the sum cannot be opened yet")
        return self._opened


def _check_newer(tag: Tag, last: Tag | None) -> None:
    if last is not None and (tag.turn, tag.attempt) <= (last.turn, last.attempt):
        raise PeerError(f"turn {tag.turn}, attempt {tag.attempt} was sealed already, or is older")


def _check_roster(tag: Tag, parties: int) -> None:
    if len(set(tag.roster)) != len(tag.roster):
        raise PeerError("the roster names a party twice")
    if len(tag.roster) > parties:
        raise PeerError(f"a roster of {len(tag.roster)} parties in a session of {parties}")


def _shifted(words: Words, part: Part, times: int) -> Words:
    """Each cell plus `times` half its range, modulo its size: a signed cell that fits its bits is then not
    negative, and sums tell nothing of the signs of what was added. uint64 [cells]."""
    out, start = words.copy(), 0
    for cells, bits in part.pieces.tolist():
        piece = out[start : start + cells]
        piece += np.uint64(times * (1 << (bits - 1)) % (1 << WORD_BITS))
        if bits < WORD_BITS:
            piece &= np.uint64((1 << bits) - 1)
        start += cells
    return out
