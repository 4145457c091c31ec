"""The file of one party's part of a model, and how parts become the model.

The file is JSON: `format`, `party` ('' for the analyst's, which is the structure alone), `session`, `salt`,
`gains`, and under `model` the trees as the party was told them, in the form of XGBoost's file: a split by a
column of another party has the number of its holder, behind those of all features, and nothing else.

Promises: `from_bytes` reads the file back without loss; the parts of all parties give the model that
`model = "whole"` would have given, byte for byte.
Refuses: files that are no such part, and parts of different models (ConfigError).
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

from fedboost.boosting.queries.base import view_of
from fedboost.errors import Altered, ConfigError
from fedboost.gbdt.tree import NO_CHILD, Tree
from fedboost.protocol.aggregator import AggregatorSession
from fedboost.protocol.parts import UNTOLD_SCORE, Part, digest_of, model_id
from fedboost.results.model import ModelSummary
from fedboost.runtime.signed_model import PART_FORMAT, TERMS, SignedModel, contents, facts_of, signed_model_of
from fedboost.terms.terms import Terms

VERSION = 1


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
        return replace(super().outline, shares=self.importance)

    @property
    def importance(self) -> dict[str, float]:
        """Party to its share of all gains, highest first; empty but in the analyst's."""
        total = sum(self.gains.values())
        return {name: gain / total for name, gain in sorted(self.gains.items(), key=lambda g: -g[1]) if total}

    def to_bytes(self, session: bool = True) -> bytes:
        """The content of the file; session: as for `SignedModel.to_bytes`."""
        content = {
            "format": PART_FORMAT,
            "version": VERSION,
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
        content = _content(data)
        if content is None:
            raise ConfigError(f"{source}: not a party's part of a model; `fedboost party` writes it")
        try:
            if content["version"] != VERSION:
                raise ConfigError(f"{source}: a part of a model, written by a newer version of fedboost")
            parts = str(content["party"]), str(content["session"]), bytes.fromhex(content.get("salt", ""))
            gains = {str(name): float(gain) for name, gain in content.get("gains", {}).items()}
            terms = Terms.from_canonical(content["model"]["learner"]["attributes"][TERMS])
            text = json.dumps(content["model"], ensure_ascii=False)
            _ = (parts[1] + text).encode()  # ValueError for what no text has
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise ConfigError(f"{source}: not a whole part of a model ({error})") from None
        own: dict[str, Any] = dict(zip(_NAMES, (*parts, gains), strict=True))
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


_NAMES = "party", "name", "salt", "gains"


def _content(data: bytes) -> dict[str, Any] | None:
    """The JSON of a party's part; None if that is not what it is."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) and content.get("format") == PART_FORMAT else None


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
        _check_signed(signed, by_party)
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


def _check_signed(signed: PartyModel, by_party: Mapping[str, PartyModel]) -> None:
    """Raise ConfigError for a part that its party did not sign."""
    for name, part in by_party.items():
        attest = signed.attestations.get(name)
        if name and attest is not None and attest.part != digest_of(part.booster, part.salt):
            raise ConfigError(f"the part of {name} is not the one that {name} signed")


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
