"""`fedboost check TERMS --aggregator HOST:PORT`: would the sites take part under these terms?"""

from pathlib import Path

import typer

REFUSED = 1
"""Exit code if a site would not, or cannot be asked."""


def check_sites(
    terms: Path,
    aggregator: str,
    keys: Path | None,
    insecure_loopback: bool,
    describe: bool,
    wait: float,
    json: bool,
) -> None:
    """Ask all parties of the terms whether they would take part, and print what each has against it. Exit
    code 1 unless all would. describe: in a session that describes the rows, before a training under them."""
    from fedboost.cli.output import notice, show
    from fedboost.people import as_json
    from fedboost.people import status as text
    from fedboost.runtime.analyst import connect
    from fedboost.runtime.config import check_address
    from fedboost.runtime.terms_file import read_terms
    from fedboost.terms.tasks import terms_to_describe

    check_address(aggregator, "--aggregator")
    agreed = read_terms(terms)
    agreed = terms_to_describe(agreed) if describe else agreed
    connection = connect(aggregator, keys, insecure_loopback)
    sites = connection.check(agreed, wait, lambda who: notice(text.waiting(who, {})))
    show(json, map(as_json.site_reply, sites), text.check(sites))
    if not all(site.would for site in sites):
        raise typer.Exit(REFUSED)
