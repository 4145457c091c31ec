"""Policies and offers."""

import os

from sites import terms

from fedboost.errors import Refused
from fedboost.holders.columns import holder_for
from fedboost.protocol.messages import Leave, Offer
from fedboost.protocol.party import PartySession
from fedboost.protocol.site import Site
from fedboost.runtime.site.policy import Policy
from fedboost.terms.reading import read_model

THREE = ("north", "south", "east")
NAMED = {"parties": "any", "columns": "any", "min_rows_per_leaf": 1}
"""What a policy says of names here, unless a test is about it; and leaves are not what most are about."""
AT_THE_ROWS = "the policy has nothing against the terms"


def policy(**rules):
    """A policy as the table of a file gives it, where names are no matter."""
    return read_model(Policy, {**NAMED, **rules}, "party.toml")


def offered(parties=THREE, **settings):
    """Terms that such a policy accepts, but for these settings."""
    return terms(parties, **{"protection": "masked", **settings})


def answer(rules, agreement, ask=None):
    """What site north says when it is admitted; it never gets further than asking for its rows."""

    def read_shard(_):
        raise Refused("test", AT_THE_ROWS)

    site = Site(
        "north",
        holder_for(read_shard, "north"),
        os.urandom,
        permit=lambda offer: rules.permit(offer.terms, "north", ask),
    )
    (said,) = PartySession(site).handle(Offer("s", agreement))
    assert isinstance(said, Leave)
    return said.reason


def refused(rules, agreement, ask=None):
    """The site's one sentence of refusal, without what all have in common and what to do; no row is read for
    it."""
    reason = answer(rules, agreement, ask)
    assert reason != AT_THE_ROWS
    assert len(reason.splitlines()) == 1
    return reason.removeprefix("site north refuses: its policy has ").rpartition("; ")[0] or reason


def accepted(rules, agreement, ask=None):
    """Whether the site goes on to read its rows."""
    return answer(rules, agreement, ask) == AT_THE_ROWS
