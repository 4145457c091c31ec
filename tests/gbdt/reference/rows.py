"""Naive references of `fedboost.gbdt.kernels.rows`."""


def partition(codes, goes_left, rows):
    """The rows that go left, and those that go right, each in the old order."""
    left = [row for row in rows.tolist() if goes_left[codes[row]]]
    return left, [row for row in rows.tolist() if not goes_left[codes[row]]]
