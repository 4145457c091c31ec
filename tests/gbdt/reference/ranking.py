"""Naive references of `fedboost.gbdt.kernels.objectives`."""

from tests.gbdt.reference.elementwise import LOG2_E, _one, logs, sigmoids


def discount(place):
    return 1.0 / (_one(logs, place + 2.0) * LOG2_E)


def dcg(gains, most):
    total = 0.0
    for place, gain in enumerate(gains[:most]):
        total += gain * discount(place)
    return total


def groups_of(starts):
    return [range(first, end) for first, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)]


def by_margin(rows, margin):
    """The rows, those of the highest margin first, equal ones as they stand."""
    return sorted(rows, key=lambda row: -margin[row])


def lambda_gradients(margin, label, gain, weight, starts, most, by_ndcg, score_normalization, normalization):
    margin, gain = margin.tolist(), gain.tolist()
    gradient, hessian = [0.0] * len(margin), [0.0] * len(margin)
    for rows in groups_of(starts):
        order, total = by_margin(rows, margin), 0.0
        ideal = dcg(sorted((gain[row] for row in rows), reverse=True), most)
        for i, upper in enumerate(order[:most]):
            for j, lower in enumerate(order[i + 1 :], i + 1):
                if label[upper] == label[lower]:
                    continue
                high, low = (upper, lower) if label[upper] > label[lower] else (lower, upper)
                counts = 1.0
                if by_ndcg:
                    counts = (gain[high] - gain[low]) * (discount(i) - discount(j)) * (1.0 / ideal)
                if score_normalization and len({margin[row] for row in rows}) > 1:
                    counts /= abs(margin[high] - margin[low]) + 0.01
                p = _one(sigmoids, margin[high] - margin[low])
                pull, bend = (1.0 - p) * counts, max(p * (1.0 - p), 1e-16) * counts * 2.0
                gradient[high] -= pull
                gradient[low] += pull
                hessian[high] += bend
                hessian[low] += bend
                total += 2.0 * pull
        factor = _one(logs, 1.0 + total) * LOG2_E / total if normalization and total > 0 else 1.0
        for row in rows:
            gradient[row] = gradient[row] * factor * float(weight[row])
            hessian[row] = hessian[row] * factor * float(weight[row])
    return gradient, hessian


def ndcgs(margin, gain, starts, most, without):
    out = []
    for rows in groups_of(starts):
        ideal = dcg(sorted(gain[rows].tolist(), reverse=True), most)
        out.append(
            dcg([float(gain[row]) for row in by_margin(rows, margin)], most) / ideal if ideal else without
        )
    return out
