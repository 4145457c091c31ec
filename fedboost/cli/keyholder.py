"""`fedboost keyholder`: the process that holds the key of encrypted sums, without rows."""

from pathlib import Path
from typing import Annotated

import typer

from fedboost.cli.options import InsecureLoopback, LogFormat, LogLevel, Once, Wait

EPILOG = "Example: fedboost keyholder --config keyholder.toml"


def keyholder(
    config: Annotated[Path, typer.Option(help="The key holder's file, TOML.", show_default=False)],
    wait: Wait = 600,
    once: Once = False,
    insecure_loopback: InsecureLoopback = False,
    log_format: LogFormat = "text",
    log_level: LogLevel = "info",
) -> None:
    """Hold the key of sessions that encrypt sums: take part without rows, and open sums it cannot read."""
    from fedboost.cli.serving import take_part

    take_part("keyholder", config, wait, once, insecure_loopback, log_format, log_level)
