"""The results of sessions that train nothing, as they come from an aggregator: what each must look like.

Promises: what passes has the columns, levels and candidates of the terms, counts that are counts, and numbers
that are finite, so that texts and terms can be made of it.
Refuses: nothing; the checks return False.
"""

from collections.abc import Callable, Collection
from typing import Any

from fedboost.boosting.programs.tasks import unit_of
from fedboost.boosting.queries.base import MAX_ROWS
from fedboost.gbdt.metrics import OUTCOMES, own_name
from fedboost.terms.tasks import (
    MISSING,
    SHARES,
    UNDECLARED,
    bins_in,
    class_count,
    class_names,
    gridded,
    is_binary,
    level_sets,
    sites_of,
)
from fedboost.terms.terms import Terms

Check = Callable[[Any], bool]


# ---- shapes ------------------------------------------------------------------------------------------


def is_count(value: Any) -> bool:
    """True for a number of rows."""
    return type(value) is int and 0 <= value <= MAX_ROWS


def is_number(value: Any) -> bool:
    """True for a finite float, or an integer that is one."""
    return type(value) in (int, float) and -1e300 < value < 1e300


def is_interval(value: Any) -> bool:
    """True for [low, high]."""
    is_pair = type(value) is list and len(value) == 2 and all(map(is_number, value))
    return is_pair and value[0] <= value[1]


def maybe(check: Check) -> Check:
    """None, or what passes."""
    return lambda value: value is None or check(value)


def each_of(check: Check, size: int | None = None) -> Check:
    """A list of what passes, of so many if it is said."""
    return lambda value: type(value) is list and size in (None, len(value)) and all(map(check, value))


def one_of(names: Collection[str]) -> Check:
    """One of these names."""
    return lambda value: type(value) is str and value in names


def exactly(expected: Any) -> Check:
    """This value, of this type."""
    return lambda value: type(value) is type(expected) and value == expected


def named(names: Collection[str], check: Check, some: bool = False) -> Check:
    """An object with these names, or some of them, each with what passes."""

    def fits(value: Any) -> bool:
        if type(value) is not dict or not (value.keys() <= {*names} if some else value.keys() == {*names}):
            return False
        return all(map(check, value.values()))

    return fits


def having(checks: dict[str, Check]) -> Check:
    """An object that has what passes under each of these names, and maybe others."""
    return lambda value: (
        type(value) is dict and all(key in value and check(value[key]) for key, check in checks.items())
    )


# ---- results -----------------------------------------------------------------------------------------


def is_description(summary: Any, terms: Terms) -> bool:
    """True for what a session under these terms may have counted."""
    schema, count = terms.columns, is_count if terms.noise is None else maybe(is_count)
    numbers: dict[str, Check] = {
        "quantiles": named([f"{share:g}" for share in SHARES], maybe(is_interval)),
        "constant": lambda value: type(value) is bool,
        **({} if terms.noise is not None else {"gap": maybe(is_interval)}),
    }
    columns: list[Check] = [
        having({"name": exactly(name), "kind": exactly("numeric"), MISSING: count, **numbers})
        for name in schema.numeric
    ]
    for name, levels in schema.categorical.items():
        head = {"name": exactly(name), "kind": exactly("categorical"), MISSING: count, UNDECLARED: count}
        columns.append(having({**head, "levels": named(levels, count)}))
    label: dict[str, Check] = {"name": exactly(schema.label)}
    if names := class_names(terms):
        label["levels"] = named(names, count)
    elif len(gridded(terms)) > len(schema.numeric) and terms.noise is None:
        label |= numbers
    is_noisy = terms.noise is not None
    known: dict[str, Check] = {
        "rows": is_count,
        "min_count": is_count if is_noisy else exactly(terms.evaluation.min_count),
        "label": having(label),
        **({"noise": is_number} if is_noisy else {}),
    }
    if not having(known)(summary) or type(summary.get("columns")) is not list:
        return False
    given = summary["columns"]
    if len(given) != len(columns) or not (summary["rows"] or is_noisy):
        return False
    return all(check(column) for check, column in zip(columns, given, strict=True))


def is_tuning(summary: Any, terms: Terms) -> bool:
    """True for what a session may have found that tried the candidates of these terms."""
    candidates, metric = terms.objective.candidates, own_name(terms.metrics[-1])
    trial = {"rounds": is_count, "best_round": is_count, metric: maybe(is_number)}
    known = {"metric": exactly(metric), "best": is_count, "trials": each_of(having(trial))}
    if not having(known)(summary) or not len(summary["trials"]) == len(candidates) > summary["best"]:
        return False
    trials = summary["trials"]
    best = trials[summary["best"]]
    return (
        all(each.get("settings") == dict(own) for each, own in zip(trials, candidates, strict=True))
        and all(each["best_round"] <= each["rounds"] <= terms.trees.rounds for each in trials)
        and best["best_round"] >= 1
        and best[metric] is not None
    )


IS_SHARES = named(("trained", "unknown"), lambda value: is_number(value) and 0 <= value <= 1)
"""The shares of rows that trees were grown on, and of those of which it is not known."""


def is_evaluation(summary: Any, terms: Terms) -> bool:
    """True for what a session may have measured that evaluated the model of these terms."""
    number, count = maybe(is_number), maybe(is_count)
    of_set: dict[str, Check] = {
        "rows": lambda value: is_count(value) and value > 0,
        "metrics": named(terms.metrics, number),
        "resolution": named(terms.metrics, number),
    }
    floor, of = terms.evaluation.min_count, terms.evaluation.evaluate_rows
    known: dict[str, Check] = {
        "min_count": exactly(floor),
        "unit": exactly(unit_of(floor)),
        "of": exactly(of),
        "shares": IS_SHARES,
        "caps": named(terms.metrics, is_number, some=True),
    }
    if is_binary(terms):
        rates = ("positive_rate", "selection_rate", "true_positive_rate", "false_positive_rate", "precision")
        of_set |= {"confusion": named(OUTCOMES, count), "rates": named(rates, number)}
        of_set["mean_prediction"] = is_number
        numbers = dict.fromkeys(("low", "high", "mean_prediction", "rate"), is_number)
        known["threshold"] = exactly(terms.evaluation.threshold)
        known["auc"] = maybe(named(("value", "resolution"), is_number))
        known["bins"] = each_of(having({"rows": of_set["rows"], "positives": is_count, **numbers}))
        known["roc"] = each_of(named(("threshold", "false_positive_rate", "true_positive_rate"), is_number))
    if size := class_count(terms):
        known["classes"] = exactly([*class_names(terms)])
        known["confusion"] = each_of(each_of(count, size), size)
    levels = {column: [each.level for each in sets] for column, sets in level_sets(terms).items()}
    for column, names in levels.items():
        known[f"subgroups of {column}"] = _split(names, of_set)
    if sites := sites_of(terms):
        known["sites"] = _split(sites, of_set)
    if type(summary) is not dict or ("subgroups" in summary) != bool(levels):
        return False
    subgroups = summary.get("subgroups", {})
    if not named(levels, lambda _: True)(subgroups) or ("sites" in summary) != bool(sites):
        return False
    kinds = "threshold" in summary, "classes" in summary
    flat = {**summary, **{f"subgroups of {column}": split for column, split in subgroups.items()}}
    return kinds == (is_binary(terms), bool(size)) and having({**of_set, **known})(flat)


def _split(names: Collection[str], of_set: dict[str, Check]) -> Check:
    """Results by level or site."""
    sets, left_out = named(names, having(of_set), some=True), each_of(one_of(names))
    return having({"sets": sets, "gaps": _is_gaps, "left_out": left_out})


def _is_gaps(value: Any) -> bool:
    return type(value) is dict and all(map(is_number, value.values()))


def is_counted(value: Any, terms: Terms) -> bool:
    """True for rows by bin of each feature and of the score, with the bins of the model in the terms."""
    bins, schema = bins_in(terms), terms.columns
    if not having({"rows": is_count, "min_count": is_count, "columns": each_of(having({}))})(value):
        return False
    rows = value["rows"]
    numeric = zip(schema.ordered, bins.numeric, strict=True)
    checks = [
        {"name": exactly(name), "edges": exactly(edges.tolist()), **_grouped(edges.size + 2, rows)}
        for name, edges in numeric
    ]
    checks += [
        {"name": exactly(name), "levels": exactly([*levels]), **_grouped(len(levels) + 1, rows)}
        for name, levels in schema.categorical.items()
    ]
    kind = "levels" if bins.classes else "edges"
    expected = [*class_names(terms)] if bins.classes else bins.score.tolist()
    score = {kind: exactly(expected), **_grouped(bins.of_score, rows)}
    columns = value["columns"]
    if len(columns) != len(checks) or not having({"score": having(score)})(value):
        return False
    fits = (having(check)(column) for check, column in zip(checks, columns, strict=True))
    return all(fits) and all(
        sum(counted["counts"]) == rows and len(counted["counts"]) == len(counted["groups"])
        for counted in (*columns, value["score"])
    )


def _grouped(size: int, rows: int) -> dict[str, Check]:
    """Groups of so many bins, each in one of them, and their counts."""

    def groups(value: Any) -> bool:
        places = [place for group in value for place in group] if each_of(each_of(is_count))(value) else []
        return sorted(places) == [*range(size)] and all(value)

    return {"groups": groups, "counts": each_of(lambda count: is_count(count) and count <= rows)}
