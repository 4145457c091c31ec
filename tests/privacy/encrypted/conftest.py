"""Fixtures of the tests of encrypted sums."""

import pytest
from schemes import SCHEMES


@pytest.fixture(params=SCHEMES)
def scheme(request):
    return request.param
