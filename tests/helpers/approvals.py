"""A site that is asked, and what is typed there."""

from pathlib import Path

from sites import fedboost, terms

from fedboost.errors import Refused
from fedboost.runtime.site.approval import policy_for
from fedboost.runtime.site.config import read_party

THREE = ("north", "south", "east")
SITE = 'party = "north"\naggregator = "localhost:7070"\ndata = "rows.csv"\n'


def offered(**settings):
    return terms(THREE, **{"protection": "masked", **settings})


def run(*options, terms_file="terms.toml"):
    return fedboost("approve", terms_file, "--config", "party.toml", *options)


def permits(agreement, analyst=""):
    """What the site says to an offer of these terms: '' if it takes part."""
    config = read_party(Path("party.toml"), None)
    try:
        policy_for(config, agreement, analyst).permit(agreement, config.party, analyst=analyst)
    except Refused as error:
        return error.public
    return ""


def approvals(folder):
    return sorted((folder / "fedboost.state" / "north" / "approved").glob("*"))
