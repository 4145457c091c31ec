"""`fedboost describe`: counts and quantiles over the rows of all parties."""

from fedboost.cli.options import (
    Aggregator,
    Force,
    InsecureLoopback,
    Json,
    Keys,
    MinCount,
    PageFile,
    TermsFile,
    Wait,
)

EPILOG = "Example: fedboost describe terms.toml --aggregator fed.example.org:7070 --keys keys/marie"


def describe(
    terms: TermsFile,
    aggregator: Aggregator,
    keys: Keys = None,
    insecure_loopback: InsecureLoopback = False,
    min_count: MinCount = None,
    wait: Wait = 60,
    report: PageFile = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Count the rows of all sites before a training under these terms: missing values, levels, labels,
    quantiles; and say what to change in the terms. Sites have to agree to it as to a training."""
    from fedboost.cli.pages import check_page
    from fedboost.cli.sessions import ended, show_result
    from fedboost.people import results
    from fedboost.runtime.config import check_address
    from fedboost.runtime.results import Description
    from fedboost.runtime.terms_file import read_terms
    from fedboost.terms.tasks import terms_to_describe

    check_address(aggregator, "--aggregator")
    check_page(report, terms, force=force)
    agreed = terms_to_describe(read_terms(terms), min_count)
    session = ended(aggregator, keys, insecure_loopback, agreed, wait)
    known = Description.of(session.model, session.traffic)
    result = known.summary | {"advice": [*known.advice]}
    show_result(json, result, results.describe(known.summary), known, report)
