"""Labels with the noise that the terms want, as the label holder's rows are read.

Promises: nothing that is computed of these rows knows the labels that they had before.
Refuses: what the reader and the key refuse (Refused).
"""

from collections.abc import Callable
from dataclasses import replace

from fedboost.holders.shard import Shard
from fedboost.privacy.noise import noised
from fedboost.terms.terms import Terms

Reader = Callable[[Terms], Shard]


def with_label_noise(read: Reader, party: str, key_of: Callable[[Terms], bytes]) -> Reader:
    """A reader of the same rows, whose labels have noise where the terms say so. key_of: the secret that the
    noise is drawn from, the same over all sessions."""

    def read_noised(terms: Terms) -> Shard:
        shard, epsilon = read(terms), terms.vertical.label_epsilon
        if epsilon is None or terms.vertical.predicts or not terms.blocks.has_labels(party):
            return shard
        assert shard.ids is not None
        classes = terms.objective.num_class or 2
        return replace(shard, label=noised(shard.label, shard.ids, classes, epsilon, key_of(terms)))

    return read_noised
