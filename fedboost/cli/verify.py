"""`fedboost verify`: who signed a model, and if that holds.

Promises: exit code 0 if every signature holds and there are enough of them, 1 if not.
Refuses: to judge signatures without the consortium's root (ConfigError, exit code 2).
"""

from pathlib import Path
from typing import Annotated

import typer

from fedboost.cli.options import Json, ModelFile
from fedboost.errors import Altered, ConfigError

EPILOG = (
    "Example: fedboost verify model.json --keys keys/marie\n\n"
    "Example: fedboost verify model.json --consortium keys/consortium.pem"
)
DOES_NOT_HOLD = 1


def verify(
    model: ModelFile,
    keys: Annotated[
        Path | None,
        typer.Option(help="Folder of anybody's keys: its consortium.pem and denied.txt.", show_default=False),
    ] = None,
    consortium: Annotated[
        Path | None, typer.Option(help="The consortium's root, consortium.pem.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Say who signed a model, and check that: its trees, its terms and the analyst's request. Exit code 0 if
    it holds, 1 if not."""
    from datetime import UTC, datetime

    from fedboost.cli.output import show
    from fedboost.people import as_json
    from fedboost.people.training import verification
    from fedboost.privacy.identity import to_pem
    from fedboost.runtime.model import load_trained
    from fedboost.runtime.net.keys import read_certificates, read_trust
    from fedboost.runtime.signed_model import verified

    if (keys is None) == (consortium is None):
        raise ConfigError(
            "give --keys FOLDER or --consortium FILE: signatures are checked against the consortium's root"
        )
    if keys is not None:
        roots, denied = read_trust(keys)
    else:
        assert consortium is not None
        roots, denied = to_pem(*read_certificates(consortium)), frozenset()
    try:
        facts = verified(load_trained(model), str(model), roots, datetime.now(UTC), denied)
    except Altered as error:
        altered = {"model": str(model), "holds": False, "conclusion": str(error)}
        show(json, [altered], [f"It does NOT hold: {error}"])
        raise typer.Exit(DOES_NOT_HOLD) from None
    show(json, as_json.verification(facts), verification(facts))
    if not facts.holds:
        raise typer.Exit(DOES_NOT_HOLD)
