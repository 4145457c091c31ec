"""The interface for programs does what its OpenAPI document says, by schemathesis, against a real console."""

import json
import subprocess
import sys
from urllib.parse import urlsplit

import pytest
from consoles import served
from sites import shared_out, terms

SECONDS = 60
CONFIG = """
[checks.positive_data_acceptance]
# What terms say is checked beyond the schema of the object that they travel in.
expected-statuses = ["2xx", "401", "403", "404", "409", "422", "429", "5xx"]
"""


@pytest.mark.slow
def test_schemathesis_finds_no_failure(tmp_path):
    role = "analyst"  # who may do all that there is
    with served(tmp_path, shared_out(1), tokens=(role,)) as console:
        console.run(console.one.train(terms(["north"])))
        document = console.ask("/api/v1/openapi.json", role=role).json
        models = [model["name"] for model in console.ask("/api/v1/models", role=role).json]
        assert models
        for path, methods in document["paths"].items():
            for parameter in methods["get"].get("parameters", ()) if "{name}" in path else ():
                parameter["examples"] = {name: {"value": name} for name in models}
        (tmp_path / "openapi.json").write_text(json.dumps(document))
        (tmp_path / "schemathesis.toml").write_text(CONFIG)
        base = f"http://{urlsplit(console.url).netloc}/api/v1"
        command = [sys.executable, "-m", "schemathesis.cli", "run", "openapi.json", "--url", base]
        command += ["--header", f"Authorization: Bearer {console.token[role]}", "--no-color"]
        command += ["--max-examples", "25", "--generation-deterministic"]
        end = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    assert end.returncode == 0, end.stdout[-4000:] + end.stderr[-1000:]
    assert f"Tested: {sum(map(len, document['paths'].values()))}" in end.stdout
