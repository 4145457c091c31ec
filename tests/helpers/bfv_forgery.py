"""The secret key of a session of `bfv`, from one opening that an aggregator forges; and what it opens.

A ciphertext (0, floor(q / t)) decrypts to round(t / q * floor(q / t) * s) = s, the secret key: t is the
modulus of plaintexts, q that of ciphertexts. Nothing here has a secret key but the one that it recovers.
"""

import struct

import numpy as np
import tenseal as ts
import tenseal.sealapi as seal

from fedboost.privacy import packing
from fedboost.privacy.encrypted.bfv import DEGREE, MODULUS, PLAIN_BYTES

HEADER = 16
"""Bytes before whatever SEAL writes."""


def primes_of(public):
    """The primes whose product is the modulus of ciphertexts."""
    parameters = public.context.seal_context().data.first_context_data().parms()
    return [prime.value() for prime in parameters.coeff_modulus()]


def forged(public):
    """The bytes of the ciphertext (0, floor(q / t)), as TenSEAL reads them."""
    primes = primes_of(public)
    numbers = np.zeros((2, len(primes), DEGREE), "<u8")
    numbers[1, :, 0] = [np.prod(primes, dtype=object) // MODULUS % prime for prime in primes]
    vector = ts.bfv_vector(public.context, [0] * DEGREE).serialize()
    start = vector.index(b"\x5e\xa1")  # SEAL's mark; before it the vector's size, in protobuf
    version = vector[start + 3 : start + 5]

    def written(body):
        header = struct.pack("<2sB2sBHQ", b"\x5e\xa1", HEADER, version, 0, 0, HEADER + len(body))
        return header + body

    array = written(struct.pack("<Q", numbers.size) + numbers.tobytes())
    level = struct.pack("<4Q", *public.context.seal_context().data.first_parms_id())
    about = struct.pack("<?3QdQ", False, 2, DEGREE, len(primes), 1.0, 1)
    ciphertext = written(level + about + array)
    return b"\x0a\x02\x80\x40\x12" + _varint(len(ciphertext)) + ciphertext


def _varint(number):
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def key_in(public, answer):
    """The secret key, coefficients -1, 0 and 1, from the plaintext of the forged ciphertext."""
    plain, encoder = seal.Plaintext(), seal.BatchEncoder(public.context.seal_context().data)
    encoder.encode(numbers_in(answer).tolist(), plain)
    key = np.zeros(DEGREE, np.int64)
    for term in plain.to_string().split(" + "):
        number, _, power = term.partition("x^")
        key[int(power or 0)] = int(number, 16)
    key[key == MODULUS - 1] = -1
    return key


def opened(public, key, sealed):
    """The plaintexts of ciphertexts, as the key holder would answer with them."""
    encoder, answer = seal.BatchEncoder(public.context.seal_context().data), b""
    for data in packing.unpack(sealed):
        (ciphertext,) = ts.bfv_vector_from(public.context, data).ciphertext()
        polynomial = " + ".join(
            f"{number:X}x^{power}" if power else f"{number:X}"
            for power, number in reversed([*enumerate(decrypted(public, key, ciphertext))])
            if number
        )
        numbers = encoder.decode_uint64(seal.Plaintext(polynomial))
        answer += b"".join(number.to_bytes(PLAIN_BYTES, "little") for number in numbers)
    return answer


def decrypted(public, key, ciphertext):
    """round(t / q * (c0 + c1 * s)) modulo t, by the textbook."""
    primes = primes_of(public)
    modulus = int(np.prod(primes, dtype=object))
    total = np.zeros(DEGREE, object)
    for place, prime in enumerate(primes):
        first, second = (
            np.array([ciphertext[(half * len(primes) + place) * DEGREE + n] for n in range(DEGREE)], np.int64)
            for half in range(2)
        )
        rest = (first + product(second, key, prime)) % prime
        others = modulus // prime
        total += rest.astype(object) * (others * pow(others, -1, prime))
    return [(MODULUS * (int(number) % modulus) + modulus // 2) // modulus % MODULUS for number in total]


def product(number, key, prime):
    """The product modulo x**DEGREE + 1 and a prime of 40 bits: by halves of 20, whose sums floats hold."""
    out = np.zeros(DEGREE, np.int64)
    for shift in (20, 0):
        half = (number >> shift) & ((1 << 20) - 1)
        whole = np.fft.irfft(np.fft.rfft(half, 2 * DEGREE) * np.fft.rfft(key, 2 * DEGREE), 2 * DEGREE)
        exact = np.rint(whole).astype(np.int64)
        out += ((exact[:DEGREE] - exact[DEGREE:]) % prime << shift) % prime
    return out % prime


def numbers_in(answer):
    """The numbers of a key holder's answer, int64."""
    rows = np.frombuffer(answer, np.uint8).reshape(-1, PLAIN_BYTES)
    return np.pad(rows, ((0, 0), (0, 8 - PLAIN_BYTES))).copy().view("<i8").reshape(-1)
