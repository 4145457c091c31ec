"""Sections that the page of every session contains: who agreed to what, who learns what, and the traffic. The
module also creates the privacy card, and the plan of terms with noise.

Guarantees: the content depends only on the terms, the signatures and the counted bytes. It includes every
party, column and category in the terms, and every setting that differs from its default.
"""

from collections.abc import Iterator, Sequence

from fedboost.results.base import Ended, Result, Traffic
from fedboost.results.privacy import Outlook, Plan, PrivacyCard
from fedboost.terms.terms import Terms
from fedboost.views import document as page
from fedboost.views.approval import WHO_LEARNS_WHAT, groups, not_hidden
from fedboost.views.words import counted, duration, listed, one_line, size


def result_document(result: Result, title: str, lead: str, blocks: Sequence[page.Block]) -> page.Document:
    """Return a result as a document: its own blocks, then the folded sections that every session has."""
    session, terms = result.session, result.session.terms
    signed = [
        (party, part_of(terms, party), "its answers" if party in session.signed_by else "nothing")
        for party in dict.fromkeys((*terms.parties, *session.signed_by))
    ]
    agreed_by = page.Table("Parties", ["party", "takes part with", "signed"], signed, ())
    checked = page.note("If the analyst has keys, signatures are checked when the result arrives.")
    moved = page.Section("session", "Traffic", [*traffic(session)], folded=True)
    every = *blocks, *agreed(terms, [agreed_by, checked]), moved
    return page.Document(title, lead, every, "the result and its session")


def session_warnings(session: Ended) -> Iterator[str]:
    """Yield warnings that a reader should see before the figures of a session."""
    terms = session.terms
    if not session.signed_by:
        yield "No party signed its answers: anyone could have produced these figures."
    absent = len(set(terms.parties) - set(session.signed_by))
    if session.signed_by and absent:
        yield f"{absent} of the {len(terms.parties)} parties in the terms did not sign."
    if not terms.protection.hides:
        yield f"Protection {terms.hiding.protection}: {not_hidden(terms)}."


# ---- The agreement, and who learns what: the same text that a person at a site approved -----------------


NO_NOISE = "without noise, nothing limits what the sums and the model itself reveal about individual rows"
_OF_A_MODEL = (
    "Anyone who has the model file learns its thresholds, gains, covers and leaf values, which are computed "
    "from sums over the rows of all parties."
)
_OF_A_RESULT = (
    "The aggregator, and anyone who colludes with it, sees the sums before counts of few rows are left out."
)


def agreed(terms: Terms, parties: Sequence[page.Block]) -> tuple[page.Section, page.Section]:
    """Return a section on parties and terms, and one on who learns what, both folded."""
    words = groups(terms)
    about: list[page.Block] = [
        *parties,
        *(page.Entries(lines) for title, lines in words if title != WHO_LEARNS_WHAT),
        page.note("All other settings have their default values."),
        page.Paragraph(("Every party must agree to these terms. Digest: ", page.Code(terms.digest))),
    ]
    told: list[page.Block] = [page.Entries(lines) for title, lines in words if title == WHO_LEARNS_WHAT]
    has_more = not (terms.task.takes_candidates or (terms.task.counts_values and terms.blocks))
    told += [page.note(_OF_A_MODEL if terms.task.trains else _OF_A_RESULT)] * has_more
    if terms.noise is not None:
        told += [
            page.Paragraph("Privacy card: what is guaranteed for every single row."),
            *card_blocks(PrivacyCard.of(terms)),
        ]
    return (
        page.Section("agreed", "Who agreed, and to what", about, folded=True),
        page.Section("privacy", WHO_LEARNS_WHAT, told, folded=True),
    )


def part_of(terms: Terms, party: str) -> str:
    """Describe what a party contributes."""
    if party not in terms.parties:
        return "nothing: the terms do not name it"
    also = "; decrypts sums" if party == terms.keyholder else ""
    block = terms.blocks.of(party)
    if block is None:
        lacks = f" without {listed(terms.columns.absent.get(party, ()))}" * (party in terms.columns.absent)
        return (f"rows{lacks}" if party in terms.holders else "no rows") + also
    holds = "the labels, and columns" if block.label_holder == party else "columns"
    return f"{holds}: {', '.join(terms.blocks.columns_of(party).features)}{also}"


# ---- Traffic and time: bytes and seconds, as measured by the process that followed the session ---------


def traffic(session: Ended) -> Iterator[page.Block]:
    """Yield the total traffic, that of each party, and the time and traffic of each round, if any."""
    yield page.Paragraph(_in_short(session))
    if session.traffic:
        order = {party: number for number, party in enumerate(session.terms.parties)}
        parties = sorted(session.traffic, key=lambda party: order.get(party, len(order)))
        yield by_party({party: session.traffic[party] for party in parties})
    else:
        yield page.note("No bytes were counted.")
    if session.rounds:
        rounds = [(str(n), f"{r['seconds']:.3g}", size(r["bytes"])) for n, r in enumerate(session.rounds, 1)]
        yield page.Table("Time and traffic of each round", ["round", "seconds", "bytes"], rounds, folded=True)


def by_party(traffic: Traffic) -> page.Table:
    """Return a table of the bytes sent and received by each party."""
    rows = [(party, *map(size, moved)) for party, moved in traffic.items()]
    return page.Table("Traffic of each party", ["party", "sent", "received"], rows)


def _in_short(session: Ended) -> str:
    seconds = [row["seconds"] for row in session.rounds]
    text = size(sum(map(sum, session.traffic.values())))
    text += " since the aggregator was restarted" if session.since_restart else " in all"
    if seconds:
        text += f"; {counted(len(seconds), 'round')} in {duration(sum(seconds))}"
    return f"{text}. All messages between parties and aggregator are counted, in both directions."


# ---- The privacy card of a model, and the plan of terms with noise ---------------------------------------


def strength(epsilon: float) -> str:
    """Return a rating of an epsilon in words, e.g. "strong"."""
    for most, word in ((1.0, "strong"), (3.0, "moderate"), (8.0, "weak")):
        if epsilon <= most:
            return word
    return "hardly any protection"


def card(report: PrivacyCard) -> page.Document:
    epsilon = f"Epsilon {report.epsilon:g} at delta {report.delta:g}: {strength(report.epsilon)}."
    return page.Document("Privacy card", "", [page.Verdict(epsilon), *card_blocks(report)])


def card_blocks(report: PrivacyCard) -> Sequence[page.Block]:
    parties = counted(report.honest, "honest party", "honest parties")
    entries = {
        "epsilon": f"{report.epsilon:g} ({strength(report.epsilon)})",
        "delta": f"{report.delta:g}",
        "adjacency": report.adjacency,
        "holds against": report.against,
        "noise": f"{report.noise}, {report.placement}; the noise of {parties} is enough",
        "epsilon of all releases": f"{report.epsilon_spent:.6g} (mu squared {report.cost:.6g})",
        "parties in every sum": ", ".join(map(one_line, report.roster)) or "not named",
        "protection": report.protection,
        "terms": report.terms,
    }
    releases = [
        (each.what, str(each.times), f"{each.sensitivity:.6g}", f"{each.sigma:.6g}", f"{each.cost:.6g}")
        for each in report.releases
    ]
    headings = ["what", "times", "sensitivity", "noise in the sum", "cost of each"]
    return (
        page.Entries([*entries.items()]),
        page.Table("Every release", headings, releases, folded=False),
        page.note(
            "Sensitivity is how much one row can change the whole sum, and noise is a standard deviation. "
            "Both are in the unit of the integers that are summed. Cost is mu squared; costs are additive."
        ),
        page.Paragraph("Not covered:"),
        page.Items(report.not_covered),
    )


def plan(result: Plan) -> page.Document:
    """Return a plan as a document: what the terms would release, and how noise would affect the model."""
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
    return page.Document(
        "Privacy plan",
        "",
        [
            page.Verdict(
                f"Epsilon {report.epsilon:g} at delta {report.delta:g}: {strength(report.epsilon)}; "
                f"{parties}, {report.placement} noise; the noise of {report.honest} is enough.",
                more=[f"The guarantee holds against {report.against}."],
            ),
            page.Items([*map(_outlook, result.outlooks)]),
            page.Table(
                "What is released",
                ["what", "times", "noise", "unit", "share of cost"],
                releases,
                (1, 2, 4),
                folded=False,
            ),
            page.note(
                "Noise is the standard deviation in each cell of a sum. Chance is the variation that comes "
                "from which rows the sites happen to have."
            ),
        ],
    )


def _outlook(outlook: Outlook) -> str:
    """Return a sentence about the certainty of values for one number of rows."""
    return (
        f"With {outlook.rows:,} rows, a group of bins has {outlook.leaf_rows:,.0f} rows on average, and "
        f"after one round its value is as certain as with {outlook.worth:,.0f} rows and no noise: "
        f"{_verdict(outlook)}."
    )


def _verdict(outlook: Outlook) -> str:
    ratio = outlook.by_noise / outlook.by_chance
    if ratio <= 0.5:
        return "noise costs little"
    if ratio <= 2.0:
        return "noise and chance have about the same effect"
    if ratio <= 10.0:
        return "noise outweighs chance in a single tree; only what many trees agree on is learned"
    return "noise drowns a single answer; raise epsilon, or train on more rows"
