"""Breaches of a site's policy as data, and the sentences in which a site refuses."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from fedboost.errors import Refused
from fedboost.people.summary import APPROVE
from fedboost.people.text import shown
from fedboost.runtime.config import to_toml
from fedboost.runtime.site.policy_keys import COMMAND
from fedboost.terms.session import TO_DESCRIBE
from fedboost.terms.terms import Terms

SHOWN_NAMES = 8
"""Names in a refusal."""
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]*")
"""Names that every shell reads as one word."""


@dataclass(frozen=True)
class Breach:
    """A rule of a policy that terms break.

    key, value: the rule as the file has it; why: a sentence about the terms; instead: a change of the terms
    that would do; allow: the value of the key under which the terms pass, or the names that it has not; None
    where no approval changes it; names: those names, for a person who wants them all.
    """

    key: str
    value: str
    why: str
    instead: str = ""
    allow: object = None
    detail: str = ""
    names: tuple[str, ...] = ()

    @property
    def rule(self) -> str:
        """The key as it stands under [policy]: columns, for the columns of each role."""
        return self.key.partition(".")[0]

    @property
    def remedy(self) -> str:
        """The ways out: a change of the terms, or an approval."""
        approve = f"run there `{COMMAND}`" if self.allow is not None else ""
        return ", or ".join(filter(None, (self.instead, approve)))

    @property
    def setting(self) -> str:
        """What to change in the policy's file, so that the terms pass; '' where no change is enough."""
        if self.allow is None:
            return ""
        if not isinstance(self.allow, tuple):
            return f"set {self.key} = {to_toml(self.allow)}"
        named = ", ".join(f'"{shown(name)}"' for name in self.allow[:SHOWN_NAMES])
        more = len(self.allow) - SHOWN_NAMES
        return f"add {named}{f' and {more} more' if more > 0 else ''} to {self.key}"

    def refusal(self, party: str, predicting: "Sequence[Breach]" = ()) -> Refused:
        """The error with the sentence that the analyst reads. predicting: all breaches by terms that predict:
        they are in no file that a person could approve, so that the policy itself has to allow them."""
        remedy = self.remedy
        if predicting:
            settings = ", ".join(filter(None, (breach.setting for breach in predicting)))
            change = f"{settings} in [policy] there and restart `fedboost party`" if settings else ""
            remedy = ", or ".join(filter(None, (self.instead, change)))
        return Refused(
            f"site {party} refuses: its policy has {self.key} = {self.value}, and {self.why}; {remedy}",
            self.detail,
        )


@contextmanager
def naming_the_command(terms: Terms, analyst: str) -> Iterator[None]:
    """Have refusals of these terms name the command by which they are approved, as `with_the_command`."""
    try:
        yield
    except Refused as error:
        public = with_the_command(error.public, terms, analyst)
        if public == error.public:
            raise
        raise type(error)(public, error.detail) from None


def with_the_command(refusal: str, terms: Terms, analyst: str) -> str:
    """A refusal of these terms, with all options of the command that it names. analyst: who signed them; a
    name that a shell could read as more than a word is left out, and the command asks for it."""
    if _PLAIN.fullmatch(analyst) and not terms.vertical.predicts:
        refusal = refusal.replace(COMMAND, f"{COMMAND} --analyst {analyst}")
    if terms.task == TO_DESCRIBE:
        refusal = refusal.replace(APPROVE, f"{APPROVE} --describe")
    return refusal


def choices(values: tuple[str, ...]) -> str:
    """A list of values, as the policy's file has it."""
    return "[" + ", ".join(f'"{value}"' for value in values) + "]"


def brackets(names: tuple[str, ...] | None) -> str:
    """A stand-in for names that are the site's own affair."""
    return "[...]" if names else "[]"


def allowing(names: tuple[str, ...] | None) -> str:
    """Words about such names that the site alone may read; empty where there are none."""
    return f"the policy allows {', '.join(names)}" if names else ""


def not_chosen(key: str, allowed: tuple[str, ...], setting: str, value: str) -> Breach:
    """The breach by a setting of the terms that is not one of the policy's choices."""
    instead = f'set {setting} = "{allowed[0]}"'
    return Breach(key, choices(allowed), f'the terms have {setting} = "{value}"', instead, (value,))


def beyond(setting: str, value: int, key: str, limit: int) -> Breach:
    """The breach by a number in the terms that is beyond the policy's."""
    return Breach(key, str(limit), f"the terms have {setting} = {value}", f"set {setting} = {limit}", value)


def not_among(key: str, allowed: tuple[str, ...] | None, names: Sequence[str]) -> Breach | None:
    """The breach by names in the terms that are not among the policy's; None if all are."""
    strange = [name for name in names if name not in set(allowed or ())]
    if not strange:
        return None
    named = ", ".join(f"'{shown(name)}'" for name in strange[:SHOWN_NAMES])
    if len(strange) > SHOWN_NAMES:
        named += f" and {len(strange) - SHOWN_NAMES} more"
    why = f"the terms name {named}"
    if allowed:
        why += f", which {'is' if len(strange) == 1 else 'are'} not among them"
    return Breach(
        key, brackets(allowed), why, allow=tuple(strange), detail=allowing(allowed), names=tuple(strange)
    )
