"""Naive references of `fedboost.gbdt.kernels.objectives`."""

import numpy as np

from tests.gbdt.reference.elementwise import exps, logs, sigmoids


def logistic_gradients(margin, label, weight):
    p = sigmoids(margin)
    return weight * (p - label), weight * (p * (1.0 - p))


def log_losses(margin, label, weight):
    z = np.where(label == 1, margin, -margin)
    return weight * (np.maximum(-z, 0.0) + logs(1.0 + exps(-np.abs(z))))


def rates(margin):
    return exps(np.clip(margin, -300.0, 300.0))


def poisson_gradients(margin, label, weight, boost):
    p = rates(margin)
    return weight * (p - label), weight * (p * boost)


def gamma_gradients(margin, label, weight):
    share = label * rates(-margin)
    return weight * (1.0 - share), weight * share


def tweedie_gradients(margin, label, weight, power):
    a, b = label * rates((1.0 - power) * margin), rates((2.0 - power) * margin)
    return weight * (b - a), weight * ((power - 1.0) * a + (2.0 - power) * b)


def pseudo_huber_gradients(margin, label, weight, slope):
    z = margin - label
    ratio = z / slope
    r = np.sqrt(1.0 + ratio * ratio)
    return weight * (z / r), weight * (1.0 / (r * r * r))


def softmaxes(margin):
    powers = exps(margin - margin.max(axis=0))
    total = np.zeros(margin.shape[1])
    for of_output in powers:  # one after the other: the order of a sum matters
        total = total + of_output
    return (powers / total).T


def softmax_gradients(margin, label, weight):
    p = softmaxes(margin).T
    own = label == np.arange(margin.shape[0])[:, None]
    return weight * (p - own), weight * (2.0 * p * (1.0 - p))


def softmax_losses(margin, label, weight):
    top, total = margin.max(axis=0), np.zeros(margin.shape[1])
    for of_output in margin:
        total = total + exps(of_output - top)
    own = margin[label.astype(int), np.arange(label.size)]
    return weight * (logs(total) + (top - own))
