"""The rules of both ends of a session, which docs/protocol.md has in one of its sections."""

from collections import defaultdict
from collections.abc import Callable

from fedboost.protocol import aggregator, party
from fedboost.protocol.messages import PHASES

BEGIN, END = "<!-- Written by `make reference`: change the rules in fedboost/protocol. -->", "<!-- end -->"
"""The lines of docs/protocol.md between which they stand."""


def _words(handler: Callable[..., object]) -> str:
    return " ".join((handler.__doc__ or "").split())


def diagram() -> str:
    """The phases of the aggregator and the events that lead from one to another, as a Mermaid diagram."""
    events: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (phase, event), rule in aggregator.RULES.items():
        for target in rule.leads_to:
            if target != phase:
                events[phase, target].append(event.__name__)
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {PHASES[0]}"]
    lines += [f"    {phase} --> {target}: {', '.join(names)}" for (phase, target), names in events.items()]
    return "\n".join([*lines, "    done --> [*]", "```"])


def aggregator_table() -> str:
    """The effect of each event at the aggregator, by phase."""
    lines = ["| phase | event | at the aggregator | next |", "|---|---|---|---|"]
    for (phase, event), rule in aggregator.RULES.items():
        lines.append(f"| {phase} | {event.__name__} | {_words(rule.handler)} | {', '.join(rule.leads_to)} |")
    return "\n".join(lines)


def party_table() -> str:
    """The effect of each message at a party, by phase."""
    lines = ["| phase | message | at a party |", "|---|---|---|"]
    for (phase, message), handler in party.RULES.items():
        lines.append(f"| {phase} | {message.__name__} | {_words(handler)} |")
    return "\n".join(lines)


def reference() -> str:
    """All of it."""
    return "\n\n".join((diagram(), aggregator_table(), party_table()))


def page(text: str) -> str:
    """The page with the rules in their place. text: of the page as it is."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert end, "docs/protocol.md has no place for the rules"
    return f"{before}{begin}\n\n{reference()}\n\n{end}{after}"
