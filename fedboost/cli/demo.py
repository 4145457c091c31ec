"""`fedboost demo`: several processes train one model over gRPC; then what it was worth.

Promises: an aggregator and the parties run as processes of their own on loopback; the federated model is
compared, byte for byte, with the one the pooled rows give; the sites' files, memories and audit logs stay in
a folder to look at, until the next demo there.
Refuses: a table or label that cannot be used, before anything is started.
"""

import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedboost.cli.scores import HeldOut, score, shown_metrics, unprotected
from fedboost.cli.show import (
    notice_not_hidden,
    print_json,
    print_traffic,
    printable,
    progress,
    signatures,
)
from fedboost.errors import ConfigError, FedboostError
from fedboost.privacy.masked.pairwise import SMALLEST_GROUP
from fedboost.privacy.protections import PROTECTIONS
from fedboost.protocol.terms import Terms
from fedboost.runtime.config import terms_to_toml
from fedboost.runtime.data.draft import draft_schema, split_by_site, split_by_weights
from fedboost.runtime.data.table import read_table
from fedboost.runtime.files import check_writable, folder_name, party_stems
from fedboost.runtime.local.cluster import Loopback
from fedboost.runtime.local.simulation import simulate
from fedboost.runtime.model_file import Model

HOSPITALS = {"north": 6.0, "south": 3.0, "east": 1.0}
HELD_OUT = 0.25
KEYHOLDER = "keyholder"
"""A party without rows, where sums are encrypted."""
SEED = 0
STATE = "demo.state"
"""The folder of the sites' memories and audit logs, in that of the demo, which makes it anew each time."""


@dataclass(frozen=True)
class Sites:
    """The rows each site trains on, and rows nobody trains on."""

    tables: Mapping[str, Any]
    held_out: Any
    label: str


def run_demo(
    data: Path | None,
    label: str | None,
    site: str | None,
    parties: int | None,
    rounds: int,
    protection: str | None,
    folder: Path,
    as_json: bool,
) -> None:
    """`fedboost demo`."""
    if data is None and (label, site, parties) != (None, None, None):
        raise ConfigError("--label, --site and --parties describe your own table: give it with --data")
    if site is not None and parties is not None:
        raise ConfigError("give --site or --parties, not both")
    sites = hospitals() if data is None else _own_sites(data, label, site, parties or 3)
    from pyarrow import concat_tables

    draft = draft_schema(concat_tables([*sites.tables.values(), sites.held_out]), sites.label)
    terms = Terms.read(
        {
            **draft.settings(),
            "rounds": rounds,
            "max_depth": 4,
            "learning_rate": 0.2,
            "parties": list(sites.tables),
            "protection": protection or ("masked" if len(sites.tables) >= SMALLEST_GROUP else "plain"),
            **_key_settings(protection, list(sites.tables)),
        }
    )
    files: dict[str, Path | None] = dict.fromkeys(terms.parties)
    files |= _write_files(folder, sites, terms, data)
    say = (lambda text: None) if as_json else print
    names = ", ".join(f"{name} ({table.num_rows} rows)" for name, table in sites.tables.items())
    say(printable(f"{len(sites.tables)} sites: {names}; {sites.held_out.num_rows} rows held out"))
    _warm_up(say)
    model_file = folder / "model.json"
    say("each site approves the terms, as a person there does by `fedboost approve`")
    say("aggregator and parties start as processes of their own, on loopback; the analyst submits terms")
    notice_not_hidden(terms)
    with Loopback(folder, files, approved=terms, state=_empty_state(folder)) as consortium:
        training = consortium.analyst.train(terms)
        with progress(terms, as_json) as draw:
            for row in training:
                draw(row)
        model = training.model
    model.save(model_file)
    pooled = simulate(unprotected(terms), {"pooled": concat_tables(sites.tables.values())}).model
    equal = model.booster.to_xgboost() == pooled.booster.to_xgboost()
    scores = _scores(terms, sites, model, pooled)
    if as_json:
        print_json(
            event="done",
            model=str(model_file),
            equal=equal,
            protection=model.protection,
            signed_by=list(model.attestations),
            held_out=scores,
            traffic={party: {"sent": s, "received": r} for party, (s, r) in training.traffic.items()},
        )
    else:
        _print_scores(scores)
        print(f"federated == pooled: {'yes' if equal else 'NO'}")
        print()
        print_traffic(training.traffic, terms.rounds)
        print()
        print(signatures(model))
        print(f"model: {model_file} (XGBoost JSON; terms, site files and logs are beside it)")
        print("what left the first site, by its own audit log:")
        print(printable(f"fedboost audit {shlex.quote(str(_audit_log(folder, next(iter(sites.tables)))))}"))
    if not equal:
        raise FedboostError("the federated model differs from the pooled one: please report this")


def _key_settings(protection: str | None, parties: list[str]) -> dict[str, object]:
    """Settings where sums are encrypted: a key holder beside the sites, and few bins, since each costs."""
    row = PROTECTIONS.get(protection or "")
    if row is None or not row.uses_key_holder:
        return {}
    return {
        "parties": [*parties, KEYHOLDER],
        "keyholder": KEYHOLDER,
        "keyholder_rows": False,
        "max_bin": 32,
        "key_bits": 2048,
    }


def hospitals() -> Sites:
    """scikit-learn's breast-cancer table, split unevenly."""
    try:
        from sklearn.datasets import load_breast_cancer
    except ImportError:
        raise ConfigError(
            "the demo's table comes with scikit-learn: pip install 'fedboost[demo]', or give --data"
        ) from None
    import pyarrow as pa

    bunch = load_breast_cancer()
    names = [str(name).replace(" ", "_") for name in bunch.feature_names]
    columns = dict(zip(names, bunch.data.T, strict=True))
    table = pa.table({**columns, "benign": bunch.target})
    train, held_out = _hold_out(table)
    return Sites(split_by_weights(train, list(HOSPITALS), list(HOSPITALS.values()), SEED), held_out, "benign")


def _own_sites(data: Path, label: str | None, site: str | None, parties: int) -> Sites:
    """The user's own table, by its site column or split unevenly."""
    if label is None:
        raise ConfigError("--data needs --label, the column to predict")
    table = read_table(data)
    train, held_out = _hold_out(table)
    if site is None:
        names = [f"site-{i + 1}" for i in range(parties)]
        return Sites(split_by_weights(train, names, list(range(parties, 0, -1)), SEED), held_out, label)
    return Sites(split_by_site(train, site), held_out.drop_columns([site]), label)


def _hold_out(table: Any) -> tuple[Any, Any]:
    if table.num_rows < 20:
        raise ConfigError(f"a table of {table.num_rows} rows is too small for the demo; it needs 20")
    order = np.random.default_rng(SEED).permutation(table.num_rows)
    held = int(table.num_rows * HELD_OUT)
    return table.take(order[held:]), table.take(order[:held])


def _write_files(folder: Path, sites: Sites, terms: Terms, data: Path | None) -> dict[str, Path]:
    from pyarrow import csv

    files = {name: folder / f"{stem}.csv" for name, stem in party_stems(sites.tables).items()}
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder}: is a file; --out needs a folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in files.values():
            check_writable(file, *([data] if data else []))
        (folder / "terms.toml").write_text(terms_to_toml(terms), "utf-8")
        for name, table in sites.tables.items():
            csv.write_csv(table.select([terms.columns.label, *terms.columns.features]), files[name])
    except OSError as error:
        raise ConfigError(f"{folder}: cannot write: {error.strerror}") from None
    return files


def _empty_state(folder: Path) -> Path:
    """The folder of the sites' state, without what an earlier demo left in it."""
    state = folder / STATE
    try:
        if state.exists():
            shutil.rmtree(state)
    except OSError as error:
        raise ConfigError(f"{state}: cannot remove what an earlier demo left: {error.strerror}") from None
    return state


def _audit_log(folder: Path, party: str) -> Path:
    """The audit log of a site."""
    name = folder_name(party)
    return folder / STATE / name / f"{name}.audit.jsonl"


def _warm_up(say: Any) -> None:
    """Compile the kernels once, here, so that the processes find them compiled."""
    say("loading kernels (the first time they are compiled, which takes some seconds) ...")
    values = np.arange(200, dtype=np.float64)
    table = {"x": values, "y": values % 2}
    for objective in ({}, {"objective": "reg:squarederror"}, {"objective": "multi:softprob", "num_class": 2}):
        terms = Terms.read({"columns": {"label": "y", "numeric": ["x"]}, **objective, "rounds": 1})
        simulate(terms, [table] * 3).model.predict(table)


def _scores(terms: Terms, sites: Sites, model: Model, pooled: Model) -> dict[str, dict[str, float]]:
    """Model name to metrics on the held-out rows; empty where a site alone cannot train."""
    held_out, names = HeldOut.of(sites.held_out, terms, "held-out rows"), shown_metrics(terms)
    scores: dict[str, dict[str, float]] = {}
    for name, table in sites.tables.items():
        try:
            alone = simulate(unprotected(terms), {name: table}).model
        except FedboostError:
            scores[f"{name} alone"] = {}
        else:
            scores[f"{name} alone"] = score(alone, held_out, names)
    ours = {"federated": model, "pooled": pooled}
    return {**scores, **{name: score(one, held_out, names) for name, one in ours.items()}}


def _print_scores(scores: Mapping[str, Mapping[str, float]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    names = list(scores["pooled"])
    table = Table("model", *names, title="on the same held-out rows", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for model, values in scores.items():
        cells = [f"{values[name]:.4f}" for name in names] if values else ["cannot train"]
        table.add_row(Text(printable(model)), *cells)
    print()
    Console().print(table)
