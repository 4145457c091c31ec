"""`fedboost privacy`: what was spent of the rows' privacy here, what terms would spend, what a model did.

Promises: `--help` imports nothing heavy; nothing here but `init` writes to a site's memory.
Refuses: terms and models without noise, a memory that is damaged, another instead of one that is there
(ConfigError).
"""

from pathlib import Path
from typing import Annotated

import typer

from fedboost.cli.options import Json, ModelFile, SiteFile, TermsFile
from fedboost.cli.usage import Group
from fedboost.errors import ConfigError

privacy_app = typer.Typer(
    name="privacy",
    help="Differential privacy: a site's memory and budget, what terms would cost, a model's card.",
    epilog="Example: fedboost privacy budget --config party.toml\n\n"
    "Example: fedboost privacy plan terms.toml --epsilon 1 --rows 20000",
    no_args_is_help=True,
    cls=Group,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

EXAMPLES = (1_000, 10_000, 100_000)
"""Numbers of rows to plan for where nobody says how many there are."""


@privacy_app.command(epilog="Example: fedboost privacy budget --config party.toml")
def budget(
    config: SiteFile,
    json: Json = False,
) -> None:
    """Say what all sessions so far have spent of the privacy of this site's rows, and what is left."""
    from fedboost.cli.output import show
    from fedboost.people import as_json
    from fedboost.people.facts import SiteFacts
    from fedboost.people.privacy_report import spent
    from fedboost.runtime.site.backup import spent_of
    from fedboost.runtime.site.budget import Spent, facts_of
    from fedboost.runtime.site.config import read_party

    site = read_party(config)
    limit, datasets = site.policy.budget, spent_of(site)
    if site.rows_name not in [known.dataset for known in datasets]:
        datasets = [Spent(site.rows_name), *datasets]
    facts = [facts_of(known, limit, known.dataset == site.rows_name) for known in datasets]
    (took_part,) = (known.took_part for known in facts if known.own)
    allowed = (None, None) if limit is None else (limit.epsilon, limit.delta)
    owner = SiteFacts(site.rows_name, site.policy.max_sessions, took_part, *allowed)
    show(json, as_json.spent(facts), spent(owner, facts))


@privacy_app.command(
    name="init",
    epilog="Example: fedboost privacy init --config party.toml\n\n"
    "Example: fedboost privacy init --from party.ledger.sqlite --config party.toml",
)
def begin(
    config: SiteFile,
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
    from fedboost.errors import printable
    from fedboost.runtime.site.backup import accept_restored, init_memory
    from fedboost.runtime.site.config import read_party

    if restored and ledger is not None:
        raise ConfigError("--from and --restored exclude each other: the first begins a memory")
    site = read_party(config, holds_rows=None)
    memory = accept_restored(site) if restored else init_memory(site, ledger)
    how = "the memory that was put back" if restored else "a new memory"
    print(
        f"{memory.path}: {how}, of the rows {printable(site.rows_name)}; it knows {memory.sessions} sessions "
        f"and {memory.releases} releases that were charged"
    )
    if memory.sessions:
        print("None of those sessions continues: its analyst begins again.")


@privacy_app.command(epilog="Example: fedboost privacy plan terms.toml --epsilon 1 --rows 20000 --parties 5")
def plan(
    terms: TermsFile,
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
    from fedboost.cli.output import show
    from fedboost.people import as_json, privacy_report
    from fedboost.runtime.terms_file import read_terms

    agreed = read_terms(terms)
    noise = agreed.noise
    if noise is None:
        raise ConfigError(f"{terms}: has no noise to plan; add noise = {{ epsilon = 1.0, delta = 1e-5 }}")
    if parties is not None:
        agreed = agreed.with_parties(f"party-{number + 1}" for number in range(parties))
    if not agreed.parties:
        raise ConfigError(f"{terms}: names no parties, by whose number noise goes; give --parties 3")
    if epsilon is not None:
        agreed = agreed.changed(noise={**noise.model_dump(), "epsilon": epsilon})
    report = privacy_report.report_of(agreed)
    outlooks = [privacy_report.outlook(agreed, count) for count in ((rows,) if rows else EXAMPLES)]
    releases = [
        privacy_report.Planned.from_release(agreed, release) for release in agreed.plan.releases.values()
    ]
    show(
        json,
        as_json.plan(report, releases, outlooks),
        privacy_report.plan(agreed, report, releases, outlooks),
    )


@privacy_app.command(epilog="Example: fedboost privacy explain model.json > card.md")
def explain(
    model: ModelFile,
    json: Json = False,
) -> None:
    """Print a model's privacy card: what it promises, every release, and what is not covered."""
    from fedboost.cli.output import print_json, write
    from fedboost.people.privacy_report import as_markdown, report_of
    from fedboost.runtime.model import Model

    agreed = Model.load(model).terms
    if agreed.noise is None:
        raise ConfigError(
            f"{model}: was trained without noise, so it has no card: nothing bounds what it tells of a row"
        )
    report = report_of(agreed)
    if json:
        print_json(report)
    else:
        write(as_markdown(report), None)
