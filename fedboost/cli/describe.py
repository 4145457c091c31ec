"""`fedboost describe`: counts and quantiles over the rows of all parties."""

from typing import Annotated

import typer

from fedboost.cli.options import Aggregator, InsecureLoopback, Json, Keys, TermsFile, Wait

EPILOG = "Example: fedboost describe terms.toml --aggregator fed.example.org:7070 --keys keys/marie"


def describe(
    terms: TermsFile,
    aggregator: Aggregator,
    keys: Keys = None,
    insecure_loopback: InsecureLoopback = False,
    min_count: Annotated[
        int | None,
        typer.Option(help="Fewest rows of a count, in place of the terms' own.", min=1, show_default=False),
    ] = None,
    wait: Wait = 60,
    json: Json = False,
) -> None:
    """Count the rows of all sites before a training under these terms: missing values, levels, labels,
    quantiles; and say what to change in the terms. Sites have to agree to it as to a training."""
    from fedboost.cli.output import notice, show
    from fedboost.people import description
    from fedboost.people.status import waiting
    from fedboost.runtime.analyst import connect
    from fedboost.runtime.config import check_address
    from fedboost.runtime.description import Description
    from fedboost.runtime.terms_file import read_terms
    from fedboost.terms.describing import terms_to_describe

    check_address(aggregator, "--aggregator")
    agreed = terms_to_describe(read_terms(terms), min_count)
    session = connect(aggregator, keys, insecure_loopback).train(
        agreed, wait, lambda parties: notice(waiting(parties, session.absent))
    )
    try:
        known = Description.of(session.model, session.traffic)
    except KeyboardInterrupt:
        session.stop()
        raise
    show(json, [known.summary | {"advice": [*known.advice]}], description.describe(known.summary))
