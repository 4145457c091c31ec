"""Protection `masked` where the roster cannot change: pairwise masks alone, in one leg.

Designed for: an aggregator that is curious, or lies about the messages it relays, together with up to
`colluding` parties. A party answers for all parties of the session or not at all, so no vector is ever one of
a smaller roster, and nothing is given away for the sum to open (docs/decisions/0016-masks-in-one-leg.md).

A turn, with ctx = everything both ends must agree on:

    upload   each u: y_u = x_u + sum_{v > u} PRG(k_uv, ctx) - sum_{v < u} PRG(k_uv, ctx)
    open     the sum of y

Promises: the sum of all parties opens, and no smaller one; what was sealed counts as opened, since it is once
all others sealed, however late their vectors come; nobody is asked for help.
Refuses (PeerError): every roster but all parties of the session, and the tags that `PairMasks.check` names;
notes and help, which one leg has none of.
"""

from collections.abc import Iterator

from fedboost.errors import PeerError
from fedboost.fixedpoint import Int64
from fedboost.privacy.masked import keys as check_cells
from fedboost.privacy.masked.keys import ONE_LEG, Group, PairMasks, check_whole, context, masked_chunks
from fedboost.privacy.protection import Tag


class OneLegSealer:
    """Masks one party's vectors with the streams of its pairs."""

    def __init__(self, me: str, group: Group, session: bytes, keys: dict[str, bytes]) -> None:
        self._me = me
        self._group = group
        self._pairs = PairMasks(me, group, session, keys, ONE_LEG)

    def __repr__(self) -> str:
        return f"OneLegSealer({self._me!r})"

    @property
    def ctx(self) -> bytes:
        """The context of the last vector."""
        return self._pairs.ctx

    def seal(self, values: Int64, tag: Tag) -> Iterator[bytes]:
        """The masked chunks of a vector."""
        self._pairs.check(tag)
        check_whole(tag, self._group)
        streams = self._pairs.streams(tag)
        return (chunk.packed(words) for chunk, words in masked_chunks(values, tag, streams))

    def note(self) -> bytes:
        """Empty."""
        return b""

    def assist(self, request: bytes) -> bytes:
        """Refuse: the sum needs no help."""
        raise PeerError("asked to help with masks that cancel without help")


class OneLegOpener:
    """Adds masked chunks into one running sum, in which the masks cancel."""

    def __init__(self, tag: Tag, group: Group, session: bytes) -> None:
        self.chunks = len(tag.chunks)
        self.ctx = context(ONE_LEG, session, group, tag)
        self._tag = tag
        self._sum = check_cells.zeros(tag)

    def add(self, party: str, number: int, cells: bytes) -> None:
        """Add one masked chunk."""
        check_cells.add(self._sum, self._tag, number, cells)

    def note(self, party: str, note: bytes) -> None:
        """Refuse any note."""
        if note:
            raise PeerError("a note where masks in one leg have none")

    def lose(self, party: str) -> None:
        """Do nothing: the vector of the party is in the sum."""

    def requests(self) -> dict[str, bytes]:
        """Empty: no help is needed."""
        return {}

    def assist(self, party: str, answer: bytes) -> None:
        """Refuse."""
        raise PeerError("help that masks in one leg did not ask for")

    def open(self) -> Int64:
        """The sum, once every party's chunks are added. SessionFailed if the masks did not cancel."""
        return check_cells.checked_sum(self._sum, self._tag)
