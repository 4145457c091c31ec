"""Gradients that the label holder hides from the others of its block: encrypted row by row, summed unread.

Promises: what a feature holder reports is, once it is opened, integer for integer the histograms of its
columns; a party computes with the keys of the attempt that it is in.
Refuses: gradients of other rows or under another key (PeerError).
"""

from collections.abc import Generator, Sequence
from typing import Any

from fedboost.errors import LocalProtocolError
from fedboost.fixedpoint import Int64
from fedboost.gbdt.growing import Bins
from fedboost.gbdt.threads import Threads
from fedboost.privacy.protection import HiddenSums
from fedboost.privacy.rowsums.scheme import Encryption, Node, Slots, Sums
from fedboost.protocol.contracts import Keys, NeedKeys, Receive, Send

GRADIENTS = "gradients, encrypted"
"""The kind of a relay."""
Exchange = Generator[Send | Receive | NeedKeys, Any, Any]


class HiddenGradients:
    """One party's end: that of the label holder, which has the secret key, or that of a feature holder."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._made_for: tuple[object, Slots] | None = None
        self._encryption: Encryption | None = None
        self._sums: Sums | None = None

    def send(self, to: tuple[str, ...], pairs: Int64, hidden: HiddenSums) -> Exchange:
        """Relay packed gradients, int64 [roots, rows]."""
        keys: Keys = yield NeedKeys()
        self._prepare(keys, hidden)
        assert self._encryption is not None
        yield Send(GRADIENTS, to, self._encryption.encrypt(pairs), pairs.shape[1])

    def receive(self, sender: str, rows: int, hidden: HiddenSums) -> Exchange:
        """The encrypted gradients of so many rows, those of all roots, as `report` takes them."""
        keys: Keys = yield NeedKeys()
        self._prepare(keys, hidden)
        assert self._sums is not None
        content = yield Receive(GRADIENTS, sender, 2 * keys.public.bytes * rows)
        return self._sums.read(content, rows)

    def report(self, gradients: Any, nodes: Sequence[Node], bins: Bins) -> bytes:
        """The encrypted sums of all columns over the rows of these nodes."""
        if self._sums is None:
            raise LocalProtocolError("sums of gradients that did not arrive")
        layout = bins.layout
        sizes = (layout.value_bins + layout.missing).tolist()
        codes = bins.rows.by_feature[: len(sizes)]
        return self._sums.close(self._sums.sums(gradients, nodes, codes, sizes))

    def _prepare(self, keys: Keys, hidden: HiddenSums) -> None:
        """Make this end for these keys and slots, unless it is."""
        from fedboost.privacy.rowsums.paillier import RowEncryption, RowSums

        public = keys.public
        slots = Slots.of(hidden.limit, hidden.rows, public.n.bit_length())
        if self._made_for == (public.n, slots):
            return
        if keys.secret is None:
            self._sums = RowSums(public, slots, self._threads, keys.draw)
        else:
            self._encryption = RowEncryption(keys.secret, slots, self._threads, keys.draw)
        self._made_for = public.n, slots
