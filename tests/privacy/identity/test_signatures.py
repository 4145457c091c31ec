"""Signatures: for one message and one signer."""

import pytest
from certificates import NORTH, NOW, ROOTS, signer
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import given
from hypothesis import strategies as st
from raised import raised

from fedboost.errors import PeerError
from fedboost.privacy.identity import identify, verify


@given(st.binary(max_size=200), st.data())
def test_a_signature_is_for_its_message_and_its_signer(message, data):
    holder, signature = identify(NORTH.der, ROOTS, NOW, ()), NORTH.sign(message)
    verify(holder, message, signature)
    place = data.draw(st.integers(0, 999)) % len(signature)  # ECDSA's lengths differ
    changed = bytearray(signature)
    changed[place] ^= 1 << data.draw(st.integers(0, 7))
    for other_message, other in [
        (message, bytes(changed)),
        (message, signature[:-1]),
        (message, b""),
        (message + b"\x00", signature),
        (message, SOUTH.sign(message)),
    ]:
        with raised(PeerError, "signature-invalid"):
            verify(holder, other_message, other)


SOUTH = signer("south")


def test_what_the_key_signed_elsewhere_is_no_message():
    holder = identify(NORTH.der, ROOTS, NOW, ())
    elsewhere = NORTH.key.sign(b"hello", ec.ECDSA(hashes.SHA256()))
    with pytest.raises(PeerError):
        verify(holder, b"hello", elsewhere)


def test_keys_never_print():
    secret = NORTH.key.private_numbers().private_value
    text = f"{NORTH!r} {NORTH} {identify(NORTH.der, ROOTS, NOW, ())}"
    pem = NORTH.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    for form in (str(secret), f"{secret:x}", "PRIVATE", *pem.splitlines()[1:-1]):
        assert form not in text
    assert "north" in text
