"""Certificates that are issued."""

from datetime import timedelta

import pytest
from certificates import CLIENT, DAY, NOW, ROOT, SERVER, authority, issued, key_of, refused, usage
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from fedboost.errors import ConfigError
from fedboost.privacy.identity import (
    ROLES,
    common_name,
    identify,
    in_memory,
    issue,
    server_name,
    to_pem,
    verify,
)


def test_what_a_root_says_of_itself():
    assert ROOT.extensions.get_extension_for_class(x509.BasicConstraints) == x509.Extension(
        x509.BasicConstraints.oid, True, x509.BasicConstraints(True, 0)
    )
    key_usage = ROOT.extensions.get_extension_for_class(x509.KeyUsage)
    assert key_usage.critical
    assert key_usage.value == usage(key_cert_sign=True, crl_sign=True)
    assert ROOT.not_valid_after_utc == NOW + 1000 * DAY


@pytest.mark.parametrize("role", ROLES)
def test_what_a_leaf_says(role):
    key, certificate = issued(role=role)
    found = {type(e.value): (e.value, e.critical) for e in certificate.extensions}
    assert isinstance(key.curve, ec.SECP256R1)
    assert found[x509.BasicConstraints] == (x509.BasicConstraints(False, None), True)
    assert found[x509.KeyUsage] == (usage(digital_signature=True), True)
    purposes = {"aggregator": {SERVER}, "adder": {SERVER, CLIENT}}.get(role, {CLIENT})
    assert set(found[x509.ExtendedKeyUsage][0]) == purposes
    name = server_name(role, common_name(certificate)) or f"{role}.fedboost"
    assert found[x509.SubjectAlternativeName][0].get_values_for_type(x509.DNSName) == [name]
    root_id = ROOT.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    assert found[x509.AuthorityKeyIdentifier][0].key_identifier == root_id.digest
    assert certificate.not_valid_before_utc == NOW - timedelta(minutes=5)


def test_every_certificate_has_its_own_key_and_serial_number():
    pairs = [issued() for _ in range(5)]
    assert len({certificate.serial_number for _, certificate in pairs}) == 5
    assert len({key.private_numbers().private_value for key, _ in pairs}) == 5
    assert all(certificate.serial_number.bit_length() > 100 for _, certificate in pairs)


ISSUES = {
    "role": ({"role": "doctor"}, "'doctor'"),
    "no name": ({"name": ""}, "name"),
    "long name": ({"name": "é" * 33}, "64"),
    "line in a name": ({"name": "nor\nth"}, "name"),
    "surrogate": ({"name": "nor\ud800th"}, "name"),
    "outlives the root": ({"days": 1001}, "at most 1000 days"),
    "root gone": ({"now": NOW + 1001 * DAY}, "new consortium"),
}


@pytest.mark.parametrize("case", ISSUES)
def test_what_cannot_be_issued(case):
    more, said = ISSUES[case]
    with pytest.raises(ConfigError) as caught:
        issued(**more)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_root_of_another_kind_issues_too():
    key = key_of("rsa", "root")
    root = authority("root", key, days=100)
    _, certificate = issue(key, root, "north", "party", NOW, 10)
    assert identify(to_pem(certificate), to_pem(root), NOW, ()).name == "north"


def test_a_consortium_in_memory_takes_the_same_way():
    signers, roots = in_memory(["north", "south"], NOW)
    assert list(signers) == ["north", "south"]
    for name, one in signers.items():
        holder = identify(one.certificate, roots, NOW, ())
        assert (holder.name, holder.role) == (name, "party") == (one.name, one.role)
        verify(holder, b"hello", one.sign(b"hello"))
    refused(signers["north"].der, "another consortium")
    _, again = in_memory(["north"], NOW)
    refused(signers["north"].der, "another consortium", roots=again)
