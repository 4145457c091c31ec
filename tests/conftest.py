"""Settings of all tests; what tests share is in `helpers`, which is on the path.

A test may be a coroutine: it runs in an event loop of its own.
A pool of Paillier powers holds a few: a session of a test needs no more, and a thread would go on to fill it.
Hypothesis draws the same examples in every run: a failing check is found by the change that caused it.
"""

import asyncio
import sys
from importlib.util import find_spec
from inspect import iscoroutinefunction

import pytest
from forked import fork_parties
from hypothesis import settings

settings.register_profile("fedboost", deadline=None, derandomize=True)
settings.load_profile("fedboost")
fork_parties()
PATIENCE = 80.0
"""Seconds after which a coroutine gives up."""

if find_spec("phe") and find_spec("gmpy2"):
    from fedboost.privacy import paillier

    paillier.POOL = 32  # powers made in advance


@pytest.fixture(scope="module", autouse=True)
def no_cluster_left():
    """End the clusters of Dask that the tests of a file began."""
    yield
    if "dask_rows" in sys.modules:
        sys.modules["dask_rows"].close_clusters()


@pytest.fixture(scope="module")
def browser():
    """Chromium, for the tests of one file (`tests/helpers/browser.py`)."""
    from browser import Browser, missing

    if missing():
        pytest.skip(missing())
    with Browser() as opened:
        yield opened


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a test that is a coroutine to its end, or fail after a while."""
    if not iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**given), PATIENCE))
    return True
