"""Sums over encrypted rows: opened, they are those of the plain gradients, whatever engine multiplied."""

import hashlib

import numpy as np
import pytest
from consortium import installed, small_secret
from raised import raised

if not installed("paillier"):
    pytest.skip("no paillier", allow_module_level=True)

from encrypted_rows import LIMIT, ONE, TWO, drawn, due, ends, numbers_of, opened, packed, stream
from phe.paillier import PaillierPrivateKey, PaillierPublicKey

from fedboost.errors import PeerError
from fedboost.privacy.paillier import PaillierSecret, generate
from fedboost.privacy.rowsums import kernels
from fedboost.privacy.rowsums.kernels import may_compile
from fedboost.privacy.rowsums.scheme import Segments
from fedboost.privacy.rowsums.sums import Engine, KernelEngine, RandomPowers, engine_of

PRIMES = (
    0xB52191C83B24B56EC43EF5F6707F894DA6A613DB53C17C658782557FD25B7613,
    0xE269F63A49EDE2CA754EB3740C9F6BA1104F98D228B1DB7EE962EADFC6F2541F,
)
VECTORS = [
    "2b284472dc1f916cad8606ffafcffb069a98af4585a750677329ed872b8aaa5a",
    "54418b8254f1f782c840e4c3b79476cdc542a19308425144136a16767fe73cf1",
]
"""SHA-256 of the rows and of the report."""
needs_kernels = pytest.mark.skipif(not may_compile(), reason="a processor without AVX-512 IFMA")
ENGINES = [
    pytest.param(Engine, id="gmpy2"),
    pytest.param(KernelEngine, id="kernels", marks=needs_kernels),
]


@pytest.fixture(params=ENGINES)
def engine(request):
    return request.param


@pytest.fixture(scope="module")
def secret():
    return small_secret()


def all_rows(rows):
    return np.arange(rows, dtype=np.uint32)


# ---- sums -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("bits", [256, 512, 528, 784])
@pytest.mark.parametrize("threads", [ONE, TWO], ids=["one", "two"])
def test_opened_sums_are_the_plain_ones(bits, threads, engine):
    """Of nodes of several roots, with empty bins, bins of one row, and rows that were not sampled."""
    secret, rng = generate(bits), np.random.default_rng(bits)
    rows, roots, bins = 150, 2, [5, 3, 7]
    slots, encryption, sums = ends(secret, rows, engine, threads=threads)
    gradients, hessians = (np.stack(of) for of in zip(*(drawn(rng, rows) for _ in range(roots)), strict=True))
    codes = np.stack([rng.integers(0, size - 1, rows) for size in bins]).astype(np.uint8)
    codes[0, 0] = 4
    parts = [all_rows(rows), all_rows(rows)[::3], np.array([7], np.uint32), np.zeros(0, np.uint32)]
    nodes = [(i % roots, part) for i, part in enumerate(parts)]
    data = encryption.encrypt(packed(gradients, hessians))
    found = sums.sums(sums.read(data, rows * roots), nodes, codes, bins)
    cells = len(nodes) * sum(bins)
    report = sums.close(found)
    assert len(report) == slots.ciphertexts(cells) * 2 * secret.public.bytes
    assert (
        opened(secret, slots, report, cells).tolist() == due(gradients, hessians, nodes, codes, bins).tolist()
    )


@pytest.mark.slow
def test_a_key_of_2048_bits(engine):
    secret, rng, rows = generate(2048), np.random.default_rng(1), 300
    slots, encryption, sums = ends(secret, rows, engine)
    gradients, hessians = (of[None] for of in drawn(rng, rows))
    codes, nodes = rng.integers(0, 32, (2, rows)).astype(np.uint8), [(0, all_rows(rows))]
    entered = sums.read(encryption.encrypt(packed(gradients[0], hessians[0])), rows)
    report = sums.close(sums.sums(entered, nodes, codes, [32, 32]))
    assert len(report) == 3 * 512
    assert (
        opened(secret, slots, report, 64).tolist()
        == due(gradients, hessians, nodes, codes, [32, 32]).tolist()
    )


@pytest.mark.parametrize(("gradient", "hessian"), [(-LIMIT, 0), (LIMIT, LIMIT), (-LIMIT, LIMIT), (0, 0)])
def test_sums_at_the_limits_of_their_slots(secret, engine, gradient, hessian):
    """Of 255 rows, whose slots have no bit to spare; and rows of zeros alone."""
    rows = 255
    slots, encryption, sums = ends(secret, rows, engine)
    assert slots.width == 3
    entered = sums.read(encryption.encrypt(packed([gradient] * rows, [hessian] * rows)), rows)
    codes = np.zeros((1, rows), np.uint8)
    report = sums.close(sums.sums(entered, [(0, all_rows(rows))], codes, [3]))
    sum_of_all = [gradient * rows, hessian * rows]
    assert opened(secret, slots, report, 3).tolist() == [sum_of_all, [0, 0], [0, 0]]


def test_no_nodes_and_no_columns_are_an_empty_report(secret, engine):
    slots, encryption, sums = ends(secret, 3, engine)
    entered = sums.read(encryption.encrypt(packed([1, 2, 3], [1, 1, 1])), 3)
    assert len(sums.read(b"", 0)) == 0
    for nodes, bins in (([], [2]), ([(0, all_rows(3))], [])):
        assert sums.close(sums.sums(entered, nodes, np.zeros((len(bins), 3), np.uint8), bins)) == b""
    assert opened(secret, slots, b"", 0).shape == (0, 2)


# ---- randomness -------------------------------------------------------------------------------------


def test_phe_decrypts_a_row(secret, engine):
    slots, encryption, _ = ends(secret, 4, engine)
    data = encryption.encrypt(packed([5, -7, 0, -LIMIT], [9, 3, 0, 0]))
    unit, n = 1 << (8 * slots.width), int(secret.public.n)
    phe = PaillierPrivateKey(PaillierPublicKey(n), *map(int, secret.primes))
    plain = [phe.raw_decrypt(int(c)) for c in numbers_of(data, 2 * secret.public.bytes)]
    assert plain == [5 + 9 * unit, -7 + 3 * unit, 0, n - LIMIT]


def test_equal_rows_have_different_ciphertexts(secret, engine):
    _, encryption, _ = ends(secret, 8, engine)
    seen = [encryption.encrypt(packed([1] * 4, [1] * 4)) for _ in range(2)]
    size = 2 * secret.public.bytes
    assert len({int(number) for data in seen for number in numbers_of(data, size)}) == 8


def test_the_report_of_a_bin_with_one_row_is_not_that_rows_ciphertext(secret, engine):
    """Not even without the bias, and each report is another one."""
    slots, encryption, sums = ends(secret, 1, engine)
    data = encryption.encrypt(packed([5], [9]))
    one = sums.sums(sums.read(data, 1), [(0, all_rows(1))], np.zeros((1, 1), np.uint8), [1])
    reports = [sums.close(one) for _ in range(2)]
    (row,), (first,), (second,) = (numbers_of(of, 2 * secret.public.bytes) for of in (data, *reports))
    bias = 1 + secret.public.n * slots.bias(1)
    assert len({row, row * bias % secret.public.square, first, second}) == 4
    assert [opened(secret, slots, report, 1).tolist() for report in reports] == [[[5, 9]]] * 2


@pytest.mark.parametrize("count", [0, 1, 11])
@pytest.mark.parametrize("digit_bits", [2, 8, 10])
def test_powers_are_the_same_number_with_and_without_the_primes(secret, engine, count, digit_bits):
    n, square, digits = secret.public.n, secret.public.square, -(-256 // digit_bits)
    drawn_by = stream("powers")
    base = int.from_bytes(drawn_by(secret.public.bytes + 16), "little") % n
    base = pow(-base * base % n, n, square)
    read = np.frombuffer(drawn_by(2 * digits * count), "<u2").reshape(count, digits).tolist()
    exponents = [sum(d % 2**digit_bits << (digit_bits * i) for i, d in enumerate(row)) for row in read]
    due_powers = [pow(base, e, square) for e in exponents]
    for moduli in ((n,), secret.primes):
        engines = tuple(engine(modulus, ONE) for modulus in moduli)
        assert RandomPowers(n, engines, stream("powers"), digit_bits).take(count) == due_powers


def test_powers_beyond_a_block_are_all_different(secret, monkeypatch):
    monkeypatch.setattr("fedboost.privacy.rowsums.sums.BLOCK", 4)
    powers = RandomPowers(secret.public.n, (Engine(secret.public.n, ONE),), stream("blocks"))
    assert len({*powers.take(10)}) == 10


# ---- vectors ----------------------------------------------------------------------------------------


def vector_bytes(engine):
    """Rows and report of fixed primes, gradients and randomness."""
    p, q = PRIMES
    secret = PaillierSecret(PaillierPrivateKey(PaillierPublicKey(p * q), p, q))
    slots, encryption, sums = ends(secret, 20, engine)
    gradients, hessians = np.arange(20) * 7919 % 65537 - LIMIT, np.arange(20) * 10007 % (LIMIT + 1)
    data = encryption.encrypt(packed(gradients, hessians))
    codes = (np.arange(60).reshape(3, 20) * 7 % 5).astype(np.uint8)
    report = sums.close(sums.sums(sums.read(data, 20), [(0, all_rows(20))], codes, [5, 5, 5]))
    cells = due(gradients[None], hessians[None], [(0, all_rows(20))], codes, [5, 5, 5])
    assert opened(secret, slots, report, 15).tolist() == cells.tolist()
    return data, report


def test_fixed_primes_rows_and_randomness_give_fixed_bytes(engine):
    assert [hashlib.sha256(data).hexdigest() for data in vector_bytes(engine)] == VECTORS


# ---- refusals ---------------------------------------------------------------------------------------


def tampered(secret, encryption, number):
    """Three rows, the second of which is this number."""
    data, size = bytearray(encryption.encrypt(packed([1, 2, 3], [1, 1, 1]))), 2 * secret.public.bytes
    data[size : 2 * size] = int(number).to_bytes(size, "little")
    return bytes(data)


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (lambda secret: 0, "ciphertext-out-of-range"),
        (lambda secret: secret.public.square, "ciphertext-out-of-range"),
        (lambda secret: secret.public.square + 1, "ciphertext-out-of-range"),
        (lambda secret: (1 << (16 * secret.public.bytes)) - 1, "ciphertext-out-of-range"),
        (lambda secret: secret.public.n, "ciphertext-not-unit"),
        (lambda secret: secret.primes[0], "ciphertext-not-unit"),
        (lambda secret: secret.primes[1] * 12345, "ciphertext-not-unit"),
    ],
)
def test_numbers_that_are_no_ciphertexts_are_refused(secret, engine, number, code):
    _, encryption, sums = ends(secret, 3, engine)
    with raised(PeerError, code):
        sums.read(tampered(secret, encryption, number(secret)), 3)


@pytest.mark.parametrize("number", [lambda secret: 1, lambda secret: secret.public.square - 1])
def test_the_least_and_the_largest_ciphertext_are_taken(secret, engine, number):
    _, encryption, sums = ends(secret, 3, engine)
    assert len(sums.read(tampered(secret, encryption, number(secret)), 3)) == 3


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data + b"\1", lambda data: b""])
def test_another_number_of_bytes_is_refused(secret, engine, change):
    _, encryption, sums = ends(secret, 3, engine)
    data = encryption.encrypt(packed([1, 2, 3], [1, 1, 1]))
    with raised(PeerError, "gradients-length"):
        sums.read(change(data), 3)


def test_no_secret_is_printed(secret):
    _, encryption, sums = ends(secret, 3)
    shown = f"{encryption!r} {sums!r} {encryption._powers!r}"
    assert not any(str(prime) in shown for prime in secret.primes)
    assert "512 bits" in shown


# ---- engines ----------------------------------------------------------------------------------------


@needs_kernels
@pytest.mark.parametrize("bits", [64, 256, 512, 1040, 2048, 3072])
def test_engines_give_the_same_numbers(bits):
    rng = np.random.default_rng(bits)
    modulus = int.from_bytes(rng.bytes(bits // 8), "little") | 1 | 1 << (bits - 1)
    size = 2 * (bits // 8)
    numbers = [1, 2, modulus * modulus - 1, modulus, modulus - 1]
    numbers += [int.from_bytes(rng.bytes(size), "little") % modulus**2 or 1 for _ in range(95)]
    data = b"".join(number.to_bytes(size, "little") for number in numbers)
    starts = np.append(0, np.cumsum(rng.integers(0, 40, 37))).astype(np.int64)
    segments = Segments(rng.integers(0, 100, starts[-1]), starts)
    found = []
    for engine in (Engine(modulus, ONE), KernelEngine(modulus, ONE), KernelEngine(modulus, TWO)):
        read = engine.read(data)
        parts = engine.products(read, segments), engine.packed(read, 7, 24), engine.packed(read, 1, 24)
        found.append([engine.values(part) for part in (read, *parts)])
    assert found[0] == found[1] == found[2]
    assert found[0][0] == found[0][3] == numbers


@needs_kernels
def test_numbers_are_read_part_by_part(monkeypatch):
    """A number that is out of range is found in each."""
    monkeypatch.setattr("fedboost.privacy.rowsums.sums.PART", 16)
    engine, numbers = KernelEngine(1_000_003, ONE), [*range(1, 51)]
    data = b"".join(number.to_bytes(engine.size, "little") for number in numbers)
    assert engine.values(engine.read(data)) == numbers
    for at in range(50):
        cut = at * engine.size
        with raised(PeerError, "ciphertext-out-of-range"):
            engine.read(data[:cut] + bytes(engine.size) + data[cut + engine.size :])


@needs_kernels
def test_numbers_with_the_largest_and_the_smallest_limbs():
    """Of moduli that begin and end with many ones, or many zeros."""
    for modulus in ((1 << 416) - 1, (1 << 415) + 1, (1 << 409) - 1, (1 << 408) + 1, (1 << 52) + 1, 3):
        square, size = modulus * modulus, 2 * ((modulus.bit_length() + 7) // 8)
        numbers = [1, 2, modulus - 1, modulus, modulus + 1, square - modulus, square - 2, square - 1]
        data = b"".join(number.to_bytes(size, "little") for number in numbers)
        pairs = Segments(np.array([(i, j) for i in range(8) for j in range(8)]).ravel(), np.arange(0, 130, 2))
        engine = KernelEngine(modulus, ONE)
        found = engine.values(engine.products(engine.read(data), pairs))
        assert found == [one * other % square for one in numbers for other in numbers]


@needs_kernels
def test_where_kernels_compile_they_are_used_unless_they_compute_anything_else(secret, monkeypatch):
    assert isinstance(engine_of(secret.public.n, ONE), KernelEngine)
    right = kernels.multiply_segments

    def wrong(*arrays):
        right(*arrays)
        arrays[-1][-1, 0] ^= 1

    monkeypatch.setattr(kernels, "multiply_segments", wrong)
    assert isinstance(engine_of(secret.public.n, ONE), Engine)


def test_where_kernels_do_not_compile_gmpy2_multiplies(secret, monkeypatch):
    monkeypatch.setattr("fedboost.privacy.rowsums.sums.may_compile", lambda: False)
    assert isinstance(engine_of(secret.public.n, ONE), Engine)
