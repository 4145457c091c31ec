"""One Paillier key, and one table of powers, for all sessions of a process: each takes longer to make than
most of what a session encrypts."""

from functools import cache

from fedboost.privacy.encrypted import paillier

KEY_BITS = 2048
POWERS = paillier.Powers


@cache
def secret():
    """The key pair."""
    return paillier.generate(KEY_BITS)


powers = cache(POWERS)


def share(patch):
    """From now on whoever makes a key makes this one, and all who encrypt under a key draw from one base."""
    kept = secret()
    patch.setattr(paillier.Paillier, "new_secret", lambda self, bits: kept)
    patch.setattr(paillier, "Powers", powers)
