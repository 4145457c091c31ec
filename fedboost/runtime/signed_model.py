"""A model of a session, signed by its parties: its file, and the check of the signatures.

Promises: the file is XGBoost's, with fedboost's facts as attributes; `from_bytes` reads it back without loss.
Session and signatures are in the file, or beside it in a file of their own, where `load` finds them.
Refuses: files that are no such model (ConfigError), and wrong signatures (PeerError).
"""

import base64
import json
import os
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, PlainSerializer, StrictInt, ValidationError

from fedboost import __version__
from fedboost.boosting.queries.base import view_of
from fedboost.boosting.state import structure as structure_of
from fedboost.errors import Altered, ConfigError, PeerError
from fedboost.gbdt.booster import IMPORTANCES, Booster
from fedboost.gbdt.objectives.objective import LabelKind
from fedboost.gbdt.tree import NO_CHILD, Tree
from fedboost.privacy import identity as signatures_identity
from fedboost.privacy.identity import identify
from fedboost.protocol import key_exchange
from fedboost.protocol.aggregator import AggregatorSession
from fedboost.protocol.key_exchange import Trust
from fedboost.protocol.messages import Attest, Request
from fedboost.protocol.parts import UNTOLD_SCORE, Part, digest_of, model_id, packed
from fedboost.results.base import Ended
from fedboost.results.model import DrawnTree, GivenRows, ModelReport, ModelSummary, Verification
from fedboost.results.privacy import PrivacyCard
from fedboost.runtime.files import file_errors, write_atomically
from fedboost.runtime.net.keys import Bundle
from fedboost.terms import continuation
from fedboost.terms.terms import Terms
from fedboost.views import as_html
from fedboost.views.charts import tree_svg
from fedboost.views.model import report
from fedboost.wire.codec import MAX_REQUEST

# ---- fedboost's own facts in the attributes of a model file: terms, metrics, signatures -----------------


_PREFIX = "fedboost."
TERMS = _PREFIX + "terms"
"""The attribute of a model file that has the terms."""
SUMMARY = _PREFIX + "summary"
"""The attribute that has what the program said beside the trees."""
SIGNATURES = _PREFIX + "attestations"
"""The attribute that has the signatures of the parties."""

_LARGEST = 1 << 1000
_XGBOOSTS = ("best_iteration",)
"""Attributes by which XGBoost's estimators leave trees out of a prediction."""


def facts_in(attributes: Mapping[str, str], source: str) -> dict[str, Any]:
    """The fields of a `SignedModel` but for its trees, from the attributes of its file. ConfigError if they
    are not there; Altered for attributes that contradict the terms, or that XGBoost would use."""
    try:
        terms = Terms.from_canonical(attributes[TERMS])
        history = json.loads(attributes[_PREFIX + "history"])
        rounds = tuple({str(name): _number(value) for name, value in row.items()} for row in history)
        changes = json.loads(attributes.get(_PREFIX + "rosters", "{}"))
        rosters = {int(first): tuple(map(str, roster)) for first, roster in changes.items()}
        signed = session_of(attributes)
        summary = dict(json.loads(attributes.get(SUMMARY, "{}")))
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise ConfigError(f"{source}: an XGBoost model without fedboost's facts ({reason})") from None
    repeated = _repeated(terms)
    odd = [name for name, value in repeated.items() if attributes.get(name, value) != value]
    odd += [name for name in _XGBOOSTS if name in attributes]
    if odd:
        raise Altered(f"{source}: not as fedboost wrote it: its attribute {odd[0]} was changed or added")
    return {"terms": terms, "rounds": rounds, "rosters": rosters, "summary": summary, **vars(signed)}


def _repeated(terms: Terms) -> dict[str, str]:
    """Attributes that repeat values of the terms, for readers of the file."""
    return {
        _PREFIX + "terms_digest": terms.digest,
        _PREFIX + "protection": terms.hiding.protection,
        _PREFIX + "parties": json.dumps(terms.parties),
    }


Hex = Annotated[bytes, BeforeValidator(bytes.fromhex), PlainSerializer(bytes.hex)]
Base64 = Annotated[
    bytes,
    BeforeValidator(lambda text: base64.b64decode(text, validate=True)),
    PlainSerializer(lambda data: base64.b64encode(data).decode()),
]


class _Asked(BaseModel):
    """A `Request` as a model file has it."""

    nonce: Hex
    time: StrictInt
    certificate: Base64
    signature: Base64


class _Signed(BaseModel):
    """An `Attest` as a model file has it."""

    turns: int
    transcript: Hex
    structure: Hex
    certificate: Base64
    signature: Base64
    thresholds: Hex = b""
    part: Hex = b""


@dataclass(frozen=True)
class SignedSession:
    """The session of a model: `Model` says what each is."""

    attestations: Mapping[str, Attest]
    session: bytes
    request: Request | None
    salts: Mapping[str, bytes]


def session_of(attributes: Mapping[str, str]) -> SignedSession:
    """The session in these attributes, empty where there is none. ValueError, TypeError, KeyError or
    AttributeError for what is none."""
    signed = json.loads(attributes.get(SIGNATURES, "{}"))
    asked = json.loads(attributes.get(_PREFIX + "request", "null"))
    return SignedSession(
        {str(party): Attest(0, **vars(_Signed.model_validate(entry))) for party, entry in signed.items()},
        bytes.fromhex(attributes.get(_PREFIX + "session", "")),
        None if asked is None else Request(**vars(_Asked.model_validate(asked))),
        {
            str(name): bytes.fromhex(salt)
            for name, salt in json.loads(attributes.get(_PREFIX + "salts", "{}")).items()
        },
    )


def _number(value: object) -> float:
    """The number itself: an integer stays one, so that a model read and written again is the same file."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{value!r} in the history is no number")
    if isinstance(value, int) and abs(value) > _LARGEST:
        raise ValueError("a number in the history is too large for a float")
    return value


# ---- A model of a session, signed by its parties: its file, and the check of the signatures -------------


PART_FORMAT = "fedboost.party_model"
PART_BEGINS = f'{{"format":"{PART_FORMAT}"'
"""The beginning of a file that has a party's part of a model."""


@dataclass(frozen=True)
class SignedModel:
    """A trained model.

    terms: those of its session; rounds: the metrics of each round; attestations: what each party signed of
    it (nothing where no party has keys), over the session's digest `session`; rosters: from which round on
    sums were over other parties than in the round before (nothing where it always were all); request: the
    analyst's signed request for the session, which the signatures are bound to; salts: of a model that was
    put together of parts, what the hash of each part was made with; summary: what the program said beside the
    trees, as JSON.
    """

    booster: Booster = field(repr=False)
    terms: Terms = field(repr=False)
    rounds: tuple[Mapping[str, float], ...] = field(repr=False)
    attestations: Mapping[str, Attest] = field(default_factory=dict, repr=False, compare=False)
    session: bytes = field(default=b"", repr=False, compare=False)
    rosters: Mapping[int, tuple[str, ...]] = field(default_factory=dict, repr=False)
    request: Request | None = field(default=None, repr=False, compare=False)
    salts: Mapping[str, bytes] = field(default_factory=dict, repr=False, compare=False)
    summary: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        trees, parties = len(self.booster.trees), ", ".join(self.parties)
        return f"{type(self).__name__}({self.booster.objective}, {trees} trees, parties {parties})"

    @property
    def parties(self) -> tuple[str, ...]:
        """The parties whose rows trained it."""
        return self.terms.parties

    @property
    def kept(self) -> int:
        """Rounds that the trees are of: fewer than there were where the training stopped early."""
        rounds = len(self.booster.trees) // self.booster.roots - self.terms.constant_rounds
        return min(rounds, len(self.rounds))

    @property
    def protection(self) -> str:
        """The name of the protection that hid the parties' vectors."""
        return self.terms.hiding.protection

    @property
    def outline(self) -> ModelSummary:
        """What people read of the model."""
        return ModelSummary(
            terms=self.terms,
            fingerprint=self.fingerprint,
            trees=len(self.booster.trees),
            trained=len(self.rounds),
            kept=self.kept,
            last_row=self.rounds[self.kept - 1] if self.rounds else {},
            signed_by=tuple(self.attestations),
            rosters=self.rosters,
        )

    @property
    def importances(self) -> dict[str, list[float]]:
        """Feature to its IMPORTANCES, the highest gain first."""
        by_kind = [self.booster.importance(kind) for kind in IMPORTANCES]
        return {name: [values[name] for values in by_kind] for name in by_kind[0]}

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the model without fedboost's facts: equal for equal trees, by any parties."""
        return self.booster.fingerprint

    def verify(self, roots: bytes, now: datetime, denied: Collection[str] = ()) -> tuple[str, ...]:
        """The parties of the consortium with these roots (PEM) that signed this model: each took part in its
        session, under its terms and their protection, and was told these very trees. A custom program may
        make of the trees what it likes: there the questions alone are signed. PeerError for a signature that
        is wrong.
        """
        faults = self.faults(roots, now, denied)
        if faults:
            raise PeerError(next(iter(faults.values())))
        return tuple(party for party in self.parties if party in self.attestations)

    def faults(self, roots: bytes, now: datetime, denied: Collection[str] = ()) -> dict[str, str]:
        """The fault of each party's signature, as `verify` checks them; nothing of those that
        hold."""
        viewers = {party: self.terms.blocks.viewer(party) for party in self.attestations}
        structures: dict[str, bytes | None] = dict.fromkeys(viewers.values())
        if self.terms.session.program == "boosting":
            structures = {viewer: self._structure(viewer) for viewer in structures}
        faults = {
            party: self._fault(party, structures[viewer], roots, now, denied)
            for party, viewer in viewers.items()
        }
        return {party: fault for party, fault in faults.items() if fault}

    def _fault(
        self, party: str, structure: bytes | None, roots: bytes, now: datetime, denied: Collection[str]
    ) -> str:
        """The fault of a party's signature of these trees; empty if it holds."""
        attest = self.attestations[party]
        alike = self.terms.keeps_parts or not self.terms.blocks  # else each was told something else
        others = self.attestations.values() if alike else ()
        if len({other.transcript for other in others}) > 1:
            return "the parties signed that they answered different questions"
        try:
            signed_by = identify(attest.certificate, roots, now, denied)
        except PeerError as error:
            return f"the model's signature of party {party}: {error}"
        if (signed_by.name, signed_by.role) != (party, key_exchange.PARTY) or party not in self.parties:
            return f"the model is signed for party {party} by {signed_by.role} {signed_by.name}"
        if structure not in (None, attest.structure):
            return f"party {party} signed other trees than those of the model"
        hides = self.terms.hides_columns and not self.terms.keeps_parts
        if hides and attest.thresholds != packed(self.terms, party, self.booster.trees):
            return f"party {party} signed other thresholds than those of the model"
        if self.terms.keeps_parts and not self._has_part(party, attest.part):
            return f"party {party} signed another part of the model, or the file lacks what would show it"
        nonce = b"" if self.request is None else self.request.nonce
        statement = key_exchange.attestation(self.terms, nonce, self.session, party, attest)
        try:
            signatures_identity.verify(signed_by, statement, attest.signature)
        except PeerError as error:
            return str(error)
        return ""

    def _has_part(self, party: str, digest: bytes) -> bool:
        """True if the part that a party signed is in the model: shown by its salt, if it has anything that
        the others have not."""
        part, salt = part_in(self.booster, self.terms, party), self.salts.get(party)
        if salt is not None:
            return digest_of(part, salt) == digest
        splits = (zip(tree.feature, tree.left, strict=True) for tree in part.trees)
        has = any(f < len(part.features) and left != NO_CHILD for tree in splits for f, left in tree)
        return not has and not self.terms.blocks.has_labels(party)

    def _structure(self, party: str) -> bytes:
        """The digest of the constant and the trees as a party got them: none where rows were predicted."""
        if not self.terms.task.trains:
            return b""
        trees = self.booster.trees[self.booster.roots * self.terms.constant_rounds :]
        edges = continuation.edges_in(self.terms.evaluation, self.summary)
        if self.terms.earlier is not None:
            return structure_of(0.0, trees, (), edges)
        based = self.terms.columns.base_margin is not None
        constant = self.booster.trees[0].value[0] if based else self.booster.constant
        view = view_of(self.terms, party)
        if view is not None:
            view = view.public if self.terms.keeps_parts else view
            trees = tuple(view.tree(tree) for tree in trees)
            constant = constant if view.has_labels else 0.0
        return structure_of(constant, trees, self.booster.target_means.values(), edges)

    def to_bytes(self, session: bool = True) -> bytes:
        """The content of the model file, with the session and its signatures unless they are kept elsewhere:
        without them the same parties, rows and terms give the same bytes."""
        return self.booster.to_xgboost(self.attributes(session)).encode()

    def attributes(self, session: bool = True) -> dict[str, str]:
        """fedboost's facts as the attributes of the model file; session: as for `to_bytes`."""
        card = None if self.terms.noise is None else json.dumps(PrivacyCard.of(self.terms).summary)
        return {
            _PREFIX + "version": __version__,
            TERMS: self.terms.canonical(),
            **_repeated(self.terms),
            _PREFIX + "history": json.dumps([dict(row) for row in self.rounds]),
            **({_PREFIX + "rosters": json.dumps(dict(self.rosters))} if self.rosters else {}),
            **({SUMMARY: json.dumps(self.summary)} if self.summary else {}),
            **({} if card is None else {_PREFIX + "privacy": card}),
            **(self._session_attributes() if session else {}),
        }

    def _session_attributes(self) -> dict[str, str]:
        """The attributes that two sessions of the same terms differ in; none where nobody signed."""
        if not self.attestations:
            return {}
        signed = {
            party: _Signed.model_construct(**vars(attest)).model_dump(exclude_defaults=True)
            for party, attest in self.attestations.items()
        }
        facts = {SIGNATURES: json.dumps(signed), _PREFIX + "session": self.session.hex()}
        if self.salts:
            facts[_PREFIX + "salts"] = json.dumps({name: salt.hex() for name, salt in self.salts.items()})
        if self.request is not None:
            asked = _Asked.model_construct(**vars(self.request)).model_dump()
            facts[_PREFIX + "request"] = json.dumps(asked)
        return facts

    def save(self, path: Path | str, reproducible: bool = False) -> None:
        """Write the model file: XGBoost JSON. reproducible: session and signatures, in which two trainings
        differ, go into a file beside it (`session_file`)."""
        path = Path(path)
        beside, session = session_file(path), self._session_attributes()
        if reproducible and session:
            write_atomically(beside, json.dumps(session, indent=1).encode())
        elif beside.exists() and read_session(beside) is not None:
            beside.unlink()  # it is that of the model which is replaced
        write_atomically(path, self.to_bytes(session=not reproducible))

    @classmethod
    def from_bytes(cls, data: bytes, source: str = "model") -> Self:
        """The model in the content of a model file; ConfigError if it is none."""
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise ConfigError(f"{source}: not a fedboost model: not text") from None
        return cls(**contents(text, source))

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read a model file, and the session's file beside it if there is one."""
        with file_errors(path, "cannot read the model"):
            data = Path(path).read_bytes()
        model = cls.from_bytes(data, str(path))
        signed = None if model.attestations else read_session(session_file(Path(path)))
        return model if signed is None else replace(model, **vars(signed))


def contents(text: str, source: str, holders: int = 0) -> dict[str, Any]:
    """The fields of a `SignedModel`, from the text of its file. holders: as for `Booster.from_xgboost`."""
    if not holders and text.startswith(PART_BEGINS):
        raise ConfigError(
            f"{source}: a part of a model, which cannot predict without the others: put the parts together "
            f"(fedboost assemble), or predict together with their owners (fedboost predict --party)"
        )
    booster, attributes = Booster.from_xgboost(text, source, holders)
    facts = facts_in(attributes, source)
    own = belonging(booster, facts["terms"])
    if own is None:
        raise Altered(f"{source}: the trees and the terms in the file do not belong together")
    return {**facts, "booster": own}


def belonging(booster: Booster, terms: Terms) -> Booster | None:
    """The trees of a file as a training under these terms made them; None where they do not belong
    together."""
    if terms.objective.loss.xgboost_equivalent == booster.loss:  # the file has no objective but XGBoost's
        booster = replace(booster, loss=terms.objective.loss)
    columns = terms.columns.features, tuple(terms.columns.categorical), terms.objective.name
    fits = columns == (booster.features, booster.categorical, booster.objective)
    fits = fits and booster.buckets == terms.columns.target_means
    based = terms.columns.base_margin is not None and terms.session.program == "boosting"
    fits = fits and (not based or booster.begins_with_a_leaf) and _continues(booster, terms)
    return booster if fits else None


def session_file(model: Path) -> Path:
    """The file for the session of a model file: model.session.json for model.json."""
    return model.with_name(f"{model.stem}.session.json")


def read_session(path: Path) -> SignedSession | None:
    """The session in a file that `SignedModel.save` wrote; None where there is no file. ConfigError for
    another one."""
    try:
        attributes = json.loads(path.read_bytes())
        return session_of(attributes) if SIGNATURES in attributes else None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the session of the model: {error.strerror}") from None
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        raise ConfigError(
            f"{path}: not the session of a fedboost model, for which this name is kept; move it away"
        ) from None


def _continues(booster: Booster, terms: Terms) -> bool:
    """Tell if a model begins with the one that the terms continue, if they do."""
    first = terms.earlier
    if first is None:
        return True
    begins = booster.trees[: len(first.trees)] == first.trees
    return begins and (booster.base_score, booster.num_parallel_tree) == (
        first.base_score,
        first.num_parallel_tree,
    )


def signed_model_of(session: AggregatorSession) -> SignedModel:
    """The model of a session that is over. Raises SessionFailed if it has none."""
    if session.error is not None:
        raise session.error
    assert session.booster is not None
    return SignedModel(session.booster, session.terms, **facts_of(session))


def facts_of(session: AggregatorSession) -> dict[str, Any]:
    """The fields of a `SignedModel` but for its trees and terms."""
    rounds = tuple({"round": row.round, **row.published} for row in session.history)
    signed = {
        party: session.attestations[party]
        for party in session.terms.parties
        if party in session.attestations and session.attestations[party].signature
    }
    rosters, last = {}, session.terms.parties
    for row in session.history:
        if row.roster != last:
            rosters[row.round] = last = row.roster
    digest = session.digest if signed else b""
    request = session.request if signed else None
    return {
        "rounds": rounds,
        "attestations": signed,
        "session": digest,
        "rosters": rosters,
        "request": request,
        "summary": {} if session.run.outcome is None else session.run.outcome.summary,
    }


def part_in(booster: Booster, terms: Terms, party: str) -> Booster:
    """The part of a party in a whole model."""
    view = view_of(terms, party)
    assert view is not None
    trees = tuple(map(replace(view, hides=False).tree, booster.trees))
    if view.has_labels:
        return replace(booster, trees=trees)
    nothing = [[0.0] * len(tree.left) for tree in trees]
    trees = tuple(replace(t, gain=none, cover=none) for t, none in zip(trees, nothing, strict=True))
    return replace(booster, base_score=UNTOLD_SCORE, trees=trees)


# ---- The report of a model as its file has it: no rows are read for it ----------------------------------


MAX_TREES = 3
MAX_LEAVES = 64
"""Leaves of a tree that is drawn in a page."""


def written(
    model: SignedModel,
    rows: GivenRows | None = None,
    verification: Verification | None = None,
    session: Ended | None = None,
) -> str:
    """Return the report of a model as HTML. session: that which trained it, where it was followed."""
    trees = [_tree(model, number) for number in range(min(MAX_TREES, len(model.booster.trees)))]
    has_classes = model.terms.objective.loss.xgboost_equivalent.label_kind is LabelKind.CLASS
    classes = tuple(map(str, classes_of(model.terms))) if has_classes else ()
    shown = ModelReport(
        model.outline,
        model.rounds,
        model.importances,
        trees,
        classes,
        "" if model.request is None else f"{datetime.fromtimestamp(model.request.time, UTC):%Y-%m-%d}",
        continuation.training_rows(model.summary),
        verification,
        rows,
        session,
    )
    return as_html.report(report(shown))


def _tree(model: SignedModel, number: int) -> DrawnTree:
    tree, title, picture = model.booster.trees[number], tree_title(model, number), ""
    if len(tree.leaves) <= MAX_LEAVES:
        categories = model.terms.columns.categorical
        picture = tree_svg(tree, model.booster.features, categories, title, in_page=True)
    return DrawnTree(title, len(tree.leaves), picture)


def tree_title(model: SignedModel, number: int) -> str:
    """Which tree that is, in words: its number, round, class, and place among parallel ones."""
    booster = model.booster
    in_round, parallel = number % booster.roots, booster.num_parallel_tree
    title = f"Tree {number} of {len(booster.trees)}, {booster.objective}: round {number // booster.roots}"
    title += f", class {classes_of(model.terms)[in_round // parallel]}" if booster.loss.outputs > 1 else ""
    return title + (f", tree {in_round % parallel}" if parallel > 1 else "")


def classes_of(terms: Terms) -> tuple[str, ...] | tuple[int, ...]:
    """The labels: those of columns.classes, else 0, 1, ...; ConfigError for objectives without classes."""
    if terms.objective.loss.xgboost_equivalent.label_kind is not LabelKind.CLASS:
        raise ConfigError(f"{terms.objective.name} predicts numbers, which have no classes: use predict")
    return terms.columns.classes or tuple(range(terms.objective.num_class or 2))


# ---- Terms that an analyst signed, as a file ------------------------------------------------------------
# The file is JSON: `terms` as text, and `request` with the analyst's nonce, time, certificate and signature
# (base64); without `request` where analysts have no keys. The person who submits it cannot change the terms.


class _AskedInFile(_Asked):
    """A `Request` as a file of signed terms has it."""

    nonce: Base64


def sign_terms(terms: Terms, bundle: Bundle | None) -> bytes:
    """The content of a file with terms that the owner of a bundle signed, good for one session; without a
    signature where analysts have no keys."""
    values: dict[str, Any] = {"terms": terms.canonical()}
    if bundle is not None:
        request = request_of(terms, bundle)
        values["request"] = _AskedInFile.model_construct(**vars(request)).model_dump()
    return json.dumps(values, indent=1).encode() + b"\n"


def request_of(terms: Terms, bundle: Bundle, wish: bytes = key_exchange.SESSION) -> Request:
    """A request under these terms that the owner of a bundle signs now."""
    nonce = os.urandom(key_exchange.NONCE_BYTES)
    return key_exchange.request(bundle.signer, terms, nonce, int(time.time()), wish)


def from_json(data: bytes) -> tuple[str, Request | None]:
    """The text of the terms in the content of a file, unread, and the request if there is one: nobody has
    checked it. ConfigError."""
    try:
        values = json.loads(data)
        text, given = values["terms"], values.get("request")
        if not isinstance(text, str) or not {*values} <= {"terms", "request"}:
            raise ValueError
        if given is None:
            return text, None
        request = Request(**vars(_AskedInFile.model_validate(given)))
        if sum(map(len, (request.nonce, request.certificate, request.signature))) > MAX_REQUEST:
            raise ValueError
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ConfigError("not signed terms; `fedboost sign terms.toml` writes them") from None
    return text, request


def verified(
    model: SignedModel, source: str, roots: bytes, now: datetime, denied: Collection[str] = ()
) -> Verification:
    """Return what holds of a model's signatures for the consortium with these roots (PEM)."""
    faults = model.faults(roots, now, denied)
    analyst, asked, fault = "", "", ""
    if model.request is None:
        fault = "there is no analyst's request for it"
    elif model.attestations:
        try:
            trust = Trust(roots, frozenset(denied), lambda: now)
            analyst = key_exchange.check_request(trust, model.terms, model.request)
            asked = f"{datetime.fromtimestamp(model.request.time, UTC):%Y-%m-%d %H:%M} UTC"
        except (PeerError, OverflowError, ValueError, OSError) as error:
            fault = f"the analyst's request: {error}"
    return Verification(
        file=source,
        terms=model.terms,
        fingerprint=model.fingerprint,
        trees=len(model.booster.trees),
        faults={party: faults.get(party, "") for party in model.attestations},
        needed=model.terms.signers,
        analyst=analyst,
        asked=asked,
        request_fault=fault,
    )


# ---- A party's part of a model, and how parts become the model ------------------------------------------
# The file is JSON: `format`, `party` ('' for the analyst's, which is the structure alone), `session`, `salt`,
# `gains`, and under `model` the trees as the party was told them, in the form of XGBoost's file: a split by a
# column of another party has the number of its holder, behind those of all features, and nothing else.


PART_VERSION = 1


@dataclass(frozen=True, repr=False)
class PartyModel(SignedModel):
    """A party's part of a model; '' as `party` is the analyst's, which has the structure of the trees, who
    holds the column of each split, metrics and signatures. name: of the session; salt: what the hash that the
    party signed was made with; gains: party to the sum of the gains of its splits, in the analyst's."""

    party: str = ""
    name: str = ""
    salt: bytes = field(default=b"", repr=False)
    gains: Mapping[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        of = f"of {self.party}" if self.party else "structure"
        return f"{type(self).__name__}({of}, {len(self.booster.trees)} trees, id {self.id[:12]})"

    @cached_property
    def id(self) -> str:
        """The name of the model that it is a part of, in hex: equal for all parts of one model."""
        holder = self.terms.vertical.label_holder
        assert holder is not None
        return model_id(self.name, self.terms, self._structure(holder))

    @property
    def outline(self) -> ModelSummary:
        """What people read of the model."""
        return super().outline.model_copy(update={"shares": self.importance})

    @property
    def importance(self) -> dict[str, float]:
        """Party to its share of all gains, highest first; empty but in the analyst's."""
        total = sum(self.gains.values())
        return {name: gain / total for name, gain in sorted(self.gains.items(), key=lambda g: -g[1]) if total}

    def to_bytes(self, session: bool = True) -> bytes:
        """The content of the file; session: as for `SignedModel.to_bytes`."""
        content = {
            "format": PART_FORMAT,
            "version": PART_VERSION,
            "party": self.party,
            "session": self.name,
            **({"salt": self.salt.hex()} if self.salt else {}),
            **({"gains": dict(self.gains)} if self.gains else {}),
            "model": json.loads(super().to_bytes(session)),
        }
        return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    def of(cls, part: Part) -> Self:
        """What a party keeps."""
        return cls(part.booster, part.terms, (), party=part.party, name=part.session, salt=part.salt)

    @classmethod
    def from_bytes(cls, data: bytes, source: str = "model") -> Self:
        """The part in the content of a file; ConfigError if it is none."""
        try:
            content = json.loads(data)
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict) or content.get("format") != PART_FORMAT:
            raise ConfigError(f"{source}: not a party's part of a model; `fedboost party` writes it")
        try:
            if content["version"] != PART_VERSION:
                raise ConfigError(f"{source}: a part of a model, written by a newer version of fedboost")
            own: dict[str, Any] = {"party": str(content["party"]), "name": str(content["session"])}
            own["salt"] = bytes.fromhex(content.get("salt", ""))
            own["gains"] = {str(name): float(gain) for name, gain in content.get("gains", {}).items()}
            terms = Terms.from_canonical(content["model"]["learner"]["attributes"][TERMS])
            text = json.dumps(content["model"], ensure_ascii=False)
            _ = (own["name"] + text).encode()  # ValueError for what no text has
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise ConfigError(f"{source}: not a whole part of a model ({error})") from None
        part = cls(**contents(text, source, len(terms.parties)), **own)
        if not terms.keeps_parts or part.party not in ("", *terms.parties) or not part._is_own:
            raise Altered(f"{source}: the trees and the terms in the file do not belong together")
        return part

    def _has_part(self, party: str, digest: bytes) -> bool:
        """True: a part has nothing to hold those of others against; `assembled` does."""
        return True

    @property
    def _is_own(self) -> bool:
        """True if the splits of the party, and no others, are whole."""
        view = view_of(self.terms, self.party or self.terms.parties[0])
        assert view is not None
        view = view if self.party else view.public
        others = (place for place in range(view.parties) if place != view.place)
        seen = {*view.own_features.tolist(), *(view.features + place for place in others)}
        return all(
            feature in seen
            for tree in self.booster.trees
            for feature, left in zip(tree.feature, tree.left, strict=True)
            if left != NO_CHILD
        )


def trained_model_of(session: AggregatorSession) -> SignedModel:
    """What the analyst gets of a session that is over: the model, or its structure where parties keep parts.
    SessionFailed if it has none."""
    model = signed_model_of(session)
    terms = session.terms
    if not terms.keeps_parts:
        return model
    view = view_of(terms, terms.parties[0])
    assert view is not None
    trees, gains = [], dict.fromkeys(terms.parties, 0.0)
    for tree in model.booster.trees:
        seen, nothing = view.public.tree(tree), [0.0] * len(tree.left)
        for feature, left, gain in zip(seen.feature, tree.left, tree.gain, strict=True):
            if left != NO_CHILD:
                gains[terms.parties[feature - view.features]] += gain
        trees.append(replace(seen, gain=nothing, cover=nothing))
    booster = replace(model.booster, base_score=UNTOLD_SCORE, trees=tuple(trees))
    return PartyModel(booster, terms, **facts_of(session), name=session.name, gains=gains)


def assembled(parts: Iterable[PartyModel]) -> SignedModel:
    """The model of these parts: those of all parties that have splits in it, the label holder's among them.
    With the analyst's it has metrics and signatures, too, and each part must be the one that was signed."""
    by_party = _by_party(parts)
    first = next(iter(by_party.values()))
    holder, terms = first.terms.vertical.label_holder, first.terms
    assert holder is not None
    if holder not in by_party:
        raise ConfigError(f"the part of label holder {holder} is missing: it has the values of the leaves")
    own, signed = by_party[holder], by_party.get("")
    if signed is not None:
        for name, part in by_party.items():
            attest = signed.attestations.get(name)
            if name and attest is not None and attest.part != digest_of(part.booster, part.salt):
                raise ConfigError(f"the part of {name} is not the one that {name} signed")
    trees = tuple(_whole(number, tree, by_party, terms) for number, tree in enumerate(own.booster.trees))
    facts = {name: getattr(signed or own, name) for name in SignedModel.__dataclass_fields__}
    facts["salts"] = {name: part.salt for name, part in by_party.items() if name and signed is not None}
    return SignedModel(**{**facts, "booster": replace(own.booster, trees=trees)})


def _by_party(parts: Iterable[PartyModel]) -> dict[str, PartyModel]:
    by_party: dict[str, PartyModel] = {}
    for part in parts:
        whose = f"the part of {part.party}" if part.party else "the analyst's part"
        if part.party in by_party:
            raise ConfigError(f"{whose} is given twice")
        by_party[part.party] = part
        first = next(iter(by_party.values()))
        if part.id != first.id:
            other = f"that of {first.party}" if first.party else "the analyst's"
            raise ConfigError(f"{whose} is of another model than {other}: their sessions differ")
    if not by_party:
        raise ConfigError("no parts of a model are given")
    return by_party


def _whole(number: int, tree: Tree, by_party: Mapping[str, PartyModel], terms: Terms) -> Tree:
    """A tree of the label holder's with the splits of all parties."""
    features = len(terms.columns.features)
    columns = {
        name: [*getattr(tree, name)] for name in ("feature", "threshold", "missing_left", "categories")
    }
    for node, feature in enumerate(tree.feature):
        if tree.left[node] == NO_CHILD or feature < features:
            continue
        party = terms.parties[feature - features]
        if party not in by_party:
            raise ConfigError(f"the part of {party} is missing: it has split {node} of tree {number}")
        theirs = by_party[party].booster.trees[number]
        for name, column in columns.items():
            column[node] = getattr(theirs, name)[node]
    return replace(tree, **columns)


def terms_to_predict(model: PartyModel, rows: int, min_common_rows: int | None = None) -> Terms:
    """The terms of a session that predicts so many rows with a model, or rows of so many ids where they may
    have the same: those of its training, min_common_rows unless given. A party that is lost and does not
    come back ends it: the label holder asks again."""
    fewest = model.terms.vertical.min_common_rows if min_common_rows is None else min_common_rows
    return model.terms.changed(
        predict_with=model.id,
        predict_rows=rows,
        min_common_rows=fewest,
        on_loss="stop",
    )
