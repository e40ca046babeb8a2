"""The paper's equations in NumPy float64, term by term, to hold beside the paper; to be read, not to be fast."""

import math

import numpy as np


def softmax(logits):
    """Class probabilities of one sample."""
    e = [math.exp(z) for z in logits]
    return [x / sum(e) for x in e]


def sharpen(p, tau):
    """Equation 2."""
    powers = [x ** (1 / tau) for x in p]
    return [x / sum(powers) for x in powers]


def cross_entropy(logits, labels):
    """Equation 1, averaged over the samples."""
    return sum(-math.log(softmax(z)[y]) for z, y in zip(logits, labels, strict=True)) / len(labels)


def consistency(student_logits, teacher_logits, tau, batch):
    """Equation 3, summed over classes and samples, divided by the nominal batch size."""
    total = 0.0
    for student, teacher in zip(student_logits, teacher_logits, strict=True):
        target = sharpen(softmax(teacher), tau)
        total += sum((t - s) ** 2 for t, s in zip(target, softmax(student), strict=True))
    return total / batch


def ema(teacher, student, keep):
    """Equation 4 with alpha = 1 - keep."""
    return keep * np.asarray(teacher, np.float64) + (1 - keep) * np.asarray(student, np.float64)


def mean_model(models, shares):
    """Equation 5: models are lists of tensors."""
    return [sum(s * m[t] for s, m in zip(shares, models, strict=True)) for t in range(len(models[0]))]


def l2_distance(model, center):
    """One norm over all tensors."""
    return math.sqrt(sum(((a - c) ** 2).sum() for a, c in zip(model, center, strict=True)))


def sum_distance(model, center):
    """The sum of each tensor's norm."""
    return sum(math.sqrt(((a - c) ** 2).sum()) for a, c in zip(model, center, strict=True))


def shares_by_data(sizes, labeled, labeled_share=None, multiplier=1.0):
    """Data amounts; or the labeled clients share a part of the weight and the others the rest."""
    amounts = [n * multiplier if is_labeled else n for n, is_labeled in zip(sizes, labeled, strict=True)]
    if labeled_share is None or all(labeled) or not any(labeled):
        return [a / sum(amounts) for a in amounts]
    groups = {kind: sum(a for a, i in zip(amounts, labeled, strict=True) if i == kind) for kind in (True, False)}
    parts = {True: labeled_share, False: 1 - labeled_share}
    return [parts[i] * a / groups[i] for a, i in zip(amounts, labeled, strict=True)]


def dma_weights(distances, sizes, shares, beta):
    """Equation 6 as it stands; fails where every exponential underflows."""
    w = [float(s) * math.exp(-beta * d / n) for d, n, s in zip(distances, sizes, shares, strict=True)]
    return [x / sum(w) for x in w]


def sub_consensus(models, sizes, shares, beta, distance, boost=None):
    """Equations 5 and 6, with an optional factor on each client's weight after the distance."""
    center = mean_model(models, shares)
    distances = [distance(m, center) for m in models]
    boosted = [s * b for s, b in zip(shares, boost or [1.0] * len(shares), strict=True)]
    weights = dma_weights(distances, sizes, boosted, beta)
    return mean_model(models, weights), weights, distances


def global_mean(consensus_models):
    """Equation 7."""
    return [sum(m[t] for m in consensus_models) / len(consensus_models) for t in range(len(consensus_models[0]))]


def trimmed_mean(models, cut):
    """Yin et al. 2018: the mean of each coordinate without its `cut` lowest and highest values."""
    means = []
    for t in range(len(models[0])):
        ordered = np.sort(np.stack([m[t] for m in models]), axis=0)
        means.append(ordered[cut : len(models) - cut].mean(axis=0))
    return means


def median(models):
    """Yin et al. 2018: the median of each coordinate."""
    return [np.median(np.stack([m[t] for m in models]), axis=0) for t in range(len(models[0]))]


def krum_scores(models, attackers):
    """Blanchard et al. 2017: the sum of the squared distances from the n - f - 2 nearest others."""
    scores = []
    for i, one in enumerate(models):
        squares = sorted(l2_distance(one, other) ** 2 for j, other in enumerate(models) if j != i)
        scores.append(sum(squares[: max(len(models) - attackers - 2, 1)]))
    return scores


def multi_krum_weights(models, attackers, chosen):
    """Equal weights for the `chosen` models with the lowest scores."""
    order = np.argsort(krum_scores(models, attackers), kind="stable")
    return [1 / chosen if i in order[:chosen] else 0.0 for i in range(len(models))]


def geometric_median(models, shares, iterations, nu):
    """Pillutla et al. 2022, algorithm 2: smoothed Weiszfeld, here from the median of each coordinate on."""
    z = median(models)
    for _ in range(iterations):
        w = [a / max(nu, l2_distance(m, z)) for a, m in zip(shares, models, strict=True)]
        weights = [x / sum(w) for x in w]
        z = mean_model(models, weights)
    return z, weights


def capped_proportions(proportions, sizes, fair_share):
    """A client that holds its fair share gets proportion 0; the others are scaled up to one."""
    kept = [0.0 if n >= fair_share else p for p, n in zip(proportions, sizes, strict=True)]
    return [p / sum(kept) for p in kept]


def relation_matrix(logits, labels, classes):
    """FedIRM's class relations of one batch: [classes, classes], a row per class."""
    rows = []
    for label in range(classes):
        mine = [z for z, y in zip(logits, labels, strict=True) if y == label]
        mean = np.mean(mine, axis=0) if mine else np.zeros(classes)
        powers = np.exp(mean / 2.0)
        rows.append(powers / powers.sum())
    return np.array(rows)


def relation_distance(one, other):
    """Half the sum of both KL divergences, each divided by the number of classes."""
    classes = len(one)
    forth = sum(p * np.log(p / q) for p, q in zip(one.ravel(), other.ravel(), strict=True)) / classes
    back = sum(q * np.log(q / p) for p, q in zip(one.ravel(), other.ravel(), strict=True)) / classes
    return (forth + back) / 2


def fedirm_unlabeled_loss(student_logits, teacher_logits, server_matrix, round_):
    """15 * ramp * (relation matching + consistency) of one full unlabeled batch."""
    classes = student_logits.shape[1]
    chosen = []
    for z in student_logits:
        p = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
        if p.max() >= 0.3 and -(p * np.log(p)).sum() < 2.0:
            chosen.append(z)
    own = relation_matrix(chosen, [int(np.argmax(z)) for z in chosen], classes)
    softmax = [np.exp(z) / np.exp(z).sum(axis=1, keepdims=True) for z in (student_logits, teacher_logits)]
    consistency = ((softmax[0] - softmax[1]) ** 2).sum() / len(student_logits)
    ramp = np.exp(-5 * (1 - round_ / 30) ** 2) if round_ < 30 else 1.0
    return 15 * ramp * (relation_distance(own, server_matrix) + consistency)
