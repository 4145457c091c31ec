"""`fedboost privacy` shows and plans privacy budgets.

Guarantees: of these commands, only `privacy init` writes to a site's memory (the file that records sessions).
"""

from typing import Annotated

import typer

from fedboost.cli.common import Json, SiteFile, TermsFile
from fedboost.cli.output import group, show
from fedboost.errors import ConfigError, printable
from fedboost.results.privacy import Plan
from fedboost.runtime.site.backup import accept_restored, init_memory, site_budget
from fedboost.runtime.site.config import read_party
from fedboost.runtime.tasks import read_terms
from fedboost.views import session, site
from fedboost.views.words import counted

privacy_app = group(
    "privacy",
    "Example: fedboost privacy budget --config party.toml\n\n"
    "Example: fedboost privacy plan terms.toml --epsilon 1 --rows 20000",
)

EXAMPLES = (1_000, 10_000, 100_000)  # numbers of rows to plan for without --rows


@privacy_app.command(epilog="Example: fedboost privacy budget --config party.toml")
def budget(config: SiteFile, json: Json = False) -> None:
    """Show how much of this site's privacy budget is spent, and how much remains."""
    result = site_budget(read_party(config))
    spent = (each.model_dump() for each in result.datasets)
    show(json, spent, site.budget(result))


@privacy_app.command(name="init", epilog="Example: fedboost privacy init --config party.toml")
def begin(
    config: SiteFile,
    restored: Annotated[
        bool,
        typer.Option(
            "--restored",
            help="Accept a restored memory that is older than its counter file, or recreate a lost one.",
        ),
    ] = False,
) -> None:
    """Create this site's memory, the record of its sessions. This is required once before training under a
    privacy budget, and again if the memory is lost. Under a privacy budget, it is never created
    automatically."""
    site = read_party(config, holds_rows=None)
    memory = accept_restored(site) if restored else init_memory(site)
    how = "restored memory" if restored else "new memory"
    print(
        f"{memory.path}: {how} of dataset {printable(site.rows_name)}, with "
        f"{counted(memory.sessions, 'session')} and {counted(memory.releases, 'charged release')}"
    )
    if restored:
        print(memory.loss)
    if memory.sessions:
        print("None of these sessions can continue; their analysts must start them again.")


@privacy_app.command(epilog="Example: fedboost privacy plan terms.toml --epsilon 1 --rows 20000 --parties 5")
def plan(
    terms: TermsFile,
    epsilon: Annotated[float | None, typer.Option(help="Epsilon, overriding the terms.")] = None,
    rows: Annotated[
        int | None,
        typer.Option(
            help="Total number of rows across all parties (default: 1,000, 10,000 and 100,000).",
            min=1,
            max=10**12,
        ),
    ] = None,
    parties: Annotated[
        int | None, typer.Option(help="Number of parties, overriding the terms.", min=1, max=4096)
    ] = None,
    json: Json = False,
) -> None:
    """Plan differentially private training. Shows what training under the terms would release, how much noise
    each release gets, and how much the noise affects the model."""
    agreed = read_terms(terms)
    noise = agreed.noise
    if noise is None:
        raise ConfigError(
            "terms-without-noise",
            f"{terms} does not set noise, so there is nothing to plan; add noise = "
            "{ epsilon = 1.0, delta = 1e-5 }",
        )
    if parties is not None:
        agreed = agreed.among((), parties=[f"party-{number + 1}" for number in range(parties)])
    if not agreed.parties:
        raise ConfigError(
            "terms-no-parties",
            f"{terms} names no parties, but the noise depends on their number; add e.g. --parties 3",
        )
    if epsilon is not None:
        agreed = agreed.changed(noise={**noise.model_dump(), "epsilon": epsilon})
    planned = Plan.of(agreed, (rows,) if rows else EXAMPLES)
    show(json, planned.lines, session.plan(planned))
