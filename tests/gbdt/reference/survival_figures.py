"""Figures of survival times, computed from single rows, in numpy alone."""

import numpy as np


def kaplan_meier(time, event, at):
    """The Kaplan-Meier estimate at each time; events precede censoring at the same time."""
    times = np.unique(time[event])
    factors = [1 - np.sum(event & (time == t)) / np.sum(time >= t) for t in times]
    return np.array([np.prod([f for f, t in zip(factors, times, strict=True) if t <= end]) for end in at])


def of_bins(time, event, ends):
    """The estimate for times in bins between the ends: the censored are at risk during half of one."""
    share, out = 1.0, []
    for low, high in zip([-np.inf, *ends[:-1]], ends, strict=True):
        here = (time > low) & (time <= high)
        share *= 1 - (event & here).sum() / max((time > low).sum() - (~event & here).sum() / 2, 1)
        out.append(share)
    return np.array(out)


def concordance(time, event, risk):
    """Harrell's C-index; rows with events at the same time are not comparable."""
    right, pairs = 0.0, 0
    for own, score in zip(time[event], risk[event], strict=True):
        later = (time > own) | ((time == own) & ~event)
        pairs += later.sum()
        right += (score > risk[later]).sum() + (score == risk[later]).sum() / 2
    return right / pairs


def not_censored(time, event, at):
    """The Kaplan-Meier estimate of not being censored until each time; events precede censoring."""
    times = np.unique(time[~event])
    at_risk = np.array([np.sum((time > t) | ((time == t) & ~event)) for t in times])
    censored = np.array([np.sum(~event & (time == t)) for t in times])
    return np.append(1.0, np.cumprod(1 - censored / at_risk))[np.searchsorted(times, at, side="right")]


def area(time, event, risk, at):
    """The cumulative/dynamic AUC at a time."""
    cases, later = event & (time <= at), time > at
    weight = 1 / not_censored(time, event, time[cases])
    above = np.array([(one > risk[later]).mean() + (one == risk[later]).mean() / 2 for one in risk[cases]])
    return (weight * above).sum() / weight.sum()


def brier(time, event, survival, at):
    """The Brier score at a time. survival: predicted probability of no event until then, of each row."""
    cases, later = event & (time <= at), time > at
    errors = (survival[cases] ** 2 / not_censored(time, event, time[cases])).sum()
    return (errors + ((1 - survival[later]) ** 2 / not_censored(time, event, at)).sum()) / time.size


def breslow(time, event, risk, at):
    """The cumulative hazard of a row without risk until a time."""
    return sum(1 / np.exp(risk[time >= own]).sum() for own in time[event & (time <= at)])
