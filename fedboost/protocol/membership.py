"""A party's membership of a session: what the first offer that it took has begun, and lasts to the end."""

from dataclasses import dataclass, field

from fedboost.errors import FedboostError, PeerError, Refused, quoted
from fedboost.privacy.encrypted.scheme import Secret
from fedboost.privacy.masked.keys import derive
from fedboost.privacy.protections import Protection
from fedboost.protocol import key_exchange
from fedboost.protocol.contracts import Holder, Rowless
from fedboost.protocol.key_exchange import Attempt
from fedboost.protocol.ledger import Spending
from fedboost.protocol.messages import Attest, Close, Offer
from fedboost.protocol.parts import part_of
from fedboost.protocol.site import HELP, OPENINGS, Site
from fedboost.protocol.site_memory import SessionMemory, SessionOffer
from fedboost.protocol.thresholds import packed
from fedboost.terms.terms import Terms

SALT = b"fedboost/1/part"
"""What the salt of a part of a model is derived for."""


@dataclass(frozen=True)
class Membership:
    """first: the first offer that was taken; memory: the site's memory of the session; holder: the party's
    data;
    secret: the key holder's, for this session and in memory alone; spending: the noise of answers, where the
    terms have some."""

    first: Offer
    memory: SessionMemory
    holder: Holder
    secret: Secret | None
    spending: Spending | None
    terms: Terms = field(init=False)
    """The terms of the session."""
    protection: Protection = field(init=False)
    """The protection of the session."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "terms", self.first.terms)
        object.__setattr__(self, "protection", self.terms.protection)

    @classmethod
    def begin(cls, site: Site, admit: Offer) -> "Membership":
        """Take an offer: hold it to the site's rules, note it in its memory, and read its data. Refused."""
        terms, request, analyst = admit.terms, admit.request, ""
        if site.name not in terms.parties:
            raise Refused(f"the terms do not name party {site.name!r}")
        if request is not None and site.credentials is not None:
            analyst = key_exchange.check_request(site.credentials, terms, request)
            key_exchange.check_age(request, site.credentials.clock())
        nonce = b"" if request is None else request.nonce
        offer = SessionOffer(admit.session, terms, admit.attempt, analyst, nonce)
        limits = site.permit(offer)
        has_rows = site.holder is not None
        check_rows(site.name, terms, has_rows)
        if terms.blocks and site.credentials is None:
            raise Refused(
                f"party {site.name}: parties with different columns seal what they relay with their keys, "
                f"and this site has none: give it `keys`"
            )
        memory = site.memory.begin(offer, limits)
        try:
            site.taken(offer)
            secret = None
            if terms.keyholder == site.name:
                protection = terms.protection
                secret = protection.encryption().new_secret(terms.hiding.key_bits)
            spending = Spending(terms, memory) if terms.noise is not None and has_rows else None
            holder = Rowless() if site.holder is None else site.holder(terms, memory.secret)
            memory.bind(holder.rows_hashed, holder.table)
        except FedboostError as error:
            memory.end(quoted(error.public))
            raise
        return cls(admit, memory, holder, secret, spending)

    @property
    def session(self) -> str:
        """The name of the session."""
        return self.first.session

    def attempt(self, number: int) -> Attempt:
        """An attempt, as signatures are bound to it."""
        request = self.first.request
        return Attempt(self.session, number, self.terms, b"" if request is None else request.nonce)

    def check_same(self, admit: Offer) -> None:
        """Raise PeerError for an offer of another session, or under other terms."""
        first = self.first
        if (admit.session, admit.terms, admit.request) != (first.session, first.terms, first.request):
            raise PeerError("admitted to another session, or under other terms")

    def help_as(self, size: int) -> tuple[str, int]:
        """The name of help of so many bytes in the site's audit log, and its integers."""
        if not self.terms.hides_columns or self.secret is None:
            return HELP, 0
        return OPENINGS, size // (2 * len(self.secret.public.to_bytes()))

    def attest(self, site: Site, close: Close, session: bytes, turns: int, transcript: bytes) -> Attest:
        """What this party did, and the model as it was told: signed, where parties sign. session: the digest
        of the attempt; turns: questions that were answered."""
        holder, terms, thresholds, kept = self.holder, self.terms, b"", b""
        state, hides = holder.state, terms.hides_columns
        if terms.keeps_parts:
            state = state.seen_by(terms, site.name, publicly=True)
            salt, trees = derive(self.memory.secret, SALT), holder.trees(close.rounds)
            told = [value for done in holder.state.rounds[:1] for _, value in done.values]
            part = part_of(self.session, terms, site.name, trees, close.numbers, salt, told)
            site.keep(part)
            kept = part.digest
        elif hides:
            thresholds = packed(terms, site.name, holder.trees(close.rounds))
        structure = state.structure(close.rounds, hides, terms.reference_features)
        attest = Attest(close.attempt, turns, transcript, structure, b"", b"", thresholds, kept)
        return key_exchange.signed(site.credentials, self.attempt(close.attempt), session, site.name, attest)


def check_rows(party: str, terms: Terms, has_rows: bool) -> None:
    """Raise Refused unless the terms say of this site what is so: that it holds rows, or none."""
    if not has_rows and terms.keyholder != party:
        raise Refused(f"party {party} has no rows, and the terms name another key holder")
    if has_rows != (party in terms.holders):
        has, want = ("rows", "true") if has_rows else ("no rows", "false")
        other = "it holds none" if has_rows else "it holds rows"
        raise Refused(
            f"key holder {party} has {has}, and the terms say that {other}: set keyholder_rows = {want}"
        )
