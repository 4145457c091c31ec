"""The files users write."""

import os
import re
import stat
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raised import raised
from sites import terms

from fedboost.errors import ConfigError
from fedboost.runtime.config import AggregatorConfig, check_address, read_aggregator, read_toml, to_toml
from fedboost.runtime.files import check_writable, folder_name, party_stems, write_atomically
from fedboost.runtime.site.config import read_party
from fedboost.runtime.tasks import read_terms, terms_to_toml
from fedboost.terms.terms import Terms

texts = st.text(max_size=20)
values = st.recursive(
    st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=6,
)


@given(values)
def test_values_written_as_toml_are_read_back(value):
    line = to_toml(value)
    assert "\n" not in line
    back = tomllib.loads(f"value = {line}\n")["value"]
    assert back == value
    assert type(back) is type(value)


def test_what_has_no_form_in_toml_is_a_defect():
    with pytest.raises(TypeError, match="a NoneType cannot be written as TOML"):
        to_toml(None)


characters = st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="[]<")
names = st.text(characters, min_size=1, max_size=10)


parties = st.lists(names.filter(str.isprintable), max_size=3, unique=True)


@given(st.lists(names, min_size=3, max_size=6, unique=True), parties)
def test_terms_written_are_read_back(columns, parties):
    label, category, *numeric = columns
    schema = {"label": label, "numeric": numeric, "categorical": {category: parties or ["a"]}}
    written = Terms.read({"columns": schema, "parties": parties, "protection": "plain"})
    back = Terms.read(tomllib.loads(terms_to_toml(written)))
    assert back == written
    assert back.digest == written.digest


def test_terms_written_are_short_and_keep_what_was_chosen(tmp_path):
    chosen = terms(["north"], gamma=0.5, base_score=0.25, eval_metric=["auc"])
    text = terms_to_toml(chosen)
    (tmp_path / "terms.toml").write_text(text)
    assert read_terms(tmp_path / "terms.toml") == chosen
    assert "gamma = 0.5" in text.splitlines()
    assert "reg_alpha" not in text


def test_the_table_of_a_site_counts_from_its_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site").mkdir()
    config = tmp_path / "site" / "party.toml"
    config.write_text('party = "north"\naggregator = "localhost:7070"\ndata = "../rows.csv"\n')
    assert read_party(config).data == tmp_path / "rows.csv"
    assert read_party(config.relative_to(tmp_path)).data == tmp_path / "rows.csv"
    elsewhere = tmp_path / "elsewhere.csv"
    config.write_text(f'party = "north"\naggregator = "localhost:7070"\ndata = "{elsewhere}"\n')
    assert read_party(config).data == elsewhere


def test_an_aggregator_listens_to_this_machine_unless_told_otherwise(tmp_path):
    (tmp_path / "aggregator.toml").write_text("")
    assert read_aggregator(tmp_path / "aggregator.toml") == AggregatorConfig(
        listen="127.0.0.1:7070", state=tmp_path / "aggregator.state"
    )
    (tmp_path / "aggregator.toml").write_text('listen = "[::]:0"\nprograms = ["lab:train"]\n')
    config = read_aggregator(tmp_path / "aggregator.toml")
    assert (config.listen, config.programs) == ("[::]:0", ("lab:train",))


@pytest.mark.parametrize(
    "address", ["localhost:7070", "10.0.0.1:1", "[::1]:65535", "[fe80::1%eth0]:1", "a.b.example:1"]
)
def test_addresses(address):
    assert check_address(address, "here") == address


@pytest.mark.parametrize(
    "address",
    [
        *("", ":", "localhost", ":1", "a:", "a:65536", "a:-1", "a:1x", "a:٣", "a:²", "a:7070\n"),
        *("http://127.0.0.1:1", "a b:1", "::1:1", "[::1]", "[]:1", "[a]:1", "a/b:1", "\0:1", "[::1:1"),
    ],
)
def test_addresses_that_are_none(address):
    with raised(ConfigError, "address-invalid"):
        check_address(address, "here")


def test_tunnels_have_an_address_and_both_halves_of_a_certificate(tmp_path):
    for lines, fault in {
        "": "set websocket, grpc or both",
        'grpc = "127.0.0.1:8081"\nkey = "fed.key"\n': "set certificate and key together",
    }.items():
        (tmp_path / "aggregator.toml").write_text(f"[tunnels]\n{lines}")
        with pytest.raises(ConfigError, match=f"aggregator.toml: tunnels: {fault}"):
            read_aggregator(tmp_path / "aggregator.toml")


def test_port_0_is_for_listening_alone(tmp_path):
    with raised(ConfigError, "address-invalid"):
        check_address("localhost:0", "here")
    (tmp_path / "party.toml").write_text('party = "a"\naggregator = "localhost:0"\ndata = "x.csv"\n')
    with pytest.raises(ConfigError, match=r"party\.toml: aggregator: .* port 0 is only for listening"):
        read_party(tmp_path / "party.toml")
    assert AggregatorConfig(listen="localhost:0").listen == "localhost:0"


@pytest.mark.parametrize("content", [b"a = ", b"a = 1\na = 2\n", b"\xff", b"[a", b"x" * 10])
def test_files_that_are_no_toml(tmp_path, content):
    (tmp_path / "bad.toml").write_bytes(content)
    with raised(ConfigError, "config-not-toml") as caught:
        read_toml(tmp_path / "bad.toml")
    assert "\n" not in str(caught.value)


def test_deeply_nested_toml_is_refused(tmp_path):
    (tmp_path / "deep.toml").write_text("a = " + "[" * 100_000)
    with raised(ConfigError, "config-not-toml"):
        read_toml(tmp_path / "deep.toml")


# ---- files ------------------------------------------------------------------------------------------


@given(st.lists(st.text(min_size=1, max_size=256), unique=True, max_size=8))
def test_every_party_has_a_file_name_of_its_own(parties):
    stems = party_stems(parties)
    assert list(stems) == parties
    assert (
        len({stem.casefold() for stem in stems.values()} | {"aggregator", "terms", "model"})
        == len(parties) + 3
    )
    for stem in stems.values():
        assert len(f"{stem}.toml".encode()) <= 255
        assert not set(stem) & set('/\\:*?"<>|.\0\n')


def test_plain_names_of_parties_stay_as_they_are():
    assert party_stems(["north", "site-1", "Zürich"]) == {n: n for n in ("north", "site-1", "Zürich")}
    others = {"terms": "1-terms", "North": "North", "north": "3-north", "a/b": "4-a_b"}
    assert party_stems(others) == others


@pytest.mark.parametrize("name", ["con", "Aux", "NUL", "COM1", "lpt²", "north.", "north "])
def test_no_file_is_named_after_a_device_or_ends_as_windows_forbids(name):
    for stem in (folder_name(name), party_stems([name])[name]):
        assert re.fullmatch(r"[\w-]+-[0-9a-f]{6}|1-\w+", stem)


def test_names_that_only_look_like_devices_stay():
    for name in ("cone", "com", "com10", "console", "north"):
        assert folder_name(name) == party_stems([name])[name] == name


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    file = tmp_path / "file"
    write_atomically(file, b"one")
    write_atomically(file, b"two")
    assert file.read_bytes() == b"two"
    with pytest.raises(ConfigError, match="cannot write"):
        write_atomically(tmp_path / "nowhere" / "file", b"three")
    (tmp_path / "folder").mkdir()
    with raised(ConfigError, "file-is-folder"):
        write_atomically(tmp_path / "folder", b"four")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "folder"]


def test_whether_a_file_can_be_written_is_known_before(tmp_path):
    check_writable(tmp_path / "new", force=True)
    for path, said in ((tmp_path, "is a directory"), (tmp_path / "a" / "b", "does not exist")):
        with pytest.raises(ConfigError, match=said):
            check_writable(path, force=True)


def test_a_link_stays_and_its_file_is_replaced(tmp_path):
    (tmp_path / "there").mkdir()
    link = tmp_path / "link"
    link.symlink_to("there/file")
    for data in (b"new", b"newer"):
        check_writable(link, force=True)
        write_atomically(link, data)
        assert link.is_symlink()
        assert (tmp_path / "there" / "file").read_bytes() == data
    assert [entry.name for entry in (tmp_path / "there").iterdir()] == ["file"]


def test_what_is_no_file_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for name, said in (("pipe", "not a regular file"), ("loop", "symbolic links")):
        for write in (
            lambda path: check_writable(path, force=True),
            lambda path: write_atomically(path, b"x"),
        ):
            with pytest.raises(ConfigError, match=rf"{name}: cannot write: .*{said}"):
                write(tmp_path / name)
    assert stat.S_ISFIFO((tmp_path / "pipe").lstat().st_mode)
    assert (tmp_path / "loop").is_symlink()


def test_devices_and_open_pipes_are_written_through(tmp_path):
    link = tmp_path / "link"
    terminal, device = os.openpty()
    for (reading, writing), target in (
        ((terminal, device), os.ttyname(device)),
        (pipe := os.pipe(), f"/proc/self/fd/{pipe[1]}"),
    ):
        link.symlink_to(target)
        check_writable(link, force=True)
        write_atomically(link, b"through")
        assert os.read(reading, 100) == b"through"
        assert link.is_symlink()
        link.unlink()
        os.close(reading)
        os.close(writing)


def test_an_output_is_no_input(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text("x")
    (tmp_path / "link").symlink_to("rows.csv")
    check_writable(Path("new.csv"), tmp_path / "rows.csv", tmp_path / "nowhere.csv", force=True)
    for path in ("rows.csv", "link"):
        with raised(ConfigError, "file-is-input", naming=[path]):
            check_writable(Path(path), tmp_path / "nowhere.csv", tmp_path / "rows.csv", force=True)


def test_a_site_computes_with_every_core_unless_told_otherwise(tmp_path):
    path = tmp_path / "north.toml"
    lines = 'party = "north"\naggregator = "localhost:7070"\ndata = "north.csv"\n'
    path.write_text(lines)
    assert 1 <= read_party(path).nthread <= os.cpu_count()
    path.write_text(lines + "nthread = 3\n")
    assert read_party(path).nthread == 3
    path.write_text(lines + "nthread = 0\n")
    with pytest.raises(ConfigError, match="nthread"):
        read_party(path)
