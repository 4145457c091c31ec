"""`fedboost predict --party`: predictions by parties that hold different columns."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedboost.errors import ConfigError

if TYPE_CHECKING:
    from fedboost.runtime.data.database import Database, Reading
    from fedboost.runtime.data.table import TableParts
    from fedboost.runtime.predictions import Columns

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
    from fedboost.cli.output import notice
    from fedboost.cli.serving import site_and_keys
    from fedboost.people.status import waiting
    from fedboost.runtime.data.database import AS_USUAL
    from fedboost.runtime.model import load_trained
    from fedboost.runtime.party_model import PartyModel
    from fedboost.runtime.predictions import predicted_columns
    from fedboost.runtime.site.predicting import predict_with_parties
    from fedboost.runtime.telemetry import logger

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
