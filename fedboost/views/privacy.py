"""The privacy card of a model, the plan of terms with noise, and what sessions have spent."""

from collections.abc import Iterator, Sequence
from textwrap import fill

from fedboost.results.privacy import Outlook, Plan, PrivacyCard
from fedboost.views.document import Block, Document, Entries, Items, Paragraph, Table, Verdict, note
from fedboost.views.facts import PrivacyFacts, SiteFacts
from fedboost.views.words import WIDTH, cell, counted, one_line, table
from fedboost.views.words import Block as Printed


def strength(epsilon: float) -> str:
    """Return an epsilon in a word."""
    for most, word in ((1.0, "strong"), (3.0, "moderate"), (8.0, "weak")):
        if epsilon <= most:
            return word
    return "hardly any protection"


def card(report: PrivacyCard) -> Document:
    """Return a privacy card as people read it."""
    epsilon = f"Epsilon {report.epsilon:g} at delta {report.delta:g}: {strength(report.epsilon)}."
    return Document("Privacy card", "", [Verdict(epsilon), *card_blocks(report)])


def card_blocks(report: PrivacyCard, terms: bool = True) -> Sequence[Block]:
    """Return what a card states. terms: what the terms have as well, too."""
    parties = counted(report.honest, "honest party", "honest parties")
    entries = {
        "epsilon": f"{report.epsilon:g} ({strength(report.epsilon)})",
        "delta": f"{report.delta:g}",
        "adjacency": report.adjacency,
        "holds against": report.against,
        "noise": f"{report.noise}, {report.placement}; that of {parties} is enough",
        "trees": report.method,
        "epsilon of all releases": f"{report.epsilon_spent:.6g} (mu squared {report.cost:.6g})",
        "the same by zCDP": f"{report.zcdp_epsilon:.6g}, a looser bound that takes noise as it is, discrete",
    }
    if terms:
        entries |= {
            "parties in every sum": ", ".join(map(one_line, report.roster)) or "not named",
            "protection": report.protection,
            "terms": report.terms,
        }
    releases = [
        (each.what, str(each.times), f"{each.sensitivity:.6g}", f"{each.sigma:.6g}", f"{each.cost:.6g}")
        for each in report.releases
    ]
    headings = ["what", "times", "sensitivity", "noise in the sum", "cost of one"]
    return (
        Entries([*entries.items()]),
        Table("Every release", headings, releases, folded=False),
        note(
            "Sensitivity is how far one row can move the whole sum, noise its standard deviation, both in "
            "the integers that are added; cost is mu squared, which adds."
        ),
        Paragraph("Not covered:"),
        Items(report.not_covered),
    )


def plan(result: Plan) -> Document:
    """Return what terms would release, and what to expect of the model."""
    report = result.card
    parties = counted(len(report.roster), "party", "parties")
    releases = [
        (
            each.what,
            str(each.times),
            f"{each.noise:,.1f}",
            each.unit,
            f"{each.cost * each.times / report.cost:.1%}",
        )
        for each in result.releases
    ]
    outlooks = [
        (f"{each.rows:,}", f"{each.leaf_rows:,.0f}", f"{each.by_noise:.3g}", f"{each.by_chance:.3g}")
        for each in result.outlooks
    ]
    hist = "With method hist several noisy cells tell of a leaf: expect it to be less sure than this."
    return Document(
        "Privacy plan",
        "",
        [
            Verdict(
                f"Epsilon {report.epsilon:g} at delta {report.delta:g}: {strength(report.epsilon)}; "
                f"{parties}, noise {report.placement}, that of {report.honest} is enough.",
                more=[f"It holds against {report.against}."],
            ),
            Items([*map(in_words, result.outlooks), *([hist] if report.method == "hist" else [])]),
            Table(
                "What is released",
                ["what", "times", "noise", "in", "share of cost"],
                releases,
                (1, 2, 4),
                folded=False,
            ),
            Table(
                "What to expect of a leaf",
                ["rows", "in a leaf", "noise moves it by", "chance by"],
                outlooks,
                range(4),
            ),
            note(
                "Noise is a standard deviation, in every cell of a sum. A leaf's value is moved in margins "
                "(log-odds, logarithms of counts, or amounts), before the learning rate and before it is "
                "shrunk for its noise; chance is that of which rows the sites happen to have."
            ),
        ],
    )


def in_words(outlook: Outlook) -> str:
    """Return an outlook as a sentence, for somebody who must decide."""
    return (
        f"With {outlook.rows:,} rows a leaf has {outlook.leaf_rows:,.0f} on average and is as sure of its "
        f"value as {outlook.worth:,.0f} rows would make it without noise: {_verdict(outlook)}."
    )


def _verdict(outlook: Outlook) -> str:
    ratio = outlook.by_noise / outlook.by_chance
    if ratio <= 0.5:
        return "noise costs little"
    if ratio <= 2.0:
        return "noise and chance weigh about the same"
    if ratio <= 10.0:
        return "noise outweighs chance in a single tree, and only what many trees agree on is learned"
    return "noise drowns a single leaf; raise epsilon, or train on more rows"


def spent(site: SiteFacts, datasets: Sequence[PrivacyFacts]) -> Iterator[Printed]:
    """Yield the privacy that sessions have spent of each dataset, and what is left of the site's budget."""
    counts = "sessions", "never\nbegan", "with\nnoise", "releases"
    lines = table("dataset", *counts, "spent", "at delta", "left", whole=True)
    lines.columns[0].overflow = "fold"
    for facts in datasets:
        left = "-" if facts.left is None else f"{facts.left:.4g}"
        numbers = facts.sessions, facts.never_began, facts.with_noise, facts.releases
        lines.add_row(cell(facts.dataset), *map(str, numbers), f"{facts.spent:.4g}", f"{facts.delta:g}", left)
    yield lines
    limit = counted(site.max_sessions, "session")
    yield (
        f"\n{one_line(site.name)} took part in {site.took_part} of at most {limit} (max_sessions in its "
        f"policy)."
    )
    text = (
        "It has no budget, so no session is refused for what it would spend. Set epsilon and delta under "
        "[policy] for one."
        if site.epsilon is None
        else f"Its budget is epsilon {site.epsilon:g} at delta {site.delta:g}. Epsilons do not add, their "
        f"costs do: what is left is what one more session may have."
    )
    yield fill(text, WIDTH)
