"""Gradients, which the label holder relays to the others of its block: in plain, or encrypted row by row.

Promises: what a feature holder reports of encrypted gradients is, once it is opened, integer for integer the
histograms of its columns; a party computes with the keys of the attempt that it is in.
Refuses: gradients of other rows or under another key (PeerError).
"""

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from fedboost.errors import LocalProtocolError, PeerError
from fedboost.fixedpoint import Int64
from fedboost.gbdt import histogram
from fedboost.gbdt.histogram import Flags
from fedboost.gbdt.partition import Bins
from fedboost.gbdt.threads import Threads
from fedboost.privacy.protection import HiddenSums
from fedboost.privacy.rowsums.scheme import Encryption, Node, Slots, Sums
from fedboost.protocol.contracts import Keys, NeedKeys, Receive, Send

GRADIENTS, ENCRYPTED = "gradients", "gradients, encrypted"
"""Kinds of relays."""
PAIR_BYTES = 8
"""Bytes of a row's gradient and hessian."""
Exchange = Generator[Send | Receive | NeedKeys, Any, Any]


class GradientExchange:
    """One party's end: that of the label holder, or that of a feature holder."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._made_for: tuple[object, Slots] | None = None
        self._encryption: Encryption | None = None
        self._sums: Sums | None = None

    def send(self, to: tuple[str, ...], pairs: Int64, hidden: HiddenSums | None) -> Exchange:
        """Relay packed gradients, int64 [roots, rows]; hidden: what they are summed to, if that is hidden."""
        if hidden is None:
            yield Send(GRADIENTS, to, pairs.astype("<i8").tobytes(), pairs.shape[1])
            return
        self._prepare((yield NeedKeys()), hidden)
        assert self._encryption is not None
        yield Send(ENCRYPTED, to, self._encryption.encrypt(pairs), pairs.shape[1])

    def receive(self, sender: str, roots: int, rows: int, hidden: HiddenSums | None) -> Exchange:
        """The packed gradients, int64 [roots, rows], or encrypted ones, as `report` takes them."""
        if hidden is None:
            packed = yield Receive(GRADIENTS, sender, PAIR_BYTES * roots * rows)
            return np.frombuffer(packed, "<i8").astype(np.int64).reshape(roots, rows)
        keys: Keys = yield NeedKeys()
        self._prepare(keys, hidden)
        assert self._sums is not None
        content = yield Receive(ENCRYPTED, sender, 2 * keys.public.bytes * roots * rows)
        return self._sums.read(content, roots * rows)

    def report(
        self, gradients: Any, nodes: Sequence[Node], bins: Bins, groups: Flags | None = None
    ) -> Exchange:
        """The encrypted sums of all columns over the rows of these nodes, bytes. groups: bool [nodes, bins],
        of bins whose sums are told together."""
        keys: Keys = yield NeedKeys()
        if self._sums is None or self._made_for is None:
            raise LocalProtocolError("sums of gradients that did not arrive")
        if keys.public.n != self._made_for[0]:
            raise PeerError("the label holder has another key than when it relayed the gradients")
        layout = bins.layout
        sizes = (layout.value_bins + layout.missing).tolist()
        codes = bins.rows.by_feature[: len(sizes)]
        sums = self._sums.sums(gradients, nodes, codes, sizes)
        if groups is not None:
            places = [histogram.places(apart, layout) + at * layout.bins for at, apart in enumerate(groups)]
            sums = self._sums.moved(sums, np.concatenate(places))
        return self._sums.close(sums)

    def _prepare(self, keys: Keys, hidden: HiddenSums) -> None:
        """Make this end for these keys and slots, unless it is."""
        from fedboost.privacy.rowsums.sums import RowEncryption, RowSums

        public = keys.public
        slots = Slots.of(hidden.limit, hidden.rows, public.n.bit_length())
        if self._made_for == (public.n, slots):
            return
        if keys.secret is None:
            self._sums = RowSums(public, slots, self._threads, keys.draw)
        else:
            self._encryption = RowEncryption(keys.secret, slots, self._threads, keys.draw)
        self._made_for = public.n, slots
