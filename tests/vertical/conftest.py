"""What sessions of parties with different columns share."""

import pytest


@pytest.fixture(scope="module")
def key():
    from fedboost.privacy.encrypted.paillier import Paillier

    return Paillier().new_secret(2048)


@pytest.fixture
def one_key(key, monkeypatch):
    """To make a key takes longer than a session."""
    from fedboost.privacy.encrypted.paillier import Paillier

    monkeypatch.setattr(Paillier, "new_secret", lambda self, bits: key)
