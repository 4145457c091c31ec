"""Trainings in words: metrics of a round, signatures, traffic, the end of a training and of a demo.

Promises: a metric that is not published has a dash.
Refuses: nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fedboost.gbdt import metrics
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.metrics import grows, own_name
from fedboost.results.base import Traffic
from fedboost.results.model import ModelSummary, Verification
from fedboost.terms.terms import Terms
from fedboost.views.facts import (
    DemoFacts,
    EstimateFacts,
    TrainingFacts,
    WorkersFacts,
)
from fedboost.views.words import Block, cell, delimited, duration, entry, one_line, paragraph, size, table

ACCOUNTED = ("round", "seconds", "bytes")
"""Values of a row of the history that are no metrics."""


def metrics_of(row: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of a row of the history, over the rows of all parties."""
    return metrics.of_all({name: value for name, value in row.items() if name not in ACCOUNTED})


def figures(row: Mapping[str, float], terms: Terms, between: str = " ") -> str:
    """Return the same in words, a dash for those that are not published; where candidates are tried, the best
    value of the metric that is watched."""
    if terms.task.takes_candidates:
        return _best_of_candidates(row, terms)
    whole = [rows for rows in terms.sets if metrics.OF_PARTY not in rows]
    names = [("" if rows == metrics.TRAIN else f"{rows}-") + name for rows in whole for name in terms.metrics]
    values = {name: f"{value:.5f}" for name, value in metrics_of(row).items()}
    texts = dict.fromkeys(names, "-") | values
    return one_line(between.join(f"{name} {value}" for name, value in texts.items()))


def _best_of_candidates(row: Mapping[str, float], terms: Terms) -> str:
    watched = own_name(terms.metrics[-1])
    names = {
        f"{metrics.VALIDATION}-{number}/{watched}": number
        for number in range(len(terms.objective.candidates))
    }
    values = {name: row[name] for name in names if name in row}
    if not values:
        return f"{watched} -"
    best = (max if grows(watched) else min)(values, key=values.__getitem__)
    return f"best {watched} {values[best]:.5f} (trial {names[best]})"


def signatures(model: ModelSummary) -> str:
    """Return which parties signed their part of a model, and which did not."""
    parties, signed = model.terms.parties, model.signed_by
    missing = [party for party in parties if party not in signed]
    if len(missing) == len(parties):
        return f"protection {model.terms.hiding.protection}, signed by nobody"
    lacking = f", NOT by {', '.join(missing)}" if missing else ""
    return f"protection {model.terms.hiding.protection}, signed by {', '.join(signed)}{lacking}"


def absences(model: ModelSummary) -> Iterator[str]:
    """Yield from which round on sums were without which parties; nothing where they always were over all."""
    for first, roster in model.rosters.items():
        away = [party for party in model.terms.parties if party not in roster]
        yield f"from round {first + 1} on " + (f"without {', '.join(away)}" if away else "with all again")


def party_metrics(model: ModelSummary) -> Iterator[Block]:
    """Yield a table of the metrics of each party's rows alone, if there are any."""
    by_party = metrics.by_party(model.last_row)
    if not by_party:
        return
    names = list(dict.fromkeys(name for values in by_party.values() for name in values))
    lines = table("party", *names)
    for party in model.terms.holders:
        values = by_party.get(party, {})
        lines.add_row(cell(party), *(f"{values[name]:.5f}" if name in values else "-" for name in names))
    yield lines


def traffic(by_party: Traffic, rounds: int | None) -> Block:
    """Return a table of the bytes of each party: in all, and sent per round, unless the number of rounds is
    not known."""
    lines = table("party", "sent", "received", *([] if rounds is None else ["sent per round"]))
    for party, (sent, received) in by_party.items():
        per_round = [] if rounds is None else [size(sent / max(rounds, 1))]
        lines.add_row(cell(party), size(sent), size(received), *per_round)
    return lines


def conclusion(training: TrainingFacts) -> Iterator[Block]:
    """Yield the end of a training: the model, its metrics, what it took and who signed it."""
    model, since_restart = training.model, training.since_restart
    numbers = figures(model.last_row, model.terms, ", ")
    in_training = f"training {numbers}, " if numbers else ""
    total = size(sum(map(sum, training.traffic.values())))
    since = "since the aggregator was restarted" if since_restart else "in all"
    yield f"{model.trees} trees, {in_training}{total} {since}"
    if model.kept < model.trained:
        yield f"stopped after {model.trained} rounds: round {model.kept} was the best, and is the last"
    elif model.trained < model.terms.trees.rounds:
        yield f"stopped after {model.trained} of {model.terms.trees.rounds} rounds"
    yield from party_metrics(model)
    yield traffic(training.traffic, None if since_restart else model.trained)
    yield signatures(model)
    yield from absences(model)
    yield from shares(training)
    whole = training.shares is None
    form = "XGBoost JSON" if whole else "its structure alone: each party keeps its part"
    saved = f"{training.file} ({form})" if training.file else "not saved (give --out model.json)"
    yield f"model: {saved}"


def demo(facts: DemoFacts) -> Iterator[Block]:
    """Yield the end of a demo: what the model is worth beside those of single sites."""
    training = facts.training
    yield ""
    yield scores(facts, "on the same held-out rows")
    yield f"federated == pooled: {'yes' if facts.equal else 'NO'}\n"
    yield traffic(training.traffic, training.model.trained)
    yield ""
    yield signatures(training.model)
    yield f"model: {training.file} (XGBoost JSON; terms, site files and logs are beside it)"
    yield "what left the first site, by its own audit log:"
    yield one_line(f"fedboost audit {facts.log}")


def scores(facts: DemoFacts, title: str) -> Block:
    """Return a table of the metrics of each model."""
    names = list(facts.scores["pooled"])
    lines = table("model", *names, title=title)
    for model, values in facts.scores.items():
        lines.add_row(
            cell(model), *([f"{values[name]:.4f}" for name in names] if values else ["cannot train"])
        )
    return lines


def shares(training: TrainingFacts) -> Iterator[str]:
    """Yield the share of the gain of each party, where they keep parts of the model."""
    if training.shares:
        by_party = ", ".join(f"{party} {share:.0%}" for party, share in training.shares.items())
        yield one_line(f"share of the gain by the columns of each party: {by_party}")


def estimates(
    by_protection: list[EstimateFacts], missing: Mapping[str, str], rounds: int, rows: int, parties: int
) -> Iterator[Block]:
    """Yield a table of estimates; missing: protections without one -> the reason."""
    from rich.table import Table
    from rich.text import Text

    lines = Table()
    for heading in ("protection", "a round", f"{rounds} rounds", "a party sends a round", "in all"):
        lines.add_column(heading, justify="left" if heading == "protection" else "right")
    for facts in by_protection:
        sent = size(facts.megabytes * 1e6), size(facts.megabytes * 1e6 * rounds)
        times = duration(facts.seconds_a_round), duration(facts.seconds)
        lines.add_row(facts.protection, *times, *sent)
    yield lines
    trips = ", ".join(f"{facts.protection} {facts.round_trips:.0f}" for facts in by_protection)
    yield Text(
        f"{rows:,} rows at {parties} parties, all of them and the aggregator on this machine. On machines of "
        f"their own parties work at the same time, and each round waits for the network: round trips {trips}."
    )
    for name, advice in missing.items():
        yield Text(f"{name}: {advice}")


def workers_estimate(facts: WorkersFacts) -> Iterator[Block]:
    """Yield the estimate of a site whose rows are on workers."""
    from rich.table import Table
    from rich.text import Text

    lines = Table()
    for heading in ("workers", "rows of one", "its memory to load", "to grow trees", "inside, a round", "in"):
        lines.add_column(heading, justify="right")
    memory = size(facts.loading_bytes), size(facts.growing_bytes)
    inside = size(facts.bytes_a_round), duration(facts.seconds_a_round)
    lines.add_row(f"{facts.workers}", f"{facts.rows:,}", *memory, *inside)
    yield lines
    yield Text(
        "The workers of one site, each of one thread and with a core of its own. What is inside goes between "
        "them and the site's own process, and does not leave the site: what leaves is what a party sends, as "
        "without workers. The network inside is not counted."
    )


# ---- A model in words: the features it goes by, and who signed it ---------------------------------------
# Promises: it says where noise makes importances worthless.


def importances(
    booster: Booster, terms: Terms, kinds: Sequence[str], by_feature: Mapping[str, Sequence[float]]
) -> Iterator[Block]:
    """Yield a table of importances of each kind, by feature."""
    yield (
        f"{booster.objective}, {len(booster.trees)} trees; "
        f"{len(by_feature)} of {len(booster.features)} features split"
    )
    if terms.noise is not None and terms.noise.method != "hist":
        yield (
            "trained with noise: splits are drawn, not chosen by gain, so these figures do not say what "
            "counts; --shap and --partial-dependence do"
        )
    lines = table("feature", *kinds, whole=True)
    lines.columns[0].overflow = "fold"
    for name, values in by_feature.items():
        lines.add_row(cell(name), *(f"{value:.6g}" for value in values))
    yield lines


def verification(facts: Verification) -> Iterator[Block]:
    """Yield what holds of a model's signatures."""
    terms = facts.terms
    yield one_line(f"{facts.file}: {terms.objective.name}, {facts.trees} trees, {terms.hiding.protection}")
    yield f"fingerprint   {facts.fingerprint}"
    yield f"terms digest  {terms.digest}"
    yield ""
    lines = table("party", "signature", numbers=())
    for party in dict.fromkeys((*terms.parties, *facts.faults)):
        fault = facts.faults.get(party)
        lines.add_row(cell(party), "none" if fault is None else cell(f"WRONG: {fault}" if fault else "holds"))
    yield lines
    if facts.analyst:
        yield one_line(f"asked for by analyst {facts.analyst} on {facts.asked}")
    yield ""
    outcome = "It holds" if facts.holds else "It does NOT hold"
    yield paragraph(one_line(f"{outcome}: {facts.conclusion}."))
    if facts.holds:
        yield "Nobody signs metrics, gains and covers, which no prediction depends on."


# ---- A demo whose parties hold different columns: its facts, and what is said of it ---------------------
# Promises: nothing here reads, trains or prints.


@dataclass(frozen=True)
class ApartFacts:
    """The tables of the parties. rows, columns: how many, and which features, by party; common: rows that all
    know; new: rows that nobody trains on."""

    rows: Mapping[str, int]
    columns: Mapping[str, tuple[str, ...]]
    common: int
    new: int


@dataclass(frozen=True)
class ColumnsDemoFacts:
    """A finished demo. kept: the files of the parts of the model, by party."""

    demo: DemoFacts
    apart: ApartFacts
    kept: Mapping[str, str]


def beginning(facts: ApartFacts, terms: Terms) -> Iterator[str]:
    """Yield what the parties hold, and what hides it."""
    indent = max(map(len, facts.columns)) + 2
    for party, names in facts.columns.items():
        label = f" and the label {terms.columns.label}" if terms.blocks.has_labels(party) else ""
        columns = f"{facts.rows[party]} patients, {len(names)} columns{label}: {', '.join(names)}"
        yield entry(party, columns, indent)
    matched = f"{facts.common} patients are common to both, matched by the column {terms.columns.row_id}"
    yield f"{matched}; {facts.new} new ones are held out"
    hiding = terms.hiding
    quick = f", key_bits = {hiding.key_bits}: the fewest, chosen for speed" if hiding.key_bits else ""
    yield f"protection {hiding.protection}{quick}"


def end(facts: ColumnsDemoFacts) -> Iterator[Block]:
    """Yield what joining the columns is worth, and who keeps what."""
    training, equal = facts.demo.training, facts.demo.equal
    terms = training.model.terms
    yield ""
    yield scores(facts.demo, f"on the {facts.apart.new} new patients")
    yield f"joined == pooled: {'yes' if equal else 'NO'} (the demo puts the parts together to see)\n"
    yield traffic(training.traffic, training.model.trained)
    yield ""
    yield signatures(training.model)
    yield from shares(training)
    for party, file in facts.kept.items():
        leaves = " and the values of leaves" if terms.blocks.has_labels(party) else ""
        yield one_line(f"{party} keeps its own splits{leaves}: {file}")
    yield one_line(f"the analyst has metrics, signatures and the structure of the trees: {training.file}")
    yield f"what left {terms.parties[-1]}, by its own audit log:"
    yield one_line(f"fedboost audit {facts.demo.log}")


# ---- Rows that parties with different columns have in common, in words ----------------------------------


def rows_of_blocks(terms: Terms) -> str:
    """Which rows of the parties belong together."""
    if not terms.vertical.aligns:
        return "those of all tables, in the order in which they stand"
    vertical, name = terms.vertical, delimited(terms.columns.row_id or "")
    sites = "all sites of a block" if len(terms.blocks) > 1 else "all sites"
    form = {"digits": ", their digits alone", "lower": ", in lower case"}.get(vertical.id_form or "", "")
    if vertical.takes_all_rows:
        holder = delimited(vertical.label_holder or "")
        return (
            f"all of label holder {holder}, matched by {name}{form}: where another site does not have one, "
            f"its columns are missing values, and {holder} learns which rows these are; each other site has "
            f"{vertical.fewest_common_rows:,} at least, and learns which of its own; a site enters "
            f"{vertical.most_ids:,} ids at most; the aggregator learns how many each site has, and how many "
            f"are common to which sites{_repeats(terms)}"
        )
    return (
        f"those whose {name} {sites} have{form}: {vertical.fewest_common_rows:,} at least; a site enters "
        f"{vertical.most_ids:,} ids at most, and learns which of them all others have; the "
        f"aggregator learns how many each site has, and how many are common to which sites{_repeats(terms)}"
    )


def _repeats(terms: Terms) -> str:
    """What it means that rows of a label holder may have the same id."""
    if not terms.vertical.repeated_ids:
        return ""
    if not terms.task.trains:
        return "; the label holder may have several rows of one"
    return "; the label holder may have several rows of one, and each other site is told how many of each"


def use_of_ids(terms: Terms) -> str:
    """What row ids are for."""
    if not terms.vertical.aligns:
        return "drawn"
    return "matched and drawn" if terms.draws_rows else "matched"
