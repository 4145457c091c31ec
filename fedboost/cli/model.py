"""Commands about a model file: report, predict, assemble, verify, explain.

Promises: the page appears whole or not at all; nothing is sent.
Refuses: a file that exists, without --force; a file that is not a model (ConfigError, exit code 2).
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from fedboost.cli.common import Data, Force, InsecureLoopback, Json, MinCount, ModelFile, Wait, reads_a_table
from fedboost.cli.output import notice, show, write
from fedboost.cli.serve import site_and_keys
from fedboost.cli.train import notice_categories, notice_undeclared, rows_done
from fedboost.errors import Altered, ConfigError
from fedboost.gbdt.booster import IMPORTANCES
from fedboost.privacy.identity import to_pem
from fedboost.runtime.data.database import AS_USUAL, Database, Reading
from fedboost.runtime.data.locations import local_files, shown
from fedboost.runtime.data.shard import to_base_margin, to_features
from fedboost.runtime.data.table import TableParts, in_parts, read_table
from fedboost.runtime.files import check_writable
from fedboost.runtime.model import Model, load_trained, rows_facts, signature_facts
from fedboost.runtime.model import assemble as assembled
from fedboost.runtime.net.keys import read_certificates, read_trust
from fedboost.runtime.predictions import (
    PREDICTION,
    Columns,
    Predictor,
    as_csv,
    check_form,
    csv_writer,
    predicted_columns,
    writing,
)
from fedboost.runtime.signed_model import PartyModel, verified, written
from fedboost.runtime.site.node import predict_with_parties
from fedboost.runtime.telemetry import logger
from fedboost.views.status import waiting
from fedboost.views.training import importances, verification
from fedboost.views.words import one_line

REPORT_EPILOG = (
    "Example: fedboost report model.json --out report.html\n\n"
    "Example: fedboost report model.json --data new.csv --keys keys/marie --out report.html"
)


@reads_a_table
def report(
    model: ModelFile,
    read: "Reading",
    out: Annotated[Path, typer.Option(help="File for the page, such as report.html.", show_default=False)],
    data: Annotated[
        str | None,
        typer.Option(
            help="Rows of your own, with labels, for partial dependence, metrics and curves.",
            show_default=False,
        ),
    ] = None,
    keys: Annotated[
        Path | None,
        typer.Option(help="Folder of anybody's keys, to check the signatures by.", show_default=False),
    ] = None,
    min_count: MinCount = None,
    force: Force = False,
) -> None:
    """Write the report of a model, one HTML page. It shows who agreed to what, learning curves, importance
    and the first trees, and on rows of your own its quality."""
    if (read.query or read.query_file) and data is None:
        raise ConfigError("--query is for the rows of --data: name the database there")
    if min_count is not None and data is None:
        raise ConfigError("--min-count is for the rows of --data; give both, or neither")
    source = None if data is None else read.source(data)
    check_writable(out, model, *(() if source is None else local_files(source)), force=force)
    trained, rows = Model.load(model), None
    if not trained.terms.task.makes_model:
        raise ConfigError(f"{model}: not a model, but the result of a session to {trained.terms.task.name}")
    signatures = None if keys is None else signature_facts(trained, keys)
    if source is not None:
        table = read_table(source, None, read.options)
        rows = rows_facts(trained, table, min_count, shown(source))
        notice_undeclared(table, trained.terms.columns)
    write(written(trained, rows, signatures), out)


# ---- `fedboost predict --party`: predictions by parties that hold different columns ---------------------


Party = Annotated[
    Path | None,
    typer.Option(
        metavar="SITE_FILE",
        help="Predict together with the parties that have the other parts of the model: this site's file, "
        "TOML. The table has this site's columns and the row ids.",
        show_default=False,
    ),
]
MinCommonRows = Annotated[
    int | None,
    typer.Option(
        help="With --party: fewest rows that each other party has to know.",
        min=1,
        show_default="that of the training",
    ),
]


def predicted_jointly(
    model: Path,
    party: Path,
    source: "str | Path | Database",
    read: "Reading",
    table: "TableParts",
    keep: Sequence[str],
    min_common_rows: int | None,
    wait: float,
    insecure_loopback: bool,
) -> "Iterator[Columns]":
    """Predict a table's rows together with the other parties of a model, then return them in parts, beside
    the columns to keep. Notices say which rows the others do not know."""
    part = load_trained(model)
    if not isinstance(part, PartyModel):
        raise ConfigError(f"{model}: a whole model, which predicts by itself: leave --party out")
    table.check_columns([*keep])  # before others count the rows
    site, bundle = site_and_keys(party, insecure_loopback, holds_rows=None)
    options = site.read if read.options == AS_USUAL else read.options
    site = site.model_copy(update={"data": source, "read": options})
    log = logger("party", "text", "error")
    done = predict_with_parties(
        site, bundle, part, log, wait, min_common_rows, lambda parties: notice(waiting(parties, {}))
    )
    (block,) = part.terms.blocks
    for name, known in zip(block.feature_holders, done.known, strict=True):
        if not known.all():
            told = f"{name} knows {known.sum():,} of {known.size:,} rows"
            notice(f"{told}; in the others its columns count as missing")
    return predicted_columns(done.values, part.terms, table, keep)


# ---- `fedboost predict`: predictions as a CSV or Parquet file -------------------------------------------


PREDICT_EPILOG = (
    "Example: fedboost predict model.json new.csv --out predictions.csv\n\n"
    "Example: fedboost predict model.json new.parquet --keep patient --out predictions.parquet\n\n"
    "Example: fedboost predict part.json new.csv --party bank.toml --keep customer --out predictions.csv"
)


@reads_a_table
def predict(
    model: ModelFile,
    data: Data,
    read: "Reading",
    keep: Annotated[
        list[str] | None,
        typer.Option(help="A column to write beside the prediction (may be repeated).", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="File for the predictions: .csv or .parquet.", show_default="standard output"),
    ] = None,
    party: Party = None,
    min_common_rows: MinCommonRows = None,
    wait: Wait = 60,
    insecure_loopback: InsecureLoopback = False,
    force: Force = False,
) -> None:
    """Predict each row of a table of any size: a column `prediction`. With classes it is the most probable
    one, and a column named after each class has its probability."""
    source = read.source(data)
    if out is not None:
        check_writable(out, model, *local_files(source), force=force)
        check_form(out)
    table, kept = in_parts(source, read.options), keep or []
    predictor = None
    if party is not None:
        options = min_common_rows, wait, insecure_loopback
        parts = predicted_jointly(model, party, source, read, table, kept, *options)
    elif min_common_rows is not None:
        raise ConfigError("--min-common-rows is for predictions with other parties: give --party")
    else:
        predictor = Predictor(Model.load(model), table, kept)
        parts = predictor.parts()
    with ExitStack() as stack:
        seen = out is None and sys.stdout.isatty()  # the rows themselves are progress
        done = (lambda rows: None) if seen else stack.enter_context(rows_done(table.rows))
        write_rows = stack.enter_context(writing(out)) if out else csv_writer(lambda text: write(text, None))
        for part in parts:
            write_rows(part)
            done(len(next(iter(part.values()))))
    if predictor is not None:
        notice_categories((name, *strange) for name, strange in predictor.strange.items())


# ---- `fedboost assemble`: the model of the parts that parties kept --------------------------------------


ASSEMBLE_EPILOG = "Example: fedboost assemble model.json bank.json telco.json --out whole.json"


def assemble(
    parts: Annotated[
        list[Path],
        typer.Argument(help="Files of the parts: of the parties, and the one that `fedboost train` saved."),
    ],
    out: Annotated[Path, typer.Option(help="Where to save the model.", show_default=False)],
    force: Force = False,
) -> None:
    """Put the parts of a model together that parties with different columns kept: an ordinary XGBoost file.
    The file that `fedboost train` saved brings metrics and signatures, and each part must be the one that its
    party signed."""
    check_writable(out, *parts, force=force)
    model = assembled(parts)
    model.save(out)
    show(False, {}, [one_line(f"model: {out} (XGBoost JSON, {len(model.booster.trees)} trees)")])


# ---- `fedboost verify`: who signed a model, and if that holds -------------------------------------------
# Promises: exit code 0 if every signature holds and there are enough of them, 1 if not.
# Refuses: to judge signatures without the consortium's root (ConfigError, exit code 2).


VERIFY_EPILOG = (
    "Example: fedboost verify model.json --keys keys/marie\n\n"
    "Example: fedboost verify model.json --consortium keys/consortium.pem"
)
DOES_NOT_HOLD = 1


def verify(
    model: ModelFile,
    keys: Annotated[
        Path | None,
        typer.Option(help="Folder of anybody's keys: its consortium.pem and denied.txt.", show_default=False),
    ] = None,
    consortium: Annotated[
        Path | None, typer.Option(help="The consortium's root, consortium.pem.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Say who signed a model, and check that: its trees, its terms and the analyst's request. Exit code 0 if
    it holds, 1 if not."""
    if (keys is None) == (consortium is None):
        raise ConfigError(
            "give --keys FOLDER or --consortium FILE: signatures are checked against the consortium's root"
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
        show(json, [altered], [f"It does NOT hold: {error}"])
        raise typer.Exit(DOES_NOT_HOLD) from None
    show(json, [facts.summary], verification(facts))
    if not facts.holds:
        raise typer.Exit(DOES_NOT_HOLD)


# ---- `fedboost explain`: what a model goes by, one of its trees -----------------------------------------
# What each feature adds for each row, and what predictions are by the values of one feature.


EXPLAIN_EPILOG = (
    "Example: fedboost explain model.json\n\n"
    "Example: fedboost explain model.json --tree 0 --svg tree.svg\n\n"
    "Example: fedboost explain model.json --shap new.csv --out shap.csv\n\n"
    "Example: fedboost explain model.json --partial-dependence age --data new.csv"
)


@reads_a_table
def explain(
    model: ModelFile,
    read: "Reading",
    tree: Annotated[
        int | None, typer.Option(help="Print this tree, counted from 0.", min=0, show_default=False)
    ] = None,
    svg: Annotated[
        Path | None, typer.Option(help="Draw the tree to this file instead.", show_default=False)
    ] = None,
    shap: Annotated[
        str | None,
        typer.Option(
            metavar="DATA",
            help="Say what each feature adds to the margin of each row of this table, as a CSV.",
            show_default=False,
        ),
    ] = None,
    partial_dependence: Annotated[
        str | None,
        typer.Option(
            metavar="FEATURE",
            help="The mean prediction over the rows of --data by the values of this feature, as a CSV.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Rows for --partial-dependence.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="File for the CSV of the two above.", show_default="standard output"),
    ] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Say which features a model goes by (gain, cover, weight), print or draw a tree, explain rows, or show
    how predictions depend on a feature."""
    asked = {"--tree": tree, "--shap": shap, "--partial-dependence": partial_dependence}
    options = [option for option, value in asked.items() if value is not None]
    if len(options) > 1:
        raise ConfigError(f"give {' or '.join(options)}, not both")
    if (partial_dependence is None) != (data is None):
        raise ConfigError("--partial-dependence FEATURE and --data DATA go together: rows to predict for")
    if svg is not None and tree is None:
        raise ConfigError("--svg draws one tree; say which, such as --tree 0")
    if out is not None and shap is None and partial_dependence is None:
        raise ConfigError(
            "--out is for the CSV of --shap or --partial-dependence; a picture goes to the file of --svg"
        )
    if json and options:
        raise ConfigError(f"--json prints the importances; leave it out with {options[0]}")
    rows = shap or data
    if (read.query or read.query_file) and rows is None:
        raise ConfigError("--query is for the rows of --shap or --data: name the database there")
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


def _contributions(model: Path, data: "str | Database", read: "Reading", out: Path | None) -> None:

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


def _dependence(model: Path, feature: str, data: "str | Database", read: "Reading", out: Path | None) -> None:

    trained, table = Model.load(model), read_table(data, None, read.options)
    grid, means = trained.partial_dependence(table, feature)
    notice_undeclared(table, trained.terms.columns)
    rows = ([value, *np.atleast_1d(mean).tolist()] for value, mean in zip(grid, means, strict=True))
    write(as_csv([feature, *(trained.classes if means.ndim == 2 else [PREDICTION])], rows), out)
