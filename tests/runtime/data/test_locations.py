"""Tables at addresses and in folders: the same table, no secret in a message, no address in the clear."""

import base64
import gzip
import io
import os

import pyarrow as pa
import pytest
from columns import config_error
from pyarrow import parquet
from raised import after
from stores import own_certificate, serving

from fedboost.runtime.data import locations
from fedboost.runtime.data.locations import shown
from fedboost.runtime.data.table import read_table, source_at

CSV = b"a,b\n1,x\n2,y\n"
VALUES = {"a": [1, 2], "b": ["x", "y"]}
SECRETS = ("pass", "word", "key", "sig=", "f0rty")


def in_parquet(table, **options):
    file = io.BytesIO()
    parquet.write_table(table, file, **options)
    return file.getvalue()


def without_secrets(text):
    assert not [secret for secret in SECRETS if secret in text]
    return text


# ---- https ------------------------------------------------------------------------------------------


@pytest.fixture
def https(tmp_path, monkeypatch):
    for name in [*os.environ]:
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    certificate = own_certificate(tmp_path / "own.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    table = pa.table(VALUES)
    with serving(
        {"t.csv": CSV, "f/t.csv.gz": gzip.compress(CSV), "t.parquet": in_parquet(table)}, certificate
    ) as s:
        yield s


@pytest.mark.parametrize("name", ["t.csv", "f/t.csv.gz", "t.parquet", "t.csv?sig=f0rty"])
def test_a_file_by_https_is_the_table(https, name):
    address = f"https://{https.address}/{name}"
    assert read_table(address).to_pydict() == VALUES
    (part,) = source_at(address).in_parts(["b", "a"])
    assert part.to_pydict() == VALUES


def test_a_fetched_table_may_stay_in_its_file(https, tmp_path):
    stored = read_table(f"https://{https.address}/t.parquet", tmp_path)
    asked = len(https.asked)
    assert stored.group(0, "b").column("b").to_pylist() == VALUES["b"]
    assert stored.group(0, "a").column("a").to_pylist() == VALUES["a"]
    assert len(https.asked) == asked == 1
    assert [path.name for path in tmp_path.iterdir()] == ["own.pem"]


def test_a_password_goes_to_its_host_alone(https):
    expected = "Basic " + base64.b64encode(b"marie:pass word").decode()
    https.secret["t.csv"] = expected
    plain = f"https://{https.address}/t.csv"
    with_password = plain.replace("//", "//marie:pass%20word@")
    assert read_table(with_password).to_pydict() == VALUES
    refusal = config_error(lambda: read_table(plain.replace("//", "//marie:passworld@")))
    assert refusal.startswith(f"https://***@{https.address}/t.csv: the server returned 401")
    without_secrets(refusal)
    with serving({"t.csv": CSV}) as other:
        https.moved["away.csv"] = f"http://{other.address}/t.csv"
        assert read_table(with_password.replace("t.csv", "away.csv")).to_pydict() == VALUES
        assert "Authorization" not in other.asked[-1][2]


def test_what_can_go_wrong_by_https(https, monkeypatch):
    address = f"https://{https.address}"
    https.cut.add("t.csv")
    https.moved["away.csv"] = "http://example.org/t.csv"
    https.moved["file.csv"] = "file:///etc/passwd"
    https.files["empty.csv"] = b""
    faults = {
        "/t.csv": "received only 6 of 12 bytes",
        "/none.csv": "the server returned 404 Not Found",
        "/away.csv": "http:// (example.org) is not encrypted; use https",
        "/file.csv": "the server returned 302 Found",
        "/empty.csv": "the file is empty",
        "/t.txt": "has the unknown suffix '.txt'; use one of .csv",
    }
    for path, said in faults.items():
        refusal = config_error(lambda path=path: read_table(address + path))
        assert after(f"{address}{path}", refusal).startswith(said)
    monkeypatch.delenv("SSL_CERT_FILE")
    untrusted = config_error(lambda: read_table(f"{address}/t.csv"))
    assert "the server's certificate is not trusted: self-signed certificate; set SSL_CERT_FILE" in untrusted
    monkeypatch.setattr("fedboost.runtime.data.locations.SILENT_SECONDS", 1.0)
    assert "cannot be downloaded: " in config_error(lambda: read_table("https://127.0.0.1:1/t.csv"))


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("http://example.org/t.csv", "http://example.org/t.csv: http:// is not encrypted; use https"),
        (
            "http://a:pass@example.org/t.csv?sig=f0rty",
            "http://***@example.org/t.csv?...: http:// is not encrypted",
        ),
        ("https://host:port/t.csv", "https://host:port/t.csv is not a valid address"),
        ("s3://bucket", "s3://bucket does not name an object; write s3://BUCKET/FOLDER/FILE"),
        (
            "s3://key:word@bucket/t.csv?sig=f0rty",
            "s3://***@bucket/t.csv?... has the unknown option 'sig'; use one of region",
        ),
    ],
)
def test_addresses_that_are_refused_unseen(address, said):
    assert without_secrets(config_error(lambda: read_table(address))).startswith(said)


def test_another_machine_redirects_not_to_this_one(https, monkeypatch):
    """What a service of this machine answers is nothing for another machine to choose as a table."""
    here = locations._is_this_machine
    for other in ("127.0.0.1", "localhost", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]", "169.254.169.254"):
        assert here(other.strip("[]")), other
    assert not here("192.0.2.1")
    https.moved["away.csv"] = f"https://{https.address}/t.csv"
    assert read_table(f"https://{https.address}/away.csv").to_pydict() == VALUES
    asked = len(https.asked)
    monkeypatch.setattr(
        locations, "_is_this_machine", lambda host: host == "localhost"
    )  # its number is another
    https.moved["away.csv"] = f"https://localhost:{https.address.rpartition(':')[2]}/t.csv"
    said = config_error(lambda: read_table(f"https://{https.address}/away.csv"))
    assert said.endswith("a redirect to this machine (localhost) is not allowed")
    assert len(https.asked) == asked + 1


def test_http_is_for_this_machine(https):
    with serving({"t.csv": CSV}) as server:
        assert read_table(f"http://{server.address}/t.csv").to_pydict() == VALUES


def test_addresses_are_shown_without_what_gives_access():
    assert shown("https://a:b@h/x.csv?y=z") == "https://***@h/x.csv?..."
    assert shown("https://[broken/x") == "https://..."
    assert shown("s3://key:wo/rd@bucket/x.csv") == "s3://***@bucket/x.csv"  # keys of AWS have slashes
    assert shown("https://h/a@b.csv") == "https://h/a@b.csv"
    said = config_error(lambda: read_table("s3://key:wo/rd@bucket/x.csv"))
    assert said.startswith("s3://***@bucket/x.csv is not a valid address: the port must be a number")
    assert shown("data/x.csv") == "data/x.csv"


# ---- S3 ---------------------------------------------------------------------------------------------


@pytest.fixture
def s3(monkeypatch):
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    files = {"b/t.csv": CSV}
    for number, site in enumerate(("north", "south")):
        files[f"b/all/site={site}/p.parquet"] = in_parquet(pa.table({"a": [number, number + 1]}))
    with serving(files) as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{store.address}")
        yield store


@pytest.mark.slow
def test_an_object_and_a_folder_of_s3(s3, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "an-id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "pass")
    assert read_table("s3://b/t.csv").to_pydict() == VALUES
    assert "Credential=an-id/" in s3.asked[-1][2]["Authorization"]
    every = {"a": [0, 1, 1, 2], "site": ["north", "north", "south", "south"]}
    assert read_table("s3://b/all").to_pydict() == every
    assert read_table("s3://b/all/*/*.parquet").to_pydict() == every
    stored = read_table("s3://b/all/", tmp_path)
    assert [stored.group(number, "a").column("a").to_pylist() for number in range(2)] == [[0, 1], [1, 2]]
    address = f"s3://other-id:pass@b/t.csv?endpoint_override={s3.address}&scheme=http"
    assert read_table(address).to_pydict() == VALUES
    assert "Credential=other-id/" in s3.asked[-1][2]["Authorization"]


def test_what_can_go_wrong_with_s3(s3, monkeypatch):
    faults = {
        "s3://key:word@b/none.csv": "s3://***@b/none.csv: the object does not exist, or you have ",
        "s3://key:word@b/all/*.csv": "s3://***@b/all/*.csv: no object matches this pattern",
        "s3://key:word@b/*.csv": "s3://***@b/*.csv: only Parquet files can be read together, but b/t.csv ",
        "s3://key:word@b/t.csv?endpoint_override=a:1&scheme=http": "s3://***@b/t.csv?...: http:// (a) is not",
    }
    for address, said in faults.items():
        refusal = config_error(lambda address=address: read_table(address))
        assert without_secrets(refusal).startswith(said)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://minio:9000")
    assert "http:// (minio) is not encrypted" in config_error(lambda: read_table("s3://b/t.csv"))


# ---- Folders and globs ------------------------------------------------------------------------------


def write(folder, files, **options):
    for name, table in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pa.table(table), folder / name, **options)


def test_files_come_by_name_and_marks_of_programs_are_no_tables(tmp_path):
    write(tmp_path, {"b.parquet": {"a": [3], "c": ["z"]}, "a.parquet": {"c": ["x", "y"], "a": [1, 2]}})
    write(tmp_path, {"_temporary/x.parquet": {"z": [1]}, ".hidden.parquet": {"z": [1]}})
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / "notes.txt").write_text("not read")
    for source in (tmp_path, f"{tmp_path}/", f"{tmp_path}/*.parquet", f"{tmp_path}/[ab].parquet"):
        assert read_table(source).to_pydict() == {"c": ["x", "y", "z"], "a": [1, 2, 3]}


def test_names_of_folders_are_columns_below_the_folder_that_is_named(tmp_path):
    folder = tmp_path / "site=here"
    write(
        folder,
        {f"year={year}/ward={ward}/p.parquet": {"a": [year]} for year in (9, 10) for ward in ["u", "v"]},
    )
    write(folder, {"year=10/ward=__HIVE_DEFAULT_PARTITION__/p.parquet": {"a": [0]}})
    table = read_table(folder)
    assert table.sort_by([("year", "ascending"), ("ward", "ascending")]).to_pydict() == {
        "a": [9, 9, 10, 10, 0],
        "year": [9, 9, 10, 10, 10],
        "ward": ["u", "v", "u", "v", None],
    }
    parts = pa.concat_tables(source_at(folder).in_parts(["ward", "year"]))
    assert parts.to_pydict() == table.select(["ward", "year"]).to_pydict()
    (tmp_path / "scratch").mkdir()
    stored = read_table(folder, tmp_path / "scratch")
    for name in table.column_names:
        groups = [stored.group(number, name) for number in range(len(stored.ends) - 1)]
        assert pa.concat_tables(groups).column(name).to_pylist() == table.column(name).to_pylist()


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (
            {"a.parquet": {"x": [1], "y": [1]}, "b.parquet": {"x": [1]}},
            "b.parquet: column 'y' is missing, but ",
        ),
        (
            {"a.parquet": {"x": [1]}, "b.parquet": {"x": [1.5]}},
            "b.parquet: column 'x' has type double, but int64 in ",
        ),
        ({"a.parquet": {"x": [1]}, "b.parquet": {"x": [1], "y": [1]}}, "b.parquet has column 'y', but "),
        (
            {"k=1/a.parquet": {"x": [1]}, "b.parquet": {"x": [1]}},
            "b.parquet is not in a folder k=..., but other",
        ),
        (
            {"x=1/a.parquet": {"x": [1]}},
            "x=1/a.parquet has a column 'x' and is in a folder of that name",
        ),
        ({}, "there are no Parquet files (*.parquet, *.pq)"),
    ],
)
def test_files_that_are_no_single_table(tmp_path, files, said):
    write(tmp_path, files)
    refusal = config_error(lambda: read_table(tmp_path))
    assert after(tmp_path, refusal).removeprefix("/").startswith(said)


def test_globs_without_a_file_and_of_other_forms(tmp_path):
    (tmp_path / "t.csv").write_bytes(CSV)
    (tmp_path / "t[1].csv").write_bytes(CSV)
    assert config_error(lambda: read_table(tmp_path / "*.parquet")).endswith(
        "*.parquet: no file matches this pattern"
    )
    assert "only Parquet files can be read together" in config_error(lambda: read_table(tmp_path / "*.csv"))
    assert read_table(tmp_path / "t[1].csv").to_pydict() == VALUES
