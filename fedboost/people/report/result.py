"""The page of a result that is no model: its own sections, then who agreed to it, traffic, and who saw what.

Promises: the same facts give the same bytes; what the facts lack is named, and not made up.
Refuses: nothing.
"""

from collections.abc import Iterator, Sequence

from fedboost.people.not_hidden import not_hidden
from fedboost.people.other_tasks import given_to_analyst
from fedboost.people.report.agreed import columns_and_settings, part_of
from fedboost.people.report.facts import ResultFacts
from fedboost.people.report.markup import Markup, element, joined, left_out, paragraph, table
from fedboost.people.report.privacy import ON_THE_NETWORK, of_colluders
from fedboost.people.report.session import turns
from fedboost.people.report.skeleton import Sections, document
from fedboost.terms.session import TO_DESCRIBE, TO_EVALUATE
from fedboost.terms.terms import Terms

_ALWAYS = "program", "objective", "protection"


def result_page(facts: ResultFacts, heading: str, lead: str, command: str, sections: Sections) -> str:
    """Return the page. command: that which ran the session."""
    terms, session = facts.terms, facts.session
    if terms is None:
        why = (
            f"A result as JSON does not say under which terms it was made, who took part, who signed and "
            f"what travelled: fedboost {command} --report writes a page that does."
        )
        more = {"agreed": ("What was agreed, and by whom", left_out(why))}
    else:
        more = {
            "agreed": ("What was agreed, and by whom", _agreed(terms, facts)),
            "privacy": ("Privacy: who saw what", _privacy(terms)),
        }
    if session is not None and terms is not None:
        more["session"] = ("Traffic", turns(session, terms))
    source = "the result as JSON" if terms is None else "the result and its session"
    return document(heading, heading, lead, {**sections, **more}, source)


def warned(texts: Sequence[str], facts: ResultFacts) -> Markup:
    """Return a list of warnings: these, and those of the session."""
    found = [*texts, *_of_session(facts)]
    if not found:
        return paragraph("None.")
    return element("ul", *(element("li", text) for text in found), class_="warnings")


def _of_session(facts: ResultFacts) -> Iterator[str]:
    terms = facts.terms
    if terms is None:
        yield "This page is made from a file that nobody signed: anybody may have made these figures."
        return
    if not facts.signed_by:
        yield "Nobody signed what was answered: anybody may have made these figures."
    absent = len(set(terms.parties) - set(facts.signed_by))
    if facts.signed_by and absent:
        yield f"{absent} of the {len(terms.parties)} parties of the terms did not sign."
    if not terms.protection.hides:
        yield f"Protection {terms.hiding.protection}: {not_hidden(terms)}."


def _agreed(terms: Terms, facts: ResultFacts) -> Markup:
    signed_by = facts.signed_by
    parties = dict.fromkeys((*terms.parties, *signed_by))
    rows = (
        (party, part_of(terms, party), "what it answered" if party in signed_by else "nothing")
        for party in parties
    )
    return joined(
        paragraph(
            "All of it stands in the terms, which every party agreed to before the session: their digest is ",
            element("code", terms.digest),
            ".",
        ),
        table("Parties", ["party", "takes part with", "signed"], rows, ()),
        paragraph(
            "The signatures were not checked for this page: fedboost verify checks them."
            if facts.session is None
            else "Signatures are checked where the result arrives, if the analyst has keys."
        ),
        columns_and_settings(terms, _ALWAYS),
    )


def _privacy(terms: Terms) -> Markup:
    rows = table("Who saw what", ["who", "what"], _who_saw_what(terms), (), folded=False)
    return joined(
        rows,
        paragraph(
            "It is the aggregator that leaves counts of few rows out: together with the analyst it tells all "
            "that it sees."
        ),
    )


def _who_saw_what(terms: Terms) -> Iterator[Sequence[str]]:
    own = "; metrics of each site's rows alone" if terms.evaluation.party_metrics else ""
    noise = " with noise on them" if terms.noise is not None and terms.noise.placement != "central" else ""
    yield (
        "aggregator",
        f"sums over the rows of all parties{noise}, of however few rows, and never the numbers of a single "
        f"party{own}"
        if terms.protection.hides
        else not_hidden(terms),
    )
    yield "each other site", _told_sites(terms)
    if terms.keyholder is not None and terms.protection.hides:
        yield f"key holder {terms.keyholder}", "of sums numbers with a blind added, which say nothing"
    yield "aggregator and sites together", of_colluders(terms)
    yield "analyst", f"{given_to_analyst(terms)}; bytes of each party"
    yield ON_THE_NETWORK
    yield "whoever has this page", "what the analyst is given"


def _told_sites(terms: Terms) -> str:
    if terms.task == TO_DESCRIBE:
        return "the terms, how many rows there are in all, and where their values lie; no other result"
    known = ", and how many rows there are in all" if terms.task == TO_EVALUATE else ""
    return f"the terms, with the model in them{known}; no other result"
