"""Commands about a model file: report, predict, assemble, verify, explain."""

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from io import StringIO
from itertools import count
from pathlib import Path
from typing import IO, Annotated, Any

import numpy as np
import pyarrow as pa
import typer
from pyarrow import parquet

from fedboost.cli.common import Data, Force, InsecureLoopback, Json, MinCount, ModelFile, Wait, reads_a_table
from fedboost.cli.output import notice, show, write
from fedboost.cli.serve import site_and_keys
from fedboost.cli.train import notice_categories, notice_undeclared
from fedboost.errors import Altered, ConfigError
from fedboost.fixedpoint import Float64
from fedboost.gbdt.booster import IMPORTANCES
from fedboost.privacy.identity import to_pem
from fedboost.results.privacy import PrivacyCard
from fedboost.runtime.data.database import DEFAULT_OPTIONS, Database, Reading
from fedboost.runtime.data.locations import TOGETHER, Source, local_files, shown
from fedboost.runtime.data.shard import base_margin_of, features_of, to_base_margin, to_features, undeclared
from fedboost.runtime.data.table import FORMS, dense_of, read_table, renamed, source_at
from fedboost.runtime.data.values import column_of, plain
from fedboost.runtime.files import check_writable, replacing
from fedboost.runtime.model import Model, load_trained, rows_facts, signature_facts
from fedboost.runtime.model import assemble as assembled
from fedboost.runtime.net.keys import read_certificates, read_trust
from fedboost.runtime.signed_model import PartyModel, classes_of, verified, written
from fedboost.runtime.site.config import PartyConfig, read_party
from fedboost.runtime.site.node import predict_with_parties
from fedboost.runtime.site.rows import Names, names_of
from fedboost.runtime.telemetry import logger
from fedboost.views.aggregator import waiting
from fedboost.views.model import importances, verification
from fedboost.views.session import card
from fedboost.views.words import one_line

Columns = dict[str, Any]
PREDICTION = "prediction"
Write = Callable[[Columns], None]
"""Function that writes rows to the output. Its argument maps column -> values."""

REPORT_EPILOG = (
    "Example: fedboost report model.json --out report.html\n\n"
    "Example: fedboost report model.json --data new.csv --keys keys/marie --out report.html\n\n"
    "Example: fedboost report model.json --privacy"
)


@reads_a_table
def report(
    model: ModelFile,
    read: Reading,
    out: Annotated[Path | None, typer.Option(help="File for the page (required without --privacy).")] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Table with labels, for metrics, curves and partial dependence on your own rows."),
    ] = None,
    keys: Annotated[
        Path | None, typer.Option(help="Any member's key folder, for checking the signatures.")
    ] = None,
    min_count: MinCount = None,
    privacy: Annotated[
        bool,
        typer.Option(
            "--privacy",
            help="Print the privacy card of a model trained with noise instead of writing a page.",
        ),
    ] = False,
    force: Force = False,
    json: Annotated[bool, typer.Option("--json", help="With --privacy: print the card as JSON.")] = False,
) -> None:
    """Write a model report as a single HTML page. It shows learning curves, feature importance, the
    first trees and which parties agreed to which terms; with --data, also the model's quality on your own
    rows. With --privacy, the command prints the privacy card instead."""
    if privacy:
        if any((out, data, keys, min_count, force)) or read != Reading():
            raise ConfigError(
                "option-conflict", "--privacy can only be combined with --json; remove the other options"
            )
        _privacy_card(model, json)
        return
    if json:
        raise ConfigError("option-alone", "--json only applies to the privacy card; add --privacy")
    if out is None:
        raise ConfigError(
            "option-missing", "specify --out FILE for the page, or --privacy to print the privacy card"
        )
    if (read.query or read.query_file) and data is None:
        raise ConfigError(
            "option-alone", "--query reads the table of --data; specify the database with --data"
        )
    if min_count is not None and data is None:
        raise ConfigError(
            "option-alone", "--min-count only applies to the rows of --data; specify --data as well"
        )
    source = None if data is None else read.source(data)
    check_writable(out, model, *(() if source is None else local_files(source)), force=force)
    trained, rows = Model.load(model), None
    if not trained.terms.task.makes_model:
        raise ConfigError(
            "model-of-other-task",
            f"{model} is not a model but the result of a session with task {trained.terms.task.name}",
        )
    signatures = None if keys is None else signature_facts(trained, keys)
    if source is not None:
        table = read_table(source, None, read.options)
        rows = rows_facts(trained, table, min_count, shown(source))
        notice_undeclared(table, trained.terms.columns)
    write(written(trained, rows, signatures), out)


def _privacy_card(model: Path, json: bool) -> None:
    """Print a model's privacy card: the guarantee, every release, and what the guarantee does not cover."""
    agreed = Model.load(model).terms
    if agreed.noise is None:
        raise ConfigError(
            "model-without-noise",
            f"{model} was trained without noise, so it has no privacy card: nothing limits what it reveals "
            "about a row",
        )
    made = PrivacyCard.of(agreed)
    show(json, [made.summary], card(made))


# ---- `fedboost predict --party`: predictions by parties that hold different columns ---------------------


Party = Annotated[
    Path | None,
    typer.Option(
        metavar="SITE_FILE",
        help="This site's configuration file (TOML). If the model is a part, predict together with the "
        "parties that keep the other parts; the table contains this site's columns and the row ids. If it is "
        "whole, read the table with the site's names and units, without the columns that the site lacks.",
    ),
]
MinCommonRows = Annotated[
    int | None,
    typer.Option(
        help="With --party: minimum number of the table's rows that each other party must have (default: as "
        "in training).",
        min=1,
    ),
]
Reasons = Annotated[
    bool,
    typer.Option(
        "--reasons",
        help="With --party: add what each party's columns contribute to the margin (SHAP values), as columns "
        "`reason_PARTY` and `reason_bias`; for multiclass models, one of each per class.",
    ),
]


def predicted_jointly(
    part: PartyModel,
    party: Path,
    source: str | Path | Database,
    read: Reading,
    table: Source,
    keep: Sequence[str],
    reasons: bool,
    min_common_rows: int | None,
    wait: float,
    insecure_loopback: bool,
) -> Iterator[Columns]:
    """Predict a table together with the parties that keep the other parts of the model. Returns an iterator
    over chunks of output columns. If a party does not have all rows, a notice reports how many it has.

    Args:
        part: this party's part of the model.
        party: this site's configuration file.
        source: location of the table, used instead of `data` in the configuration file.
        read: options for reading the table.
        table: the same table, from which the columns in `keep` are copied to the output.
        keep: names of the columns to copy.
        reasons: True to add what each party contributes to the margin.
        min_common_rows: minimum number of the table's rows that each other party must have; None: as in
            training.
        wait: seconds to wait for the aggregator.
        insecure_loopback: True to connect without keys, on this machine only.
    """
    table.check_known([*keep])  # before a session starts
    site, bundle = site_and_keys(party, insecure_loopback, holds_rows=None)
    site = site.model_copy(update={"data": source, "read": read.options})
    log = logger("party", "text", "error")
    done = predict_with_parties(
        site, bundle, part, log, wait, min_common_rows, lambda parties: notice(waiting(parties, {})), reasons
    )
    (block,) = part.terms.blocks
    for name, known in zip(block.feature_holders, done.known, strict=True):
        if not known.all():
            told = f"{name} has {known.sum():,} of {known.size:,} rows"
            notice(f"{told}; in the other rows, its columns are treated as missing")
    classes = classes_of(part.terms) if done.values.ndim == 2 else ()
    if not keep:
        parts = iter([_columns((), [], done.values, classes)])
    else:
        parts = _parts(
            table, keep, (), classes, lambda rows, dense, first: done.values[first:][: rows.num_rows]
        )
    if done.reasons is None:
        return parts
    return _with_reasons(parts, done.reasons, [*part.terms.parties, "bias"], classes)


def _with_reasons(
    parts: Iterator[Columns], reasons: Float64, given: Sequence[str], classes: Sequence[Any]
) -> Iterator[Columns]:
    """Add a column for each value in `reasons`, float64 [rows, givers] or [rows, classes, givers], to the
    output columns. A name that is taken gets underscores."""
    ends = [f"_{name}" for name in classes] if classes else [""]
    names = [f"reason_{name}{end}" for end in ends for name in given]
    values, first = reasons.reshape(len(reasons), -1), 0
    for part in parts:
        rows = len(next(iter(part.values())))
        for name, column in zip(names, values[first : first + rows].T, strict=True):
            while name in part:
                name += "_"
            part[name] = column
        yield part
        first += rows


# ---- `fedboost predict`: predictions as a CSV or Parquet file -------------------------------------------


PREDICT_EPILOG = (
    "Example: fedboost predict model.json new.csv --out predictions.csv\n\n"
    "Example: fedboost predict model.json new.parquet --keep patient --out predictions.parquet\n\n"
    "Example: fedboost predict part.json new.csv --party bank.toml --keep customer --out predictions.csv\n\n"
    "Example: fedboost predict part.json new.csv --party bank.toml --reasons --out predictions.csv"
)


@reads_a_table
def predict(
    model: ModelFile,
    data: Data,
    read: Reading,
    keep: Annotated[
        list[str] | None, typer.Option(help="Input column to copy to the output (may be repeated).")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="File for predictions, .csv or .parquet (default: standard output)."),
    ] = None,
    party: Party = None,
    reasons: Reasons = False,
    min_common_rows: MinCommonRows = None,
    wait: Wait = 60,
    insecure_loopback: InsecureLoopback = False,
    force: Force = False,
) -> None:
    """Predict every row of a table, however large. The output column `prediction` contains the predicted
    value or most probable class. For multiclass models, there is also one probability column per class."""
    source = read.source(data)
    if out is not None:
        check_writable(out, model, *local_files(source), force=force)
        check_form(out)
    site = None if party is None else read_party(party, None)
    if site is not None and read.options == DEFAULT_OPTIONS:
        read = replace(read, options=site.read)
    table, kept = source_at(source, read.options), keep or []
    strange: Strange = {}
    if party is not None and isinstance(trained := load_trained(model), PartyModel):
        options = reasons, min_common_rows, wait, insecure_loopback
        parts = predicted_jointly(trained, party, source, read, table, kept, *options)
    elif min_common_rows is not None:
        raise ConfigError(
            "option-alone", "--min-common-rows only applies to joint predictions; specify --party"
        )
    elif reasons:
        raise ConfigError(
            "option-alone",
            "--reasons only applies to joint predictions; specify --party, or run fedboost explain --shap",
        )
    else:
        parts = predicted_here(Model.load(model), table, kept, strange, site)
    with writing(out) as write_rows:
        for part in parts:
            write_rows(part)
    notice_categories((name, *found) for name, found in strange.items())


# ---- `fedboost assemble`: a whole model from the parts kept by the parties ------------------------------


ASSEMBLE_EPILOG = "Example: fedboost assemble model.json bank.json telco.json --out whole.json"


def assemble(
    parts: Annotated[
        list[Path],
        typer.Argument(
            help="Parts of the model: the parties' files, and the file saved by `fedboost train`."
        ),
    ],
    out: Annotated[Path, typer.Option(help="File for the model.")],
    force: Force = False,
) -> None:
    """Assemble a whole model from the parts kept by parties that hold different columns. The result is an
    ordinary XGBoost file. Metrics and signatures are taken from the file saved by `fedboost train`, and each
    part must be the part that its party signed."""
    check_writable(out, *parts, force=force)
    model = assembled(parts)
    model.save(out)
    show(False, {}, [one_line(f"model: {out} (XGBoost JSON, {len(model.booster.trees)} trees)")])


# ---- `fedboost verify`: who signed a model, and whether the signatures are valid ------------------------


VERIFY_EPILOG = (
    "Example: fedboost verify model.json --keys keys/marie\n\n"
    "Example: fedboost verify model.json --consortium keys/consortium.pem"
)
DOES_NOT_HOLD = 1


def verify(
    model: ModelFile,
    keys: Annotated[
        Path | None,
        typer.Option(help="Any member's key folder, from which consortium.pem and denied.txt are read."),
    ] = None,
    consortium: Annotated[
        Path | None, typer.Option(help="Root certificate of the consortium (consortium.pem).")
    ] = None,
    json: Json = False,
) -> None:
    """Verify who signed a model. Checks the signatures on the trees, the terms and the analyst's request.
    Exits with code 0 if they are valid, else with code 1."""
    if (keys is None) == (consortium is None):
        raise ConfigError(
            "option-one-of-two",
            "specify either --keys FOLDER or --consortium FILE; signatures are checked against the "
            "consortium's root certificate",
        )
    if keys is not None:
        roots, denied = read_trust(keys)
    else:
        assert consortium is not None
        roots, denied = to_pem(*read_certificates(consortium)), frozenset()
    try:
        facts = verified(load_trained(model), str(model), roots, datetime.now(UTC), denied)
    except Altered as error:
        altered = {"model": str(model), "holds": False, "conclusion": str(error)}
        show(json, [altered], [f"The signatures are NOT valid: {error}"])
        raise typer.Exit(DOES_NOT_HOLD) from None
    show(json, [facts.summary], verification(facts))
    if not facts.holds:
        raise typer.Exit(DOES_NOT_HOLD)


# ---- `fedboost explain`: feature importance, trees, contributions, partial dependence -------------------


EXPLAIN_EPILOG = (
    "Example: fedboost explain model.json\n\n"
    "Example: fedboost explain model.json --tree 0 --svg tree.svg\n\n"
    "Example: fedboost explain model.json --shap new.csv --out shap.csv\n\n"
    "Example: fedboost explain model.json --partial-dependence age --data new.csv"
)


@reads_a_table
def explain(
    model: ModelFile,
    read: Reading,
    tree: Annotated[
        int | None, typer.Option(help="Index of the tree to print, starting at 0.", min=0)
    ] = None,
    svg: Annotated[
        Path | None, typer.Option(help="Draw the tree to this SVG file instead of printing it.")
    ] = None,
    shap: Annotated[
        str | None,
        typer.Option(
            metavar="DATA",
            help="Write SHAP values (each feature's contribution to the margin) for every row of this table, "
            "as CSV.",
        ),
    ] = None,
    partial_dependence: Annotated[
        str | None,
        typer.Option(
            metavar="FEATURE",
            help="Write this feature's partial dependence, computed from the rows of --data, as CSV.",
        ),
    ] = None,
    data: Annotated[str | None, typer.Option(help="Table for --partial-dependence.")] = None,
    out: Annotated[Path | None, typer.Option(help="File to write (default: standard output).")] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Show feature importance, a tree, or what drives predictions. Without options, the command prints the
    gain, cover and weight of each feature. With options, it prints or draws a tree, or writes SHAP values or
    partial dependence."""
    asked = {"--tree": tree, "--shap": shap, "--partial-dependence": partial_dependence}
    options = [option for option, value in asked.items() if value is not None]
    if len(options) > 1:
        raise ConfigError("option-conflict", f"specify only one of {' and '.join(options)}")
    if (partial_dependence is None) != (data is None):
        raise ConfigError(
            "option-alone", "--partial-dependence FEATURE and --data TABLE must be specified together"
        )
    if svg is not None and tree is None:
        raise ConfigError("option-alone", "--svg draws one tree; specify which, e.g. --tree 0")
    if out is not None and shap is None and partial_dependence is None:
        raise ConfigError(
            "option-alone",
            "--out only applies to the CSV of --shap or --partial-dependence; use --svg to draw a tree",
        )
    if json and options:
        raise ConfigError(
            "option-conflict", f"--json prints feature importance; it cannot be combined with {options[0]}"
        )
    rows = shap or data
    if (read.query or read.query_file) and rows is None:
        raise ConfigError(
            "option-alone", "--query reads the table of --shap or --data; specify the database there"
        )
    source = None if rows is None else read.source(rows)
    for path in filter(None, (svg, out)):
        check_writable(path, model, *(local_files(source) if source else ()), force=force)
    if source is not None and partial_dependence is not None:
        _dependence(model, partial_dependence, source, read, out)
    elif source is not None:
        _contributions(model, source, read, out)
    elif tree is not None:
        trained = Model.load(model)
        write(trained.tree_text(tree) if svg is None else trained.tree_svg(tree), svg)
    else:
        _importances(model, json)


def _importances(model: Path, json: bool) -> None:
    trained = Model.load(model)
    known = trained.importances
    objects = ({"feature": name, **dict(zip(IMPORTANCES, known[name], strict=True))} for name in known)
    show(json, objects, importances(trained.booster, trained.terms, known))


def _contributions(model: Path, data: str | Database, read: Reading, out: Path | None) -> None:
    trained = Model.load(model)
    table, columns = read_table(data, None, read.options), trained.terms.columns
    base_margin = to_base_margin(table, trained.terms, shown(data))
    features = to_features(table, columns, shown(data), trained.booster.target_means)
    values = trained.booster.contributions(features, base_margin)
    notice_undeclared(table, columns)
    several = values.ndim == 3
    names = [[name] for name in trained.classes] if several else [[]]
    rows = (
        [*name, *output]
        for row in values
        for name, output in zip(names, np.atleast_2d(row).tolist(), strict=True)
    )
    write(as_csv([*(["class"] if several else []), *trained.booster.features, "bias"], rows), out)


def _dependence(model: Path, feature: str, data: str | Database, read: Reading, out: Path | None) -> None:
    trained, table = Model.load(model), read_table(data, None, read.options)
    grid, means = trained.partial_dependence(table, feature)
    notice_undeclared(table, trained.terms.columns)
    rows = ([value, *np.atleast_1d(mean).tolist()] for value, mean in zip(grid, means, strict=True))
    write(as_csv([feature, *(trained.classes if means.ndim == 2 else [PREDICTION])], rows), out)


# ---- Predictions for a table of any size, to a file -----------------------------------------------------


Strange = dict[str, tuple[str, int]]
"""Column -> an example of an undeclared category, and the number of rows with undeclared categories."""


def predicted_here(
    model: Model, table: Source, keep: Sequence[str], strange: Strange, site: PartyConfig | None = None
) -> Iterator[Columns]:
    """Predict a table with a whole model, and yield the output columns of each chunk of rows. strange: dict
    to which the undeclared categories are added; site: configuration of the party that owns the table."""
    columns, booster = model.terms.columns, model.booster
    margin, names = columns.base_margin, Names() if site is None else names_of(site)
    own = columns if site is None else columns.in_table_of(site.party)
    read = {name: names.names.get(name, name) for name in (*own.features, *([margin] if margin else []))}
    needed = [*read.values()]
    table.check_known([*needed, *keep])

    def values_of(part: Any, dense: Any, first: int) -> Float64:
        if site is not None:
            part = dense = renamed(part, read, names.levels, names.columns)
            for name in columns.absent.get(site.party, ()):
                part = dense = part.append_column(name, pa.nulls(part.num_rows))
        base = base_margin_of(dense, margin, model.terms) if margin else None
        values = booster.predict(features_of(part, columns, booster.target_means), base)
        for name, example, rows in undeclared(dense, columns):
            one, known = strange.get(name, (example, 0))
            strange[name] = one, known + rows
        return values

    return _parts(table, keep, needed, model.classes if booster.loss.outputs > 1 else (), values_of)


def _parts(
    table: Source,
    keep: Sequence[str],
    needed: Sequence[str],
    classes: Sequence[Any],
    values_of: Callable[[Any, Any, int], Float64],
) -> Iterator[Columns]:
    """Yield the output columns of each chunk of a table: kept columns, prediction, class probabilities.
    values_of: function that predicts a chunk. Its arguments are the chunk, the chunk's dense columns, and the
    index of its first row in the table; it returns float64 [rows] or [rows, classes]."""
    keep, first = tuple(dict.fromkeys(keep)), 0
    as_text = [name for name in keep if name not in needed]
    for part in table.in_parts([*dict.fromkeys((*needed, *keep))], as_text):
        dense = dense_of(part)
        with table.named(first):
            values = values_of(part, dense, first)
            kept = [plain(column_of(dense, name)) for name in keep]
        yield _columns(keep, kept, values, classes)
        first += part.num_rows
    if not first:  # a table without rows still has a header
        yield {name: np.empty(0) for name in prediction_names(keep, classes)}


def _columns(keep: Sequence[str], kept: list[Any], values: Float64, classes: Sequence[Any]) -> Columns:
    own: list[Any] = [np.array(classes)[np.argmax(values, axis=1)], *values.T] if classes else [values]
    return dict(zip(prediction_names(keep, classes), [*kept, *own], strict=True))


def prediction_names(kept: Sequence[str], classes: Sequence[object]) -> list[str]:
    """Return the names of the output columns: kept columns, prediction, classes. Underscores are appended to
    all class names if any of them is also a kept column, and to `prediction` if that name is taken."""
    names = [str(name) for name in classes]
    while {*names} & {*kept}:
        names = [f"{name}_" for name in names]
    first = PREDICTION
    while first in (*kept, *names):
        first += "_"
    return [*kept, first, *names]


def check_form(out: Path) -> None:
    """Raise ConfigError if predictions cannot be written in the format that the file name implies."""
    name = out.name.lower()
    others = [suffix for form in FORMS for suffix in form.every_suffix()]
    if name.endswith(tuple(s for s in others if s not in (".csv", *TOGETHER))):
        raise ConfigError("output-format", f"{out}: predictions can only be written as .csv or .parquet")


@contextmanager
def writing(out: Path | None) -> Iterator[Write]:
    """Open the output and yield a function that writes rows to it. A file is CSV or Parquet, depending on its
    suffix; standard output (`out` is None) is CSV."""
    if out is None:
        yield csv_writer(lambda text: write(text, None))
        return
    with replacing(out) as file:
        if not out.name.lower().endswith(TOGETHER):
            yield csv_writer(lambda text: file.write(text.encode()))
            return
        with ExitStack() as stack:
            yield _parquet(file, out, stack)


def csv_writer(write: Callable[[str], Any]) -> Write:
    """Return a function that writes rows as CSV, with a header before the first row."""
    parts = count()

    def write_rows(columns: Columns) -> None:
        values = {name: _listed(column) for name, column in columns.items()}
        write(as_csv([*values] if next(parts) == 0 else None, zip(*values.values(), strict=True)))

    return write_rows


def as_csv(head: Iterable[object] | None, rows: Iterable[Iterable[object]]) -> str:
    """Return rows as CSV text. head: names of the columns, or None for no header. Numbers are written with
    all digits, so that reading them back yields the same values. Missing values are empty."""
    text = StringIO()
    lines = csv.writer(text, lineterminator="\n")
    if head is not None:
        lines.writerow(head)
    lines.writerows(rows)
    return text.getvalue()


def _listed(column: Any) -> list[object]:
    """Return the values of a column as Python objects, with booleans as "true" and "false"."""
    values = column.tolist() if isinstance(column, np.ndarray) else column.to_pylist()
    return [str(value).lower() if isinstance(value, bool) else value for value in values]


def _parquet(file: IO[bytes], out: Path, stack: ExitStack) -> Write:
    """Return a writer of rows as Parquet, with the column types of the first chunk. stack: closes it."""
    writers: list[parquet.ParquetWriter] = []

    def write_rows(columns: Columns) -> None:
        table = pa.table(dict(columns))
        if not writers:
            writers.append(stack.enter_context(parquet.ParquetWriter(file, table.schema)))
        try:
            writers[0].write_table(table.cast(writers[0].schema))
        except pa.ArrowInvalid as error:
            why = f"the types of kept columns vary: {str(error).splitlines()[0]}"
            raise ConfigError("kept-column-types", f"{out}: {why}; use a .csv file") from None

    return write_rows
