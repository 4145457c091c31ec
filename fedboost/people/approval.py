"""Terms that a person at a site approves, in words: rules that they break, and an earlier approval.

Promises: for each rule that terms break: why, what the rule is for, and a change of the terms that would do.
Refuses: nothing.
"""

from collections.abc import Iterator

from fedboost.errors import quoted
from fedboost.people.facts import ApprovalFacts, RuleFacts, SiteFacts
from fedboost.people.text import entry, listed, paragraph


def site(facts: SiteFacts) -> Iterator[str]:
    """Yield the rows of the site, if it has any, and its sessions so far."""
    if facts.file is not None:
        yield entry("this site", f"{facts.name}, {facts.rows} rows of {facts.file}")
    if facts.renamed:
        yield entry("its columns", facts.renamed)
    if facts.predicted is None:
        yield entry("sessions", f"{facts.took_part} of {facts.max_sessions} used (max_sessions)")
    else:
        used, most = facts.predicted
        yield entry("predictions", f"{used:,} of {most:,} rows used (max_predicted_rows)")


def approval(facts: ApprovalFacts) -> Iterator[str]:
    """Yield the rules that terms break, and the approval that they have already."""
    if facts.rules or not facts.impossible:
        yield _rules(facts) + "\n"
    if facts.earlier is None:
        return
    time, kept = facts.earlier
    when = quoted(time).replace("T", " ").replace("+00:00", " UTC")
    text = f"already approved at {when}" + (f" for {listed(kept)}" if kept else "")
    added = [name for name in facts.analysts if name not in kept]
    if added:
        text += f"; {listed(added)} {'is' if len(added) == 1 else 'are'} added"
    yield paragraph(text) + "\n"


def _rules(facts: ApprovalFacts) -> str:
    """Return the rules that terms break, what for, and what is given up."""
    if not facts.rules:
        return paragraph("The policy of this site has nothing against these terms; their names are pinned.")
    rules = "a rule" if len(facts.rules) == 1 else f"{len(facts.rules)} rules"
    yes = ":" if facts.impossible else ". Yes allows it for these terms alone:"
    lines = [paragraph(f"The terms break {rules} of this site's policy{yes}")]
    return "\n".join([*lines, *(line for rule in facts.rules for line in _rule(rule))])


def _rule(rule: RuleFacts) -> Iterator[str]:
    yield f"\n  {rule.key} = {rule.value}"
    yield paragraph(f"{rule.reason}.", "    ")
    if rule.names:
        yield paragraph(f"All {len(rule.names)}: {listed(rule.names)}.", "    ")
    yield paragraph(f"Why the rule: {rule.purpose}.", "    ")
    if rule.instead:
        yield paragraph(f"If you say no, the analyst can: {rule.instead}.", "    ")
    if rule.loud:
        yield paragraph(rule.loud, "    ")
