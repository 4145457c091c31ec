"""The report of a model: one HTML page that needs nothing else.

Promises: the same facts give the same bytes; the page asks for nothing, from anywhere, and runs no script;
what comes from a file is text and never markup; what a model file does not have is named, and not made up.
Refuses: nothing.
"""

from fedboost.people.report.agreed import agreed, attendance
from fedboost.people.report.charts import MAX_BARS, bars
from fedboost.people.report.curves import learning_curves
from fedboost.people.report.facts import KINDS, ReportFacts, TreeFacts
from fedboost.people.report.markup import (
    Markup,
    details,
    element,
    joined,
    left_out,
    lines,
    paragraph,
    table,
)
from fedboost.people.report.privacy import privacy
from fedboost.people.report.rows import dependence, quality
from fedboost.people.report.session import turns
from fedboost.people.report.skeleton import document
from fedboost.people.report.warnings import warnings
from fedboost.people.text import counted
from fedboost.people.training import figures


def page(facts: ReportFacts) -> str:
    """Return the page."""
    model = facts.model
    sections = {
        "model": ("The model", _model(facts)),
        "warnings": ("Warnings", warnings(facts)),
        "agreed": ("What was agreed, and by whom", agreed(facts)),
        "curves": ("Learning curves", learning_curves(facts)),
        "importance": ("Importance of features", _importance(facts)),
        "trees": ("The first trees", _trees(facts)),
        "dependence": ("Partial dependence", dependence(facts)),
        "quality": ("Quality on given rows", quality(facts)),
        "session": ("Who came and went, traffic and time", _session(facts)),
        "privacy": ("Privacy: who saw what", privacy(model.terms)),
    }
    title = f"Report of model {model.fingerprint[:12]}"
    source = "the model file" if facts.session is None else "the model and its session"
    return document(title, "Report of a model", _lead(facts), sections, source)


def _lead(facts: ReportFacts) -> str:
    model = facts.model
    terms = model.terms
    return (
        f"{terms.objective.name}, {counted(model.trees, 'tree')} in {counted(model.kept, 'round')}, by "
        f"{counted(len(terms.parties), 'party', 'parties')} under the protection {terms.hiding.protection}"
    )


def _model(facts: ReportFacts) -> Markup:
    model, terms = facts.model, facts.model.terms
    stopped = f" ({model.trained} were trained)" if model.kept < model.trained else ""
    signed = len(set(model.signed_by) & set(terms.parties))
    entries = {
        "objective": terms.objective.name,
        "trees": f"{model.trees} in {counted(model.kept, 'round')}{stopped}",
        "features": f"{len(terms.columns.numeric)} numeric, {len(terms.columns.categorical)} categorical; "
        f"{len(facts.importance)} of them split",
        "last round": figures(model.last_row, terms, ", ") or "no metrics",
        "parties": f"{len(terms.parties)}, {signed} of which signed",
        "protection": terms.hiding.protection,
        "noise": "none"
        if terms.noise is None
        else f"epsilon {terms.noise.epsilon:g}, delta {terms.noise.delta:g}",
        "fingerprint": element("code", model.fingerprint),
        "digest of the terms": element("code", terms.digest),
    }
    return table("The model in short", ["what", "value"], entries.items(), (), folded=False)


def _importance(facts: ReportFacts) -> Markup:
    noise = facts.model.terms.noise
    if not facts.importance:
        return left_out("No feature splits.")
    by_gain = [(name, values[0]) for name, values in facts.importance.items()]
    rows = ([name, *(f"{value:.6g}" for value in values)] for name, values in facts.importance.items())
    drawn = noise is not None and noise.method != "hist"
    title = "Mean gain of the splits by a feature"
    title += f", the first {MAX_BARS} of {len(by_gain)}" if len(by_gain) > MAX_BARS else ""
    return joined(
        paragraph(
            "Trained with noise: splits are drawn, not chosen by gain, so these figures do not say what "
            "counts."
            if drawn
            else "Gain and cover are means over the splits by a feature, weight is their number. They say "
            "what the trees are made of, not what a feature does for a prediction."
        ),
        bars(title, by_gain, "mean gain"),
        table("Importance of each feature that splits", ["feature", *KINDS], rows, folded=True),
    )


def _trees(facts: ReportFacts) -> Markup:
    if not facts.trees:
        return left_out("The model has no trees.")
    return joined(
        paragraph(
            "A row goes from left to right, by “yes” or “no”, and ends in a leaf, whose value is added to "
            f"its margin. fedboost explain --tree draws the others: there are {facts.model.trees}."
        ),
        _tree(facts.trees[0]),
        *(details(tree.title, _tree(tree)) for tree in facts.trees[1:]),
    )


def _tree(tree: TreeFacts) -> Markup:
    text = details("The same as text", element("pre", lines(tree.text), tabindex="0"))
    if not tree.picture:
        why = f"{tree.title}: {tree.leaves} leaves are too many for a picture in this page."
        return joined(left_out(why), text)
    picture = element(
        "div", Markup(tree.picture), class_="scroll", tabindex="0", role="group", aria_label=tree.title
    )
    return joined(element("figure", element("figcaption", tree.title), picture, class_="tree"), text)


def _session(facts: ReportFacts) -> Markup:
    return joined(
        attendance(facts),
        left_out(
            "Traffic and the time of a round are not in a model file: fedboost train prints them at its end, "
            "and writes a page with them (--report)."
        )
        if facts.session is None
        else turns(facts.session, facts.model.terms),
    )
