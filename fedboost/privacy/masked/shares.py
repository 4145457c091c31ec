"""Shared by both ends of masked sums: commitments, sealed shares, self masks."""

import hashlib

from fedboost.errors import PeerError
from fedboost.privacy import fields, shamir
from fedboost.privacy.masked.pairwise import Stream, derive

COMMIT, RECOVER = b"commit", b"recover"
"""Kinds of requests for help."""
NONCE = bytes(12)
"""Always the same: a key is used for one share."""
SEALED_SHARE = shamir.SHARE_BYTES + 16
"""Bytes of a share with GCM's tag."""


def commitment(mask: bytes, ctx: bytes, party: str) -> bytes:
    """A hash that commits a party to its self mask of a context: 32 bytes."""
    return hashlib.sha256(fields.pack(b"fedboost/1/commitment", mask, ctx, party.encode())).digest()


def name_of(field: bytes) -> str:
    """The party's name in a field. PeerError if it is not text."""
    try:
        return field.decode()
    except UnicodeDecodeError:
        raise PeerError("a party's name that is not text") from None


def by_name(entries: list[bytes]) -> dict[str, bytes]:
    """Party to bytes, from fields that alternate between the two."""
    if len(entries) % 2 or len(set(entries[::2])) != len(entries) // 2:
        raise PeerError("fields that are not one for each party")
    return {name_of(name): value for name, value in zip(entries[::2], entries[1::2], strict=True)}


def self_stream(mask: bytes, ctx: bytes, party: str) -> Stream:
    """The stream of a party's self mask under a context."""
    return Stream(derive(mask, b"self", ctx, party.encode()))
