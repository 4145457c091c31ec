"""The table of protections: its facts are those of terms and ends, and nobody else matches on names."""

import subprocess
import sys
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from consortium import installed, names, sealers_of, small_secret, tag_of
from name_matches import Search

from fedboost.errors import ConfigError
from fedboost.privacy.pairwise import Group
from fedboost.privacy.protections import PROTECTIONS
from fedboost.terms.terms import Terms

ROWS = sorted(PROTECTIONS)


@pytest.fixture(params=ROWS)
def row(request):
    return PROTECTIONS[request.param]


def test_nobody_but_the_table_matches_on_the_name_of_a_protection():
    assert Search("PROTECTIONS", PROTECTIONS).files("privacy/protections.py") == {}


# ---- the facts --------------------------------------------------------------------------------------


def terms_of(row, parties=5, **settings):
    columns = {"label": "y", "numeric": ["x"]}
    keys = {"keyholder": "p00"} if row.uses_key_holder else {}
    settings = {**keys, "protection": row.name, "parties": list(names(parties)), **settings}
    return Terms.read({"columns": columns, **settings})


def test_rows_are_known_by_their_own_names_and_do_not_change(row):
    assert PROTECTIONS[row.name] is row
    with pytest.raises(FrozenInstanceError):
        row.hides = not row.hides


def test_terms_have_the_facts_of_the_table(row):
    terms = terms_of(row)
    assert terms.hiding.uses_key_holder == row.uses_key_holder
    for parties in (3, 4, 5, 9):
        terms = terms_of(row, parties)
        assert terms.signers == row.min_signers(Group.of(terms.parties))


def test_terms_shrink_where_the_protection_may(row):
    if not row.may_shrink:
        with pytest.raises(ConfigError, match='on_loss = "shrink"'):
            terms_of(row, on_loss="shrink")
        return
    for parties in (4, 9, 30):
        terms = terms_of(row, parties, on_loss="shrink")
        assert terms.min_roster == max(row.min_roster(Group.of(terms.parties)), parties // 2 + 1)


def test_terms_keep_to_the_parties_of_the_table(row):
    terms_of(row, row.min_parties)
    if row.min_parties > 1:
        with pytest.raises(ConfigError, match=rf"needs {row.min_parties} parties"):
            terms_of(row, row.min_parties - 1)
    if row.max_parties is not None:
        terms_of(row, row.max_parties)
        with pytest.raises(ConfigError, match=f"allows at most {row.max_parties} parties"):
            terms_of(row, row.max_parties + 1)
    if row.max_shrinking is not None:
        terms_of(row, row.max_shrinking, on_loss="shrink")
        with pytest.raises(ConfigError, match=f'"shrink" allows at most {row.max_shrinking} parties'):
            terms_of(row, row.max_shrinking + 1, on_loss="shrink")


def test_parts_of_fixed_size_are_as_long_as_their_cells(row):
    if row.uses_key_holder and not installed(row.name):
        pytest.skip(f"what {row.name} needs is not installed")
    tag = tag_of(names(3), cells=100, bits=20)
    sealed = [*sealers_of(row.name, names(3))["p00"].seal(np.zeros(100, np.int64), tag)]
    assert row.sealed_size is None or sum(map(len, sealed)) == row.sealed_size(tag)
    assert row.sealed_size is None or row.hides


def test_a_greeting_has_the_keys_that_are_needed(row):
    agreement = bytes(range(32))
    assert row.agreement_key(row.key_greeting(agreement, None, b"")) == agreement
    if not row.uses_key_holder:
        assert row.key_greeting(agreement, None, b"") == agreement
    elif installed(row.name):
        secret = small_secret()
        greeted = row.key_greeting(agreement, secret, b"")
        assert row.agreement_key(greeted) == agreement
        assert secret.public.to_bytes() in greeted


def test_only_encryption_opens_sums_with_a_key(row):
    assert row.uses_key_holder == (row.max_cells is not None) == (not row.may_shrink)


def test_the_table_imports_no_package_of_an_encryption():
    code = (
        "import sys, fedboost.privacy.protections, fedboost.protocol.party, fedboost.protocol.aggregator\n"
        "print([name for name in ('phe', 'gmpy2') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
