"""Kernels of gradients and losses: logistic, softmax, Poisson, gamma, Tweedie, pseudo-Huber."""

import math

import numpy as np

from fedboost.gbdt.kernels.compile import elementwise, loop
from fedboost.gbdt.kernels.elementwise import exp, log, sigmoid


@loop
def logistic_gradients(margin, label, weight):
    """Gradient w (p - y) and hessian w p (1 - p) of the log loss: two float64 [N]."""
    gradient = np.empty(margin.size, np.float64)
    hessian = np.empty(margin.size, np.float64)
    for i in range(margin.size):
        p = sigmoid(margin[i])
        gradient[i] = weight[i] * (p - label[i])
        hessian[i] = weight[i] * (p * (1.0 - p))
    return gradient, hessian


@loop
def softmaxes(margin):
    """e**margin of each output over their sum: float64 [N, K] of margins [K, N]."""
    outputs, rows = margin.shape
    out = np.empty((rows, outputs), np.float64)
    for i in range(rows):
        top = margin[0, i]
        for k in range(1, outputs):
            top = max(top, margin[k, i])
        total = 0.0
        for k in range(outputs):
            out[i, k] = exp(margin[k, i] - top)
            total += out[i, k]
        for k in range(outputs):
            out[i, k] /= total
    return out


@loop
def softmax_gradients(margin, label, weight):
    """Gradients w (p - y) and hessians 2 w p (1 - p) of the log loss of K classes: two float64 [K, N]."""
    share = softmaxes(margin)
    gradient = np.empty(margin.shape, np.float64)
    hessian = np.empty(margin.shape, np.float64)
    for k in range(margin.shape[0]):
        for i in range(margin.shape[1]):
            p = share[i, k]
            gradient[k, i] = weight[i] * (p - (1.0 if label[i] == k else 0.0))
            hessian[k, i] = weight[i] * (2.0 * p * (1.0 - p))
    return gradient, hessian


@loop
def softmax_losses(margin, label, weight):
    """-w log p of the class a row has: float64 [N]."""
    outputs, rows = margin.shape
    out = np.empty(rows, np.float64)
    for i in range(rows):
        top = margin[0, i]
        for k in range(1, outputs):
            top = max(top, margin[k, i])
        total = 0.0
        for k in range(outputs):
            total += exp(margin[k, i] - top)
        out[i] = weight[i] * (log(total) + (top - margin[np.int64(label[i]), i]))
    return out


@loop
def log_losses(margin, label, weight):
    """w log(1 + e**-z), z the margin signed by the label: float64 [N]."""
    out = np.empty(margin.size, np.float64)
    for i in range(margin.size):
        out[i] = exp(-abs(margin[i]))
    for i in range(margin.size):
        z = margin[i] if label[i] > 0.5 else -margin[i]
        out[i] = weight[i] * ((-z if z < 0.0 else 0.0) + log(1.0 + out[i]))
    return out


@elementwise
def _rate(margin):
    """e**margin for margins of rates, clipped to +-300: no label and weight make an infinity of it."""
    margin = margin if margin < 300.0 else 300.0
    return exp(margin if margin > -300.0 else -300.0)


@loop
def poisson_gradients(margin, label, weight, boost):
    """Gradient w (p - y) and hessian w p boost of Poisson counts, p = e**margin: two float64 [N]."""
    gradient = np.empty(margin.size, np.float64)
    hessian = np.empty(margin.size, np.float64)
    for i in range(margin.size):
        p = _rate(margin[i])
        gradient[i] = weight[i] * (p - label[i])
        hessian[i] = weight[i] * (p * boost)
    return gradient, hessian


@loop
def gamma_gradients(margin, label, weight):
    """Gradient w (1 - y / p) and hessian w y / p of gamma amounts, p = e**margin: two float64 [N]."""
    gradient = np.empty(margin.size, np.float64)
    hessian = np.empty(margin.size, np.float64)
    for i in range(margin.size):
        share = label[i] * _rate(-margin[i])
        gradient[i] = weight[i] * (1.0 - share)
        hessian[i] = weight[i] * share
    return gradient, hessian


@loop
def tweedie_gradients(margin, label, weight, power):
    """Gradient w (b - a) and hessian w ((power - 1) a + (2 - power) b) of Tweedie amounts: two float64 [N];
    a = y e**((1 - power) margin), b = e**((2 - power) margin)."""
    gradient = np.empty(margin.size, np.float64)
    hessian = np.empty(margin.size, np.float64)
    for i in range(margin.size):
        a = label[i] * _rate((1.0 - power) * margin[i])
        b = _rate((2.0 - power) * margin[i])
        gradient[i] = weight[i] * (b - a)
        hessian[i] = weight[i] * ((power - 1.0) * a + (2.0 - power) * b)
    return gradient, hessian


@loop
def pseudo_huber_gradients(margin, label, weight, slope):
    """Gradient w z / r and hessian w / (r r r) of the pseudo-Huber loss, z = margin - y and
    r = sqrt(1 + (z / slope)**2): two float64 [N]."""
    gradient = np.empty(margin.size, np.float64)
    hessian = np.empty(margin.size, np.float64)
    for i in range(margin.size):
        z = margin[i] - label[i]
        ratio = z / slope
        r = math.sqrt(1.0 + ratio * ratio)
        gradient[i] = weight[i] * (z / r)
        hessian[i] = weight[i] * (1.0 / (r * r * r))
    return gradient, hessian
