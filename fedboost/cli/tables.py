"""`fedboost predict` and `fedboost terms`: a model or a draft, from a table."""

import sys
from pathlib import Path

from fedboost.cli.show import notice
from fedboost.errors import ConfigError
from fedboost.protocol.terms import Terms
from fedboost.shell.config import terms_to_toml
from fedboost.shell.data import read_table
from fedboost.shell.draft import draft_schema
from fedboost.shell.files import check_writable, write_atomically
from fedboost.shell.model import Model


def run_predict(model_file: Path, data: Path, out: Path | None) -> None:
    """`fedboost predict`."""
    if out is not None:
        check_writable(out)
    predictions = Model.load(model_file).predict(data)
    _write("\n".join(["prediction", *map(repr, predictions.tolist()), ""]), out)


def run_terms(
    data: Path, label: str, weight: str | None, exclude: list[str], parties: list[str], out: Path | None
) -> None:
    """`fedboost terms`."""
    if out is not None:
        check_writable(out)
    draft = draft_schema(read_table(data), label, weight, exclude)
    for column, reason in draft.left_out.items():
        notice(f"left out {column}: {reason}")
    terms = Terms.read(
        {"objective": draft.objective, "parties": parties, "columns": draft.columns.model_dump(mode="json")}
    )
    _write(terms_to_toml(terms), out)
    if not parties:
        notice('before training over the network, name the sites: parties = ["north", "south"]')


def _write(text: str, out: Path | None) -> None:
    if out is None:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    try:
        write_atomically(out, text.encode())
    except OSError as error:
        raise ConfigError(f"{out}: cannot write: {error.strerror}") from None
