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
from fedboost.results.estimate import MBIT, Case, Cost

ESTIMATE_EPILOG = (
    "Example: fedboost estimate terms.toml --rows 100000 --parties 5 --rtt 50 --bandwidth 100\n\n"
    "Example: fedboost estimate --rows 2000000000 --features 80 --max-bin 255 --parties 16"
)
MAX_RTT_MS = 60_000
MIN_BANDWIDTH_MBIT, MAX_BANDWIDTH_MBIT = 0.001, 1_000_000
WORKER_SECONDS, LINK_SECONDS = 2e-4, 3e-3
"""Seconds of a site per turn and worker, and per round and worker (docs/scaling.md)."""


def _number(text: str, least: float = 1) -> Any:
    return typer.Option(help=text, min=least)


def estimate(
    rows: Annotated[
        int, _number("Total number of rows, or of matched rows if parties hold different columns.")
    ],
    terms: Annotated[Path | None, typer.Argument(help="Terms file (TOML), or none and --features.")] = None,
    features: Annotated[int | None, _number("Number of features, without terms.")] = None,
    max_bin: Annotated[int | None, _number("As in terms (default: 256).", 2)] = None,
    max_depth: Annotated[int | None, _number("As in terms (default: 6).")] = None,
    rounds: Annotated[int | None, _number("As in terms (default: 100).")] = None,
    protection: Annotated[
        str | None, typer.Option(help="As in terms (default: plain; if set, protections are compared).")
    ] = None,
    vote_top_k: Annotated[int | None, _number("Votes per party in layout votes (default: 20).")] = None,
    parties: Annotated[int | None, _number("Number of parties (default: those of the terms, or 3).")] = None,
    max_rows: Annotated[int, _number("Rows that fit on one party's machine (0: any number).", 0)] = 0,
    nthread: Annotated[int, _number("Threads of each party.")] = 1,
    rtt: Annotated[float, typer.Option(help="Network round-trip time in milliseconds.")] = 0.0,
    bandwidth: Annotated[
        float | None, typer.Option(help="Bandwidth of each party's link in Mbit/s (default: unlimited).")
    ] = None,
    aggregator_bandwidth: Annotated[
        float | None,
        typer.Option(help="Bandwidth of the aggregator's link in Mbit/s (default: as --bandwidth)."),
    ] = None,
    adders: Annotated[int, _number("Number of adders between parties and aggregator.", 0)] = 0,
    cores: Annotated[
        int, _number("Cores of one machine that runs all processes (0: each has its own machine).", 0)
    ] = 0,
    workers: Annotated[
        int | None, _number("Number of workers at a site, with one thread each (adds their costs).")
    ] = None,
    json: Json = False,
) -> None:
    """Estimate the time, traffic and memory of training. Evaluates formulas with measured constants, and
    trains nothing. Compares layouts, i.e. what parties hold and send, and protections: histograms of all
    features (rows), votes and histograms of some features (votes), different columns (columns, blocks), and
    all rows in one place. Without terms, --features and other options describe the training."""
    numbers = {"features": features, "max_bin": max_bin, "max_depth": max_depth, "rounds": rounds}
    given: dict[str, Any] = {**numbers, "protection": protection, "vote_top_k": vote_top_k}
    given = {name: value for name, value in given.items() if value is not None}
    machines = {
        **{"nthread": nthread, "cores": cores, "adders": adders, "max_rows": max_rows},
        "round_trip": _checked_rtt(rtt) / 1e3,
        "bandwidth": _bytes_a_second("--bandwidth", bandwidth),
    }
    collected = bandwidth if aggregator_bandwidth is None else aggregator_bandwidth
    machines["aggregator_bandwidth"] = _bytes_a_second("--aggregator-bandwidth", collected)
    if terms is None:
        case, layouts = _case(rows, parties or 3, given, machines)
    else:
        case, layouts = _case_of_terms(terms, rows, parties, given, machines)
    if adders > case.parties:
        raise ConfigError("option-invalid", f"--adders is {adders}, but there are {case.parties} parties")
    costs = [model.predict(in_groups(case, layout), layout) for layout in layouts]
    least = model.least_of(costs)
    case = in_groups(case, least.layout)
    rows_of_table = () if case.protection is None else _protections(case.name)[1:]
    others = [model.predict(replace(case, protection=row), least.layout) for row in rows_of_table]
    _show(case, costs, others, None if workers is None else _workers(case, workers), json)


def _case(rows: int, parties: int, given: dict[str, Any], machines: dict[str, Any]) -> tuple[Case, list[str]]:
    """Return a training without terms, and all layouts."""
    if "features" not in given:
        raise ConfigError("option-missing", "specify a terms file, or --features (the number of features)")
    if "protection" in given:
        given["protection"] = _protections(given["protection"])[0]
    _check_rows(rows, parties)
    layouts = [layout for layout in model.LAYOUTS if layout != model.ADDERS or machines["adders"]]
    return Case(rows=rows, parties=parties, **given, **machines), layouts


def _case_of_terms(
    path: Path, rows: int, parties: int | None, given: dict[str, Any], machines: dict[str, Any]
) -> tuple[Case, list[str]]:
    """Return the training that the terms describe, and the layouts that are possible without moving data."""
    agreed = _read(path)
    if given:
        option = f"--{next(iter(given)).replace('_', '-')}"
        raise ConfigError("option-invalid", f"{option} is for estimates without terms; change {path} instead")
    apart, adders = agreed.vertical.is_used, [model.ADDERS] * bool(machines["adders"])
    if apart and parties is not None:
        raise ConfigError(
            "option-rows",
            "--parties requires parties with the same columns, but these terms are for different columns",
        )
    holders = agreed.vertical.blocks_of(agreed.parties)
    number = parties or (sum(len(block.parties) for block in holders) if apart else len(agreed.holders)) or 3
    _check_rows(rows, number)
    case = Case.of(agreed, rows, number, **machines)
    if apart:
        return case, [model.COLUMNS if case.groups == 1 else model.BLOCKS, model.ONE_PLACE]
    return case, [model.ROWS, *adders, model.VOTES, model.ONE_PLACE]


def in_groups(case: Case, layout: str) -> Case:
    """Return a training in which parties form equal groups, if the layout is `blocks` and the terms name no
    groups. There are about as many groups as parties in each."""
    if layout != model.BLOCKS or case.groups > 1:
        return case
    numbers = range(1, math.isqrt(case.parties) + 1)
    return replace(case, groups=max(number for number in numbers if case.parties % number == 0))


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


def _check_rows(rows: int, parties: int) -> None:
    if rows < parties:
        raise ConfigError(
            "option-invalid", f"--rows is {rows}, but {parties} parties need at least one row each"
        )


def _checked_rtt(rtt: float) -> float:
    if not 0 <= rtt <= MAX_RTT_MS:
        raise ConfigError(
            "estimate-rtt-range", f"--rtt is {rtt:g}; specify milliseconds from 0 to {MAX_RTT_MS:,}"
        )
    return rtt


def _bytes_a_second(option: str, value: float | None) -> float:
    if value is not None and not MIN_BANDWIDTH_MBIT <= value <= MAX_BANDWIDTH_MBIT:
        limits = f"from {MIN_BANDWIDTH_MBIT} to {MAX_BANDWIDTH_MBIT:,}"
        raise ConfigError("estimate-bandwidth-range", f"{option} is {value:g}; specify Mbit/s {limits}")
    return (value or 0.0) * MBIT


def _workers(case: Case, number: int) -> dict[str, Any]:
    """Return the costs inside a site with an equal share of all rows, whose rows are on several workers."""
    from fedboost.runtime.workers.holder import growing_bytes, loading_bytes

    load = model.load_of(case, model.ROWS)
    rows = math.ceil(case.rows / case.parties / number)
    size = load.sent * number
    seconds = model.total(model.party_counts(load)) / number
    return {
        **{"event": "workers", "workers": number, "rows": rows, "bytes_a_round": size},
        "loading_bytes": loading_bytes(rows, case.features),
        "growing_bytes": growing_bytes(rows, case.features),
        "seconds_a_round": seconds + number * (load.turns * WORKER_SECONDS + LINK_SECONDS),
    }


def _show(
    case: Case, costs: list[Cost], others: list[Cost], workers: dict[str, Any] | None, json: bool
) -> None:
    from fedboost.views import estimate as view

    least = model.least_of(costs)
    saved = model.saved_by_subtraction(case, least.layout)
    choice: dict[str, Any] = {
        "event": "least",
        "layout": least.layout,
        "most": least.most,
        "why": view.why(case, costs),
    }
    choice |= {"saved_bytes": saved[0], "saved_seconds": saved[1]}
    lines = [*map(asdict, [*costs, *others]), choice, *([workers] if workers else [])]
    document = view.estimate(case, costs, others, saved)
    if workers:
        document = replace(document, blocks=[*document.blocks, view.workers(workers)])
    show(json, lines, document)
