"""What every page on a session has besides its result: who agreed to what, who saw what, and the traffic.

Promises: it follows from the terms, the signatures and the counted bytes; every party, column and category
that the terms name is there, and every setting that is not its default.
"""

from collections.abc import Iterator, Sequence
from statistics import median

from fedboost.results.base import Ended, Result, Row, Traffic
from fedboost.results.privacy import PrivacyCard
from fedboost.terms.terms import Terms
from fedboost.views.approval import (
    TASK_WORDS,
    colluders,
    given_to_analyst,
    in_words,
    label_holder_sees,
    not_hidden,
)
from fedboost.views.charts import MAX_BARS, ends
from fedboost.views.document import (
    Bars,
    Block,
    Code,
    Document,
    Entries,
    Lines,
    Paragraph,
    Section,
    Series,
    Table,
    note,
)
from fedboost.views.privacy import card_blocks
from fedboost.views.words import capital, counted, duration, size

Rows = Sequence[tuple[str, str]]


def result_document(result: Result, title: str, lead: str, blocks: Sequence[Block]) -> Document:
    """Return the document of a result: its own blocks, then what every session has, folded."""
    session, terms = result.session, result.session.terms
    signed = [
        (party, part_of(terms, party), "its answers" if party in session.signed_by else "nothing")
        for party in dict.fromkeys((*terms.parties, *session.signed_by))
    ]
    agreed_by = Table("Parties", ["party", "takes part with", "signed"], signed, ())
    checked = note("Signatures are checked where the result arrives, if the analyst has keys.")
    more = (
        agreed(terms, [agreed_by, checked]),
        Section("privacy", "Who saw what", [*_privacy_of_a_result(terms)], True),
        Section("session", "Traffic", [*traffic(session)], True),
    )
    return Document(title, lead, (*blocks, *more), "the result and its session")


def session_warnings(session: Ended) -> Iterator[str]:
    """Yield what a reader should know of the session before its figures."""
    terms = session.terms
    if not session.signed_by:
        yield "No party signed its answers: anyone may have made these figures."
    absent = len(set(terms.parties) - set(session.signed_by))
    if session.signed_by and absent:
        yield f"{absent} of the {len(terms.parties)} parties of the terms did not sign."
    if not terms.protection.hides:
        yield f"Protection {terms.hiding.protection}: {not_hidden(terms)}."


# ---- What was agreed ------------------------------------------------------------------------------------


def agreed(terms: Terms, parties: Sequence[Block]) -> Section:
    """Return the section on the parties and on the terms, in the words that a person at a site approved."""
    return Section(
        "agreed",
        "Who agreed, and to what",
        [
            *parties,
            Entries(in_words(terms)),
            note("Other settings have their defaults."),
            Paragraph(("Every party agreed to these terms before the session. Digest: ", Code(terms.digest))),
        ],
        folded=True,
    )


def part_of(terms: Terms, party: str) -> str:
    """Return what a party takes part with."""
    if party not in terms.parties:
        return "nothing: the terms do not name it"
    also = "; decrypts sums" if party == terms.keyholder else ""
    block = terms.blocks.of(party)
    if block is None:
        return ("rows" if party in terms.holders else "no rows") + also
    holds = "the labels, and columns" if block.label_holder == party else "columns"
    return f"{holds}: {', '.join(terms.blocks.columns_of(party).features)}{also}"


# ---- Traffic and time: bytes and seconds as they were counted where the session was followed -----------


_UNITS = ("bytes", 1.0), ("kilobytes", 1e3), ("megabytes", 1e6), ("gigabytes", 1e9)


def traffic(session: Ended) -> Iterator[Block]:
    """Yield the time and bytes of each round, where there are any, and the bytes of each party."""
    yield Paragraph(_in_short(session))
    charts = [*by_round(session.rounds)]
    if session.traffic:
        order = {party: number for number, party in enumerate(session.terms.parties)}
        parties = sorted(session.traffic, key=lambda party: order.get(party, len(order)))
        unit, scale = _unit([session.traffic[party][0] for party in parties])
        sent = ends([(party, session.traffic[party][0] / scale) for party in parties])
        title = f"{capital(unit)} sent by each party"
        if len(parties) > MAX_BARS:
            title += f", the {MAX_BARS} that sent most and least of {len(parties)}"
        charts.append(Bars(title, sent, f"{unit} sent"))
        yield from charts
        yield by_party({party: session.traffic[party] for party in parties})
    else:
        yield note("No bytes were counted.")
    if session.rounds:
        rounds = [(str(n), f"{r['seconds']:.3g}", size(r["bytes"])) for n, r in enumerate(session.rounds, 1)]
        yield Table("Time and traffic of each round", ["round", "seconds", "bytes"], rounds, folded=True)


def by_party(traffic: Traffic) -> Table:
    """Return a table of the bytes of each party."""
    rows = [(party, *map(size, moved)) for party, moved in traffic.items()]
    return Table("Traffic of each party", ["party", "sent", "received"], rows)


def _in_short(session: Ended) -> str:
    seconds = [row["seconds"] for row in session.rounds]
    text = size(sum(map(sum, session.traffic.values())))
    text += " since the aggregator was restarted" if session.since_restart else " in all"
    if seconds:
        text += f"; {counted(len(seconds), 'round')} in {duration(sum(seconds))}"
    if len(seconds) > 1:
        text += (
            f": the first, with what comes before it (keys, counts, cut points, compiling), took "
            f"{duration(seconds[0])}, the median of the others {median(seconds[1:]):.3g} s"
        )
    return f"{text}. Bytes are those of the messages between parties and aggregator, both ways."


def by_round(rounds: Sequence[Row]) -> Iterator[Block]:
    """Yield charts of the seconds and bytes of each round: the first has what comes before it."""
    later = [*enumerate(rounds, 1)][1:]
    if len(later) < 2:
        return
    words, scale = _unit([row["bytes"] for _, row in later])
    for key, unit, factor in (("seconds", "seconds", 1.0), ("bytes", words, scale)):
        series = Series(key, [(number, row[key] / factor) for number, row in later])
        yield Lines(f"{capital(unit)} of each round after the first", [series], "round", unit, whole=True)


def _unit(values: Sequence[float]) -> tuple[str, float]:
    """The largest unit of which the largest value has one at least, and its bytes."""
    largest = max(values, default=0.0)
    return next(((unit, scale) for unit, scale in reversed(_UNITS) if largest >= scale), _UNITS[0])


# ---- Who saw what, and the privacy card: from the terms alone, as docs/threat-model.md has it -----------


NO_NOISE = "without noise nothing bounds what the sums, and the model itself, tell of single rows"
_ON_THE_NETWORK = "anyone on the network", "that parties and aggregator talk, when, and how much"
_LEFT_OUT = (
    "The aggregator leaves counts of few rows out of the result. Together with the analyst it knows all that "
    "it sees."
)


def privacy(terms: Terms) -> Section:
    """Return the section on who saw what of a training, with the card where there is noise."""
    card: Sequence[Block] = [Paragraph(f"No privacy card: {NO_NOISE}.")]
    if terms.noise is not None:
        promised = Paragraph("Privacy card: what is promised of any one row.")
        card = [promised, *card_blocks(PrivacyCard.of(terms), terms=False)]
    return Section("privacy", "Who saw what", [_seen_by(_who_saw_a_training(terms)), *card], folded=True)


def _privacy_of_a_result(terms: Terms) -> Iterator[Block]:
    yield _seen_by(_who_saw_a_result(terms))
    if not terms.task.trains:
        yield note(_LEFT_OUT)


def _seen_by(rows: Iterator[tuple[str, str]]) -> Table:
    return Table("Who saw what", ["who", "what"], [*rows], (), folded=False)


def _who_saw_a_training(terms: Terms) -> Iterator[tuple[str, str]]:
    yield "aggregator", _aggregator(terms)
    if terms.blocks:
        for block in terms.blocks:
            yield f"label holder {block.label_holder}", label_holder_sees(terms)
        yield "each feature holder", "which of the rows it shares go left at each split, and no leaf value"
    else:
        told = "the terms, who takes part, and the model as it grows: every split and every leaf value"
        yield "each other site", told
    yield from _helpers(terms)
    model = "the structure of the model" if terms.keeps_parts else "this model"
    alone = ", and those of each site's rows alone" if terms.evaluation.party_metrics else ""
    metrics = "no metrics"
    if terms.metrics:
        metrics = (
            f"metrics over the rows of all parties{alone}, to four digits and none of fewer than ten rows"
        )
    yield "analyst", f"{model}; {metrics}; bytes of each party"
    yield _ON_THE_NETWORK
    yield (
        "anyone with the model file",
        "thresholds, gains, covers and leaf values, which are made from sums over the rows of all parties"
        + ("" if terms.noise is not None else f"; {NO_NOISE}"),
    )


def _who_saw_a_result(terms: Terms) -> Iterator[tuple[str, str]]:
    yield "aggregator", _aggregator(terms, ", of however few rows,")
    yield "each other site", f"the terms{TASK_WORDS[terms.task.name].told}; no other result"
    yield from _helpers(terms)
    of_candidates = "of each candidate the settings, the rounds and the metric of the validation rows"
    given = of_candidates if terms.task.takes_candidates else given_to_analyst(terms)
    yield "analyst", f"{given}; bytes of each party"
    yield _ON_THE_NETWORK
    yield "anyone with this page", "what the analyst is given"


def _helpers(terms: Terms) -> Iterator[tuple[str, str]]:
    if terms.keyholder is not None and terms.protection.hides:
        yield f"key holder {terms.keyholder}", "of sums numbers with a blind added, which say nothing"
    yield "aggregator and sites together", colluders(terms, "another site's")


def _aggregator(terms: Terms, of_rows: str = "") -> str:
    if not terms.protection.hides:
        return not_hidden(terms)
    own = "; metrics of each site's rows alone" if terms.evaluation.party_metrics else ""
    noise = " with noise on them" if terms.noise is not None and terms.noise.placement != "central" else ""
    sums = f"sums over the rows of all parties{noise}{of_rows or ','}"
    return f"{sums} and never the numbers of a single party{own}"
