"""A demo whose parties hold different columns: its facts, and what is said of it.

Promises: nothing here reads, trains or prints.
Refuses: nothing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fedboost.people.facts import DemoFacts
from fedboost.people.text import Block, entry, one_line
from fedboost.people.training import scores, shares, signatures, traffic
from fedboost.terms.terms import Terms


@dataclass(frozen=True)
class ApartFacts:
    """The tables of the parties. rows, columns: how many, and which features, by party; common: rows that all
    know; new: rows that nobody trains on."""

    rows: Mapping[str, int]
    columns: Mapping[str, tuple[str, ...]]
    common: int
    new: int


@dataclass(frozen=True)
class ColumnsDemoFacts:
    """A finished demo. kept: the files of the parts of the model, by party."""

    demo: DemoFacts
    apart: ApartFacts
    kept: Mapping[str, str]


def beginning(facts: ApartFacts, terms: Terms) -> Iterator[str]:
    """Yield what the parties hold, and what hides it."""
    indent = max(map(len, facts.columns)) + 2
    for party, names in facts.columns.items():
        label = f" and the label {terms.columns.label}" if terms.blocks.has_labels(party) else ""
        columns = f"{facts.rows[party]} patients, {len(names)} columns{label}: {', '.join(names)}"
        yield entry(party, columns, indent)
    matched = f"{facts.common} patients are common to both, matched by the column {terms.columns.row_id}"
    yield f"{matched}; {facts.new} new ones are held out"
    hiding = terms.hiding
    quick = f", key_bits = {hiding.key_bits}: the fewest, chosen for speed" if hiding.key_bits else ""
    yield f"protection {hiding.protection}{quick}"


def end(facts: ColumnsDemoFacts) -> Iterator[Block]:
    """Yield what joining the columns is worth, and who keeps what."""
    training, equal = facts.demo.training, facts.demo.equal
    terms = training.model.terms
    yield ""
    yield scores(facts.demo, f"on the {facts.apart.new} new patients")
    yield f"joined == pooled: {'yes' if equal else 'NO'} (the demo puts the parts together to see)\n"
    yield traffic(training.traffic, training.model.trained)
    yield ""
    yield signatures(training.model)
    yield from shares(training)
    for party, file in facts.kept.items():
        leaves = " and the values of leaves" if terms.blocks.has_labels(party) else ""
        yield one_line(f"{party} keeps its own splits{leaves}: {file}")
    yield one_line(f"the analyst has metrics, signatures and the structure of the trees: {training.file}")
    yield f"what left {terms.parties[-1]}, by its own audit log:"
    yield one_line(f"fedboost audit {facts.demo.log}")
