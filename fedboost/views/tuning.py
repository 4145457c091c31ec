"""Trials of settings side by side: the best settings, and the table of trials."""

from fedboost.results.tuning import Trial, Tuning
from fedboost.views.document import Document, Figure, Figures, Section, Table, Verdict, note, warnings
from fedboost.views.session import result_document, session_warnings
from fedboost.views.words import counted

SHOWN = 10
"""Trials in the table."""


def tuning(result: Tuning) -> Document:
    """Return the trials as people read them."""
    metric, trials, order = result.metric, result.trials, result.ranked
    best = trials[result.best]
    first = trials[0].value(metric)
    rows = [
        (str(number), _value(each, metric), str(each.best_round), str(each.rounds), _settings(each))
        for number in order[:SHOWN]
        for each in [trials[number]]
    ]
    hidden = len(trials) - SHOWN
    more = f" {counted(hidden, 'more trial')} came less far." if hidden > 0 else ""
    figures = [
        Figure(f"{metric} of the best", _value(best, metric), "on validation rows"),
        Figure("with the settings of the terms", "…" if first is None else f"{first:.5g}", "trial 0"),
        Figure("best round", str(best.best_round), f"of {best.rounds}"),
        Figure("trials", str(len(trials))),
    ]
    blocks = (
        Verdict(f"Trial {result.best} is the best: {_settings(best)}."),
        Figures(figures),
        *warnings([*session_warnings(result.session)]),
        Section(
            "trials",
            "Trials",
            [
                Table(
                    "Trials, the best first",
                    ["trial", metric, "best round", "of", "settings"],
                    rows,
                    range(4),
                    folded=False,
                ),
                note(f"The {metric} is that of the validation rows, at the best round of each trial.{more}"),
            ],
        ),
    )
    lead = f"{counted(len(trials), 'trial')} side by side; the best by {metric} on validation rows"
    return result_document(result, "Trials of settings", lead, blocks)


def _value(trial: Trial, metric: str) -> str:
    value = trial.value(metric)
    return "…" if value is None else f"{value:.5g}"


def _settings(trial: Trial) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in trial.settings.items())
