"""Paillier keys from fixed primes, good and bad, and what the party that knows their factors can do."""

import gmpy2
from gmpy2 import mpz
from phe.paillier import PaillierPrivateKey, PaillierPublicKey

from fedboost.privacy.paillier import PaillierPublic, PaillierSecret


def prime(bits, nth=1, residue=None, modulo=4):
    """The nth prime of that many bits, of those that have a residue."""
    number = mpz(1) << (bits - 1)
    while nth:
        number = gmpy2.next_prime(number)
        nth -= residue is None or number % modulo == residue
    return number


def secret_of(p, q):
    """A key pair of phe's of two primes."""
    return PaillierSecret(PaillierPrivateKey(PaillierPublicKey(int(p * q)), int(p), int(q)))


def good_secret(bits=256):
    """A key of that many bits, as `generate` makes them: primes 3 modulo 4."""
    return secret_of(prime(bits // 2, 1, 3), prime(bits - bits // 2 + 1, 2, 3))


def key_of(factors):
    """The public key whose n is the product of prime to exponent."""
    n = mpz(1)
    for p, exponent in factors.items():
        n *= p**exponent
    return PaillierPublic(n)


def best_root(factors, number):
    """An n-th root modulo n, right modulo each power of a prime where there is one; and whether it is right.

    Takes n whose prime factors have no higher power in the order of a group than in n.
    """
    n, root, modulus, right = key_of(factors).n, mpz(0), mpz(1), True
    for p, exponent in factors.items():
        power, order = p**exponent, p ** (exponent - 1) * (p - 1)
        while (common := gmpy2.gcd(order, n)) != 1:
            order //= common
        right = right and gmpy2.powmod(number, order, power) == 1
        here = gmpy2.powmod(number, gmpy2.invert(n % order, order), power)
        root += (here - root) * gmpy2.invert(modulus, power) % power * modulus
        modulus *= power
    return root, right


def encrypted(public, m, r):
    """(1 + n m) r**n modulo n**2."""
    return (1 + public.n * m) * gmpy2.powmod(r, public.n, public.square) % public.square
