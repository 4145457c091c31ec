"""The entries of an audit log: what each line of it says, as canonical JSON with a hash.

A line is an `Entry` as canonical JSON (keys in the order of the fields here, no spaces, ASCII; what is
missing is left out). Its hash is the SHA-256 of that JSON without the hash, and each entry holds the hash of
the one before.
"""

import hashlib
import json
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from fedboost.protocol.site import Relayed, Release
from fedboost.terms.reading import Frozen
from fedboost.terms.session import TO_PREDICT, TO_TRAIN

BEFORE_THE_FIRST = "0" * 64
"""The previous hash of the first entry."""

Count = Annotated[int, Field(ge=0)]


class Admitted(Frozen):
    """Agreement of a process of this site to take part in a session, or to go on with it.

    terms: their digest; columns: what they name, label first; epsilon, delta, placement: of the noise, where
    there is some; attempt: the one that was offered, missing in old logs, beside which no terms were kept;
    analyst and request: who signed the terms, and the nonce of that signature, where they are signed; party
    and dataset: the names of this site and of its rows, missing in old logs; names: by its name in the terms
    the name of each column in this site's table, where that is another; task: what the session does where
    nothing is trained, missing in old logs of predictions, which have 0 rounds.
    """

    kind: Literal["admitted"] = "admitted"
    session: str
    terms: str
    protection: str
    parties: tuple[str, ...]
    objective: str
    rounds: Count
    columns: tuple[str, ...]
    epsilon: float | None = None
    delta: float | None = None
    placement: str | None = None
    attempt: Count | None = None
    analyst: str | None = None
    request: str | None = None
    party: str | None = None
    dataset: str | None = None
    names: dict[str, str] | None = None
    task: str | None = None

    @property
    def does(self) -> str:
        """What the session does (`Terms.task`)."""
        return self.task or (TO_TRAIN if self.rounds else TO_PREDICT)


class Released(Frozen):
    """A release of this site: the integers in it and their bytes, added to those of the roster.

    charge, cost: where it got noise, its name in the site's memory and the mu squared it was charged there,
    once however often the name is here; question, position: hashes of the question and of where the session
    stood, missing for what answers no question.
    """

    kind: Literal["released"] = "released"
    session: str
    turn: Count
    attempt: Count
    what: str
    cells: Count
    bytes: Count
    protection: str
    roster: tuple[str, ...]
    charge: str | None = None
    cost: Annotated[float, Field(ge=0)] | None = None
    question: str | None = None
    position: str | None = None


class Sent(Frozen):
    """Bytes of this site for other parties, which the aggregator passed on and cannot read. what: their kind;
    rows: the rows they tell of."""

    kind: Literal["relayed"] = "relayed"
    session: str
    turn: Count
    attempt: Count
    what: str
    to: tuple[str, ...]
    rows: Count
    bytes: Count


class Ended(Frozen):
    """End of a session for this site; an empty reason means that the model was made. Where this site left,
    it is what the others were told, without the values and rows that its own log may name. paused: it is not
    over, and goes on when this site is there again. analyst: who signed the terms of a session that was
    refused, so that no agreement says it."""

    kind: Literal["ended"] = "ended"
    session: str
    reason: str
    paused: Literal[True] | None = None
    analyst: str | None = None


class Checked(Frozen):
    """A check of terms, without a session: their digest, the analyst who signed them, and whether this site
    would take part. No row was read for it. The same answer is here once a day."""

    kind: Literal["checked"] = "checked"
    terms: str
    would: bool
    analyst: str | None = None


OfSession = Admitted | Released | Sent | Ended
Event = Annotated[OfSession | Checked, Field(discriminator="kind")]


class Entry(Frozen):
    """A line of the log. `time` is UTC."""

    n: Annotated[int, Field(ge=1)]
    time: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]
    event: Event
    previous: str
    hash: str = ""

    @property
    def due_hash(self) -> str:
        """The hash of all but the hash, 64 hex digits."""
        return hashlib.sha256(_canonical(self._values(exclude={"hash"}))).hexdigest()

    @property
    def line(self) -> bytes:
        """Canonical JSON and a line feed."""
        return _canonical(self._values()) + b"\n"

    def _values(self, exclude: set[str] | None = None) -> dict[str, Any]:
        """The values in the line: optional ones only if they are set."""
        return self.model_dump(mode="json", exclude=exclude, exclude_none=True)


_BEGINNING = b'{"n":'
"""Each line's first bytes."""


def canonical_event(event: Admitted | Ended | Checked | Release | Relayed) -> str:
    """The JSON of an event in its entry. That of a release, of which there is one a turn, is put together
    from the JSON of its texts, which were seen before."""
    if isinstance(event, Relayed):
        content = {"kind": "relayed", **vars(event)}
        content["bytes"] = content.pop("size")
        return _canonical(content).decode()
    if not isinstance(event, Release):
        return _canonical(event.model_dump(mode="json", exclude_none=True)).decode()
    charge = event.charge
    return "".join(
        (
            f'{{"kind":"released","session":{_text(event.session)},"turn":{event.turn},'
            f'"attempt":{event.attempt},"what":{_text(event.what)},"cells":{event.cells},'
            f'"bytes":{event.size},"protection":{_text(event.protection)},"roster":{_text(event.roster)}',
            "" if charge is None else f',"charge":"{charge.name}","cost":{float(charge.cost)!r}',
            f',"question":"{event.question}"' if event.question else "",
            f',"position":"{event.position}"' if event.position else "",
            "}",
        )
    )


def entry_line(n: int, time: str, event: str, previous: str) -> tuple[bytes, str]:
    """The line of an entry with this canonical event, and its hash."""
    content = f'{{"n":{n},"time":"{time}","event":{event},"previous":"{previous}"'
    digest = hashlib.sha256(f"{content}}}".encode()).hexdigest()
    return f'{content},"hash":"{digest}"}}\n'.encode(), digest


def parse_entry(line: bytes) -> Entry:
    """The entry on a line; ValueError if it is not as it was written."""
    if not line.endswith(b"\n") and line.startswith(_BEGINNING[: len(line)]):
        raise ValueError("half-written; the writer was stopped in the middle (or is writing it right now)")
    try:
        entry = Entry.model_validate_json(line, strict=True)
        whole = entry.line == line
    except ValidationError:
        raise ValueError("not an entry of an audit log, or changed after it was written") from None
    if not whole or entry.hash != entry.due_hash:
        raise ValueError("changed after it was written: its hash is not the one of its content")
    return entry


def _canonical(values: Any) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode()


@lru_cache
def _text(value: str | tuple[str, ...]) -> str:
    return _canonical(value).decode()
