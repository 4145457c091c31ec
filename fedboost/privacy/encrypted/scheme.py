"""The contract of an additively homomorphic scheme, and the greeting with its public key."""

import hashlib
from typing import Any, Protocol

from fedboost.errors import PeerError
from fedboost.privacy import fields
from fedboost.privacy.bit_packing import Chunk, Words
from fedboost.privacy.shamir import RandomBytes

NAME_BYTES = 16
"""Bytes of a public key's digest, before every sealed chunk."""


class Cipher(Protocol):
    """Encryption of the cells of one chunk of a vector. `Any` is a scheme's own form of its ciphertexts."""

    def encrypt(self, words: Words) -> bytes:
        """The ciphertexts of uint64 [cells], each below 2**bits, with room for their sum over all parties."""
        ...

    def read(self, sealed: bytes) -> Any:
        """Ciphertexts that were received; PeerError if they cannot be those of this chunk."""
        ...

    def add(self, total: Any, more: Any) -> Any:
        """The ciphertexts of the sum."""
        ...

    def blind(self, total: Any, draw: RandomBytes) -> tuple[bytes, Any]:
        """The ciphertexts of the sum and a number that is uniform over all plaintexts; and that number."""
        ...

    def unblind(self, answer: bytes, blind: Any) -> Words:
        """The lowest 64 bits of each sum; PeerError for another length, SessionFailed for numbers that are no
        sum."""
        ...

    def most_bytes(self) -> int:
        """Largest size of what `encrypt` returns."""
        ...


class Public(Protocol):
    """A key that encrypts and adds."""

    def to_bytes(self) -> bytes:
        """The key as it travels; there is no secret in it."""
        ...

    def cipher(self, chunk: Chunk, parties: int) -> Cipher:
        """Encryption of one chunk under this key, with room for the sum over these parties."""
        ...

    def prepare(self) -> None:
        """Start to prepare encryption in the background."""
        ...

    def close(self) -> None:
        """End work in the background. It starts again when it is needed."""
        ...


class Secret(Protocol):
    """A key pair."""

    @property
    def public(self) -> Public:
        """The public key of the pair."""
        ...

    def decrypt(self, ciphertexts: Any) -> bytes:
        """The plaintexts, as they travel, of the ciphertexts of `Cipher.read`."""
        ...


class Scheme(Protocol):
    """An encryption scheme: makes and reads keys."""

    def new_secret(self, bits: int) -> Secret:
        """A new key pair; `bits` counts where keys come in sizes. ConfigError if that is too small."""
        ...

    def read_public(self, data: bytes, min_bits: int) -> Public:
        """A public key that was received; PeerError if it is shorter, or invalid."""
        ...


def digest_of(public: Public) -> bytes:
    """Digest of a public key: 32 bytes."""
    return hashlib.sha256(fields.pack(b"fedboost/1/public", public.to_bytes())).digest()


def greeting_of(agreement: bytes, key: bytes) -> bytes:
    """The public keys that a party greets with: an X25519 key for its masks, and the key holder's own that
    sums are encrypted under, empty of others."""
    return fields.pack(agreement, key)


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
