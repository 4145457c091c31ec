"""Mistakes with the status, with checks of terms at all sites, with approvals, and with keys by request."""

from mistakes import Mistake
from sites import fedboost

ASK = "--aggregator localhost:1 --insecure-loopback --wait 0.2"


def _root(folder):
    fedboost("keys", "init-consortium", "--folder", folder / "root")


def _requested(folder):
    _root(folder)
    fedboost("keys", "request", "north", "--folder", folder / "site")


def _signed(folder):
    _requested(folder)
    fedboost("keys", "sign", folder / "site/north/request.pem", "--folder", folder / "root", "--yes")


def _asked_elsewhere(folder):
    _signed(folder)
    fedboost("keys", "request", "north", "--folder", folder / "other")


MISTAKES = {
    "status of a port where nobody listens": Mistake(
        f"status {ASK}", ("no aggregator answers at localhost:1", "check the address")
    ),
    "status of a URL": Mistake(
        "status --aggregator https://fed:7070 --insecure-loopback", ("--aggregator", "HOST:PORT")
    ),
    "status without keys": Mistake("status --aggregator localhost:1", ("no keys", "--keys FOLDER")),
    "keys that are not there": Mistake(
        "status --aggregator localhost:1 --keys keys/marie", ("keys/marie", "no such folder")
    ),
    "check of terms without parties": Mistake(
        f"check alone.toml {ASK}", ("name no parties", 'parties = ["north", "south"]')
    ),
    "check of terms that are not there": Mistake(
        f"check nowhere.toml {ASK}", ("nowhere.toml", "cannot read")
    ),
    "check with the keys of a site": Mistake(
        "check terms.toml --aggregator localhost:1 --keys site/north",
        ("site/north", "the bundle of a party", "an analyst's is needed"),
        prepare=lambda folder: (
            _signed(folder),
            fedboost("keys", "accept", folder / "root/north.answer.pem", "--folder", folder / "site"),
        ),
    ),
    "approval for an analyst called any": Mistake(
        "approve terms.toml --config party.toml --analyst any", ("--analyst any", "no analyst has this name")
    ),
    "the key sent in place of the request": Mistake(
        "keys sign site/north/key.pem --folder root --yes",
        ("site/north/key.pem", "private key", "must not leave its site", "send request.pem"),
        prepare=_requested,
    ),
    "a certificate for a request": Mistake(
        "keys sign root/consortium.pem --folder root --yes",
        ("root/consortium.pem", "not a certificate request", "`fedboost keys request`"),
        prepare=_requested,
    ),
    "signing where the root is not": Mistake(
        "keys sign site/north/request.pem --folder site --yes",
        ("site/consortium-key.pem", "no such file", "init-consortium"),
        prepare=_requested,
    ),
    "signing twice": Mistake(
        "keys sign site/north/request.pem --folder root --yes",
        ("root/issued.txt", "'north' has a certificate already", "--renew"),
        prepare=_signed,
    ),
    "asking twice": Mistake(
        "keys request north --folder site",
        ("site/north", "exists already", "move it away"),
        prepare=_requested,
    ),
    "an answer for another key": Mistake(
        "keys accept root/north.answer.pem --folder other",
        ("root/north.answer.pem", "is not for the key in", "other/north/key.pem"),
        prepare=_asked_elsewhere,
    ),
    "the request in place of the answer": Mistake(
        "keys accept site/north/request.pem --folder site",
        ("site/north/request.pem", "is a request", "`fedboost keys sign`"),
        prepare=_requested,
    ),
}
