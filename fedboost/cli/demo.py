"""`fedboost demo`: several processes train one model over gRPC; then what it was worth.

Promises: an aggregator and the parties run as processes of their own on loopback; the federated trees are
compared, byte for byte, with those that the pooled rows give; the sites' files, memories and audit logs stay
in a folder to look at, until the next demo there.
Refuses: a table or label that cannot be used, before anything is started.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import numpy as np
import typer
from pyarrow import concat_tables

from fedboost.cli.common import Force, Json, Site, reads_a_table
from fedboost.cli.compare import IN_ORDER, one_party
from fedboost.cli.output import notice, show
from fedboost.cli.serve import site_and_keys
from fedboost.cli.train import finish_at_interrupt, notice_not_hidden, progress
from fedboost.errors import ConfigError, FedboostError
from fedboost.evaluation import HeldOut, score, score_of, shown_metrics, unprotected
from fedboost.results.base import Traffic
from fedboost.results.comparison import ALONE, POOLED
from fedboost.results.training import ColumnsDemo, Demo
from fedboost.runtime.data.shard import to_shard
from fedboost.runtime.local import demo as made
from fedboost.runtime.local.cluster import LocalCluster
from fedboost.runtime.local.demo import (
    CLINIC,
    MIN_NEW_ROWS,
    Apart,
    Sites,
    audit_log,
    check_number,
    demo_terms,
    empty_state,
    hospitals,
    own_sites,
    write_files,
)
from fedboost.runtime.local.simulation import simulate
from fedboost.runtime.local.warm_up import compile_usual
from fedboost.runtime.model import Model, assemble
from fedboost.runtime.party_model import PartyModel, terms_to_predict
from fedboost.runtime.site.backup import PartFolder
from fedboost.runtime.site.config import read_party
from fedboost.runtime.site.node import predict_with_parties
from fedboost.runtime.telemetry import logger
from fedboost.views import training
from fedboost.views.words import one_line

if TYPE_CHECKING:
    from fedboost.holders.columns import Prediction
    from fedboost.runtime.data.database import Reading
    from fedboost.terms.terms import Terms


# ---- `fedboost demo --columns` --------------------------------------------------------------------------
# A clinic and a laboratory that hold different columns of the same patients.
# Promises: as `fedboost demo`; at the end the clinic predicts patients whom nobody trained on, together
# with the laboratory, as `fedboost predict --party` does.
# Refuses: as `fedboost demo`.


WAIT = 60.0
"""Seconds to wait for the aggregator to answer."""


def demo_columns(rounds: int, protection: str | None, out: Path, force: bool, json: bool) -> None:
    """Train across processes that hold different columns, predict together, and compare."""
    encrypts, apart = made.can_encrypt(), made.patients()
    terms = made.columns_terms(apart, rounds, protection or ("paillier" if encrypts else "plain"))
    files: dict[str, Path | None] = {**made.write_patients(out, apart, terms, force)}
    about = {
        "columns": apart.columns,
        "rows": {party: table.num_rows for party, table in apart.tables.items()},
        "rows_in_common": apart.common.num_rows,
        "rows_held_out": apart.new.num_rows,
    }
    say = (lambda text: None) if json else print
    for line in training.beginning(about, terms):
        say(line)
    if protection is None and not encrypts:
        notice('pip install "fedboost[paillier]" would hide the labels from the laboratory')
    with processes(terms, files, out, say, lambda: made.warm_up(apart, terms)) as consortium:
        model, traffic = train(consortium, terms, json)
        assert isinstance(model, PartyModel)  # the terms say that each party keeps its part
        model.save(out / "model.json")
        parts = {party: _part_file(out, party, model.id) for party in terms.parties}
        say("the clinic asks for a prediction of the new patients; the laboratory approves that, too")
        prediction = _predict(consortium, out, apart, parts[made.CLINIC])
    scores, equal = _compare_columns(terms, apart, model, parts, prediction)
    log = shlex.quote(str(audit_log(out, made.LABORATORY)))
    about |= {"equal": equal, "held_out": scores, "log": log}
    about |= {"parts": {party: str(file) for party, file in parts.items()}, "shares": model.importance}
    end = ColumnsDemo.of(model.outline, traffic, str(out / "model.json"), **about)
    show(json, [end.summary], training.demo(end))
    if not equal:
        raise FedboostError("the joined model differs from the pooled one: please report this")


def _part_file(folder: Path, party: str, id: str) -> Path:
    """The file of a party's part of the model."""
    file = PartFolder(read_party(folder / f"{party}.toml")).file(id)
    return folder / file.relative_to(folder.resolve())


def _predict(consortium: "LocalCluster", folder: Path, apart: "Apart", part: Path) -> "Prediction":
    """The clinic's prediction of its new patients, together with the laboratory."""
    model = PartyModel.load(part)
    consortium.approve(terms_to_predict(model, apart.new.num_rows, MIN_NEW_ROWS))
    consortium.stop_party(CLINIC)  # one process of a party attends
    site, bundle = site_and_keys(folder / f"{CLINIC}.toml", False, holds_rows=None)
    site = site.model_copy(update={"data": folder / "new.csv"})
    return predict_with_parties(site, bundle, model, logger("party", "text", "warning"), WAIT, MIN_NEW_ROWS)


def _compare_columns(
    terms: "Terms",
    apart: "Apart",
    model: "PartyModel",
    parts: "dict[str, Path]",
    prediction: "Prediction",
) -> tuple[dict[str, dict[str, float]], bool]:
    """Return model name to metrics on the new patients; and whether the parts are the model that pooled
    columns give, and the prediction is its."""
    here = terms.changed(rounds=len(model.rounds), **IN_ORDER)  # Ctrl-C may have ended it
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


# ---- `fedboost demo`: several processes train one model over gRPC; then what it was worth ---------------


DEMO_EPILOG = (
    "Example: fedboost demo\n\nExample: fedboost demo --columns\n\n"
    "Example: fedboost demo --data patients.csv --label diagnosis --site hospital"
)
ROUNDS, COLUMNS_ROUNDS = 30, 10


@reads_a_table
def demo(
    read: "Reading",
    data: Annotated[
        str | None, typer.Option(help="Your own table instead of the breast-cancer one.", show_default=False)
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="Label column of your table; words are classes.", show_default=False)
    ] = None,
    site: Site = None,
    parties: Annotated[
        int | None,
        typer.Option(
            help="Sites to split the rows among, unevenly (3); 50 at most.", min=1, show_default=False
        ),
    ] = None,
    columns: Annotated[
        bool,
        typer.Option(
            "--columns", help="Sites that hold different columns of the same rows, in place of rows."
        ),
    ] = False,
    rounds: Annotated[
        int | None,
        typer.Option(help="Trees to boost.", min=1, show_default="30; with --columns 10"),
    ] = None,
    protection: Annotated[
        str | None,
        typer.Option(
            help="What hides sites' numbers (masked, from 3 sites on; with --columns paillier).",
            show_default=False,
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the sites' files and the model.")] = Path(
        "fedboost-demo"
    ),
    force: Force = False,
    json: Json = False,
) -> None:
    """Train across several processes on this machine, and compare with pooled rows."""
    if columns:
        if (data, label, site, parties) != (None, None, None, None):
            raise ConfigError(
                "--columns has a table of its own: leave --data, --label, --site and --parties out; "
                "fedboost simulate takes yours, with terms that say who holds which columns"
            )
        demo_columns(rounds or COLUMNS_ROUNDS, protection, out, force, json)
        return
    if data is None and (label, site, parties) != (None, None, None):
        raise ConfigError("--label, --site and --parties describe your own table: give it with --data")
    if site is not None and parties is not None:
        raise ConfigError("give --site or --parties, not both")
    check_number(parties or 0)
    sites = hospitals() if data is None else own_sites(data, read, label, site, parties or 3)
    check_number(len(sites.tables))
    terms = demo_terms(sites, rounds or ROUNDS, protection)
    files: dict[str, Path | None] = dict.fromkeys(terms.parties)
    files |= write_files(out, sites, terms, data, force)
    model, traffic = _train(terms, sites, files, out, json)
    file = out / "model.json"
    model.save(file)
    scores, equal = _compare(terms, sites, model)
    log = shlex.quote(str(audit_log(out, next(iter(sites.tables)))))
    end = Demo.of(model.outline, traffic, str(file), equal=equal, held_out=scores, log=log)
    show(json, [end.summary], training.demo(end))
    if not equal:
        raise FedboostError("the federated model differs from the pooled one: please report this")


def _train(
    terms: "Terms", sites: "Sites", files: dict[str, Path | None], folder: Path, json: bool
) -> "tuple[Model, Traffic]":
    """Train over gRPC, with a process for each end; return the model and its traffic."""
    say = (lambda text: None) if json else print
    names = ", ".join(f"{name} ({table.num_rows} rows)" for name, table in sites.tables.items())
    say(one_line(f"{len(sites.tables)} sites: {names}; {sites.held_out.num_rows} rows held out"))
    with processes(terms, files, folder, say) as consortium:
        model, traffic = train(consortium, terms, json)
        return cast("Model", model), traffic  # each of these parties has all columns


def _compare(terms: "Terms", sites: "Sites", model: "Model") -> tuple[dict[str, dict[str, float]], bool]:
    """Return model name to metrics on the held-out rows, none where a site alone cannot train; and whether
    the model is the one that the pooled rows give."""
    terms = terms.changed(rounds=len(model.rounds))  # Ctrl-C may have ended it
    pooled = simulate(unprotected(terms), {"pooled": concat_tables(sites.tables.values())}).model
    held_out = HeldOut.from_shard(to_shard(sites.held_out, terms, "held-out rows"))
    names, scores = shown_metrics(terms), dict[str, dict[str, float]]()
    for name, table in sites.tables.items():
        try:
            alone = simulate(unprotected(terms), {name: table}).model
        except FedboostError:
            scores[f"{name} alone"] = {}
        else:
            scores[f"{name} alone"] = score(alone, held_out, names)
    scores |= {"federated": score(model, held_out, names), "pooled": score(pooled, held_out, names)}
    return scores, model.booster.to_xgboost() == pooled.booster.to_xgboost()


# ---- The training of a demo: processes on loopback, and what is said of them ----------------------------
# Promises: an aggregator and the parties run as processes of their own.


@contextmanager
def processes(
    terms: "Terms",
    files: Mapping[str, Path | None],
    folder: Path,
    say: Callable[[str], None],
    warm_up: Callable[[], None] = lambda: None,
) -> "Iterator[LocalCluster]":
    """Start the processes of a demo, once kernels are compiled; inside they run. say: prints a line; warm_up:
    compiles kernels that not all trainings need."""
    compile_usual(say)
    warm_up()
    say("each site approves the terms, as a person there does by `fedboost approve`")
    say("aggregator and parties start as processes of their own, on loopback; the analyst submits terms")
    notice_not_hidden(terms)
    with LocalCluster(folder, files, approved=terms, state=empty_state(folder)) as consortium:
        yield consortium


def train(consortium: "LocalCluster", terms: "Terms", json: bool) -> "tuple[Model | PartyModel, Traffic]":
    """Train over gRPC; return what the analyst gets, and the traffic."""
    session = consortium.analyst.train(terms)
    with finish_at_interrupt(session.finish) as interruption, progress(terms, json) as draw:
        for row in session:
            draw(row)
            interruption.count()
    return session.model, session.traffic
