"""The protection of the parties' vectors."""

from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from fedboost.errors import quoted
from fedboost.privacy.pairwise import MAX_GRAPH_PARTIES
from fedboost.privacy.pairwise import Group as PairGroup
from fedboost.privacy.protections import PROTECTIONS, Protection, check_name
from fedboost.terms.reading import MAX_CHARS, Group, Name, nearest

ProtectionName = Annotated[str, AfterValidator(check_name)]


class Hiding(Group):
    """The protection and its settings."""

    protection: ProtectionName = Field(
        default="masked",
        description="`masked`: the aggregator sees sums over all parties alone. `plain`: it sees the sums of "
        "each party; for tests, or an aggregator that all trust. `paillier`: as `masked`, and "
        "[encrypted](encrypted.md) besides, where a rule asks for that. With `label_holder` only `plain` "
        "and `paillier`: feature holders do not read gradients ([vertical](vertical.md#hidden-gradients)).",
    )
    keyholder: Name | None = Field(
        default=None,
        description="Party that decrypts blinded sums, for `paillier`, which needs it. With `label_holder` "
        "it is that party, and not given.",
    )
    keyholder_rows: bool = Field(
        default=True,
        description="The key holder has rows as every other party. Set it to false for a party that only "
        "holds the key.",
    )
    key_bits: int = Field(
        default=3072,
        ge=2048,
        le=8192,
        description="Bits of a key of `paillier`. Longer keys are slower; raise it where a rule asks for "
        "more.",
    )
    colluding: int | None = Field(
        default=None,
        ge=0,
        le=MAX_GRAPH_PARTIES - 2,
        description="Number of parties that may work together with a curious aggregator and still learn "
        "nothing. The default is 1 from four parties on, and 0 below.",
    )
    allow_two_parties: bool = Field(
        default=False,
        description="Allow two parties with rows under a protection that hides: each can subtract its own "
        "vector from the sum, so only the aggregator is kept from seeing.",
    )

    @property
    def row(self) -> Protection:
        """The protection itself."""
        return PROTECTIONS[self.protection]

    @property
    def hides_vectors(self) -> bool:
        """True if the aggregator sees sums alone, and no party's vector."""
        return self.row.hides

    @property
    def uses_key_holder(self) -> bool:
        """True if sums are encrypted, and a key holder opens them."""
        return self.row.uses_key_holder

    def group(self, parties: tuple[str, ...]) -> PairGroup:
        """The group of these parties and the number that may collude."""
        return PairGroup.of(parties, self.colluding)

    def holders(self, parties: tuple[str, ...]) -> tuple[str, ...]:
        """The parties that hold rows: all but a key holder without any."""
        if self.keyholder_rows:
            return parties
        return tuple(party for party in parties if party != self.keyholder)

    def signers(self, parties: tuple[str, ...]) -> int:
        """Fewest signatures of parties on a valid model: as many as a sum needs."""
        return self.row.min_signers(self.group(parties))

    def check_parties(self, parties: tuple[str, ...], noise_is_shared: bool) -> None:
        """Raise ValueError unless these parties can hide each other: a party is hidden among those with rows
        that do not collude. noise_is_shared: True if each party draws a share of the noise."""
        if not self.hides_vectors or not parties:
            return
        holders, smallest = len(self.holders(parties)), 2 if self.allow_two_parties else self.row.min_parties
        if holders < smallest:
            hint = "" if holders < 2 else " (a party can subtract itself from the sum of two)"
            plain = 'protection = "plain"' + (' with noise.placement = "local"' if noise_is_shared else "")
            two = (
                "allow_two_parties = true, which hides from the aggregator alone, or " if holders == 2 else ""
            )
            needed = f"{smallest} parties with rows" if self.uses_key_holder else f"{smallest} parties"
            name = "" if self.keyholder is None else f" {quoted(self.keyholder)}"
            beside = "" if self.keyholder_rows else f" beside the key holder{name}"
            raise ValueError(
                f"protection {self.protection} needs {needed}, the terms name {holders}{beside}{hint}; "
                f"add parties, or set {two}{plain}"
            )
        colluding = self.group(parties).colluding
        if colluding > holders - 2:
            rows, counted = (
                (" with rows", ", the key holder counted first,") if self.uses_key_holder else ("", "")
            )
            raise ValueError(
                f"protection {self.protection} with {holders} parties{rows} of which {colluding} collude"
                f"{counted} hides nobody: it takes two that do not, so colluding is at most {holders - 2}"
            )

    def check_number(self, parties: tuple[str, ...], shrinks: bool) -> None:
        """Raise ValueError for more parties than the protection takes. shrinks: the roster may."""
        max_parties, max_shrinking, name = self.row.max_parties, self.row.max_shrinking, self.protection
        if shrinks and max_shrinking is not None and len(parties) > max_shrinking:
            raise ValueError(
                f'protection {name} with on_loss = "shrink" takes {max_shrinking} parties at most, as any '
                f'two share masks; the terms name {len(parties)}: set on_loss = "wait" or "stop"'
            )
        if max_parties is not None and len(parties) > max_parties:
            raise ValueError(
                f"protection {name} takes {max_parties} parties at most; the terms name {len(parties)}: let "
                f'neighbouring sites train as one party, or set protection = "plain" (fedboost terms '
                f"--protection plain), with which the aggregator sees the sums of each party "
                f'(noise.placement = "local" puts noise on them first)'
            )

    def check_keyholder(self, parties: tuple[str, ...], shrinks: bool) -> None:
        """Raise ValueError unless one of these parties can decrypt, where sums are encrypted."""
        if not self.uses_key_holder:
            return
        if self.keyholder is None and parties:
            raise ValueError(
                f"protection {self.protection} needs keyholder, the party that decrypts sums it cannot read"
            )
        if parties and self.keyholder not in parties:
            name = str(self.keyholder)[:MAX_CHARS]
            raise ValueError(f"keyholder {name!r} is not one of the parties{nearest(name, parties)}")
        if shrinks and not self.row.may_shrink:
            raise ValueError(
                f'on_loss = "shrink" with protection {self.protection}: nothing holds two rosters of one '
                f"turn apart; set wait or stop"
            )

    @model_validator(mode="after")
    def _needs_the_keyholder(self) -> Self:
        if not self.uses_key_holder:
            for name, value in (("keyholder", None), ("keyholder_rows", True)):
                if getattr(self, name) != value:
                    raise ValueError(f"{name} is for protection paillier, not {self.protection}")
        return self
