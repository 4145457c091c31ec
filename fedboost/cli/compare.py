"""`fedboost compare`: is joining worth it? Site-alone, federated and pooled models on the same held-out rows.

Promises: no model sees a held-out row of any site; the models of a split are compared on the same rows; an
interval of a difference is of the paired difference, over bootstrap samples of those rows; the same table,
terms and options give the same figures. It says plainly where joining is not worth it, or cannot be told.
Refuses: tables of one site, or of other sites than the terms name, and rows that do not fit the terms.

Training is plain and in this process, which makes the model of any protection. The intervals speak of the
rows that are held out: of the luck of what was trained on the several splits tell, which are averaged.
"""

import math
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from fedboost.cli.scores import HeldOut, rows_of_sites, shown_metrics, unprotected
from fedboost.cli.show import notice, notice_undeclared, print_json, printable
from fedboost.errors import ConfigError, FedboostError
from fedboost.fixedpoint import Float64, Int64, Scale
from fedboost.gbdt.metrics import by_set as metrics
from fedboost.gbdt.metrics.registry import grows
from fedboost.protocol.terms import Terms
from fedboost.runtime.config import cores, read_terms
from fedboost.runtime.data.shard import to_shard
from fedboost.runtime.data.table import read_table
from fedboost.runtime.data.values import shorten
from fedboost.runtime.local.simulation import simulate
from fedboost.runtime.model_file import Model

ALONE, FEDERATED, POOLED = "alone", "federated", "pooled"
SAMPLES = 1000
"""Bootstrap samples of the held-out rows."""
GROUPS = 1000
"""Rows of a site are drawn one by one up to so many; of more, so many random groups of them are."""
WORTH_THREADS = 50_000
"""Rows from which on several threads are faster than one."""
ENOUGH = 10
"""Fewer different rows than this say nothing of a site, whatever they are."""
WIDTH, NAME, FIGURE = 79, 13, 11
"""Columns of a line, of what stands before the figures, and of a figure, if not its name is longer."""

WORTH, NOT_WORTH, UNTOLD = "worth it", "not worth it", "cannot be told"
ONLY_JOINED, TOO_FEW = "cannot train alone", "too few rows"


@dataclass(frozen=True)
class Figure:
    """A mean over the splits, and the interval it lies in with the rows that might have been held out."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, splits: Float64, samples: Float64, between: tuple[float, float]) -> "Figure":
        """From the value of each split, [splits], and that of each sample, [splits, samples], NaN where rows
        have none; between: the percentiles of the samples that the interval ends at."""
        if np.isnan(splits).all():
            return cls(math.nan, math.nan, math.nan)
        sound = ~np.isnan(splits)
        means = samples[sound].mean(axis=0)
        means = means[~np.isnan(means)]
        low, high = np.percentile(means, between) if means.size else (math.nan, math.nan)
        return cls(float(splits[sound].mean()), float(low), float(high))

    def as_json(self) -> dict[str, float | None]:
        """By name; null where there is no figure."""
        return {name: None if math.isnan(of) else of for name, of in vars(self).items()}


@dataclass(frozen=True)
class Compared:
    """What was found for one site. held_out: rows in each split; different: rows that were held out in any;
    models: name to metric to figure; better_by: by metric, how much better the federated model is than the
    site's own, below 0 where it is worse."""

    site: str
    rows: int
    held_out: int
    different: int
    models: Mapping[str, Mapping[str, Figure]]
    better_by: Mapping[str, Figure]
    cannot: str
    """Why it cannot train alone, if it cannot."""

    @property
    def verdict(self) -> str:
        """By the first metric."""
        if self.different < ENOUGH:
            return TOO_FEW
        if self.cannot:
            return ONLY_JOINED
        gain = next(iter(self.better_by.values()))
        return WORTH if gain.low > 0 else NOT_WORTH if gain.high < 0 else UNTOLD


def run_comparison(
    terms_file: Path, data: Path, site: str, held_out: float, seeds: int, as_json: bool
) -> None:
    """`fedboost compare`. held_out: a share of each site's rows; seeds: how many splits."""
    if not 0 < held_out < 1:
        raise ConfigError(f"--held-out is {held_out:g}: give a share between 0 and 1, such as 0.2")
    terms = read_terms(terms_file)
    if terms.columns.group is not None:
        raise ConfigError(
            f"{terms_file}: {terms.objective} ranks whole groups, and rows are held out one by one"
        )
    table = read_table(data)
    sites = rows_of_sites(terms, terms_file, table, data, site)
    if len(sites) < 2:
        raise ConfigError(f"column {site!r} of {data} names one site: there is nobody to join")
    for name, rows in sites.items():
        to_shard(rows, terms, name)  # what does not fit is told before its rows are shuffled
    notice_undeclared(table, terms.columns)
    names = shown_metrics(terms)
    trials = [Trial(name, rows, held_out, place) for place, (name, rows) in enumerate(sites.items())]
    equal = True
    with _progress(seeds * (len(sites) + 2), as_json) as step:
        for seed in range(seeds):
            equal &= _split(unprotected(terms), trials, seed, names, step)
    found = [trial.compared(names) for trial in trials]
    if as_json:
        for one in found:
            print_json(**_as_json(one, names, seeds))
        counts = {verdict: [one.site for one in found if one.verdict == verdict] for verdict in _ORDER}
        print_json(event="done", splits=seeds, held_out=held_out, equal=equal, verdicts=counts)
        return
    print(f"{len(sites)} sites; {held_out:.0%} of each one's rows are held out, and no model sees them.")
    print("better by: what the federated model gains on that of the site alone; at least,")
    print("at most: with other rows held out it would lie between these 95 times of 100.")
    for one in found:
        print()
        _print(one, names, seeds)
    print()
    for line in textwrap.wrap(_in_all(found), WIDTH):
        print(line)
    print(f"federated == pooled{'' if seeds == 1 else ' in every split'}: {'yes' if equal else 'no'}")
    if not equal:
        print("(they need not be with vote_top_k, or rows drawn without a row_id)")


class Trial:
    """A site's rows, and how models do on those that are held out, split after split."""

    def __init__(self, site: str, rows: Any, share: float, place: int) -> None:
        self.site, self.rows = site, rows
        self.held_out = min(round(rows.num_rows * share), rows.num_rows - 1)
        self._place = place
        draw = np.random.default_rng([0, place])
        self._groups = draw.permutation(rows.num_rows) % GROUPS
        """Of each row."""
        count = min(rows.num_rows, GROUPS)
        self._drawn = draw.multinomial(count, np.full(count, 1 / count), SAMPLES).astype(np.float64)
        """How often each group is in each sample: [samples, groups]."""
        self._seen = np.zeros(rows.num_rows, np.bool_)
        self._cannot = ""
        self._values: dict[str, list[Float64]] = {}
        self._samples: dict[str, list[Float64]] = {}

    def split(self, seed: int) -> tuple[Any, Int64]:
        """The rows to train on, and the places of those that are held out."""
        order = np.random.default_rng([1, seed, self._place]).permutation(self.rows.num_rows)
        held, rest = order[: self.held_out], order[self.held_out :]
        return self.rows.take(rest), np.sort(held)

    def cannot(self, error: FedboostError) -> None:
        """It cannot train alone."""
        self._cannot = str(error)

    def score(self, models: Mapping[str, Model], terms: Terms, held: Int64, names: tuple[str, ...]) -> None:
        """How these models of one split do."""
        if not held.size:
            return
        self._seen[held] = True
        rows = HeldOut.of(self.rows.take(held), terms, self.site)
        present, places = np.unique(self._groups[held], return_inverse=True)
        order = np.argsort(places, kind="stable")
        groups = np.split(order, np.cumsum(np.bincount(places))[:-1])
        drawn = self._drawn[:, present]
        known: dict[int, Float64] = {}
        for name, model in models.items():
            if id(model) not in known:
                sums, scale = rows.sums(model, names, groups)
                totals = np.rint(np.vstack([sums.sum(axis=0), drawn @ sums])).astype(np.int64)
                known[id(model)] = np.array([_values(names, total, scale) for total in totals])
            values = known[id(model)]
            self._values.setdefault(name, []).append(values[0])
            self._samples.setdefault(name, []).append(values[1:])

    def compared(self, names: tuple[str, ...]) -> Compared:
        """What all splits came to."""
        # [splits, metrics] and [splits, samples, metrics] of each model
        values = {model: np.array(of) for model, of in self._values.items()}
        samples = {model: np.array(of) for model, of in self._samples.items()}
        if self._cannot:
            values.pop(ALONE, None)

        different = int(self._seen.sum())
        between = percentiles(different)

        def figures(of: Callable[[Mapping[str, Float64]], Float64]) -> dict[str, Figure]:
            value, sample = of(values), of(samples)
            return {name: Figure.of(value[..., i], sample[..., i], between) for i, name in enumerate(names)}

        sign = np.array([1.0 if grows(name) else -1.0 for name in names])
        models = {model: figures(lambda of, model=model: of[model]) for model in values}  # type: ignore[misc]
        gain = figures(lambda of: (of[FEDERATED] - of[ALONE]) * sign) if ALONE in values else {}
        return Compared(self.site, self.rows.num_rows, self.held_out, different, models, gain, self._cannot)


def _split(
    terms: Terms, trials: Sequence[Trial], seed: int, names: tuple[str, ...], step: Callable[[str], None]
) -> bool:
    """Train on the rows of one split and score the models; whether the federated one is the pooled one."""
    from pyarrow import concat_tables

    nthread = cores() if sum(trial.rows.num_rows for trial in trials) > WORTH_THREADS else 1
    train, held = {}, {}
    for trial in trials:
        train[trial.site], held[trial.site] = trial.split(seed)
    step(f"split {seed + 1}, federated")
    federated = simulate(terms, train, nthread=nthread).model
    step(f"split {seed + 1}, pooled")
    pooled = simulate(terms, {POOLED: concat_tables(train.values())}, nthread=nthread).model
    equal = federated.booster == pooled.booster
    for trial in trials:
        step(f"split {seed + 1}, {trial.site} alone")
        alone = {}
        try:
            alone = {ALONE: simulate(terms, {trial.site: train[trial.site]}, nthread=nthread).model}
        except FedboostError as error:
            trial.cannot(error)
        trial.score(
            {**alone, FEDERATED: federated, POOLED: federated if equal else pooled},
            terms,
            held[trial.site],
            names,
        )
    return equal


def percentiles(rows: int) -> tuple[float, float]:
    """Those of bootstrap samples that a 95 % interval ends at, for so many rows: 2.5 and 97.5 where they are
    many, further out where they are few, as Student's t is wider than the normal distribution.

    The expanded percentile interval of Hesterberg, arXiv 1411.5279; t by its expansion in 1 / (rows - 1).
    """
    if rows < 3:
        return 0.0, 100.0
    z, n = NormalDist().inv_cdf(0.975), rows - 1
    t = z + (z**3 + z) / (4 * n) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
    outside = 100 * NormalDist().cdf(-t * math.sqrt(rows / n))
    return outside, 100 - outside


def _values(names: tuple[str, ...], total: Int64, scale: Scale) -> list[float]:
    """The metrics of rows with these sums; NaN where the sample drew none of them."""
    if total[0] <= 0:
        return [math.nan] * len(names)
    found = metrics.values(names, total, scale)
    return [found[name] for name in names]


def _print(one: Compared, names: tuple[str, ...], seeds: int) -> None:
    """A site's table and its sentence."""
    print(printable(f"{one.site}: {_count(one.rows, 'row')}, {one.held_out} held out" + _each(seeds)))
    width = max(FIGURE, 2 + max(map(len, names)))
    abreast = (WIDTH - NAME) // width
    for first in range(0, len(names) if one.models else 0, abreast):
        some = names[first : first + abreast]
        digits = {name: _digits(one.models[POOLED][name].value) for name in some}
        print(" " * NAME + "".join(f"{name:>{width}}" for name in some))
        for model in (ALONE, FEDERATED, POOLED):
            if model in one.models:
                _line(model, [_figure(one.models[model][name].value, digits[name]) for name in some], width)
        if one.better_by:
            for title, part in (("better by", "value"), ("  at least", "low"), ("  at most", "high")):
                gains = [_figure(getattr(one.better_by[name], part), digits[name]) for name in some]
                _line(title, gains, width)
    for line in textwrap.wrap(printable(_sentence(one, names[0])), WIDTH):
        print(line)


def _line(title: str, figures: Sequence[str], width: int) -> None:
    print(f"{title:<{NAME}}" + "".join(f"{figure:>{width}}" for figure in figures))


_NAMED = 8
"""Sites that are named in the last line of a kind."""
_ORDER = (WORTH, NOT_WORTH, UNTOLD, ONLY_JOINED, TOO_FEW)


def _sentence(one: Compared, decides: str) -> str:
    """Whether joining was worth it for a site, by the metric that decides."""
    site = shorten(one.site)
    if one.verdict == TOO_FEW:
        return f"{site} has too few rows to say: {one.different} different ones were held out."
    digits = _digits(one.models[POOLED][decides].value)
    joined = _figure(one.models[FEDERATED][decides].value, digits)
    if one.verdict == ONLY_JOINED:
        return f"{site} has no model alone ({one.cannot}); if it joins, one of {decides} {joined}."
    alone, gain = _figure(one.models[ALONE][decides].value, digits), one.better_by[decides]
    what = f"{decides} {joined} instead of {alone}"
    if one.verdict == NOT_WORTH:
        worse, least, most = (_figure(-of, digits) for of in (gain.value, gain.high, gain.low))
        return (
            f"Joining is NOT worth it for {site}: {what}, worse by {worse} ({least} to {most}). Under these "
            f"terms it does better alone; a column that names the site, or more rounds, may change that."
        )
    better, least, most = (_figure(of, digits) for of in (gain.value, gain.low, gain.high))
    if one.verdict == WORTH:
        return f"Joining is worth it for {site}: {what}, better by {better} ({least} to {most})."
    return (
        f"It cannot be told whether joining is worth it for {site}: {what}, better by {better} ({least} to "
        f"{most})."
    )


def _in_all(found: Sequence[Compared]) -> str:
    """One line on all sites."""
    answers = {
        WORTH: "YES for",
        NOT_WORTH: "NO for",
        UNTOLD: "it cannot be told for",
        ONLY_JOINED: "there is no model alone for",
        TOO_FEW: "there are too few rows to say for",
    }
    parts = []
    for verdict, answer in answers.items():
        sites = [shorten(one.site) for one in found if one.verdict == verdict]
        if sites:
            more = f", and {len(sites) - _NAMED} more" if len(sites) > _NAMED else ""
            parts.append(f"{answer} {len(sites)} ({', '.join(sites[:_NAMED])}{more})")
    said = "; ".join(parts)
    return printable(f"Of {len(found)} sites, is joining worth it? {said[0].upper()}{said[1:]}.")


def _as_json(one: Compared, names: tuple[str, ...], seeds: int) -> dict[str, Any]:
    return {
        "event": "site",
        "site": one.site,
        "rows": one.rows,
        "held_out": one.held_out,
        "different_held_out": one.different,
        "splits": seeds,
        "models": {
            model: {name: figure.as_json() for name, figure in of.items()} for model, of in one.models.items()
        },
        "better_by": {name: figure.as_json() for name, figure in one.better_by.items()},
        "decided_by": names[0],
        "verdict": one.verdict,
        "sentence": _sentence(one, names[0]),
    }


def _digits(value: float) -> int:
    """Digits after the point for figures of this size: four, or as many as show four of them."""
    exponent = math.floor(math.log10(abs(value))) if value and math.isfinite(value) else 0
    return 4 if -3 < exponent < 3 else min(max(3 - exponent, 0), 8)


def _figure(value: float, digits: int) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _each(seeds: int) -> str:
    return "" if seeds == 1 else f" in each of {seeds} splits"


@contextmanager
def _progress(steps: int, as_json: bool) -> Iterator[Callable[[str], None]]:
    """A function to call with the name of each training that begins."""
    if as_json:
        yield lambda name: None
        return
    if not sys.stderr.isatty():
        done = 0

        def tell(name: str) -> None:
            nonlocal done
            if done % max(1, steps // 10) == 0:
                notice(f"training {done + 1}/{steps}: {name}")
            done += 1

        yield tell
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("training"),
        MofNCompleteColumn(),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[name]}", markup=False),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task("train", total=steps, name="")
    begun = False

    def draw(name: str) -> None:
        nonlocal begun
        bar.update(task, advance=1 if begun else 0, name=shorten(printable(name), 30))
        begun = True

    with bar:
        yield draw
