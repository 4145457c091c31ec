"""Trainings and models as people read them: what a training would take, the end of a training and of a demo,
importances, signatures, and the small tables of notebooks."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from fedboost.gbdt import metrics
from fedboost.gbdt.booster import IMPORTANCES, Booster
from fedboost.gbdt.metrics import grows, own_name
from fedboost.results.base import Row, Traffic
from fedboost.results.model import ModelSummary, Verification
from fedboost.results.training import (
    ColumnsDemo,
    ColumnsEstimate,
    Demo,
    Ending,
    Estimate,
    Estimates,
    Training,
    Workers,
    metrics_of,
)
from fedboost.terms.terms import Terms
from fedboost.views.as_html import body
from fedboost.views.document import (
    Badge,
    Block,
    Code,
    Document,
    Entries,
    Figure,
    Figures,
    Items,
    Line,
    Paragraph,
    Pre,
    Section,
    Table,
    Verdict,
    note,
    warnings,
)
from fedboost.views.words import counted, duration, entry, listed, one_line, shorten, size

# ---- Metrics of a round, signatures, attendance ---------------------------------------------------------


def figures(row: Row, terms: Terms, between: str = " ") -> str:
    """Return the metrics of a row of the history in words; where candidates are tried, the best value of the
    metric that is watched."""
    if terms.task.takes_candidates:
        return _best_of_candidates(row, terms)
    return one_line(between.join(f"{name} {value}" for name, value in _values(row, terms).items()))


def _values(row: Row, terms: Terms) -> dict[str, str]:
    """The metrics of a row over the rows of all parties, a dash for those that are not published."""
    whole = [rows for rows in terms.sets if metrics.OF_PARTY not in rows]
    names = [("" if rows == metrics.TRAIN else f"{rows}-") + name for rows in whole for name in terms.metrics]
    return dict.fromkeys(names, "-") | {name: f"{value:.5f}" for name, value in metrics_of(row).items()}


def _best_of_candidates(row: Row, terms: Terms) -> str:
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
    """Return the protection of a model, which parties signed their part of it, and which did not."""
    parties, signed, protection = model.terms.parties, model.signed_by, model.terms.hiding.protection
    missing = [party for party in parties if party not in signed]
    if len(missing) == len(parties):
        return f"{protection}, signed by nobody"
    return f"{protection}, signed by {', '.join(signed)}" + (
        f", NOT by {', '.join(missing)}" if missing else ""
    )


def absences(model: ModelSummary) -> Iterator[str]:
    """Yield from which round on sums were without which parties; nothing where they always were over all."""
    for first, roster in model.rosters.items():
        away = [party for party in model.terms.parties if party not in roster]
        yield f"from round {first + 1} on " + (f"without {', '.join(away)}" if away else "with all again")


# ---- The end of a training ------------------------------------------------------------------------------


OF_ROWS = {True: "on held-out rows", False: "on the rows that trees grew on"}
"""Whose rows a metric is of: held-out ones, or not."""


def training(end: Training) -> Document:
    """Return the end of a training as people read it."""
    model = end.outline
    values, held_out = _values(model.last_row, model.terms), f"{metrics.VALIDATION}-"
    measured = [
        Figure(n.removeprefix(held_out), v, OF_ROWS[n.startswith(held_out)]) for n, v in values.items()
    ]
    names = [*dict.fromkeys(name for own in end.party_metrics.values() for name in own)]
    own = {party: end.party_metrics.get(party, {}) for party in model.terms.holders}
    rows = [(party, *(f"{of[n]:.5f}" if n in of else "-" for n in names)) for party, of in own.items()]
    return Document(
        "Training",
        "",
        [
            Verdict(f"{model.trees} trees: {_saved(end)}", more=[*_stopped(model)]),
            Figures([*measured, _bytes(end, end.traffic_since_restart)]),
            *([Table("Metrics of each party", ["party", *names], rows)] if names else []),
            _traffic(end, None if end.traffic_since_restart else model.trained),
            Entries([*_who(end)]),
        ],
    )


def _saved(end: Ending) -> str:
    if end.model is None:
        return "not saved (give --out model.json)"
    form = "XGBoost JSON" if end.outline.shares is None else "its structure only: each party keeps its part"
    return f"{end.model} ({form})"


def _stopped(model: ModelSummary) -> Iterator[str]:
    if model.kept < model.trained:
        yield f"It stopped after {model.trained} rounds: round {model.kept} was the best, and is the last."
    elif model.trained < model.terms.trees.rounds:
        yield f"It stopped after {model.trained} of {model.terms.trees.rounds} rounds."


def _bytes(end: Ending, since_restart: bool = False) -> Figure:
    total = size(sum(each.sent + each.received for each in end.traffic.values()))
    return Figure("traffic", total, "since the aggregator was restarted" if since_restart else "in all")


def _traffic(end: Ending, rounds: int | None) -> Table:
    """The bytes of each party, and those sent per round, unless the number of rounds is not known."""
    per_round = [] if rounds is None else ["sent per round"]
    rows = [
        (
            party,
            size(each.sent),
            size(each.received),
            *(size(each.sent / max(rounds or 1, 1)) for _ in per_round),
        )
        for party, each in end.traffic.items()
    ]
    return Table("Traffic", ["party", "sent", "received", *per_round], rows)


def _who(end: Ending) -> Iterator[tuple[str, Line]]:
    """Yield the protection and who signed, absences, and where parties keep parts whose columns gain what."""
    yield "protection", signatures(end.outline)
    yield from (("", text) for text in absences(end.outline))
    if end.outline.shares:
        by_party = ", ".join(f"{party} {share:.0%}" for party, share in end.outline.shares.items())
        yield "gain", f"share by the columns of each party: {by_party}"


# ---- Demos ----------------------------------------------------------------------------------------------


def beginning(demo: Mapping[str, Any], terms: Terms) -> Iterator[str]:
    """Yield what the parties of a demo of columns hold, and what hides it. demo: fields of `ColumnsDemo`."""
    indent = max(map(len, demo["columns"])) + 2
    for party, names in demo["columns"].items():
        label = f" and the label {terms.columns.label}" if terms.blocks.has_labels(party) else ""
        columns = f"{demo['rows'][party]} patients, {len(names)} columns{label}: {', '.join(names)}"
        yield entry(party, columns, indent)
    common, new = demo["rows_in_common"], demo["rows_held_out"]
    matched = f"{common} patients are common to both, matched by the column {terms.columns.row_id}"
    yield f"{matched}; {new} new ones are held out"
    hiding = terms.hiding
    quick = f", key_bits = {hiding.key_bits}: the fewest, chosen for speed" if hiding.key_bits else ""
    yield f"protection {hiding.protection}{quick}"


def demo(end: Demo) -> Document:
    """Return the end of a demo as people read it: what the model is worth beside others."""
    terms = end.outline.terms
    joined, title, log = "federated", "On the same held-out rows", "the first site"
    kept: list[tuple[str, Line]] = [
        ("model", f"{end.model} (XGBoost JSON; terms, files and logs are beside it)")
    ]
    if isinstance(end, ColumnsDemo):
        joined, title, log = "joined", f"On the {end.rows_held_out} new patients", terms.parties[-1]
        kept = [
            ("model", f"{end.model}: for the analyst, metrics, signatures and the structure of the trees")
        ]
        for party, file in end.parts.items():
            leaves = " and the values of leaves" if terms.blocks.has_labels(party) else ""
            kept.append(("", f"{party} keeps its own splits{leaves}: {file}"))
    answer = "equals" if end.equal else "DIFFERS from"
    names = [*end.held_out["pooled"]]
    rows = [
        (model, *([f"{values[name]:.4f}" for name in names] if values else ["cannot train", *names[1:]]))
        for model, values in end.held_out.items()
    ]
    return Document(
        "Demo",
        "",
        [
            Verdict(f"The {joined} model {answer} the pooled model", "good" if end.equal else "bad"),
            Table(title, ["model", *names], rows),
            _traffic(end, end.outline.trained),
            Entries([*_who(end), *kept]),
            Paragraph(f"What left {log}, by its own audit log:"),
            Pre("Command", one_line(f"fedboost audit {end.log}")),
        ],
    )


# ---- Estimates: by protection, over links, at the workers of a site, with columns apart ------------------


def estimates(result: Estimates) -> Document:
    """Return the estimates of a training as people read them."""
    known: Sequence[Estimate | ColumnsEstimate] = result.by_rows or result.by_columns
    own = next((each for each in known if each.protection == result.protection), known[0])
    takes = f"{result.rounds} rounds take about {duration(own.seconds)} on this machine."
    blocks: list[Block] = [Verdict(f"Under {own.protection}, {takes}")]
    blocks += _by_rows(result) if result.by_rows else _by_columns(result)
    if result.missing:
        blocks.append(Items([f"{name}: {reason}" for name, reason in result.missing.items()]))
    if result.layouts:
        blocks.append(_layouts(result))
    if result.workers is not None:
        blocks.append(_workers(result.workers))
    return Document("Estimate", "", blocks)


def _by_rows(result: Estimates) -> Iterator[Block]:
    first, rounds = result.by_rows[0], result.rounds
    rows = [
        (
            each.protection,
            *(duration(each.seconds_a_round), duration(each.seconds)),
            *(size(each.megabytes * 1e6), size(each.megabytes * 1e6 * rounds)),
            f"{each.round_trips:.0f}",
        )
        for each in result.by_rows
    ]
    headings = ["protection", "a round", f"{rounds} rounds", "a party sends a round", "in all", "trips"]
    yield Table("By protection", headings, rows)
    yield note(
        f"{first.rows:,} rows at {first.parties} parties, all of them and the aggregator on this machine. On "
        "machines of their own parties work at the same time, and each round waits for the network: its "
        "round trips (trips)."
    )


def _by_columns(result: Estimates) -> Iterator[Block]:
    first, rounds = result.by_columns[0], result.rounds
    rows = [
        (
            each.protection,
            *map(duration, (each.seconds_a_round, each.seconds, each.seconds_apart)),
            f"{each.round_trips:.0f}",
        )
        for each in result.by_columns
    ]
    headings = ["protection", "a round", f"{rounds} rounds", "apart, a round", "trips"]
    yield Table("By protection", headings, rows)
    for each in result.by_columns:
        yield _parties(each, rounds)
        if each.stages:
            texts = ", ".join(f"{name} {duration(seconds)}" for name, seconds in each.stages.items())
            yield note(f"What {each.protection} adds to a round: {texts}")
    matched = (
        f" Rows are matched in {duration(first.seconds_to_match)}, if no party enters more ids than these."
    )
    yield note(
        f"{first.rows:,} rows in common, all parties and the aggregator on this machine, one thread each."
        f"{matched if result.matches else ''} Apart: each on a machine like this one, without the network; a "
        "round waits for its round trips (trips), and for its bytes through a party's link. Memory is about "
        "what a party's process takes."
    )


def _parties(each: ColumnsEstimate, rounds: int) -> Table:
    """The megabytes of each party, in a round and in all, and its memory."""
    rows = []
    for party, own in each.by_party.items():
        in_all = own.sent * rounds + own.sent_to_match, own.received * rounds + own.received_to_match
        rows.append((party, *(size(mb * 1e6) for mb in (own.sent, own.received, *in_all, own.memory))))
    return Table(
        f"Parties under {each.protection}",
        ["party", "sends a round", "gets a round", "sends", "gets", "memory"],
        rows,
    )


def _layouts(result: Estimates) -> Section:
    link, of_terms = result.layouts[0], result.protection
    tried = of_terms in {each.protection for each in result.layouts}
    protection = of_terms if tried else link.protection
    own = (each for each in result.layouts if each.protection == protection)
    fastest = min(own, key=lambda each: each.seconds).layout
    rows = [
        (
            each.layout,
            each.protection,
            *(duration(each.seconds_a_round), duration(each.seconds), size(each.megabytes * 1e6)),
            f"{each.round_trips:.1f}" if each.protection else "",
        )
        for each in result.layouts
    ]
    wide = "" if link.bandwidth_mbit is None else f" and {link.bandwidth_mbit:g} Mbit/s"
    headings = ["layout", "protection", "a round", f"{result.rounds} rounds", "sent", "trips"]
    blocks: list[Block] = [
        Verdict(f"Under {protection}, {fastest} take least time."),
        Table(f"Over links of {link.rtt_ms:g} ms{wide}", headings, rows, range(2, 6)),
        note(
            "Each party and the aggregator on a machine of its own: a round is its round trips (trips), its "
            "bytes through a party's link, and the time of the machines; sent is what a party sends in all. "
            "With all rows in one place it would be the last line, for comparison: no row leaves its site "
            "here."
        ),
    ]
    if result.no_votes:
        blocks.append(Items([f"votes: {result.no_votes}"]))
    return Section("layouts", "Layouts", blocks)


def _workers(result: Workers) -> Section:
    memory = f"{size(result.loading_bytes)} to load its rows, {size(result.growing_bytes)} to grow trees"
    inside = f"{size(result.bytes_a_round)} a round, in {duration(result.seconds_a_round)}"
    entries = [
        ("workers", f"{result.workers} of one thread, each with {result.rows:,} rows and a core of its own"),
        ("memory", f"of one: {memory}"),
        ("inside", f"between them and the site's own process: {inside}, without the network"),
    ]
    about = note(
        "What is inside does not leave the site: what leaves is what a party sends, as without workers."
    )
    return Section("workers", "Workers of a site", [Entries(entries), about])


# ---- A model: the features it goes by, and who signed it ------------------------------------------------


def importances(booster: Booster, terms: Terms, by_feature: Mapping[str, Sequence[float]]) -> Document:
    """Return the IMPORTANCES of each feature, and where noise makes them worthless."""
    drawn = terms.noise is not None and terms.noise.method != "hist"
    worthless = (
        "Trained with noise: splits are drawn, not chosen by gain, so these figures do not show what counts; "
        "--shap and --partial-dependence do."
    )
    rows = [(name, *(f"{value:.6g}" for value in values)) for name, values in by_feature.items()]
    trees = counted(len(booster.trees), "tree")
    split = f"{len(by_feature)} of {counted(len(booster.features), 'feature')} split in {trees}"
    return Document(
        "Importance",
        booster.objective,
        [
            Verdict(f"{split}, {listed([*by_feature][:1])} with the highest gain" if by_feature else split),
            *warnings([worthless] if drawn else []),
            *([Table("Importance", ["feature", *IMPORTANCES], rows)] if rows else []),
        ],
    )


def verification(found: Verification) -> Document:
    """Return what holds of a model's signatures."""
    terms, rows = found.terms, list[Sequence[Line]]()
    for party in dict.fromkeys((*terms.parties, *found.faults)):
        fault = found.faults.get(party)
        wrong = Badge(f"WRONG: {fault}", "bad") if fault else Badge("holds", "good")
        rows.append((party, "none" if fault is None else wrong))
    model = f"{found.file}: {terms.objective.name}, {found.trees} trees, {terms.hiding.protection}"
    about: list[tuple[str, Line]] = [
        ("model", model),
        ("fingerprint", Code(found.fingerprint)),
        ("terms digest", Code(terms.digest)),
    ]
    if found.analyst:
        about.append(("requested", f"by analyst {found.analyst} on {found.asked}"))
    outcome = "holds" if found.holds else "does NOT hold"
    blocks: list[Block] = [
        Verdict(f"It {outcome}: {found.conclusion}.", "good" if found.holds else "bad"),
        Table("Signatures", ["party", "signature"], rows, ()),
        Entries(about),
    ]
    if found.holds:
        blocks.append(note("Nobody signs metrics, gains and covers, which no prediction depends on."))
    return Document("Signatures of a model", model, blocks)


# ---- Notebooks: small tables without a style, so that the notebook's own colours hold, light or dark ----


MAX_LINES = 20
"""Lines of a table, and names of a list, that are shown."""


def terms_html(terms: Terms) -> str:
    """Return terms: the columns, and every setting that is not its default."""
    columns = terms.columns.model_dump(exclude_defaults=True)
    lines = {f"columns.{key}": _short(value) for key, value in columns.items()}
    for key, field in terms.file_keys().items():
        value = terms.flat[key]
        if key not in ("columns", "xgb_model") and value != field.get_default(call_default_factory=True):
            lines[key] = _short(value)
    lines |= {"objective": terms.objective.name, "protection": terms.hiding.protection}
    lines |= {"rounds": str(terms.trees.rounds), "digest": terms.digest[:12]}
    return body([Table("Terms", ["setting", "value"], [*lines.items()], (), folded=False)])


def model_html(model: ModelSummary, gains: Mapping[str, float], traffic: Traffic | None = None) -> str:
    """Return a model: what it is, who signed it, and the features of the highest gains. traffic: of the
    training whose result it is."""
    terms = model.terms
    stopped = f" ({model.trained} were trained)" if model.kept < model.trained else ""
    lines = [
        ("objective", terms.objective.name),
        ("trees", f"{model.trees} in {counted(model.kept, 'round')}{stopped}"),
        ("features", f"{len(terms.columns.numeric)} numeric, {len(terms.columns.categorical)} categorical"),
        ("last round", figures(model.last_row, terms, ", ") or "no metrics"),
        ("parties", _short(terms.parties)),
        ("protection", signatures(model)),
        ("fingerprint", model.fingerprint[:12]),
    ]
    blocks = [Table("Model" if traffic is None else "Result", ["property", "value"], lines, ())]
    if gains and (terms.noise is None or terms.noise.method == "hist"):  # else splits are drawn
        shown = [(name, f"{gain:.6g}") for name, gain in islice(gains.items(), MAX_LINES)]
        few = f", the first {MAX_LINES} of {len(gains)} features" if len(gains) > MAX_LINES else ""
        blocks.append(Table(f"Mean gain{few}", ["feature", "gain"], shown))
    if traffic is not None:
        moved = [(party, size(sent), size(received)) for party, (sent, received) in traffic.items()]
        blocks.append(Table("Bytes", ["party", "sent", "received"], moved))
    return body(blocks)


def _short(value: Any) -> str:
    """Return a setting; of a long list its length and first names."""
    if isinstance(value, Mapping):
        value = [f"{key}: {_short(own)}" for key, own in islice(value.items(), MAX_LINES + 1)]
    if isinstance(value, Sequence) and not isinstance(value, str):
        texts = ", ".join(shorten(str(each)) for each in value[:MAX_LINES])
        return f"{len(value)}: {texts}, …" if len(value) > MAX_LINES else texts
    return str(value)
