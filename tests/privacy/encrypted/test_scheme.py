"""Keys of Paillier: which are made, and which are refused."""

import builtins
import sys

import pytest
from consortium import small_secret
from encrypted_turn import needs_paillier
from raised import raised

from fedboost.errors import ConfigError, PeerError
from fedboost.privacy.protections import scheme_of


@pytest.fixture(scope="session")
def large_secret():
    """A Paillier key of the least size, through the public door."""
    return scheme_of("paillier").new_secret(2048)


@needs_paillier
@pytest.mark.parametrize("bits", [0, 512, 1024, 2040, 2047, 2049, 1 << 20])
def test_no_key_of_paillier_is_made_below_2048_bits(bits):
    with raised(ConfigError, "paillier-key-bits"):
        scheme_of("paillier").new_secret(bits)


@needs_paillier
def test_keys_of_paillier_that_cannot_be_are_refused(large_secret):
    read, good = scheme_of("paillier").read_public, large_secret.public.to_bytes()
    n = int.from_bytes(good)
    assert int(read(good, 2048).n) == n
    for data, least in (
        (small_secret().public.to_bytes(), 0),  # whatever the terms say, 2048 is the floor
        (good, 3072),
        (good[1:], 2048),
        (b"", 2048),
        (b"\xff" * 4096, 2048),
    ):
        with raised(PeerError, "paillier-key-bits"):
            read(data, least)
    with raised(PeerError, "paillier-key-length"):
        read(b"\0" + good, 2048)
    import gmpy2

    top = 1 << 2047
    root, prime = int(gmpy2.next_prime(3 << 1022)), int(gmpy2.next_prime(top))
    for number in (n + 1, top + 1 - (top + 1) % 3 + 3, n - n % 65521, root**2, prime):
        assert number.bit_length() == 2048
        with raised(PeerError, "paillier-key-invalid"):
            read(number.to_bytes(256), 2048)


@needs_paillier
def test_keys_of_paillier_are_of_fresh_primes_that_are_3_modulo_4(large_secret):
    key = large_secret._key
    assert key.p % 4 == key.q % 4 == 3
    assert (key.p * key.q).bit_length() == 2048
    assert abs(key.p.bit_length() - key.q.bit_length()) <= 1
    assert large_secret.public.n != scheme_of("paillier").new_secret(2048).public.n


def test_what_is_not_installed_is_named_with_the_extra_that_installs_it(monkeypatch):
    real = builtins.__import__

    def without(package, *rest):
        if package.split(".")[0] in ("phe", "gmpy2"):
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        return real(package, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.delitem(sys.modules, "fedboost.privacy.paillier", raising=False)
    monkeypatch.delattr("fedboost.privacy.paillier", raising=False)
    with pytest.raises(ConfigError) as caught:
        scheme_of("paillier")
    assert 'pip install "fedboost[paillier]"' in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_scheme_of_another_name_is_a_config_error():
    with raised(ConfigError, "protection-without-encryption"):
        scheme_of("rsa")
