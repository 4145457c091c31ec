"""What sessions of parties with different columns share."""

from functools import cache

import pytest
from consortium import installed


@pytest.fixture
def key():
    import one_paillier

    return one_paillier.secret()


@pytest.fixture
def one_key(key, monkeypatch):
    """To make a key takes longer than a session."""
    from fedboost.privacy.paillier import Paillier

    monkeypatch.setattr(Paillier, "new_secret", lambda self, bits: key)


@pytest.fixture(scope="module", autouse=True)  # a package's would last until the process ends
def small_tables():
    """Tables of powers for few rows, which otherwise take longer than the sums of a session; and a proof of a
    key that several parties of a process check is right or wrong for all of them."""
    if not installed("paillier"):
        yield
        return
    import one_paillier

    from fedboost.privacy.paillier import PaillierPublic
    from fedboost.privacy.rowsums import ends

    check = ends.check

    @cache
    def checked(n, context, proof):
        check(PaillierPublic(n), context, proof)

    with pytest.MonkeyPatch.context() as patch:
        one_paillier.small_tables(patch)
        patch.setattr(ends, "check", lambda public, *said: checked(public.n, *said))
        yield
