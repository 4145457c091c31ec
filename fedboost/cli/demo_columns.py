"""`fedboost demo --columns`: a clinic and a laboratory that hold different columns of the same patients.

Promises: as `fedboost demo`; at the end the clinic predicts patients whom nobody trained on, together with
the laboratory, as `fedboost predict --party` does.
Refuses: as `fedboost demo`.
"""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from fedboost.errors import FedboostError

if TYPE_CHECKING:
    from fedboost.holders.prediction import Prediction
    from fedboost.runtime.local.cluster import LocalCluster
    from fedboost.runtime.local.demo import Apart
    from fedboost.runtime.party_model import PartyModel
    from fedboost.terms.terms import Terms

WAIT = 60.0
"""Seconds to wait for the aggregator to answer."""


def demo_columns(rounds: int, protection: str | None, out: Path, force: bool, json: bool) -> None:
    """Train across processes that hold different columns, predict together, and compare."""
    from fedboost.cli.demo_training import processes, train
    from fedboost.cli.output import notice, show
    from fedboost.cli.trained import facts_of
    from fedboost.people import as_json, training
    from fedboost.people.facts import DemoFacts
    from fedboost.runtime.local import demo as made
    from fedboost.runtime.local.demo import audit_log
    from fedboost.runtime.party_model import PartyModel

    encrypts, apart = made.can_encrypt(), made.patients()
    terms = made.columns_terms(apart, rounds, protection or ("paillier" if encrypts else "plain"))
    files: dict[str, Path | None] = {**made.write_patients(out, apart, terms, force)}
    rows = {party: table.num_rows for party, table in apart.tables.items()}
    shown = training.ApartFacts(rows, apart.columns, apart.common.num_rows, apart.new.num_rows)
    say = (lambda text: None) if json else print
    for line in training.beginning(shown, terms):
        say(line)
    if protection is None and not encrypts:
        notice('pip install "fedboost[paillier]" would hide the labels from the laboratory')
    with processes(terms, files, out, say, lambda: made.warm_up(apart, terms)) as consortium:
        model, traffic = train(consortium, terms, json)
        assert isinstance(model, PartyModel)  # the terms say that each party keeps its part
        model.save(out / "model.json")
        parts = {party: _part_file(out, party, model.id) for party in terms.parties}
        say("the clinic asks for a prediction of the new patients; the laboratory approves that, too")
        prediction = _predict(consortium, out, apart, parts[made.CLINIC])
    scores, equal = _compare(terms, apart, model, parts, prediction)
    log = shlex.quote(str(audit_log(out, made.LABORATORY)))
    demo = DemoFacts(facts_of(model, traffic, out / "model.json"), scores, equal, log)
    kept = {party: str(file) for party, file in parts.items()}
    facts = training.ColumnsDemoFacts(demo, shown, kept)
    show(json, as_json.columns_demo(facts), training.end(facts))
    if not equal:
        raise FedboostError("the joined model differs from the pooled one: please report this")


def _part_file(folder: Path, party: str, id: str) -> Path:
    """The file of a party's part of the model."""
    from fedboost.runtime.site.backup import PartFolder
    from fedboost.runtime.site.config import read_party

    file = PartFolder(read_party(folder / f"{party}.toml")).file(id)
    return folder / file.relative_to(folder.resolve())


def _predict(consortium: "LocalCluster", folder: Path, apart: "Apart", part: Path) -> "Prediction":
    """The clinic's prediction of its new patients, together with the laboratory."""
    from fedboost.cli.serving import site_and_keys
    from fedboost.runtime.local.demo import CLINIC, MIN_NEW_ROWS
    from fedboost.runtime.party_model import PartyModel, terms_to_predict
    from fedboost.runtime.site.predicting import predict_with_parties
    from fedboost.runtime.telemetry import logger

    model = PartyModel.load(part)
    consortium.approve(terms_to_predict(model, apart.new.num_rows, MIN_NEW_ROWS))
    consortium.stop_party(CLINIC)  # one process of a party attends
    site, bundle = site_and_keys(folder / f"{CLINIC}.toml", False, holds_rows=None)
    site = site.model_copy(update={"data": folder / "new.csv"})
    return predict_with_parties(site, bundle, model, logger("party", "text", "warning"), WAIT, MIN_NEW_ROWS)


def _compare(
    terms: "Terms",
    apart: "Apart",
    model: "PartyModel",
    parts: "dict[str, Path]",
    prediction: "Prediction",
) -> tuple[dict[str, dict[str, float]], bool]:
    """Return model name to metrics on the new patients; and whether the parts are the model that pooled
    columns give, and the prediction is its."""
    import numpy as np

    from fedboost.cli.compare_columns import IN_ORDER, one_party
    from fedboost.evaluation import HeldOut, score, score_of, shown_metrics
    from fedboost.people.facts import ALONE, POOLED
    from fedboost.runtime.data.shard import to_shard
    from fedboost.runtime.local.demo import CLINIC
    from fedboost.runtime.local.simulation import simulate
    from fedboost.runtime.model import assemble

    here = terms.changed(rounds=len(model.rounds), **IN_ORDER)  # Ctrl-C may have ended it
    whole, own = one_party(here, terms.columns), one_party(here, terms.blocks.columns_of(CLINIC))
    pooled = simulate(whole, {POOLED: apart.common}).model
    alone = simulate(own, {CLINIC: apart.tables[CLINIC]}).model
    rows = HeldOut.from_shard(to_shard(apart.held_out, whole, "new patients"))
    own_rows = HeldOut.from_shard(to_shard(apart.held_out, own, "new patients"))
    names = shown_metrics(whole)
    scores = {
        f"{CLINIC} {ALONE}": score(alone, own_rows, names),
        "joined": score_of(prediction.margins, whole, rows, names),
        POOLED: score(pooled, rows, names),
    }
    same = np.array_equal(prediction.margins, pooled.booster.margins(rows.features))
    return scores, same and assemble([model, *parts.values()]).booster == pooled.booster
