"""Trials of settings, in words: a table, best first.

Refuses: nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedboost.people.text import Block, counted, paragraph, table

SHOWN = 10
"""Trials in the table."""


def trials(metric: str, tried: Sequence[Mapping[str, Any]], best: int, grows: bool) -> Iterator[Block]:
    """Yield a table of the trials that came furthest. grows: more of the metric is better."""
    sign = -1.0 if grows else 1.0
    ranks = [
        (number != best, -each["rounds"], sign * (each[metric] or 0.0)) for number, each in enumerate(tried)
    ]
    order = sorted(range(len(tried)), key=ranks.__getitem__)
    lines = table("trial", metric, "best round", "of", "settings", numbers=range(4))
    for number in order[:SHOWN]:
        each = tried[number]
        settings = ", ".join(f"{name} {value:g}" for name, value in each["settings"].items())
        value = "" if each[metric] is None else f"{each[metric]:.5g}"
        lines.add_row(str(number), value, str(each["best_round"]), str(each["rounds"]), settings)
    yield lines
    hidden = len(tried) - SHOWN
    more = f" {counted(hidden, 'more trial')} came less far." if hidden > 0 else ""
    yield ""
    yield paragraph(
        f"trial {best} is the best, after {tried[best]['best_round']} of {tried[best]['rounds']} rounds. "
        f"{metric} is that of the validation rows, at the best round of each.{more}"
    )
