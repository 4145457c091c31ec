"""Relays: bytes of one party for some others, which the aggregator passes on and cannot read.

The bytes are encrypted once, under a fresh key; that key is encrypted for each receiver under a key derived
from the secret that sender and receiver share, with the ciphertext as associated data. So nobody but the
receivers reads them, and none of these can put others in their place.

Promises: a key is used for one encryption; bytes open only for the receiver, sender and context that they
were sealed for.
Refuses: bytes that do not open (PeerError).
"""

from collections.abc import Iterable, Mapping

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fedboost.errors import PeerError
from fedboost.privacy import packing
from fedboost.privacy.masked.keys import KEY_BYTES, RandomBytes, derive

_NONCE = bytes(12)
"""Always the same: a key is used once."""
_TAG_BYTES = 16


def sealed_size(content: int, receivers: Iterable[str]) -> int:
    """Number of bytes that `seal` makes of so many for these receivers."""
    wrapped = 2 * packing.LENGTH_BYTES + KEY_BYTES + _TAG_BYTES
    return (
        packing.LENGTH_BYTES
        + content
        + _TAG_BYTES
        + sum(wrapped + len(party.encode()) for party in receivers)
    )


MIN_SEALED_BYTES = sealed_size(0, ["a"])
"""Fewest bytes of anything sealed."""


def seal(content: bytes, sender: str, keys: Mapping[str, bytes], context: bytes, draw: RandomBytes) -> bytes:
    """Encrypt for the parties of `keys`, each with the secret that it shares with the sender. context: all
    that both ends must agree on; never the same twice."""
    key = draw(KEY_BYTES)
    ciphertext = AESGCM(key).encrypt(_NONCE, content, context)
    wrapped = []
    for party, secret in keys.items():
        wrapper = _wrapper(secret, sender, party, context)
        wrapped += [party.encode(), wrapper.encrypt(_NONCE, key, ciphertext)]
    return packing.pack(ciphertext, *wrapped)


def open_sealed(sealed: bytes, sender: str, receiver: str, secret: bytes, context: bytes) -> bytes:
    """Decrypt what `seal` encrypted for this receiver. PeerError if it is for another, or of another sender
    or context."""
    try:
        ciphertext, *wrapped = packing.unpack(sealed)
        keys = dict(zip(wrapped[::2], wrapped[1::2], strict=True))
        wrapper = _wrapper(secret, sender, receiver, context)
        key = wrapper.decrypt(_NONCE, keys[receiver.encode()], ciphertext)
        return AESGCM(key).decrypt(_NONCE, ciphertext, context)
    except (PeerError, ValueError, KeyError, InvalidTag):
        raise PeerError(
            f"what party {sender} relayed does not open: it was changed on the way, or is of another turn "
            f"or tree"
        ) from None


def _wrapper(secret: bytes, sender: str, receiver: str, context: bytes) -> AESGCM:
    return AESGCM(derive(secret, b"fedboost/4/relay", sender.encode(), receiver.encode(), context))
