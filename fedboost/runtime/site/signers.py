"""Who signed what an aggregator hands on to a site.

Refuses: terms that nobody signed as they were sent, before they are read (PeerError, Refused): to read them
may take long, and an aggregator may send what it likes.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from cryptography import x509

from fedboost.errors import ConfigError, FedboostError, PeerError, Refused
from fedboost.gbdt.booster import Booster
from fedboost.protocol import key_exchange
from fedboost.protocol.key_exchange import SESSION, Credentials
from fedboost.protocol.messages import Attest, Offer, Request
from fedboost.runtime.net.keys import read_trust
from fedboost.runtime.signed_model import SignedModel, SignedSession, belonging, session_of
from fedboost.runtime.site.config import PartyConfig
from fedboost.runtime.site.policy import UNCHECKED, ModelSigners
from fedboost.terms import continuation
from fedboost.terms.terms import Terms


def check_unread(
    party: str, credentials: Credentials | None, text: str, request: Request | None, wish: bytes = SESSION
) -> None:
    """Raise PeerError or Refused unless terms of this text are signed for this wish. Without keys nothing
    is."""
    if credentials is None:
        return
    if request is None:
        raise Refused(f"party {party}: the terms are signed by no analyst")
    key_exchange.check_unread(credentials, text, request, wish)


def vouched(
    party: str, credentials: Callable[[], Credentials | None], text: str, request: Request | None
) -> None:
    """Raise PeerError or Refused unless terms of this text are signed for a session, by what is trusted
    now."""
    check_unread(party, credentials(), text, request)


def analyst_of(offer: Offer, credentials: Credentials | None) -> str:
    """The analyst who signed an offer; '' where nobody did, for which the session leaves it."""
    if credentials is None or offer.request is None:
        return ""
    try:
        return key_exchange.check_request(credentials, offer.terms, offer.request)
    except PeerError:
        return ""


# ---- Who signed the model that some terms measure: the check of its signatures at a site ----------------
# Promises: a name is told only if a certificate of that name, along a chain to a root that the site trusts,
# signed all that the model predicts with, under the terms that it brings along; features and levels mean in
# these terms what they meant in the training. A certificate that has expired since counts: it was in date
# when the model was made. One that is denied does not.


def signers_at(config: PartyConfig, terms: Terms, credentials: Credentials | None = None) -> ModelSigners:
    """Of this site and the parties that its policy names, those that signed the model in terms that measure
    one. credentials: what the site trusts, None to read it from its keys."""
    if not terms.task.measures or (credentials is None and config.keys is None):
        return UNCHECKED
    if credentials is not None:
        roots, denied = credentials.roots, frozenset(credentials.denied)
    else:
        assert config.keys is not None
        try:
            roots, denied = read_trust(config.keys)
        except (ConfigError, OSError) as error:
            return ModelSigners(unknown=f"what this site trusts cannot be read: {error}")
    wanted = {config.party, *config.policy.evaluate_signers}
    return ModelSigners(signers_of(terms, wanted, roots, datetime.now(UTC), denied))


def signers_of(
    terms: Terms, wanted: Collection[str], roots: bytes, now: datetime, denied: Collection[str]
) -> frozenset[str]:
    """Of the parties wanted those that signed the model in these terms. roots: PEM, what is trusted."""
    trained, session = terms.trained, _session(terms)
    if trained is None or terms.earlier is None or session is None:
        return frozenset()
    model = _model(terms.earlier, trained, terms)
    if model is None or not _means_the_same(terms, trained):
        return frozenset()
    return frozenset(
        name
        for name, attest in session.attestations.items()
        if name in wanted and _holds(model, session, name, attest, roots, now, denied)
    )


def _session(terms: Terms) -> SignedSession | None:
    assert terms.xgb_model is not None
    try:
        return session_of(continuation.facts_of(terms.xgb_model))
    except (LookupError, ValueError, TypeError, AttributeError, RecursionError):
        return None


def _model(booster: Booster, trained: Terms, terms: Terms) -> SignedModel | None:
    """The model without signatures, if its parties signed all of its trees: of a program of one's own they
    sign the questions alone, and where columns are held apart each signs what it was told. No signature says
    which output a tree is for, which means are of which column, and what constants there are but the first:
    that has to follow from the terms."""
    if trained.session.program != "boosting" or trained.blocks:
        return None
    own = belonging(booster, trained)
    if own is None or own.roots != len(trained.roots):
        return None
    constants = {tuple(tree.value) for tree in own.trees[: own.roots]} if own.begins_with_a_leaf else ()
    ordered = [*own.target_means] == [*trained.columns.target_means]
    if own.num_parallel_tree != trained.trees.num_parallel_tree or not ordered:
        return None
    if trained.columns.base_margin is not None and len(constants) > 1:
        return None
    return SignedModel(own, trained, (), summary=_reference(trained, terms))


def _reference(trained: Terms, terms: Terms) -> dict[str, Any]:
    """The edges of bins that the parties signed with the trees, where the model has a reference."""
    if not trained.evaluation.reference or terms.xgb_model is None:
        return {}
    try:
        numeric, _ = continuation.bins_of(terms.xgb_model)
    except ConfigError:
        return {}
    return {"reference": {"columns": [{"edges": edges} for edges in numeric]}}


def _means_the_same(terms: Terms, trained: Terms) -> bool:
    """Tell if each number that the trees read is in these terms what it was in the training."""
    here, there = terms.columns, trained.columns
    levels = [here.categorical.get(name) == values for name, values in there.categorical.items()]
    return here.features == there.features and all(levels) and here.target_means == there.target_means


def _holds(
    model: SignedModel,
    session: SignedSession,
    name: str,
    attest: Attest,
    roots: bytes,
    now: datetime,
    denied: Collection[str],
) -> bool:
    """Tell if the signature of a party holds, at a time at which its certificate was in date."""
    signed = replace(model, attestations={name: attest}, session=session.session, request=session.request)
    try:
        leaf, *_ = x509.load_pem_x509_certificates(attest.certificate)
        return not signed.faults(roots, min(now, leaf.not_valid_after_utc), denied)
    except (FedboostError, ValueError):
        return False
