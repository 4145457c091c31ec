"""Protections `paillier` and `bfv`: parties mask and encrypt, the aggregator adds what it cannot read, and a
key holder opens the sum, which it cannot read either.

Designed for: consortia whose rules ask for encryption. The aggregator never has the secret key, unless it
lies: what it has opened may be something else than a sum, which the key holder cannot tell. So the masks of
`pairwise` lie beneath the encryption: even with the secret key a party's vector is uniformly random, and only
the sum of all parties is not.

A turn, with ctx = everything that both ends must agree on:

    upload   each party: its cells and its masks modulo the cell's 2**bits, encrypted under the session's key
    blind    the aggregator adds the ciphertexts up, adds a number drawn from all plaintexts to each, which
             randomises it anew, and sends them with ctx to the key holder
    assist   the key holder decrypts what is as good as noise, once a turn, and counts
    open     the aggregator takes its numbers away again, and what the masks carried above a cell's bits

Promises: the key holder learns nothing of a sum but how many cells it has; an aggregator that lies, or has
the key, learns no more than the sum over all parties, as long as two of them with rows do not collude with
it; a tag is sealed once; the same request gets the same answer, another one of the same turn gets none.
Refuses: rosters other than all parties; ciphertexts of another key, out of range or of another number than
the cells have; keys that are too short or cannot be keys; more openings than the terms have sums (PeerError).

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
from fedboost.privacy.cells import Part, Words, signed
from fedboost.privacy.pairwise import Group, PairMasks, context, masked_parts
from fedboost.privacy.protection import Tag, check_newer
from fedboost.privacy.shamir import Draw

SCHEMES = ("paillier", "bfv")
NAME_BYTES = 16
"""Of a public key's digest, before every sealed part."""


class Cipher(Protocol):
    """Encryption of the cells of one part of a vector. `Any` is a scheme's own form of its ciphertexts."""

    def encrypt(self, words: Words) -> bytes:
        """The ciphertexts of uint64 [cells], each below 2**bits: their sum over all parties has room."""
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


# ---- keys in greetings ------------------------------------------------------------------------------


def greeting_of(agreement: bytes, public: Public | None) -> bytes:
    """The public keys that a party greets with: an X25519 key for its masks, and the key holder's own that
    sums are encrypted under."""
    return fields.pack(agreement, b"" if public is None else public.to_bytes())


def agreement_key(greeted: bytes) -> bytes:
    """The X25519 key that a party greeted with. PeerError if there is none."""
    return _keys(greeted)[0]


def scheme_key(greeted: bytes) -> bytes:
    """The key that sums are encrypted under, as bytes; empty from all but the key holder."""
    return _keys(greeted)[1]


def _keys(greeted: bytes) -> list[bytes]:
    keys = fields.unpack(greeted)
    if len(keys) != 2:
        raise PeerError("a greeting without the two keys that encrypted sums need")
    return keys


# ---- whoever has the secret key ---------------------------------------------------------------------


class KeyHolder:
    """Opens blinded sums: of the tag that was announced last, and of each turn only one.

    Two sums of one turn could differ by what changed in a single party. So once a sum of a turn was opened,
    no other attempt of that turn is.
    """

    def __init__(self, secret: Secret, group: Group, session: bytes, most_openings: int) -> None:
        self._secret = secret
        self._group = group
        self._session = session
        self._most = most_openings
        self._tag: Tag | None = None
        self._opened_turn = -1
        self._request, self._answer = b"", b""
        self.openings = 0
        """Sums opened so far."""

    def __repr__(self) -> str:
        return f"KeyHolder({self.openings} of at most {self._most} sums opened)"

    def announce(self, tag: Tag) -> None:
        """The sum that may be asked for from now on. PeerError if it is not newer than the last."""
        check_newer(tag, self._tag)
        if tag.turn <= self._opened_turn:
            raise PeerError(f"turn {tag.turn} was opened: no other attempt of it is")
        if sorted(tag.roster) != list(self._group.members):
            raise PeerError(
                f"a roster of {len(tag.roster)} parties that is not all {len(self._group.members)}"
            )
        self._tag = tag
        self._request, self._answer = b"", b""

    def assist(self, request: bytes) -> bytes:
        """The plaintexts of the blinded sum of the tag announced last."""
        if not request:
            raise PeerError("a request for help that asks nothing")
        ctx, *sealed = fields.unpack(request)
        tag = self._tag
        if tag is None or not hmac.compare_digest(ctx, context(self._session, self._group, tag)):
            raise PeerError("asked to open a turn or attempt that is not the last, or another session's sum")
        asked = hashlib.sha256(request).digest()
        if self._request:
            if not self._answer or not hmac.compare_digest(asked, self._request):
                raise PeerError(f"asked to open turn {tag.turn} a second time, and with another request")
            return self._answer
        if self.openings >= self._most:
            raise PeerError(f"asked to open more than the {self._most} sums that the terms have")
        if len(sealed) != len(tag.parts):
            raise PeerError(f"asked to open {len(sealed)} parts of a vector of {len(tag.parts)} parts")
        parties = len(self._group.members)
        ciphers = [self._secret.public.cipher(part, parties) for part in tag.parts]
        read = [cipher.read(part) for cipher, part in zip(ciphers, sealed, strict=True)]
        self._opened_turn, self._request = tag.turn, asked  # from here on, there is no other
        self.openings += 1
        self._answer = fields.pack(*map(self._secret.decrypt, read))
        return self._answer


# ---- at a party -------------------------------------------------------------------------------------


class EncryptedSealer:
    """Masks one party's vectors and encrypts them under the session's key; with the secret key it also helps
    to open the sums.

    Refuses, and says so (PeerError): what `PairMasks.check` does; a roster other than all parties; help
    without the secret key, and what `KeyHolder` refuses.
    """

    def __init__(
        self,
        me: str,
        group: Group,
        session: bytes,
        keys: dict[str, bytes],
        public: Public,
        secret: Secret | None,
        most_openings: int,
    ) -> None:
        """keys: those shared with each other party; secret: None at all but the key holder."""
        self._me = me
        self._group = group
        self._pairs = PairMasks(me, group, session, keys)
        self._public = public
        self._name = digest_of(public)[:NAME_BYTES]
        self._holder = None if secret is None else KeyHolder(secret, group, session, most_openings)
        public.prepare()

    def __repr__(self) -> str:
        return f"EncryptedSealer({self._me!r})"

    @property
    def openings(self) -> int:
        """Sums that this party helped to open."""
        return self._holder.openings if self._holder else 0

    def seal(self, values: Int64, tag: Tag) -> Iterator[bytes]:
        """The masked and encrypted parts of a vector."""
        self._pairs.check(tag)
        if len(tag.roster) != len(self._group.members):
            raise PeerError(
                f"a roster of {len(tag.roster)} parties that is not all {len(self._group.members)}"
            )
        if self._holder is not None:
            self._holder.announce(tag)
        streams = self._pairs.streams(tag)
        return (self._encrypted(part, words) for part, words in masked_parts(values, tag, streams))

    def _encrypted(self, part: Part, masked: Words) -> bytes:
        cipher = self._public.cipher(part, len(self._group.members))
        return self._name + cipher.encrypt(part.residues(masked))

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

    def __init__(
        self, tag: Tag, public: Public, keyholder: str, group: Group, session: bytes, draw: Draw
    ) -> None:
        self.parts = len(tag.parts)
        self._tag = tag
        self._keyholder = keyholder
        self._draw = draw
        self._name, self._ctx = digest_of(public)[:NAME_BYTES], context(session, group, tag)
        self._ciphers = [public.cipher(part, len(group.members)) for part in tag.parts]
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
            part.of(opened)[:] = cipher.unblind(plain, blind)
        self._opened = signed(opened, self._tag.runs)  # modulo each cell's size, without what was carried
        self._sums, self._blinds = [], []

    def open(self) -> Int64:
        """The sum, once `requests` is empty."""
        if self._opened is None:
            raise PeerError("the sum cannot be opened yet")
        return self._opened
