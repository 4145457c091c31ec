"""`fedboost demo`: several processes train one model over gRPC; then what it was worth.

Promises: an aggregator and the parties run as processes of their own on loopback; the federated trees are
compared, byte for byte, with those that the pooled rows give; the sites' files, memories and audit logs stay
in a folder to look at, until the next demo there.
Refuses: a table or label that cannot be used, before anything is started.
"""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from fedboost.cli.demo_columns import demo_columns
from fedboost.cli.options import Force, Json, Site, reads_a_table
from fedboost.errors import ConfigError, FedboostError

if TYPE_CHECKING:
    from fedboost.people.facts import Traffic
    from fedboost.runtime.data.database import Reading
    from fedboost.runtime.local.demo import Sites
    from fedboost.runtime.model import Model
    from fedboost.terms.terms import Terms

EPILOG = (
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
    from fedboost.runtime.local.demo import check_number, hospitals, own_sites

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
    _demo_rows(sites, rounds or ROUNDS, protection, data, out, force, json)


def _demo_rows(
    sites: "Sites",
    rounds: int,
    protection: str | None,
    data: str | None,
    out: Path,
    force: bool,
    json: bool,
) -> None:
    """Train across sites with different rows, and compare."""
    from fedboost.cli.output import show
    from fedboost.cli.trained import facts_of
    from fedboost.people import as_json, training
    from fedboost.people.facts import DemoFacts
    from fedboost.runtime.local.demo import audit_log, demo_terms, write_files

    terms = demo_terms(sites, rounds, protection)
    files: dict[str, Path | None] = dict.fromkeys(terms.parties)
    files |= write_files(out, sites, terms, data, force)
    model, traffic = _train(terms, sites, files, out, json)
    file = out / "model.json"
    model.save(file)
    scores, equal = _compare(terms, sites, model)
    log = shlex.quote(str(audit_log(out, next(iter(sites.tables)))))
    facts = DemoFacts(facts_of(model, traffic, file), scores, equal, log)
    show(json, as_json.demo(facts), training.demo(facts))
    if not equal:
        raise FedboostError("the federated model differs from the pooled one: please report this")


def _train(
    terms: "Terms", sites: "Sites", files: dict[str, Path | None], folder: Path, json: bool
) -> "tuple[Model, Traffic]":
    """Train over gRPC, with a process for each end; return the model and its traffic."""
    from fedboost.cli.demo_training import processes, train
    from fedboost.people.text import one_line

    say = (lambda text: None) if json else print
    names = ", ".join(f"{name} ({table.num_rows} rows)" for name, table in sites.tables.items())
    say(one_line(f"{len(sites.tables)} sites: {names}; {sites.held_out.num_rows} rows held out"))
    with processes(terms, files, folder, say) as consortium:
        model, traffic = train(consortium, terms, json)
        return cast("Model", model), traffic  # each of these parties has all columns


def _compare(terms: "Terms", sites: "Sites", model: "Model") -> tuple[dict[str, dict[str, float]], bool]:
    """Return model name to metrics on the held-out rows, none where a site alone cannot train; and whether
    the model is the one that the pooled rows give."""
    from pyarrow import concat_tables

    from fedboost.evaluation import HeldOut, score, shown_metrics, unprotected
    from fedboost.runtime.data.shard import to_shard
    from fedboost.runtime.local.simulation import simulate

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
