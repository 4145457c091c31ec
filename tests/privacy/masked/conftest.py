"""Fixtures of the tests of `masked`."""

import pytest
from consortium import masked_sealers
from masked_turn import PARTIES, Turn


@pytest.fixture
def sealers():
    return masked_sealers(PARTIES)


@pytest.fixture
def turn(sealers):
    return Turn(sealers)
