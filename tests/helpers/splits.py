"""Rules of splits, and layouts of histograms."""

import numpy as np

from fedboost.gbdt.cut_points import CutPoints
from fedboost.gbdt.histogram import Layout


def layout_of(*sizes, missing=()):
    cuts = tuple(np.arange(size - 1, dtype=np.float32) for size in sizes)
    return Layout.of(CutPoints.of(cuts, tuple(f in missing for f in range(len(sizes)))))
