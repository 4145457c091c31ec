"""Processes of a LocalCluster, as tests start them."""

import sys

import forked
import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="forks are of Linux")
def test_they_are_forks_whatever_the_tests_have_imported():
    """Otherwise each process takes two seconds to import what the server of forked.py has."""
    for module in ("dask.distributed", "polars", "sklearn"):
        pytest.importorskip(module)
    assert forked.environment() == forked.AT_FIRST
