"""`fedboost assemble`: the model of the parts that parties kept."""

from pathlib import Path
from typing import Annotated

import typer

from fedboost.cli.options import Force

EPILOG = "Example: fedboost assemble model.json bank.json telco.json --out whole.json"


def assemble(
    parts: Annotated[
        list[Path],
        typer.Argument(help="Files of the parts: of the parties, and the one that `fedboost train` saved."),
    ],
    out: Annotated[Path, typer.Option(help="Where to save the model.", show_default=False)],
    force: Force = False,
) -> None:
    """Put the parts of a model together that parties with different columns kept: an ordinary XGBoost file.
    The file that `fedboost train` saved brings metrics and signatures, and each part must be the one that its
    party signed."""
    from fedboost.cli.output import show
    from fedboost.people.text import one_line
    from fedboost.runtime.files import check_writable
    from fedboost.runtime.model import assemble

    check_writable(out, *parts, force=force)
    model = assemble(parts)
    model.save(out)
    show(False, {}, [one_line(f"model: {out} (XGBoost JSON, {len(model.booster.trees)} trees)")])
