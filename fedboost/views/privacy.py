"""What terms with noise promise and release: the report of a model, and the outlook before there is one.

Promises: a report follows from the terms alone, which the parties sign: the one inside a model file says no
more than they do, and is made again on each call.
Refuses: terms without noise (ConfigError).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any

from fedboost.errors import ConfigError, printable
from fedboost.privacy import noise as accounting
from fedboost.privacy.pairwise import Group
from fedboost.terms.noise import CUT_POINTS, SUMMARY, TREES, Release
from fedboost.terms.terms import Terms
from fedboost.views.approval import RELEASES
from fedboost.views.facts import PrivacyFacts, SiteFacts
from fedboost.views.words import WIDTH, Block, cell, counted, one_line, table

PrivacyReport = dict[str, Any]

ADJACENCY = "add or remove one row"
NOT_COVERED = (
    "the names, ranges and categories of the columns, and the range of the labels: they stand in the terms, "
    "and must not have been looked up in the rows",
    "that a site takes part, and when; how long it takes to answer",
    "a person who has several rows: with k rows it is about k times this epsilon",
    "a site as a whole: what the sums tell of all its rows together is not hidden",
    "other trainings on the same rows, trials of settings among them: each adds, as the memory of each site "
    "keeps count",
    "what was chosen by a look at the rows, or at results on them, outside of this session",
)


def report_of(terms: Terms) -> PrivacyReport:
    """The report of a model of these terms, as plain values for JSON.

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
        "protection": terms.hiding.protection,
        "terms": terms.digest,
        "releases": releases,
        "not_covered": list(NOT_COVERED),
    }


def _against(terms: Terms) -> str:
    """The ends that the promise holds against."""
    assert terms.noise is not None
    outside = "anyone who sees the opened sums and the model"
    if terms.noise.placement == "central":
        return f"{outside}, but not against the aggregator, which sees the sums before they get noise"
    if terms.noise.placement == "local":
        return f"{outside}, the aggregator and all other parties among them: each party draws all the noise"
    together = max(1, Group.of(terms.parties, terms.hiding.colluding).colluding)
    several = "one other party" if together == 1 else f"up to {together} other parties"
    return f"{outside}, the aggregator and {several} together among them, if the rest draw their noise"


def stated(report: Mapping[str, Any]) -> dict[str, str]:
    """Return what a report states of the whole training, each under its name."""
    return {
        "epsilon": f"{report['epsilon']:g} ({strength(report['epsilon'])})",
        "delta": f"{report['delta']:g}",
        "adjacency": report["adjacency"],
        "holds against": report["against"],
        "noise": f"{report['noise']}, {report['placement']}; that of {report['honest']} honest "
        f"{'party' if report['honest'] == 1 else 'parties'} is enough",
        "parties in every sum": ", ".join(printable(name) for name in report["roster"]) or "not named",
        "protection": report["protection"],
        "trees": report["method"],
        "epsilon of all releases": f"{report['epsilon_spent']:.6g} (mu squared {report['cost']:.6g})",
        "the same by zCDP": f"{report['zcdp_epsilon']:.6g}, a looser bound that takes noise as it is, "
        "discrete",
        "terms": report["terms"],
    }


def as_markdown(report: Mapping[str, Any]) -> str:
    """Return a report as Markdown."""
    head = stated(report)
    lines = ["# Privacy card", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {_cell(value)} |" for name, value in head.items()]
    lines += [
        "",
        "## Every release",
        "",
        "| what | times | sensitivity | noise in the sum | cost of one |",
        "|---|---:|---:|---:|---:|",
        *(
            f"| {release['what']} | {release['times']} | {release['sensitivity']:.6g} | "
            f"{release['sigma']:.6g} | {release['cost']:.6g} |"
            for release in report["releases"]
        ),
        "",
        "Sensitivity is how far one row can move the whole sum, noise its standard deviation, both in the",
        "integers that are added; cost is mu squared, which adds.",
        "",
        "## What is not covered",
        "",
        *(f"- {gap}" for gap in report["not_covered"]),
    ]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def strength(epsilon: float) -> str:
    """Return an epsilon in a word."""
    for most, word in ((1.0, "strong"), (3.0, "moderate"), (8.0, "weak")):
        if epsilon <= most:
            return word
    return "hardly any protection"


@dataclass(frozen=True)
class Outlook:
    """The effect of noise on a model of that many rows. All figures are standard deviations.

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
    """The effect of noise for a typical row: an undecided prediction, classes that are equally frequent,
    labels that are spread evenly over their range."""
    spread, hessian = terms.objective.loss.typical_row(terms.bound)
    leaf_rows = rows / 2.0**terms.trees.max_depth
    noise = terms.bound.gradient(terms.plan.releases[TREES].sigma)
    by_noise = noise / (leaf_rows * hessian)
    by_chance = spread / (math.sqrt(leaf_rows) * hessian)
    worth = leaf_rows * by_chance**2 / (by_chance**2 + by_noise**2)
    return Outlook(rows, leaf_rows, by_noise, by_chance, worth)


def noise_of_sum(terms: Terms, release: Release) -> float:
    """The standard deviation of the noise in a sum: in rows for counts, else in gradients."""
    return release.sigma if release.what in (CUT_POINTS, SUMMARY) else terms.bound.gradient(release.sigma)


@dataclass(frozen=True)
class Planned:
    """Releases of one kind that terms plan. noise: in the sum, in `unit`."""

    what: str
    times: int
    cost: float
    noise: float
    unit: str

    @classmethod
    def from_release(cls, terms: Terms, release: Release) -> "Planned":
        """The releases of this kind under these terms."""
        noise = noise_of_sum(terms, release)
        return cls(release.what, release.times, release.cost, noise, RELEASES[release.what])


def plan(
    terms: Terms, report: PrivacyReport, releases: Sequence[Planned], outlooks: Sequence[Outlook]
) -> Iterator[Block]:
    """Yield what terms would release, and what to expect of the model."""
    parties = counted(len(terms.parties), "party", "parties")
    yield (
        f"epsilon {report['epsilon']:g} at delta {report['delta']:g}: {strength(report['epsilon'])}; "
        f"{parties}, noise {report['placement']}, that of {report['honest']} is enough"
    )
    yield f"holds against {report['against']}\n"
    headings = "what is released", "times", "noise", "in", "share of cost"
    lines = table(*headings, numbers=(1, 2, 4), whole=True)
    for planned in releases:
        share = f"{planned.cost * planned.times / report['cost']:.1%}"
        lines.add_row(planned.what, str(planned.times), f"{planned.noise:,.1f}", planned.unit, share)
    yield lines
    expected = table("rows", "in a leaf", "noise moves it by", "chance by", numbers=range(4), whole=True)
    for outlook in outlooks:
        effects = f"{outlook.by_noise:.3g}", f"{outlook.by_chance:.3g}"
        expected.add_row(f"{outlook.rows:,}", f"{outlook.leaf_rows:,.0f}", *effects)
    yield ""
    yield expected
    yield (
        "\nNoise is a standard deviation, in every cell of a sum. A leaf's value is moved in margins\n"
        "(log-odds, logarithms of counts, or amounts), before the learning rate and before it is\n"
        "shrunk for its noise; chance is that of which rows the sites happen to have.\n"
    )
    yield from map(in_words, outlooks)
    if report["method"] == "hist":
        yield "With method hist several noisy cells tell of a leaf: expect it to be less sure than this."


def in_words(outlook: Outlook) -> str:
    """Return an outlook as a sentence, for somebody who must decide."""
    return (
        f"With {outlook.rows:,} rows a leaf has {outlook.leaf_rows:,.0f} on average and is as sure of its "
        f"value as {outlook.worth:,.0f} rows would make it without noise: {_verdict(outlook)}."
    )


def spent(site: SiteFacts, datasets: Sequence[PrivacyFacts]) -> Iterator[Block]:
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


def _verdict(outlook: Outlook) -> str:
    ratio = outlook.by_noise / outlook.by_chance
    if ratio <= 0.5:
        return "noise costs little"
    if ratio <= 2.0:
        return "noise and chance weigh about the same"
    if ratio <= 10.0:
        return "noise outweighs chance in a single tree, and only what many trees agree on is learned"
    return "noise drowns a single leaf; raise epsilon, or train on more rows"
