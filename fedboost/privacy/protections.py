"""Table of the protections: what each one hides, its limits, and how its sealers and openers are created.

Guarantees: all facts about a protection are in this table, and nothing else in fedboost branches on its name.
Importing this module does not import the packages that only encryption needs. Raises: ValueError for names
that are not in the table, and ConfigError if the package that an encryption scheme needs is not installed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedboost.errors import ConfigError, PeerError, quoted
from fedboost.privacy import ends, packing, pairwise
from fedboost.privacy.protection import Opener, Sealer, Tag

if TYPE_CHECKING:
    from fedboost.privacy.paillier import Paillier
    from fedboost.privacy.paillier import PaillierPublic as Public
    from fedboost.privacy.paillier import PaillierSecret as Secret

MAX_ENCRYPTED_CELLS = 200_000
"""Maximum number of cells in a sum that a key holder decrypts. The limit is needed because the key holder's
answer is a single message."""
_SUMS = "sums over the parties, never the numbers of a single one"


@dataclass(frozen=True)
class Protection:
    """A way to hide a party's vector from the aggregator.

    Args:
        hides: True if the aggregator sees only sums, never a party's vector.
        aggregator_observes: description of what the aggregator sees, for users.
        sealer, opener: functions that create the party's end and the aggregator's end.
        min_parties: minimum number of parties with rows.
        max_parties: maximum number of parties in a session, or None.
        max_shrinking: maximum number of parties if the roster may shrink, or None.
        max_cells: maximum number of cells in a sum, or None.
        sealed_size: function that returns the size of a tag's sealed chunks in bytes, or None if it depends
            on the vector.
        may_shrink: True if a session may continue without lost parties.
        min_roster: function that returns the minimum number of parties in a sum if the roster may shrink.
        min_signers: function that returns the minimum number of parties that must sign a model.
        scheme: function that loads the encryption scheme, or None if there is no key holder.
        may_be_vertical: True if this protection can be used when parties hold different columns.
        by_columns: the protection used instead when parties hold different columns, or None to use this one.
        proves_key: True if the key holder must prove that its key does not reveal blinded values.
    """

    name: str
    hides: bool
    aggregator_observes: str
    sealer: Callable[[pairwise.PartySetup], Sealer]
    opener: Callable[[Tag, pairwise.AggregatorSetup], Opener]
    min_parties: int = 1
    max_parties: int | None = None
    max_shrinking: int | None = None
    max_cells: int | None = None
    sealed_size: Callable[[Tag], int] | None = None
    may_shrink: bool = True
    min_roster: Callable[[pairwise.Group], int] = lambda group: 1
    min_signers: Callable[[pairwise.Group], int] = lambda group: 0
    scheme: "Callable[[], Paillier] | None" = None
    may_be_vertical: bool = False
    by_columns: "Protection | None" = None
    proves_key: bool = False

    @property
    def uses_key_holder(self) -> bool:
        """True if sums are encrypted, and only one party can decrypt them."""
        return self.scheme is not None

    def encryption(self) -> "Paillier":
        """Load the encryption scheme of a protection with a key holder. Raises ConfigError if its package is
        not installed."""
        assert self.scheme is not None
        try:
            return self.scheme()
        except ImportError as error:
            raise ConfigError(
                "protection-package-missing",
                f"protection {self.name} needs the package {error.name}, which is not installed: "
                f'pip install "fedboost[{self.name}]"',
            ) from None

    def key_greeting(self, agreement: bytes, secret: "Secret | None", context: bytes) -> bytes:
        """Return the public keys for a party's greeting: its X25519 key `agreement` and, at the key holder,
        its encryption key. secret: the key holder's key pair, None for other parties; context: identifies the
        attempt and the party, to which a proof of the key is bound."""
        if not self.uses_key_holder:
            return agreement
        key = b"" if secret is None else secret.public.to_bytes()
        if secret is not None and self.proves_key:
            from fedboost.privacy.rowsums.ends import prove

            key = packing.pack(key, prove(secret, context))
        return greeting_of(agreement, key)

    def agreement_key(self, greeted: bytes) -> bytes:
        """Return the X25519 key in a party's greeting. Raises PeerError if the protection needs two keys in
        each greeting and this greeting does not contain both."""
        return greeted_keys(greeted)[0] if self.uses_key_holder else greeted

    def read_public(self, greeted: bytes, key_bits: int, context: bytes) -> "Public":
        """Return the encryption key in the key holder's greeting. Raises PeerError if the key is invalid, has
        fewer than `key_bits` bits, or lacks a required proof. context: as in `key_greeting`."""
        key, scheme = greeted_keys(greeted)[1], self.encryption()
        if not self.proves_key:
            return scheme.read_public(key, key_bits)
        from fedboost.privacy.rowsums.ends import check

        number, *proof = packing.unpack(key)
        public = scheme.read_public(number, key_bits)
        check(public, context, b"".join(proof))
        return public


def greeting_of(agreement: bytes, key: bytes) -> bytes:
    """Pack the public keys of a greeting. agreement: X25519 key for masks; key: the key holder's encryption
    key, empty for other parties."""
    return packing.pack(agreement, key)


def greeted_keys(greeted: bytes) -> list[bytes]:
    """Unpack the two keys of a greeting. Raises PeerError if there are not exactly two."""
    keys = packing.unpack(greeted)
    if len(keys) != 2:
        raise PeerError("greeting-keys-missing", "the greeting lacks the two keys that encrypted sums need")
    return keys


def check_name(name: str) -> str:
    """Return the name if it is the name of a protection. Raises ValueError otherwise."""
    if name not in PROTECTIONS:
        raise ValueError(f"unknown protection {quoted(name)!r}; known: {', '.join(PROTECTIONS)}")
    return name


def scheme_of(name: str) -> "Paillier":
    """Load the encryption scheme of the protection with this name. Raises ConfigError if the protection has
    none, or if its package is not installed."""
    known = [row.name for row in PROTECTIONS.values() if row.uses_key_holder]
    if name not in known:
        raise ConfigError(
            "protection-without-encryption",
            f"protection {quoted(name)!r} does not use encryption; choose one of: {', '.join(known)}",
        )
    return PROTECTIONS[name].encryption()


def _paillier() -> "Paillier":
    from fedboost.privacy.paillier import Paillier

    return Paillier()


def _columns_sealer(setup: pairwise.PartySetup) -> Sealer:
    from fedboost.privacy.rowsums.ends import ColumnsSealer

    return ColumnsSealer(setup)


def _columns_opener(tag: Tag, setup: pairwise.AggregatorSetup) -> Opener:
    from fedboost.privacy.rowsums.ends import ColumnsOpener

    return ColumnsOpener(tag, setup)


_PAILLIER_BY_COLUMNS = Protection(
    "paillier",
    hides=False,
    aggregator_observes="sums of gradients over groups of rows, by the columns in the terms",
    sealer=_columns_sealer,
    opener=_columns_opener,
    may_shrink=False,
    scheme=_paillier,
    proves_key=True,
)


_ROWS = (
    Protection(
        "plain",
        hides=False,
        aggregator_observes="the numbers of each party, before they are added",
        sealer=lambda setup: ends.PlainSealer(setup.sparse),
        opener=lambda tag, setup: ends.PlainOpener(tag),
        may_be_vertical=True,
    ),
    Protection(
        "masked",
        hides=True,
        aggregator_observes=_SUMS,
        sealer=lambda setup: (ends.TwoLegSealer if setup.shrinks else ends.OneLegSealer)(setup),
        opener=lambda tag, setup: (ends.TwoLegOpener if setup.shrinks else ends.OneLegOpener)(tag, setup),
        min_parties=pairwise.MIN_GROUP_PARTIES,
        max_parties=pairwise.MAX_GRAPH_PARTIES,
        max_shrinking=pairwise.MAX_GROUP_PARTIES,
        sealed_size=lambda tag: sum(chunk.size for chunk in tag.checked),
        min_roster=lambda group: group.min_roster,
        min_signers=lambda group: group.min_signers,
    ),
    Protection(
        "paillier",
        hides=True,
        aggregator_observes=f"{_SUMS}, even with the key holder's help",
        sealer=ends.EncryptedSealer,
        opener=ends.EncryptedOpener,
        min_parties=pairwise.MIN_GROUP_PARTIES,
        max_parties=pairwise.MAX_GROUP_PARTIES,
        max_cells=MAX_ENCRYPTED_CELLS,
        may_shrink=False,  # no self mask keeps the sums over two rosters of one turn apart
        min_roster=lambda group: len(group.members),
        min_signers=lambda group: len(group.members) // 2 + 1,
        scheme=_paillier,
        by_columns=_PAILLIER_BY_COLUMNS,
    ),
)

PROTECTIONS: dict[str, Protection] = {row.name: row for row in _ROWS}
"""Maps name -> protection, for each name allowed in terms."""
