"""`fedboost estimate`: the time and the bytes of a training, by protection."""

from typing import Annotated

import typer

from fedboost.cli.options import Json, TermsFile

EPILOG = "Example: fedboost estimate terms.toml --rows 100000 --parties 5"


def estimate(
    terms: TermsFile,
    rows: Annotated[int, typer.Option(help="Rows of all parties.", min=1, show_default=False)],
    features: Annotated[
        int | None,
        typer.Option(help="Numeric features, in place of the terms' columns.", min=1, show_default=False),
    ] = None,
    parties: Annotated[
        int | None, typer.Option(help="In place of those of the terms.", min=1, show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Estimate the time and the bytes of a training under each protection, by a try on this machine."""
    from fedboost.cli.output import show
    from fedboost.people import as_json, training
    from fedboost.privacy.protections import PROTECTIONS
    from fedboost.runtime.local import estimate as calibration
    from fedboost.runtime.terms_file import read_terms
    from fedboost.terms.terms import Terms

    agreed = read_terms(terms)
    if features is not None:
        names = [f"f{number}" for number in range(features)]
        columns = {"label": "a label that is no feature", "numeric": names}
        own = {name: getattr(agreed, name) for name in ("rounds", "max_depth", "max_bin", "key_bits")}
        agreed = Terms.read({"columns": columns, **own})
    number = parties or len(agreed.parties) or 3
    estimates = calibration.estimate(agreed, rows, number)
    known = [facts.protection for facts in estimates]
    missing = [name for name in PROTECTIONS if name not in known]
    show(
        json,
        as_json.estimates(estimates, rows, number),
        training.estimates(estimates, missing, agreed.trees.rounds, rows, number),
    )
