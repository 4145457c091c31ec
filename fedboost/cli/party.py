"""`fedboost party`: the process of a site with rows."""

from fedboost.cli.options import InsecureLoopback, LogFormat, LogLevel, Once, SiteFile, Wait

EPILOG = "Example: fedboost party --config party.toml"


def party(
    config: SiteFile,
    wait: Wait = 600,
    once: Once = False,
    insecure_loopback: InsecureLoopback = False,
    log_format: LogFormat = "text",
    log_level: LogLevel = "info",
) -> None:
    """Take part with this site's rows, session after session."""
    from fedboost.cli.serving import take_part

    take_part("party", config, wait, once, insecure_loopback, log_format, log_level)
