"""Keystreams that are made and added in one loop, compared with those of `cryptography`."""

import os
import subprocess
import sys

import numpy as np
import pytest
from consortium import keystream
from hypothesis import given
from hypothesis import strategies as st

from fedboost.privacy import kernels
from fedboost.privacy.kernels import ADDED, SUBTRACTED
from fedboost.privacy.packing import CHUNK_CELLS, Segment
from fedboost.privacy.pairwise import mask
from fedboost.privacy.protection import Tag

SIZES = (1, 2, 63, 64, 65, 1023, 1024, 1025, 12_801, CHUNK_CELLS, CHUNK_CELLS + 1)
# Few lanes, many, and so many that each row fills the window; cells that end in any word of a block.
VECTORS = (
    ((12_801, 61), (12_801, 60)),
    ((CHUNK_CELLS + 3, 64),),
    ((1, 1),),
    ((960, 7), (1024, 9), (5000, 33)),
)


def check(runs, streams):
    """Chunks with masks are those to which each stream's bytes were added, or from which they were taken."""
    tag, begin = Tag(1, 1, (), b"", tuple(Segment(*run) for run in runs)), 0
    size = sum(chunk.size for chunk in tag.checked)
    whole = np.random.default_rng(size).integers(0, 2**64, tag.cells + len(tag.checked), np.uint64)
    before = whole.copy()
    for chunk, words in mask(whole, tag, streams):
        due = chunk.of(before)
        for key, added in streams:
            stream = keystream(key, size)[begin : begin + chunk.size]
            chunk.add(due, stream, ADDED if added else SUBTRACTED)
        assert chunk.packed(words) == chunk.packed(due)
        begin += chunk.size
    assert begin == size


def streams_of(number):
    return [(np.random.default_rng(place).bytes(32), place % 3 == 0) for place in range(number)]


@pytest.mark.parametrize("lanes", [0, kernels.LANES])
@pytest.mark.parametrize("runs", VECTORS)
def test_each_stream_is_aes_in_counter_mode(runs, lanes, monkeypatch):
    """With the CPU's instructions, and without."""
    monkeypatch.setattr(kernels, "LANES", lanes)
    check(runs, streams_of(3))


@pytest.mark.slow
@given(
    runs=st.lists(st.tuples(st.sampled_from(SIZES), st.integers(1, 64)), min_size=1, max_size=4),
    number=st.integers(0, 5),
)
def test_any_vector_and_any_number_of_streams(runs, number):
    check(runs, streams_of(number))


TARGETS = {"+aes,+sse2": 2, "+aes,+sse2,+avx2,+vaes": 4, "+sse2,-aes": 0}


@pytest.mark.slow
@pytest.mark.skipif(kernels.LANES < 4, reason="this CPU encrypts no vectors")
@pytest.mark.parametrize("features", TARGETS)
def test_instructions_of_other_cpus_make_the_same_streams(features, tmp_path):
    """Numba compiles for a CPU that has only these."""
    program = (
        "from fedboost.privacy import kernels; from tests.privacy.masked import test_keystreams as own\n"
        "for runs in own.VECTORS: own.check(runs, own.streams_of(3))\n"
        "print(kernels.LANES)"
    )
    changed = {
        "NUMBA_CPU_NAME": "generic",
        "NUMBA_CPU_FEATURES": features,
        "FEDBOOST_CACHE": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    ran = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | changed, capture_output=True, text=True, check=True
    )
    assert ran.stdout.split()[-1] == str(TARGETS[features])
