"""What terms with noise promise and release: the card of a model, and the outlook before there is one.

Promises: a card follows from the terms alone, which the parties sign: the one inside a model file says no
more than they do, and is made anew when it is asked for.
Refuses: terms without noise (ConfigError).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedboost.errors import ConfigError, printable
from fedboost.privacy.masked.pairwise import Group
from fedboost.privacy.noise import accounting
from fedboost.protocol.noise import CUT_POINTS, START, TREES, Release
from fedboost.protocol.terms import Terms

Card = dict[str, Any]

ADJACENCY = "add or remove one row"
UNITS_OF = {CUT_POINTS: "rows", START: "gradients", TREES: "gradients"}
"""What the noise of a release is told in."""
NOT_COVERED = (
    "the names, ranges and levels of the columns, and the range of the labels: they stand in the terms, and "
    "must not have been looked up in the rows",
    "that a site takes part, and when; how long it takes to answer",
    "a person who has several rows: with k rows it is about k times this epsilon",
    "a site as a whole: what the sums tell of all its rows together is not hidden",
    "other trainings on the same rows, trials of settings among them: each adds, as the memory of each site "
    "keeps count",
    "what was chosen by a look at the rows, or at results on them, outside of this session",
)


def card_of(terms: Terms) -> Card:
    """The card of a model of these terms, as plain values for JSON.

    `epsilon` is what was agreed, `epsilon_spent` what the noise drawn, which is rounded up, comes to; `cost`
    is mu squared of all releases, `zcdp_epsilon` the looser figure that needs no Gaussian. `sigma` of a
    release is the standard deviation of the noise in its sum, `share` that of one party's, both in the
    integers of the sum; `cost` that of one.
    """
    noise = terms.noise
    if noise is None:
        raise ConfigError("the terms have no noise: nothing bounds what the sums and the model tell of a row")
    cost = terms.plan.cost
    releases = [
        {
            "what": release.what,
            "times": release.times,
            "sensitivity": release.sensitivity,
            "share": release.share,
            "sigma": release.sigma,
            "cost": release.cost,
        }
        for release in terms.plan.releases.values()
    ]
    return {
        "epsilon": noise.epsilon,
        "delta": noise.delta,
        "adjacency": ADJACENCY,
        "epsilon_spent": accounting.epsilon_of(math.sqrt(cost), noise.delta),
        "cost": cost,
        "zcdp_epsilon": accounting.zcdp_epsilon(cost, noise.delta),
        "noise": "discrete Gaussian",
        "placement": noise.placement,
        "method": noise.method,
        "against": _against(terms),
        "honest": max(terms.honest, 1) if noise.placement == "distributed" else 1,
        "roster": list(terms.parties),
        "protection": terms.protection,
        "terms": terms.digest,
        "releases": releases,
        "not_covered": list(NOT_COVERED),
    }


def _against(terms: Terms) -> str:
    """Whom the promise holds against."""
    assert terms.noise is not None
    outside = "whoever sees the opened sums and the model"
    if terms.noise.placement == "central":
        return f"{outside}, but not against the aggregator, which sees the sums before they get noise"
    if terms.noise.placement == "local":
        return f"{outside}, the aggregator and all other parties among them: each party draws all the noise"
    together = max(1, Group.of(terms.parties, terms.colluding).colluding)
    several = "one other party" if together == 1 else f"up to {together} other parties"
    return f"{outside}, the aggregator and {several} together among them, if the rest draw their noise"


def as_markdown(card: Mapping[str, Any]) -> str:
    """A card for people."""
    head = {
        "epsilon": f"{card['epsilon']:g} ({strength(card['epsilon'])})",
        "delta": f"{card['delta']:g}",
        "adjacency": card["adjacency"],
        "holds against": card["against"],
        "noise": f"{card['noise']}, {card['placement']}; that of {card['honest']} honest "
        f"{'party' if card['honest'] == 1 else 'parties'} is enough",
        "parties in every sum": ", ".join(printable(name) for name in card["roster"]) or "not named",
        "protection": card["protection"],
        "trees": card["method"],
        "epsilon of all releases": f"{card['epsilon_spent']:.6g} (mu squared {card['cost']:.6g})",
        "the same by zCDP": f"{card['zcdp_epsilon']:.6g}, a looser bound that takes noise as it is, discrete",
        "terms": card["terms"],
    }
    lines = ["# Privacy card", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {_cell(value)} |" for name, value in head.items()]
    lines += [
        "",
        "## Every release",
        "",
        "| what | times | sensitivity | noise in the sum | cost of one |",
        "|---|---:|---:|---:|---:|",
        *(
            f"| {one['what']} | {one['times']} | {one['sensitivity']:.6g} | {one['sigma']:.6g} | "
            f"{one['cost']:.6g} |"
            for one in card["releases"]
        ),
        "",
        "Sensitivity is how far one row can move the whole sum, noise its standard deviation, both in the",
        "integers that are added; cost is mu squared, which adds.",
        "",
        "## What is not covered",
        "",
        *(f"- {one}" for one in card["not_covered"]),
    ]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def strength(epsilon: float) -> str:
    """An epsilon in a word."""
    for most, word in ((1.0, "strong"), (3.0, "moderate"), (8.0, "weak")):
        if epsilon <= most:
            return word
    return "hardly any protection"


@dataclass(frozen=True)
class Outlook:
    """What noise does to a model of so many rows. All figures are standard deviations.

    leaf_rows: the rows of a leaf, were they spread evenly; by_noise, by_chance: how far noise, and the chance
    of which rows there are, move the value of such a leaf before the learning rate, in margins; worth: how
    many rows without noise would be as sure.
    """

    rows: int
    leaf_rows: float
    by_noise: float
    by_chance: float
    worth: float


def outlook(terms: Terms, rows: int) -> Outlook:
    """For a typical row: one of an undecided prediction, classes that are equally frequent, labels that are
    spread evenly over their range."""
    spread, hessian = terms.loss.typical_row(terms.bound)
    leaf_rows = rows / 2.0**terms.max_depth
    noise = terms.bound.gradient(terms.plan.releases[TREES].sigma)
    by_noise = noise / (leaf_rows * hessian)
    by_chance = spread / (math.sqrt(leaf_rows) * hessian)
    worth = leaf_rows * by_chance**2 / (by_chance**2 + by_noise**2)
    return Outlook(rows, leaf_rows, by_noise, by_chance, worth)


def noise_of_sum(terms: Terms, release: Release) -> float:
    """The standard deviation of the noise in a sum: in rows for counts, else in gradients."""
    return release.sigma if release.what == CUT_POINTS else terms.bound.gradient(release.sigma)


def in_words(outlooks: Sequence[Outlook]) -> list[str]:
    """What an outlook means to somebody who must decide: a sentence for each number of rows."""
    return [
        f"With {one.rows:,} rows a leaf has {one.leaf_rows:,.0f} on average and is as sure of its value as "
        f"{one.worth:,.0f} rows would make it without noise: {_verdict(one)}."
        for one in outlooks
    ]


def _verdict(one: Outlook) -> str:
    ratio = one.by_noise / one.by_chance
    if ratio <= 0.5:
        return "noise costs little"
    if ratio <= 2.0:
        return "noise and chance weigh about the same"
    if ratio <= 10.0:
        return "noise outweighs chance in a single tree, and only what many trees agree on is learned"
    return "noise drowns a single leaf; raise epsilon, or train on more rows"
