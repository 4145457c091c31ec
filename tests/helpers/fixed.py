"""Randomness that is the same in every run, wherever code draws it from, and digests of what comes of it.

What is replaced is the sources themselves, of the standard library and of cryptography; so it does not matter
which module draws. Each thread draws from a stream of its own.
"""

import hashlib
import os
import secrets
import threading
import uuid
from contextlib import contextmanager
from importlib.util import find_spec

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519


def short(data):
    """The first 16 hex digits of the hash of bytes or text."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()[:16]


@contextmanager
def fixed_randomness(seed=0):
    """Everything drawn meanwhile follows from the seed. Keys of certificates are Ed25519, whose signatures
    need no randomness; the Paillier key is one of fixed primes, and tables of powers are small."""
    own, system = threading.local(), os.urandom

    def draw(size):
        if not hasattr(own, "drawn"):
            own.drawn = 0
        own.drawn += 1
        name = "main" if threading.current_thread() is threading.main_thread() else "other"
        return hashlib.shake_256(f"{seed} {name} {own.drawn}".encode()).digest(size)

    def new_key(*curve):
        return ed25519.Ed25519PrivateKey.from_private_bytes(draw(32))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "urandom", draw)
        patch.setattr(uuid, "uuid4", lambda: uuid.UUID(bytes=system(16)))  # of numba, when it keeps a kernel
        patch.setattr(secrets, "token_bytes", draw)
        patch.setattr(secrets, "token_hex", lambda size: draw(size).hex())
        patch.setattr(ed25519.Ed25519PrivateKey, "generate", new_key)
        patch.setattr(ec, "generate_private_key", new_key)
        if find_spec("phe") and find_spec("gmpy2"):
            import one_paillier

            one_paillier.fix(patch)
        yield


def table_of_digests(digests):
    """Print the entries of a table GOLDEN of these names to digests."""
    for name, values in digests:
        print(f"    {name!r}: {values!r},".replace("'", '"'), flush=True)
