"""The policy of a site in words: each rule with its value, and what it is for.

Promises: every key of the policy.
Refuses: nothing.
"""

from collections.abc import Sequence

from fedboost.people.console.site.facts import Reader, RuleOfPolicy
from fedboost.people.console.site.shell import document
from fedboost.people.report.markup import Markup, paragraph, table
from fedboost.people.report.skeleton import section


def page(rules: Sequence[RuleOfPolicy], reader: Reader) -> str:
    """Return the page of the policy."""
    own = [rule for rule in rules if rule.is_set]
    others = [rule for rule in rules if not rule.is_set]
    about = paragraph(
        "This site takes part under terms that break none of these rules, and under terms that a person "
        "approved. The rules stand under [policy] in the site's file; they are read when the site starts."
    )
    return document(
        "/policy",
        "Policy",
        section("own", "Rules that the file has", about, _rules(own, "Rules that the file has")),
        section("defaults", "Rules by default", _rules(others, "Rules by default")),
        reader=reader,
    )


def _rules(rules: Sequence[RuleOfPolicy], caption: str) -> Markup:
    if not rules:
        return paragraph("None.")
    rows = ((rule.key, rule.value, rule.purpose) for rule in rules)
    return table(caption, ["rule", "value", "what for"], rows, (), folded=False)
