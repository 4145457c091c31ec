"""`fedboost privacy`: what was spent of the rows' privacy here, what terms would spend, what a model did.

Promises: `--help` imports nothing heavy; nothing here but `init` writes to a site's memory.
Refuses: terms and models without noise, a memory that is damaged, another in the place of one that is there
(ConfigError).
"""

from pathlib import Path
from typing import Annotated

import typer

privacy_app = typer.Typer(
    name="privacy",
    help="Differential privacy: a site's memory and budget, what terms would cost, a model's card.",
    epilog="Example: fedboost privacy budget --config party.toml\n\n"
    "Example: fedboost privacy plan terms.toml --epsilon 1 --rows 20000",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line, for scripts.")]
WIDTH = 79
"""Columns of a paragraph."""
EXAMPLES = (1_000, 10_000, 100_000)
"""Numbers of rows to tell of where nobody says how many there are."""


@privacy_app.command(epilog="Example: fedboost privacy budget --config party.toml")
def budget(
    config: Annotated[Path, typer.Option(help="This site's file, TOML.", show_default=False)],
    json: Json = False,
) -> None:
    """Say what all sessions so far have spent of the privacy of this site's rows, and what is left."""
    from textwrap import fill

    from fedboost.cli.show import print_json, printable
    from fedboost.runtime.config import read_party
    from fedboost.runtime.site.budget import Spent
    from fedboost.runtime.site.memory_start import spent_of

    site = read_party(config)
    own, limit = site.rows_name, site.policy.budget
    datasets = spent_of(site)
    if own not in [spent.dataset for spent in datasets]:
        datasets = [Spent(own), *datasets]
    lines = []
    for spent in datasets:
        of_own = limit if spent.dataset == own else None
        delta = of_own.delta if of_own else spent.delta
        left = None if of_own is None else of_own.left(spent.cost)
        lines.append((spent, of_own, delta, spent.epsilon(delta), left))
    if json:
        for spent, of_own, delta, epsilon, left in lines:
            print_json(
                dataset=spent.dataset,
                own=spent.dataset == own,
                sessions=spent.sessions,
                took_part=spent.took_part,
                never_began=spent.never_began,
                with_noise=spent.with_noise,
                releases=spent.releases,
                cost=spent.cost,
                delta=delta,
                spent=epsilon,
                budget=None if of_own is None else of_own.epsilon,
                left=left,
            )
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    counted = "sessions", "never\nbegan", "with\nnoise", "releases"
    table = Table("dataset", *counted, "spent", "at delta", "left", box=None, pad_edge=False)
    table.columns[0].overflow = "fold"
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for spent, _, delta, epsilon, left in lines:
        rest = "-" if left is None else f"{left:.4g}"
        counts = spent.sessions, spent.never_began, spent.with_noise, spent.releases
        values = f"{epsilon:.4g}", f"{delta:g}", rest
        table.add_row(Text(printable(spent.dataset)), *map(str, counts), *values)
    Console().print(table)
    (took_part,) = (spent.took_part for spent in datasets if spent.dataset == own)
    most = site.policy.max_sessions
    print(
        f"\n{printable(own)} took part in {took_part} of at most {most} session{'s' * (most != 1)} "
        f"(max_sessions in its policy)."
    )
    text = (
        "It has no budget, so no session is refused for what it would spend. Set epsilon and delta under "
        "[policy] for one."
        if limit is None
        else f"Its budget is epsilon {limit.epsilon:g} at delta {limit.delta:g}. Epsilons do not add, their "
        f"costs do: what is left is what one more session may have."
    )
    print(fill(text, WIDTH))


@privacy_app.command(
    name="init",
    epilog="Example: fedboost privacy init --config party.toml\n\n"
    "Example: fedboost privacy init --from party.ledger.sqlite --config party.toml",
)
def begin(
    config: Annotated[Path, typer.Option(help="This site's file, TOML.", show_default=False)],
    ledger: Annotated[
        Path | None,
        typer.Option("--from", help="A ledger of an earlier version, to be taken over.", show_default=False),
    ] = None,
    restored: Annotated[
        bool, typer.Option("--restored", help="Use a memory that was put back from a backup.")
    ] = False,
) -> None:
    """Begin the memory of this site's sessions, where only a person can decide to: under a budget, or because
    it was lost. What the audit log has of earlier sessions is taken over."""
    from fedboost.errors import ConfigError, printable
    from fedboost.runtime.config import read_party
    from fedboost.runtime.site.memory_start import accept_restored, init_memory

    if restored and ledger is not None:
        raise ConfigError("--from and --restored exclude each other: the first begins a memory")
    site = read_party(config, holds_rows=None)
    begun = accept_restored(site) if restored else init_memory(site, ledger)
    how = "the memory that was put back" if restored else "a new memory"
    print(
        f"{begun.path}: {how}, of the rows {printable(site.rows_name)}; it knows {begun.sessions} sessions "
        f"and {begun.releases} releases that were charged"
    )
    if begun.sessions:
        print("None of those sessions continues: whoever was training begins again.")


@privacy_app.command(epilog="Example: fedboost privacy plan terms.toml --epsilon 1 --rows 20000 --parties 5")
def plan(
    terms: Annotated[Path, typer.Argument(help="The terms, a TOML file.", show_default=False)],
    epsilon: Annotated[
        float | None, typer.Option(help="In place of the terms' own.", show_default=False)
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(help="Rows of all parties together.", min=1, max=10**12, show_default="a few examples"),
    ] = None,
    parties: Annotated[
        int | None,
        typer.Option(help="So many, in place of those named.", min=1, max=4096, show_default=False),
    ] = None,
    json: Json = False,
) -> None:
    """Say what terms with noise would release, how much noise that gets, and what to expect of the model."""
    from fedboost.cli.show import print_json
    from fedboost.errors import ConfigError
    from fedboost.people.privacy_report import UNITS_OF, card_of, in_words, noise_of_sum, outlook, strength
    from fedboost.runtime.config import read_terms

    asked = read_terms(terms)
    noise = asked.noise
    if noise is None:
        raise ConfigError(f"{terms}: has no noise to plan; add noise = {{ epsilon = 1.0, delta = 1e-5 }}")
    if parties is not None:
        asked = asked.with_parties(f"party-{number + 1}" for number in range(parties))
    if not asked.parties:
        raise ConfigError(f"{terms}: names no parties, by whose number noise goes; give --parties 3")
    if epsilon is not None:
        asked = asked.changed(noise={**noise.model_dump(), "epsilon": epsilon})
    card = card_of(asked)
    outlooks = [outlook(asked, count) for count in ((rows,) if rows else EXAMPLES)]
    releases = [(one, noise_of_sum(asked, one)) for one in asked.plan.releases.values()]
    if json:
        for one, sigma in releases:
            print_json(
                event="release",
                what=one.what,
                times=one.times,
                cost=one.cost,
                noise=sigma,
                unit=UNITS_OF[one.what],
            )
        for of in outlooks:
            print_json(
                event="outlook",
                rows=of.rows,
                leaf_rows=of.leaf_rows,
                by_noise=of.by_noise,
                by_chance=of.by_chance,
                worth=of.worth,
            )
        print_json(
            event="total",
            epsilon=card["epsilon"],
            delta=card["delta"],
            cost=card["cost"],
            epsilon_spent=card["epsilon_spent"],
            zcdp_epsilon=card["zcdp_epsilon"],
            honest=card["honest"],
        )
        return
    from rich.console import Console
    from rich.table import Table

    print(
        f"epsilon {card['epsilon']:g} at delta {card['delta']:g}: {strength(card['epsilon'])}; "
        f"{len(asked.parties)} {'party' if len(asked.parties) == 1 else 'parties'}, noise "
        f"{card['placement']}, that of {card['honest']} is enough"
    )
    print(f"holds against {card['against']}\n")
    table = Table("what is released", "times", "noise", "in", "share of cost", box=None, pad_edge=False)
    for column in (table.columns[1], table.columns[2], table.columns[4]):
        column.justify, column.no_wrap = "right", True
    for one, sigma in releases:
        share = f"{one.cost * one.times / card['cost']:.1%}"
        table.add_row(one.what, str(one.times), f"{sigma:,.1f}", UNITS_OF[one.what], share)
    Console().print(table)
    expected = Table("rows", "in a leaf", "noise moves it by", "chance by", box=None, pad_edge=False)
    for column in expected.columns:
        column.justify, column.no_wrap = "right", True
    for of in outlooks:
        moved = f"{of.by_noise:.3g}", f"{of.by_chance:.3g}"
        expected.add_row(f"{of.rows:,}", f"{of.leaf_rows:,.0f}", *moved)
    print()
    Console().print(expected)
    print(
        "\nNoise is a standard deviation, in every cell of a sum. A leaf's value is moved in margins\n"
        "(log-odds, logarithms of counts, or amounts), before the learning rate and before it is\n"
        "shrunk for its noise; chance is that of which rows the sites happen to have.\n"
    )
    for sentence in in_words(outlooks):
        print(sentence)
    if noise.method == "hist":
        print("With method hist several noisy cells tell of a leaf: expect it to be less sure than this.")


@privacy_app.command(epilog="Example: fedboost privacy explain model.json > card.md")
def explain(
    model: Annotated[Path, typer.Argument(help="A model file.", show_default=False)],
    json: Json = False,
) -> None:
    """Print a model's privacy card: what it promises, every release, and what is not covered."""
    from fedboost.cli.show import print_json
    from fedboost.cli.tables import write
    from fedboost.errors import ConfigError
    from fedboost.people.privacy_report import as_markdown, card_of
    from fedboost.runtime.model_file import Model

    terms = Model.load(model).terms
    if terms.noise is None:
        raise ConfigError(
            f"{model}: was trained without noise, so it has no card: nothing bounds what it tells of a row"
        )
    card = card_of(terms)
    if json:
        print_json(**card)
    else:
        write(as_markdown(card), None)
