"""`fedboost demo`: trains a model across several processes over gRPC, and compares it with other models.

Guarantees: the aggregator and the parties run as separate processes on loopback. Each row is either at one
site or held out from all. The federated trees are compared, byte for byte, with trees trained on the pooled
rows. The sites' files, memories and audit logs are kept in a folder until the next demo in that folder.
Raises: ConfigError, before any process starts, if the protection or the folder cannot be used.
"""

import shlex
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import typer
from pyarrow import csv

from fedboost.cli.common import Force, Json
from fedboost.cli.compare import IN_ORDER, one_party
from fedboost.cli.output import notice, show
from fedboost.cli.serve import can_encrypt, compile_usual, site_and_keys
from fedboost.cli.train import finish_at_interrupt, notice_not_hidden, progress
from fedboost.errors import ConfigError, FedboostError
from fedboost.evaluation import HeldOut, score, score_of, shown_metrics, unprotected
from fedboost.holders.columns import Prediction
from fedboost.privacy.protections import PROTECTIONS, scheme_of
from fedboost.results.base import Traffic
from fedboost.results.model import ALONE, POOLED, ColumnsDemo, Demo
from fedboost.runtime import local
from fedboost.runtime.data.draft import draft_schema, split_by_weights
from fedboost.runtime.data.shard import to_shard
from fedboost.runtime.data.table import read_table
from fedboost.runtime.files import check_writable, folder_name
from fedboost.runtime.local.cluster import LocalCluster
from fedboost.runtime.local.simulation import simulate
from fedboost.runtime.model import Model, assemble
from fedboost.runtime.signed_model import PartyModel, terms_to_predict
from fedboost.runtime.site.config import read_party
from fedboost.runtime.site.models import PartFolder
from fedboost.runtime.site.node import predict_with_parties
from fedboost.runtime.site.store import NAME
from fedboost.runtime.tasks import terms_to_toml
from fedboost.runtime.telemetry import logger
from fedboost.terms.terms import Terms
from fedboost.views import model as views
from fedboost.views.words import one_line

DEMO_EPILOG = "Example: fedboost demo\n\nExample: fedboost demo --columns"
ROUNDS, COLUMNS_ROUNDS = 30, 10


def demo(
    columns: Annotated[
        bool,
        typer.Option(
            "--columns", help="Use sites with different columns of the same rows instead of different rows."
        ),
    ] = False,
    rounds: Annotated[
        int | None,
        typer.Option(help="Number of boosting rounds (default: 30; with --columns: 10).", min=1),
    ] = None,
    protection: Annotated[
        str | None,
        typer.Option(
            help="How to protect the sites' values (default: masked; with --columns: paillier if installed, "
            "else plain)."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the files and the model.")] = Path("fedboost-demo"),
    force: Force = False,
    json: Json = False,
) -> None:
    """Train across several processes on this machine. The demo then compares the model with one trained on
    the pooled rows."""
    end: Demo
    if columns:
        end, whole = _of_columns(rounds or COLUMNS_ROUNDS, protection, out, force, json), "joined"
    else:
        end, whole = _of_rows(rounds or ROUNDS, protection, out, force, json), "federated"
    show(json, [end.summary], views.demo(end))
    _sayer(json)("\n" + one_line(f"fedboost audit {end.log}"))
    if not end.equal:
        raise FedboostError(
            "demo-models-differ", f"the {whole} model differs from the pooled one; please report this"
        )


# ---- Training in a demo, and the files that all demos write ---------------------------------------------


TERMS = "terms.toml"
STATE = "demo.state"
"""Subfolder with the sites' memories and audit logs. Each demo replaces it."""


@contextmanager
def _trained(
    terms: Terms, tables: Mapping[str, Path], folder: Path, json: bool
) -> Iterator[tuple[LocalCluster, Model | PartyModel, Traffic]]:
    """Train over gRPC, with one process for the aggregator and one per party, and save the model. Yields the
    running processes, the analyst's model and the traffic. The processes stop when the block ends."""
    say = _sayer(json)
    say("each site approves the terms, as a person at the site would with `fedboost approve`")
    say("the aggregator and parties start as separate processes on loopback; the analyst submits the terms")
    notice_not_hidden(terms)
    files: dict[str, Path | None] = {**dict.fromkeys(terms.parties), **tables}
    with LocalCluster(folder, files, approved=terms, state=_empty_state(folder)) as consortium:
        session = consortium.analyst.train(terms)
        with finish_at_interrupt(session.finish) as interruption, progress(terms, json) as draw:
            for row in session:
                draw(row)
                interruption.count()
        session.model.save(folder / "model.json")
        yield consortium, session.model, session.traffic


def _sayer(json: bool) -> Any:
    """Return a function that prints a line, or does nothing if the output is JSON."""
    return (lambda text: None) if json else print


def _write(folder: Path, tables: Mapping[Path, Any], terms: Terms, force: bool) -> None:
    """Write the tables and the terms. Raises ConfigError, before anything is written, if a file exists and
    `force` is not set, or if the protection or the folder cannot be used."""
    if terms.protection.uses_key_holder:
        scheme_of(terms.protection.name)  # ConfigError before anything is written
    if folder.exists() and not folder.is_dir():
        raise ConfigError("output-not-folder", f"{folder} is a file, but --out must be a folder")
    if (folder / STATE).exists() and not force:
        raise ConfigError("demo-exists", f"{folder} contains an earlier demo; change --out, or add --force")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in (*tables, folder / TERMS, folder / "model.json"):
            check_writable(file, force=force)
        (folder / TERMS).write_text(terms_to_toml(terms), "utf-8")
        for file, table in tables.items():
            csv.write_csv(table, file)
    except OSError as error:
        raise ConfigError("output-unwritable", f"{folder}: cannot write: {error.strerror}") from None


def _empty_state(folder: Path) -> Path:
    """Remove the state folder of an earlier demo, if there is one, and return its path."""
    state = folder / STATE
    try:
        if state.exists():
            shutil.rmtree(state)
    except OSError as error:
        raise ConfigError(
            "demo-not-removable", f"{state}: cannot remove the state of an earlier demo: {error.strerror}"
        ) from None
    return state


def _audit_log(folder: Path, party: str) -> str:
    """Return the path of the database with a site's audit log, quoted for a shell."""
    return shlex.quote((folder / STATE / folder_name(party) / NAME).as_posix())


# ---- Sites with different rows --------------------------------------------------------------------------


HOSPITALS_TABLE = Path(local.__file__).with_name("hospitals.csv")
"""Table of 569 tumours: 30 measurements of each, and whether it is benign. Source: W. H. Wolberg, W. N.
Street and O. L. Mangasarian, 1993, https://doi.org/10.24432/C5DW2B, CC BY 4.0."""
LABEL = "benign"
HOSPITALS = {"north": 6.0, "south": 3.0, "east": 1.0}
HELD_OUT = 0.25
KEYHOLDER = "keyholder"  # a party without rows, added if sums are encrypted
KEY_BITS = 2048  # the shortest allowed, for a quick demo
SEED = 0
SITE = "hospital"  # column of `all.csv` with the site of each row


@dataclass(frozen=True)
class Sites:
    """Tables of the demo. tables: site -> its training rows; held_out: rows on which no site trains."""

    tables: Mapping[str, Any]
    held_out: Any


def hospitals() -> Sites:
    """Return the Breast Cancer Wisconsin (Diagnostic) table, split unevenly among three sites."""
    train, held_out = _hold_out(read_table(HOSPITALS_TABLE))
    return Sites(split_by_weights(train, list(HOSPITALS), list(HOSPITALS.values()), SEED), held_out)


def _hold_out(table: Any) -> tuple[Any, Any]:
    order = np.random.default_rng(SEED).permutation(table.num_rows)
    held = int(table.num_rows * HELD_OUT)
    return table.take(order[held:]), table.take(order[:held])


def demo_terms(sites: Sites, rounds: int, protection: str | None) -> Terms:
    """Return the terms of the demo. If sums are encrypted, the terms have a key holder and fewer bins.

    Args:
        sites: tables from which the columns are drafted.
        rounds: number of boosting rounds.
        protection: name of the protection, None for masked.
    """
    draft = draft_schema(pa.concat_tables([*sites.tables.values(), sites.held_out]), LABEL)
    parties, row = list(sites.tables), PROTECTIONS.get(protection or "")
    settings = {
        **draft.settings(),
        "rounds": rounds,
        "max_depth": 4,
        "learning_rate": 0.2,
        "parties": parties,
        "protection": protection or "masked",
    }
    if row is not None and row.uses_key_holder:
        settings |= {"parties": [*parties, KEYHOLDER], "keyholder": KEYHOLDER, "keyholder_rows": False}
        settings |= {"max_bin": 32, "key_bits": KEY_BITS}
    return Terms.read(settings)


def write_files(folder: Path, sites: Sites, terms: Terms, force: bool = False) -> dict[str, Path]:
    """Write the table of each site, all rows with their site (`all.csv`), the held-out rows (`new.csv`) and
    the terms. Returns site -> path of its table. Raises ConfigError, before anything is written, if a file
    exists and `force` is not set, or if the folder cannot be used."""
    names = [LABEL, *terms.columns.features]
    files = {name: folder / f"{name}.csv" for name in sites.tables}
    tables = {files[name]: table.select(names) for name, table in sites.tables.items()}
    labelled = [
        table.select(names).append_column(SITE, pa.array([name] * table.num_rows))
        for name, table in sites.tables.items()
    ]
    tables[folder / "all.csv"] = pa.concat_tables(labelled)
    tables[folder / "new.csv"] = sites.held_out.select(names)
    _write(folder, tables, terms, force)
    return files


def _of_rows(rounds: int, protection: str | None, out: Path, force: bool, json: bool) -> Demo:
    sites = hospitals()
    terms = demo_terms(sites, rounds, protection)
    files = write_files(out, sites, terms, force)
    names = ", ".join(f"{name} ({table.num_rows} rows)" for name, table in sites.tables.items())
    say = _sayer(json)
    say(f"{len(sites.tables)} sites: {names}; {sites.held_out.num_rows} rows held out")
    compile_usual(say)
    with _trained(terms, files, out, json) as (_, trained, traffic):
        model = cast(Model, trained)  # each of these parties has all columns
    scores, equal = _compare(terms, sites, model)
    log = _audit_log(out, next(iter(sites.tables)))
    return Demo.of(model.outline, traffic, str(out / "model.json"), equal=equal, held_out=scores, log=log)


def _compare(terms: Terms, sites: Sites, model: Model) -> tuple[dict[str, dict[str, float]], bool]:
    """Return model name -> metrics on the held-out rows, and whether the federated model equals the model
    trained on the pooled rows."""
    terms = terms.changed(rounds=len(model.rounds))  # fewer than planned after Ctrl-C
    pooled = simulate(unprotected(terms), {POOLED: pa.concat_tables(sites.tables.values())}).model
    held_out = HeldOut.from_shard(to_shard(sites.held_out, terms, "held-out rows"))
    names, scores = shown_metrics(terms), dict[str, dict[str, float]]()
    for name, table in sites.tables.items():
        alone = simulate(unprotected(terms), {name: table}).model
        scores[f"{name} {ALONE}"] = score(alone, held_out, names)
    scores |= {"federated": score(model, held_out, names), POOLED: score(pooled, held_out, names)}
    return scores, model.booster.to_xgboost() == pooled.booster.to_xgboost()


# ---- `fedboost demo --columns`: a clinic and a laboratory with different columns of the same patients ---
# Guarantees: each party has some patients that the other does not have. The held-out patients are new to the
# clinic, but known to the laboratory. At the end, the clinic predicts them together with the laboratory, as
# `fedboost predict --party` does.


CLINIC, LABORATORY = "clinic", "laboratory"
"""The label holder, and the party with the other columns."""
ROW_ID = "patient"
KNOWN = {CLINIC: 0.95, LABORATORY: 0.92}
"""Fraction of the training patients that each party has."""
MIN_COMMON_ROWS, MIN_NEW_ROWS = 300, 100
"""Minimum numbers of matched rows for training and prediction, below the defaults as the table is small."""
WARM_UP_ROWS = 60
WAIT = 60.0  # seconds to wait for the aggregator to answer


@dataclass(frozen=True)
class Apart:
    """Tables of the demo with different columns. tables: party -> its table; common: the matched training
    patients with all columns; held_out: those of new patients, not trained on."""

    tables: Mapping[str, Any]
    common: Any
    held_out: Any

    @property
    def new(self) -> Any:
        """The new patients' rows, with only the clinic's columns."""
        return self.held_out.select([ROW_ID, *self.columns[CLINIC]])

    @property
    def columns(self) -> dict[str, tuple[str, ...]]:
        """Party -> names of its features."""
        return {party: _features(table) for party, table in self.tables.items()}


def patients() -> Apart:
    """Return the Breast Cancer Wisconsin (Diagnostic) table, split by columns. The clinic has the label and
    the mean of each measurement; the laboratory has the standard error and the worst value of each."""
    draw = np.random.default_rng(SEED)
    whole: Any = read_table(HOSPITALS_TABLE)
    ids = draw.choice(np.arange(10_000, 100_000), whole.num_rows, replace=False)
    whole = whole.add_column(0, ROW_ID, pa.array(ids))
    rest, held_out = _hold_out(whole)
    own = [name for name in _features(whole) if name.startswith("mean_")]
    others = [name for name in _features(whole) if name not in own]

    def some(table: Any, share: float) -> Any:
        rows = draw.permutation(table.num_rows)
        return table.take(rows[: round(share * table.num_rows)])

    clinic = some(rest, KNOWN[CLINIC])
    laboratory = some(pa.concat_tables([some(rest, KNOWN[LABORATORY]), held_out]), 1)
    return Apart(
        {CLINIC: clinic.select([ROW_ID, *own, LABEL]), LABORATORY: laboratory.select([ROW_ID, *others])},
        clinic.filter(pc.is_in(clinic[ROW_ID], value_set=laboratory[ROW_ID])),
        held_out,
    )


def _features(table: Any) -> tuple[str, ...]:
    return tuple(name for name in table.column_names if name not in (LABEL, ROW_ID))


def columns_terms(apart: Apart, rounds: int, protection: str) -> Terms:
    """Return the terms of the demo with different columns. The terms use small trees and few bins, because
    gradients are encrypted row by row.

    Args:
        apart: tables from which the columns are taken.
        rounds: number of boosting rounds.
        protection: name of the protection.
    """
    columns = apart.columns
    return Terms.read(
        {
            "parties": list(columns),
            "label_holder": CLINIC,
            "min_common_rows": MIN_COMMON_ROWS,
            "model": "parties",
            "protection": protection,
            **({"key_bits": KEY_BITS} if PROTECTIONS[protection].uses_key_holder else {}),
            "rounds": rounds,
            "max_depth": 3,
            "max_bin": 16,
            "learning_rate": 0.3,
            "columns": {
                "label": LABEL,
                "row_id": ROW_ID,
                "numeric": [name for names in columns.values() for name in names],
                "held": {LABORATORY: columns[LABORATORY]},
            },
        }
    )


def _of_columns(rounds: int, protection: str | None, out: Path, force: bool, json: bool) -> ColumnsDemo:
    """Run the demo of parties with different columns: train, predict together, and compare."""
    encrypts, apart = can_encrypt(), patients()  # encryption hides the labels from the laboratory
    terms = columns_terms(apart, rounds, protection or ("paillier" if encrypts else "plain"))
    files = {party: out / f"{party}.csv" for party in apart.tables}
    tables = {file: apart.tables[party] for party, file in files.items()}
    _write(out, {**tables, out / "new.csv": apart.new}, terms, force)
    about = {
        "columns": apart.columns,
        "rows": {party: table.num_rows for party, table in apart.tables.items()},
        "rows_in_common": apart.common.num_rows,
        "rows_held_out": apart.new.num_rows,
    }
    say = _sayer(json)
    for line in views.beginning(about, terms):
        say(line)
    if protection is None and not encrypts:
        notice('to hide the labels from the laboratory, run pip install "fedboost[paillier]" first')
    compile_usual(say)
    few = apart.common.slice(0, WARM_UP_ROWS)
    shares = {party: few.select(table.column_names) for party, table in apart.tables.items()}
    simulate(terms.changed(rounds=1, min_common_rows=1), shares)  # compiles kernels for the processes
    with _trained(terms, files, out, json) as (consortium, model, traffic):
        assert isinstance(model, PartyModel)  # under these terms each party keeps its part
        parts = {party: _part_file(out, party, model.id) for party in terms.parties}
        say("the clinic requests predictions for the new patients; the laboratory approves them, too")
        prediction = _predict(consortium, out, apart, parts[CLINIC])
    scores, equal = _compare_columns(terms, apart, model, parts, prediction)
    about |= {"equal": equal, "held_out": scores, "log": _audit_log(out, LABORATORY)}
    about |= {"parts": {party: str(file) for party, file in parts.items()}, "shares": model.importance}
    return ColumnsDemo.of(model.outline, traffic, str(out / "model.json"), **about)


def _part_file(folder: Path, party: str, id: str) -> Path:
    file = PartFolder(read_party(folder / f"{party}.toml")).file(id)
    return folder / file.relative_to(folder.resolve())


def _predict(consortium: LocalCluster, folder: Path, apart: Apart, part: Path) -> Prediction:
    """Return predictions for the clinic's new patients, made together with the laboratory."""
    model = PartyModel.load(part)
    consortium.approve(terms_to_predict(model, apart.new.num_rows, MIN_NEW_ROWS))
    consortium.stop_party(CLINIC)  # only one process of a party may take part
    site, bundle = site_and_keys(folder / f"{CLINIC}.toml", False, holds_rows=None)
    site = site.model_copy(update={"data": folder / "new.csv"})
    return predict_with_parties(site, bundle, model, logger("party", "text", "warning"), WAIT, MIN_NEW_ROWS)


def _compare_columns(
    terms: Terms, apart: Apart, model: PartyModel, parts: dict[str, Path], prediction: Prediction
) -> tuple[dict[str, dict[str, float]], bool]:
    """Return model name -> metrics on the new patients, and whether federated training and training on the
    pooled columns yield the same model and the same predictions."""
    here = terms.changed(rounds=len(model.rounds), **IN_ORDER)  # fewer than planned after Ctrl-C
    whole, own = one_party(here, terms.columns), one_party(here, terms.blocks.columns_of(CLINIC))
    pooled = simulate(whole, {POOLED: apart.common}).model
    alone = simulate(own, {CLINIC: apart.tables[CLINIC]}).model
    rows = HeldOut.from_shard(to_shard(apart.held_out, whole, "new patients"))
    own_rows = HeldOut.from_shard(to_shard(apart.held_out, own, "new patients"))
    names = shown_metrics(whole)
    scores = {
        f"{CLINIC} {ALONE}": score(alone, own_rows, names),
        "joined": score_of(prediction.margins, whole, rows, names),
        POOLED: score(pooled, rows, names),
    }
    same = np.array_equal(prediction.margins, pooled.booster.margins(rows.features))
    return scores, same and assemble([model, *parts.values()]).booster == pooled.booster
