"""The party that holds the secret key and decrypts sums."""

import hashlib
import hmac

from fedboost.errors import PeerError
from fedboost.privacy import fields
from fedboost.privacy.encrypted.scheme import Secret
from fedboost.privacy.masked.pairwise import BENEATH, Group, check_whole, context
from fedboost.privacy.protection import Tag, check_newer


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
        ctx, *sealed = fields.unpack(request)
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
        self._answer = fields.pack(*map(self._secret.decrypt, read))
        return self._answer
