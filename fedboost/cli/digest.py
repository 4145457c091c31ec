"""`fedboost digest`: terms in words, and their digest."""

from fedboost.cli.options import TermsFile
from fedboost.errors import ConfigError

EPILOG = "Example: fedboost digest terms.toml"


def digest(terms: TermsFile) -> None:
    """Say what a terms file asks for, and its digest, by which sites know it."""
    from fedboost.people.summary import summary
    from fedboost.runtime.site.policy_keys import COMMAND
    from fedboost.runtime.terms_file import read_terms

    agreed = read_terms(terms)
    if not agreed.parties:
        raise ConfigError(
            f'{terms}: names no parties, and no site is offered such terms; add parties = ["north", "south"]'
        )
    print(summary(agreed))
    print(f"\nA site approves these terms, and no others, by\n{COMMAND}")
