"""`fedboost estimate`: how long a training would take, and how much would travel, by protection."""

from pathlib import Path

import rich.table
from rich.console import Console

from fedboost.cli.show import print_json
from fedboost.privacy.protections import PROTECTIONS
from fedboost.protocol.terms import Terms
from fedboost.runtime.config import read_terms
from fedboost.runtime.local.estimate import estimate

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0


def run_estimate(
    terms_file: Path, rows: int, features: int | None, parties: int | None, as_json: bool
) -> None:
    """`fedboost estimate`."""
    terms = read_terms(terms_file)
    if features is not None:
        names = [f"f{number}" for number in range(features)]
        columns = {"label": "a label that is no feature", "numeric": names}
        own = {name: getattr(terms, name) for name in ("rounds", "max_depth", "max_bin", "key_bits")}
        terms = Terms.read({"columns": columns, **own})
    sites = parties or len(terms.parties) or 3
    found = estimate(terms, rows, sites)
    if as_json:
        for one in found:
            print_json(**vars(one), rows=rows, parties=sites)
        return
    table = rich.table.Table()
    for heading in ("protection", "a round", f"{terms.rounds} rounds", "MB a party sends a round", "in all"):
        table.add_column(heading, justify="left" if heading == "protection" else "right")
    for one in found:
        megabytes = f"{one.megabytes:,.2f}", f"{one.megabytes * terms.rounds:,.0f}"
        table.add_row(one.protection, duration(one.seconds_a_round), duration(one.seconds), *megabytes)
    console = Console(markup=False, highlight=False)
    console.print(table)
    console.print(
        f"Of full trees, {rows:,} rows at {sites} parties with machines and one core like this one, and no "
        f"network between them: it adds its round trips, and the bytes."
    )
    missing = [name for name in PROTECTIONS if name not in [one.protection for one in found]]
    for name in missing:
        console.print(f'{name} is not installed here: pip install "fedboost[{name}]"')


def duration(seconds: float) -> str:
    """For people."""
    for size, unit in ((DAY, "days"), (HOUR, "h"), (MINUTE, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s"
