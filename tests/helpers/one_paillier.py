"""One Paillier key, and one table of powers, for all sessions of a process: each takes longer to make than
most of what a session encrypts."""

from functools import cache

from fedboost.privacy import paillier

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


def fix(patch):
    """From now on whoever makes a key makes that of the same primes, in every run."""
    from paillier_keys import good_secret

    kept = good_secret(KEY_BITS)
    patch.setattr(paillier.Paillier, "new_secret", lambda self, bits: kept)
    small_tables(patch)


def small_tables(patch):
    """Tables of powers for few rows, which otherwise take longer than the sums of a session."""
    from fedboost.privacy.rowsums import sums as of_rows
    from fedboost.privacy.rowsums.sums import RandomPowers

    patch.setattr(of_rows, "_digit_bits", lambda n: 6)
    patch.setattr(RandomPowers.__init__, "__defaults__", (6,))
