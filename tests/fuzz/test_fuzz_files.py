"""Damaged files: terms, sites' files, models, audit logs, keys. One line that says so, or a sound content."""

import base64
import random
import tempfile
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from audit_logs import AuditLog
from captured import TRAININGS, terms_of, training
from cryptography.hazmat.primitives.serialization import NoEncryption
from hypothesis import given
from hypothesis import strategies as st
from mutants import mutate, mutate_text

from fedboost.errors import ConfigError, PeerError
from fedboost.privacy.identity import issue, new_root, to_pem
from fedboost.protocol.site import Release
from fedboost.runtime.config import read_aggregator
from fedboost.runtime.model import Model
from fedboost.runtime.net.keys import CERTIFICATE, DENIED, KEY, ROOTS, key_to_pem, read_bundle
from fedboost.runtime.site.audit import read_log
from fedboost.runtime.site.config import read_party
from fedboost.runtime.tasks import read_terms

draws = st.integers(0, 2**32).map(random.Random)
MAX_LINE_LENGTH = 3000


def fine_or_one_line(read, *args):
    """What was read, or None if it was refused in one line; anything else that is raised fails the test."""
    try:
        return read(*args)
    except ConfigError as error:
        line = str(error)
    assert len(line.splitlines()) == 1
    assert len(line) < MAX_LINE_LENGTH
    line.encode()
    return None


# ---- what users write -------------------------------------------------------------------------------

TERMS = b"""\
objective = "binary:logistic"
rounds = 20
max_depth = 4
learning_rate = 0.1
reg_lambda = 1e-3
base_score = 0.5
eval_metric = ["auc", "logloss"]
parties = ["north", "south", "west"]
protection = "masked"
colluding = 0
allow_two_parties = false

[columns]
label = "income"
positive = ">50K"
weight = "w"
numeric = ["age", "hours"]

[columns.categorical]
education = ["none", "some"]
"""
PARTY = b"""\
party = "north"
aggregator = "localhost:7070"
data = "rows.csv"
keys = "north"

[policy]
protections = ["masked", "plain"]
min_parties = 3
min_rows_per_leaf = 10
max_rounds = 1000
parties = ["north", "south", "east"]
approval = "ask"

[policy.columns]
label = ["y"]
features = ["age", "income"]
"""
AGGREGATOR = b"""\
listen = "[::1]:7070"
keys = "aggregator"
programs = ["mine:forest"]
"""
FILES = {
    "terms": (read_terms, TERMS),
    "party": (read_party, PARTY),
    "aggregator": (read_aggregator, AGGREGATOR),
}
keys_of_tables = st.text(max_size=8) | st.sampled_from(
    ["columns", "policy", "approval", "categorical", "label"]
)
plain_values = st.one_of(
    st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.datetimes(), st.dates(), st.times()
)
toml_values = st.recursive(
    plain_values,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys_of_tables, inner, max_size=3),
    max_leaves=8,
)


def quoted(text):
    return '"' + "".join(f"\\U{ord(c):08X}" for c in text) + '"'


def in_toml(value):
    """A value as TOML writes it in one line."""
    match value:
        case bool():
            return str(value).lower()
        case str():
            return quoted(value)
        case list():
            return "[" + ", ".join(map(in_toml, value)) + "]"
        case dict():
            return "{" + ", ".join(f"{quoted(k)} = {in_toml(v)}" for k, v in value.items()) + "}"
        case int() | float():
            return repr(value)
        case _:
            return value.isoformat()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("files")


@pytest.mark.parametrize("kind", FILES)
def test_undamaged_files_are_read(kind, folder):
    read, content = FILES[kind]
    path = folder / f"{kind}.toml"
    path.write_bytes(content)
    assert read(path)


@pytest.mark.parametrize("kind", FILES)
@given(draw=draws)
def test_damaged_files_of_users(kind, folder, draw):
    read, content = FILES[kind]
    path = folder / f"{kind}.toml"
    path.write_bytes(mutate_text(draw, content))
    fine_or_one_line(read, path)


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("terms", "rounds = " + "9" * 5000),
        ("terms", f'objective = "{"x" * 5000}"'),
        ("party", "policy.approval = [{" + ".".join("a" * 3000) + " = 1}]"),
        ("party", f'policy.approval = ["{"x" * 5000}"]'),
        ("aggregator", f'listen = "{"x" * 5000}"'),
    ],
)
def test_lines_that_were_found(kind, line, folder):
    path = folder / f"{kind}.toml"
    path.write_text(line + '\nparty = "north"\naggregator = "a:1"\ndata = "x"\n' * (kind == "party"))
    assert fine_or_one_line(FILES[kind][0], path) is None


@pytest.mark.parametrize("kind", FILES)
@given(values=st.dictionaries(keys_of_tables, toml_values, max_size=4))
def test_any_toml(kind, folder, values):
    path = folder / f"{kind}.toml"
    path.write_text("".join(f"{quoted(k)} = {in_toml(v)}\n" for k, v in values.items()))
    fine_or_one_line(FILES[kind][0], path)


# ---- models -----------------------------------------------------------------------------------------

ODD_ROWS = np.array(
    [[np.nan] * 3, [np.inf] * 3, [-np.inf] * 3, [0.0] * 3, [3.4e38] * 3, [-1e-45, 1e9, 2.5]], np.float32
)


@pytest.mark.parametrize("name", TRAININGS)
@given(draw=draws)
def test_damaged_models(name, draw):
    data = mutate_text(draw, training(name)[0].model.to_bytes())
    model = fine_or_one_line(Model.from_bytes, data)
    if model is None:
        return
    assert model.predict(ODD_ROWS).shape == (len(ODD_ROWS),)
    for kind in ("gain", "cover", "weight"):
        model.importance(kind)
    assert Model.from_bytes(model.to_bytes()) == model
    roots = bundles()[1]
    try:
        model.verify(roots, datetime.now(UTC))
    except PeerError as error:
        why = str(error)
        assert len(why.splitlines()) == 1


# ---- audit logs -------------------------------------------------------------------------------------


@cache
def log_lines():
    """A log as a session writes it."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "log.jsonl"
        with AuditLog(path) as log:
            log.admitted("s1", terms_of("masked"))
            for turn in range(1, 6):
                log.record(Release("s1", turn, 0, "HistogramQuery", 64, 192, "masked", ("p0", "p1", "p2")))
            log.ended("s1", "")
        return b"".join(entry.line for entry in read_log(path))


@given(draw=draws)
def test_damaged_logs(folder, draw):
    whole = log_lines()
    damaged = mutate_text(draw, whole)
    path = folder / "log.jsonl"
    path.write_bytes(damaged)
    entries = fine_or_one_line(read_log, path)
    if entries is not None:
        assert whole.startswith(damaged), "a change that is not a cut was not found"


# ---- keys -------------------------------------------------------------------------------------------


@cache
def bundles():
    """The files of a party's bundle, and its roots."""
    now = datetime.now(UTC)
    root_key, root = new_root("study", now, 100)
    key, certificate = issue(root_key, root, "north", "party", now, 10)
    files = {
        CERTIFICATE: to_pem(certificate),
        KEY: key_to_pem(key, NoEncryption()),
        ROOTS: to_pem(root),
        DENIED: b"4f:a0:17  # lost\n0xabcd\n",
    }
    return files, to_pem(root)


def damaged_der(draw, pem):
    """A PEM file whose content is damaged and its armour is right."""
    first, *middle, last = pem.splitlines()
    content = mutate(draw, base64.b64decode(b"".join(middle)))
    return b"\n".join([first, base64.encodebytes(content).rstrip(), last, b""])


def written(folder, files):
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o600)
    return folder


def test_the_undamaged_bundle_is_read(folder):
    assert read_bundle(written(folder / "north", bundles()[0]), "party").signer.name == "north"


def test_a_deny_list_with_an_endless_word(folder):
    files = {**bundles()[0], DENIED: b"x" * 10_000}
    assert fine_or_one_line(read_bundle, written(folder / "north", files), "party") is None


@given(draw=draws)
def test_damaged_bundles(folder, draw):
    files = dict(bundles()[0])
    name = draw.choice(list(files))
    files[name] = mutate_text(draw, files[name])
    fine_or_one_line(read_bundle, written(folder / "north", files), "party")


@given(draw=draws)
def test_bundles_whose_der_is_damaged(folder, draw):
    """Right base64 around wrong content."""
    files = dict(bundles()[0])
    name = draw.choice([CERTIFICATE, KEY, ROOTS])
    files[name] = damaged_der(draw, files[name])
    fine_or_one_line(read_bundle, written(folder / "north", files), "party")
