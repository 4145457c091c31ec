"""Consortia with keys over the network."""

from sites import NAMES, terms

THREE = NAMES[:3]


def masked(parties, **settings):
    return terms(parties, protection="masked", **settings)
