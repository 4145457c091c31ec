"""Protection `paillier`: parties mask and encrypt, the aggregator adds ciphertexts it cannot read, and a key
holder opens the sum, which it cannot read either.

Designed for: consortia whose rules ask for encryption. The aggregator never has the secret key, unless it
lies: what it has opened may be something else than a sum, which the key holder cannot tell. So the masks of
`pairwise` lie beneath the encryption: even with the secret key a party's vector is uniformly random, and only
the sum of all parties is not.

A turn, with ctx = everything that both ends must agree on:

    upload   each party: its cells and its masks modulo the cell's 2**bits, encrypted under the session's key
    blind    the aggregator adds the ciphertexts up, adds a number drawn from all plaintexts to each, which
             randomises it again, and sends them with ctx to the key holder
    assist   the key holder decrypts the blinded sum, which is uniform noise to it, once a turn, and counts
    open     the aggregator subtracts its numbers, and cuts off what the masks carried above a cell's bits

Promises: the key holder learns nothing of a sum but how many cells it has; an aggregator that lies, or has
the key, learns no more than the sum over all parties, as long as two of them with rows do not collude with
it; a tag is sealed once; the same request gets the same answer, another one of the same turn gets none.
Refuses: rosters other than all parties; ciphertexts of another key, out of range or of another number than
the cells have; keys that are too short or cannot be keys; more openings than the terms have sums (PeerError).

paillier.py implements `Public`, `Secret` and `Cipher`.
"""

import hashlib
import hmac
from collections.abc import Iterator
from typing import Any

from fedboost.errors import LocalProtocolError, PeerError, RosterTooSmall
from fedboost.fixedpoint import Int64
from fedboost.privacy import packing
from fedboost.privacy.encrypted.scheme import NAME_BYTES, Public, Secret, digest_of
from fedboost.privacy.masked import keys
from fedboost.privacy.masked.keys import (
    BENEATH,
    Group,
    PairMasks,
    RandomBytes,
    check_whole,
    context,
    masked_chunks,
)
from fedboost.privacy.packing import Chunk, Words
from fedboost.privacy.protection import Tag, check_newer

# ---- The party that holds the secret key and decrypts sums ----------------------------------------------


class KeyHolder:
    """Opens blinded sums: of the tag that was announced last, and of each turn only one.

    Two sums of one turn could differ in a single party alone. So once a sum of a turn was opened, no other
    attempt of that turn is opened.
    """

    def __init__(self, secret: Secret, group: Group, session: bytes, max_openings: int) -> None:
        self._secret = secret
        self._group = group
        self._session = session
        self._most = max_openings
        self._tag: Tag | None = None
        self._opened_turn = -1
        self._request, self._answer = b"", b""
        self.openings = 0
        """Sums opened so far."""

    def __repr__(self) -> str:
        return f"KeyHolder({self.openings} of at most {self._most} sums opened)"

    def announce(self, tag: Tag) -> None:
        """Allow a request for this sum from now on. PeerError if it is not newer than the last."""
        check_newer(tag, self._tag)
        if tag.turn <= self._opened_turn:
            raise PeerError(f"turn {tag.turn} was opened: no other attempt of it is")
        check_whole(tag, self._group)
        self._tag = tag
        self._request, self._answer = b"", b""

    def assist(self, request: bytes) -> bytes:
        """The plaintexts of the blinded sum of the tag announced last."""
        if not request:
            raise PeerError("a request for help that asks nothing")
        ctx, *sealed = packing.unpack(request)
        tag = self._tag
        if tag is None or not hmac.compare_digest(ctx, context(BENEATH, self._session, self._group, tag)):
            raise PeerError("asked to open a turn or attempt that is not the last, or another session's sum")
        request_digest = hashlib.sha256(request).digest()
        if self._request:
            if not self._answer or not hmac.compare_digest(request_digest, self._request):
                raise PeerError(f"asked to open turn {tag.turn} a second time, and with another request")
            return self._answer
        if self.openings >= self._most:
            raise PeerError(f"asked to open more than the {self._most} sums that the terms have")
        if len(sealed) != len(tag.chunks):
            raise PeerError(f"asked to open {len(sealed)} parts of a vector of {len(tag.chunks)} parts")
        parties = len(self._group.members)
        ciphers = [self._secret.public.cipher(chunk, parties) for chunk in tag.checked]
        read = [cipher.read(chunk) for cipher, chunk in zip(ciphers, sealed, strict=True)]
        self._opened_turn = tag.turn
        self._request = request_digest  # no other request is answered from here on
        self.openings += 1
        self._answer = packing.pack(*map(self._secret.decrypt, read))
        return self._answer


# ---- Protection `paillier`: parties mask and encrypt ----------------------------------------------------


class EncryptedSealer:
    """Masks one party's vectors and encrypts them under the session's key; with the secret key it also helps
    to open the sums.

    Refuses (PeerError): the tags that `PairMasks.check` refuses; a roster other than all parties; help
    without the secret key, and the requests that `KeyHolder` refuses.
    """

    def __init__(
        self,
        me: str,
        group: Group,
        session: bytes,
        keys: dict[str, bytes],
        public: Public,
        secret: Secret | None,
        max_openings: int,
    ) -> None:
        """keys: shared with each other party; secret: None except at the key holder."""
        self._me = me
        self._group = group
        self._pairs = PairMasks(me, group, session, keys, BENEATH)
        self._public = public
        self._name = digest_of(public)[:NAME_BYTES]
        self._holder = None if secret is None else KeyHolder(secret, group, session, max_openings)
        public.prepare()

    def __repr__(self) -> str:
        return f"EncryptedSealer({self._me!r})"

    @property
    def openings(self) -> int:
        """Sums that this party helped to open."""
        return self._holder.openings if self._holder else 0

    @property
    def ctx(self) -> bytes:
        """The context of the last vector."""
        return self._pairs.ctx

    def seal(self, values: Int64, tag: Tag) -> Iterator[bytes]:
        """The masked and encrypted chunks of a vector."""
        self._pairs.check(tag)
        check_whole(tag, self._group)
        if self._holder is not None:
            self._holder.announce(tag)
        streams = self._pairs.streams(tag)
        return (self._encrypted(chunk, words) for chunk, words in masked_chunks(values, tag, streams))

    def _encrypted(self, chunk: Chunk, masked: Words) -> bytes:
        cipher = self._public.cipher(chunk, len(self._group.members))
        return self._name + cipher.encrypt(chunk.residues(masked))

    def note(self) -> bytes:
        """Empty."""
        return b""

    def assist(self, request: bytes) -> bytes:
        """The plaintexts of the blinded sum of the last sealed vectors."""
        if self._holder is None:
            raise PeerError("asked to open a sum without the secret key")
        return self._holder.assist(request)


class EncryptedOpener:
    """Adds encrypted chunks into one running sum, has it opened by the key holder, and takes the blind away.

    Raises RosterTooSmall when the key holder is lost: nobody else can open the sum.
    """

    def __init__(
        self, tag: Tag, public: Public, keyholder: str, group: Group, session: bytes, draw: RandomBytes
    ) -> None:
        self.chunks = len(tag.chunks)
        self._tag = tag
        self._keyholder = keyholder
        self._draw = draw
        self._name, self.ctx = digest_of(public)[:NAME_BYTES], context(BENEATH, session, group, tag)
        self._ciphers = [public.cipher(chunk, len(group.members)) for chunk in tag.checked]
        self._sums: list[Any] = [None] * self.chunks
        self._blinds: list[Any] = []
        self._request = b""
        self._opened: Int64 | None = None
        self._lost = False
        public.prepare()

    def __repr__(self) -> str:
        return f"EncryptedOpener(turn {self._tag.turn}, key holder {self._keyholder!r})"

    def add(self, party: str, number: int, cells: bytes) -> None:
        """Add one encrypted chunk."""
        self._tag.chunk(number)
        cipher = self._ciphers[number]
        if len(cells) < NAME_BYTES:
            raise PeerError(
                f"{len(cells)} bytes of an encrypted part, which has {NAME_BYTES} of its key alone"
            )
        if not hmac.compare_digest(cells[:NAME_BYTES], self._name):
            raise PeerError("cells that were encrypted under another key than this session's")
        more, total = cipher.read(cells[NAME_BYTES:]), self._sums[number]
        self._sums[number] = more if total is None else cipher.add(total, more)

    def note(self, party: str, note: bytes) -> None:
        """Refuse any note."""
        if note:
            raise PeerError("a note where encrypted cells have none")

    def lose(self, party: str) -> None:
        """Note that a party is disconnected: its vector is in the sum, only the key holder is needed
        again."""
        self._lost |= party == self._keyholder

    def requests(self) -> dict[str, bytes]:
        """The request to the key holder, until it has decrypted. The same bytes in every call."""
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
            self._request = packing.pack(self.ctx, *(sealed for sealed, _ in blinded))
        return {self._keyholder: self._request}

    def assist(self, party: str, answer: bytes) -> None:
        """Take in the plaintexts; PeerError if they do not answer the request, SessionFailed if they are no
        sum that the parties can have: the fault of the key holder or of a party, it is unknown which."""
        if party != self._keyholder or not self._request or self._opened is not None:
            raise PeerError("help that was not asked for")
        answers = packing.unpack(answer)
        if len(answers) != self.chunks:
            raise PeerError(f"{len(answers)} parts of plaintexts where {self.chunks} were asked for")
        opened = keys.zeros(self._tag)
        for chunk, cipher, plain, blind in zip(
            self._tag.checked, self._ciphers, answers, self._blinds, strict=True
        ):
            chunk.of(opened)[:] = cipher.unblind(plain, blind)
        self._opened = keys.checked_sum(opened, self._tag)  # modulo each cell's size: no carry
        self._sums, self._blinds = [], []

    def open(self) -> Int64:
        """The sum, once `requests` is empty."""
        if self._opened is None:
            raise PeerError("the sum cannot be opened yet")
        return self._opened
