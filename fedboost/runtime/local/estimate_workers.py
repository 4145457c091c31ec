"""The costs of workers at one site: memory by what was measured, seconds by trees that were grown here.

Promises: bytes are those of the cells that workers send to their site's process.
Refuses: nothing itself. Of terms with votes bytes would be others: workers send whole histograms then.
"""

import math
import time

import numpy as np

from fedboost.people.facts import WorkersFacts
from fedboost.privacy.bit_packing import Segment, chunks_of
from fedboost.runtime.local.estimate import Costs
from fedboost.runtime.workers.sharing import growing_bytes, loading_bytes
from fedboost.terms.terms import Terms

ANSWER_SECONDS = 1e-4
"""Of a question to one worker and its empty answer: measured over loopback, .19 ms for two."""
SAMPLE_CELLS = 1 << 20


def of_workers(costs: Costs, terms: Terms, rows: int, parties: int, workers: int) -> WorkersFacts:
    """The estimate for a site with its part of the rows of all parties, where there are no votes."""
    own = math.ceil(math.ceil(rows / parties) / workers)
    features = len(terms.columns.features)
    pack, add = _seconds_a_cell(costs.bits)
    seconds = costs.computing(parties) / workers + costs.cells * (pack + workers * add)
    seconds += costs.turns * workers * ANSWER_SECONDS
    sent = workers * costs.cells * costs.bits / 8
    return WorkersFacts(
        workers, own, loading_bytes(own, features), growing_bytes(own, features), sent, seconds
    )


def _seconds_a_cell(bits: int) -> tuple[float, float]:
    """What it takes to pack one cell, and to add it, measured here."""
    words = np.zeros(SAMPLE_CELLS, np.uint64)
    chunks = chunks_of((Segment(SAMPLE_CELLS, bits),))
    marks = []
    for _ in range(2):  # kernels are loaded, the first time
        begin = time.perf_counter()
        packed = [chunk.packed(chunk.of(words)) for chunk in chunks]
        middle = time.perf_counter()
        for chunk, content in zip(chunks, packed, strict=True):
            chunk.add(chunk.of(words), content)
        marks = [begin, middle, time.perf_counter()]
    packing, adding = np.diff(marks) / SAMPLE_CELLS
    return float(packing), float(adding)
