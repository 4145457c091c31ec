"""`fedboost estimate` estimates time, traffic and memory of a training by formulas."""

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from fedboost.cli.common import Json
from fedboost.cli.output import show
from fedboost.errors import ConfigError
from fedboost.results import estimate as model
from fedboost.results.estimate import MBIT, Case
from fedboost.views import estimate as view

ESTIMATE_EPILOG = (
    "Example: fedboost estimate terms.toml --rows 100000 --parties 5 --rtt 50 --bandwidth 100\n\n"
    "Example: fedboost estimate --rows 2000000000 --features 80 --max-bin 255 --parties 16"
)
MAX_RTT_MS, MIN_BANDWIDTH_MBIT, MAX_BANDWIDTH_MBIT = 60_000, 0.001, 1_000_000
WORKER_SECONDS, LINK_SECONDS = 2e-4, 3e-3
"""Seconds of a site per turn and worker, and per round and worker (docs/scaling.md)."""


def _help(text: str, least: float | None = None) -> Any:
    return typer.Option(help=text, min=least)


def estimate(
    rows: Annotated[
        int, _help("Total number of rows, or of matched rows if parties hold different columns.", 1)
    ],
    terms: Annotated[Path | None, typer.Argument(help="Terms file (TOML), or none and --features.")] = None,
    features: Annotated[int | None, _help("Number of features, without terms.", 1)] = None,
    max_bin: Annotated[int | None, _help("As in terms (default: 256).", 2)] = None,
    max_depth: Annotated[int | None, _help("As in terms (default: 6).", 1)] = None,
    rounds: Annotated[int | None, _help("As in terms (default: 100).", 1)] = None,
    protection: Annotated[
        str | None, _help("As in terms (default: plain; if set, protections are compared).")
    ] = None,
    vote_top_k: Annotated[int | None, _help("Votes per party in layout votes (default: 20).", 1)] = None,
    parties: Annotated[int | None, _help("Number of parties (default: those of the terms, or 3).", 1)] = None,
    max_rows: Annotated[int, _help("Rows that fit on one party's machine (0: any number).", 0)] = 0,
    nthread: Annotated[int, _help("Threads of each party.", 1)] = 1,
    rtt: Annotated[float, _help("Network round-trip time in milliseconds.")] = 0.0,
    bandwidth: Annotated[
        float | None, _help("Bandwidth of each party's link in Mbit/s (default: unlimited).")
    ] = None,
    aggregator_bandwidth: Annotated[
        float | None, _help("Bandwidth of the aggregator's link in Mbit/s (default: as --bandwidth).")
    ] = None,
    adders: Annotated[int, _help("Number of adders between parties and aggregator.", 0)] = 0,
    cores: Annotated[
        int, _help("Cores of one machine that runs all processes (0: each has its own machine).", 0)
    ] = 0,
    workers: Annotated[
        int | None, _help("Number of workers at a site, with one thread each (adds their costs).", 1)
    ] = None,
    json: Json = False,
) -> None:
    """Estimate the time, traffic and memory of training. Evaluates formulas with measured constants, and
    trains nothing. Compares layouts, i.e. what parties hold and send, and protections: histograms of all
    features (rows), votes and histograms of some features (votes), different columns (columns, blocks), and
    all rows in one place. Without terms, --features and other options describe the training."""
    if not 0 <= rtt <= MAX_RTT_MS:
        raise ConfigError(
            "estimate-rtt-range", f"--rtt is {rtt:g}; specify milliseconds from 0 to {MAX_RTT_MS:,}"
        )
    machines: dict[str, Any] = {"nthread": nthread, "cores": cores, "adders": adders, "max_rows": max_rows}
    machines["round_trip"] = rtt / 1e3
    collected = bandwidth if aggregator_bandwidth is None else aggregator_bandwidth
    for name, speed in (("bandwidth", bandwidth), ("aggregator_bandwidth", collected)):
        if speed is not None and not MIN_BANDWIDTH_MBIT <= speed <= MAX_BANDWIDTH_MBIT:
            option = f"--{name.replace('_', '-')}"
            limits = f"from {MIN_BANDWIDTH_MBIT} to {MAX_BANDWIDTH_MBIT:,}"
            raise ConfigError("estimate-bandwidth-range", f"{option} is {speed:g}; specify Mbit/s {limits}")
        machines[name] = (speed or 0.0) * MBIT
    numbers = {"features": features, "max_bin": max_bin, "max_depth": max_depth, "rounds": rounds}
    options: dict[str, Any] = {**numbers, "protection": protection, "vote_top_k": vote_top_k}
    given = {name: value for name, value in options.items() if value is not None}
    case, layouts = _training(terms, rows, parties, given, machines)
    if rows < case.parties:
        raise ConfigError(
            "option-invalid", f"--rows is {rows}, but {case.parties} parties need at least one row each"
        )
    if adders > case.parties:
        raise ConfigError("option-invalid", f"--adders is {adders}, but there are {case.parties} parties")
    if adders and (case.shrinks or case.encrypts):
        why = 'on_loss = "shrink"' if case.shrinks else f"protection {case.name}"
        raise ConfigError("estimate-adders-idle", f"--adders: with {why}, adders pass reports on, unadded")
    costs = [model.predict(case, layout) for layout in layouts if adders or layout != model.ADDERS]
    least = model.least_of(costs)
    compared = [] if case.protection is None else _protections(case.name)[1:]
    compared = [row for row in compared if least.layout != model.ADDERS or not row.uses_key_holder]
    others = [model.predict(replace(case, protection=row), least.layout) for row in compared]
    both = model.predict(replace(case, subtraction=False), least.layout)
    choice = {"event": "least", "layout": least.layout, "most": least.most, "why": view.why(case, costs)}
    saved = {"saved_bytes": both.sent - least.sent, "saved_seconds": both.seconds - least.seconds}
    inside = None if workers is None else _workers(case, workers)
    lines = [*map(asdict, [*costs, *others]), choice | saved, *([inside] if inside else [])]
    show(json, lines, view.estimate(case, costs, others, saved, inside))


def _training(
    path: Path | None, rows: int, parties: int | None, given: dict[str, Any], machines: dict[str, Any]
) -> tuple[Case, tuple[str, ...]]:
    """Return the training, and all layouts or those that the terms allow without moving data."""
    if path is None:
        if "features" not in given:
            raise ConfigError(
                "option-missing", "specify a terms file, or --features (the number of features)"
            )
        if "protection" in given:
            given["protection"] = _protections(given["protection"])[0]
        return Case(rows=rows, parties=parties or 3, **given, **machines), model.LAYOUTS
    agreed = _read(path)
    if given:
        option = f"--{next(iter(given)).replace('_', '-')}"
        raise ConfigError("option-invalid", f"{option} is for estimates without terms; change {path} instead")
    is_apart = agreed.vertical.is_used
    if is_apart and parties is not None:
        raise ConfigError(
            "option-rows",
            "--parties requires parties with the same columns, but these terms are for different columns",
        )
    named = sum(len(block.parties) for block in agreed.vertical.blocks_of(agreed.parties))
    case = Case.of(agreed, rows, parties or named or len(agreed.holders) or 3, **machines)
    if is_apart:
        return case, (model.COLUMNS if case.groups == 1 else model.BLOCKS, model.ONE_PLACE)
    return case, (model.ROWS, model.ADDERS, model.VOTES, model.ONE_PLACE)


def _read(path: Path) -> Any:
    """Read terms for training. Models to continue are read by a module that is slow to import."""
    from fedboost.runtime.config import TERMS, read_toml
    from fedboost.terms.terms import Terms

    settings = read_toml(path, TERMS)
    if {"xgb_model", "program"} & {*settings}:
        from fedboost.runtime.tasks import read_training

        return read_training(path)
    return Terms.read(settings, str(path))


def _protections(name: str) -> list[Any]:
    """Return the rows of all protections, first the one with this name. They are slow to import."""
    from fedboost.privacy.protections import PROTECTIONS

    if name not in PROTECTIONS:
        known = ", ".join(PROTECTIONS)
        raise ConfigError("option-invalid", f"--protection is {name}; choose one of: {known}")
    return [PROTECTIONS[name], *(row for row in PROTECTIONS.values() if row.name != name)]


def _workers(case: Case, number: int) -> dict[str, Any]:
    """Return the costs inside a site with an equal share of all rows, whose rows are on several workers."""
    from fedboost.runtime.workers.holder import growing_bytes, loading_bytes

    load = model.load_of(replace(case, nthread=1), model.ROWS)
    rows, turns = math.ceil(case.rows / case.parties / number), load.turns * WORKER_SECONDS + LINK_SECONDS
    facts = {"event": "workers", "workers": number, "rows": rows, "bytes_a_round": load.sent * number}
    facts["loading_bytes"] = loading_bytes(rows, case.features)
    facts["growing_bytes"] = growing_bytes(rows, case.features)
    return facts | {"seconds_a_round": model.total(load.party | load.masks) / number + number * turns}
