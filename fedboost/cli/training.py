"""`fedboost simulate` and `fedboost train`: the same training, in one process or over the network.

Promises: the model file appears whole, at the end, or not at all.
Refuses: an output path that cannot be written, before anything is trained.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path

from fedboost.cli.scores import rows_of_sites
from fedboost.cli.show import (
    absences,
    figures,
    metrics_of,
    notice,
    notice_not_hidden,
    notice_shared_groups,
    notice_undeclared,
    print_json,
    print_party_metrics,
    print_traffic,
    progress,
    signatures,
    size,
)
from fedboost.errors import ConfigError
from fedboost.gbdt.metrics.by_set import by_party
from fedboost.runtime.analyst import connect
from fedboost.runtime.config import check_address, read_terms
from fedboost.runtime.data.draft import split_by_weights
from fedboost.runtime.data.table import read_table
from fedboost.runtime.files import check_writable
from fedboost.runtime.local.simulation import simulate
from fedboost.runtime.model_file import Model


def run_simulation(
    terms_file: Path,
    data: Path,
    site: str | None,
    parties: int | None,
    seed: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """`fedboost simulate`."""
    if site is not None and parties is not None:
        raise ConfigError("give --site or --parties, not both")
    if out is not None:
        check_writable(out, terms_file, data)
    terms = read_terms(terms_file)
    table = read_table(data)
    if site is not None:
        shards = rows_of_sites(terms, terms_file, table, data, site)
    else:
        named = parties is None and terms.parties
        names = terms.parties if named else [f"party-{i + 1}" for i in range(parties or 3)]
        shards = split_by_weights(table, names, [1.0] * len(names), seed, terms.columns.group)
    with progress(terms, as_json) as draw:
        result = simulate(terms, shards, seed=seed, on_round=draw)
    notice_undeclared(table, terms.columns)
    if site is not None and terms.columns.group is not None:
        notice_shared_groups(table, terms.columns.group, site)
    _conclude(result.model, result.traffic, out, as_json)


def run_training(
    terms_file: Path,
    address: str,
    keys: Path | None,
    insecure_loopback: bool,
    out: Path,
    wait: float,
    as_json: bool,
) -> None:
    """`fedboost train`."""
    check_address(address, "--aggregator")
    check_writable(out, terms_file)
    terms = read_terms(terms_file)
    training = connect(address, keys, insecure_loopback).train(terms, wait, _say_waiting)
    try:
        with progress(terms, as_json) as draw:
            for row in training:
                if row["round"] == 0:
                    notice_not_hidden(terms)
                draw(row)
    except KeyboardInterrupt:
        training.stop()
        raise
    model = training.model
    if training.asked is not None:
        notice(
            f"this model is that of your request of {training.asked:%Y-%m-%d %H:%M} UTC, under these terms"
        )
    _conclude(model, training.traffic, out, as_json, training.uncounted)


def _say_waiting(parties: tuple[str, ...]) -> None:
    notice(f"waiting for {', '.join(parties)}" if parties else "waiting: another session is running")


def _save(model: Model, out: Path) -> None:
    """Save it, if need be elsewhere: the aggregator has it no more."""
    try:
        model.save(out)
    except ConfigError as error:
        spare = Path(tempfile.mkdtemp(prefix="fedboost-")) / out.name
        model.save(spare)
        raise ConfigError(f"{error}; the model is in {spare}") from None


def _conclude(
    model: Model,
    traffic: Mapping[str, tuple[int, int]],
    out: Path | None,
    as_json: bool,
    uncounted: bool = False,
) -> None:
    """Save the model, and say what it is and what it took. uncounted: traffic is since a restart alone."""
    if out is not None:
        _save(model, out)
    end = model.rounds[model.kept - 1] if model.rounds else {}
    last, of_parties = metrics_of(end), by_party(end)
    if as_json:
        print_json(
            event="done",
            model=str(out) if out else None,
            fingerprint=model.fingerprint,
            terms=model.terms.digest,
            protection=model.protection,
            signed_by=list(model.attestations),
            metrics=last,
            **({"party_metrics": of_parties} if of_parties else {}),
            traffic={party: {"sent": s, "received": r} for party, (s, r) in traffic.items()},
            **({"traffic_since_restart": True} if uncounted else {}),
        )
        return
    numbers = figures(end, model.terms, ", ")
    training = f"training {numbers}, " if numbers else ""
    total = size(sum(map(sum, traffic.values())))
    since = "since the aggregator was restarted" if uncounted else "in all"
    print(f"{len(model.booster.trees)} trees, {training}{total} {since}")
    if model.kept < len(model.rounds):
        print(f"stopped after {len(model.rounds)} rounds: round {model.kept} was the best, and is the last")
    print_party_metrics(end, model.terms.holders)
    print_traffic(traffic, None if uncounted else len(model.rounds))
    print(signatures(model))
    for line in absences(model):
        print(line)
    print(f"model: {out} (XGBoost JSON)" if out else "model: not saved (give --out model.json)")
