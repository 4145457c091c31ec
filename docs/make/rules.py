"""Generates the section of docs/protocol.md with the rules of both ends of a session."""

from collections import defaultdict
from collections.abc import Callable

from fedboost.protocol import aggregator, party
from fedboost.protocol.messages import PHASES

BEGIN, END = "<!-- Written by `make reference`: change the rules in fedboost/protocol. -->", "<!-- end -->"
"""The lines of docs/protocol.md that enclose the section."""


def _words(handler: Callable[..., object]) -> str:
    return " ".join((handler.__doc__ or "").split())


def diagram() -> str:
    """Return a Mermaid diagram of the aggregator's phases and the events that lead from one to another."""
    events: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (phase, event), rule in aggregator.RULES.items():
        for target in rule.leads_to:
            if target != phase:
                events[phase, target].append(event.__name__)
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {PHASES[0]}"]
    lines += [f"    {phase} --> {target}: {', '.join(names)}" for (phase, target), names in events.items()]
    return "\n".join([*lines, "    done --> [*]", "```"])


def aggregator_table() -> str:
    """Return a table of what each event does at the aggregator, by phase."""
    lines = ["| phase | event | at the aggregator | next |", "|---|---|---|---|"]
    for (phase, event), rule in aggregator.RULES.items():
        lines.append(f"| {phase} | {event.__name__} | {_words(rule.handler)} | {', '.join(rule.leads_to)} |")
    return "\n".join(lines)


def party_table() -> str:
    """Return a table of what each message does at a party, by phase."""
    lines = ["| phase | message | at a party |", "|---|---|---|"]
    for (phase, message), handler in party.RULES.items():
        lines.append(f"| {phase} | {message.__name__} | {_words(handler)} |")
    return "\n".join(lines)


def reference() -> str:
    """Return the diagram and both tables."""
    return "\n\n".join((diagram(), aggregator_table(), party_table()))


def page(text: str) -> str:
    """Return the page with its rules section replaced. text: the current page."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert end, "docs/protocol.md has no place for the rules"
    return f"{before}{begin}\n\n{reference()}\n\n{end}{after}"
