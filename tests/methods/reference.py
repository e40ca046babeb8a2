"""What the sources of the newer methods say, in NumPy float64, term by term; to be read, not to be fast."""

import math

import numpy as np


def softmax(logits):
    """[..., classes] probabilities."""
    e = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def cross_entropies(logits, labels):
    """[B] losses."""
    return np.array([-math.log(softmax(z)[y]) for z, y in zip(logits, labels, strict=True)])


def fixmatch(labeled_logits, labels, weak_logits, strong_logits, threshold):
    """Labeled and unlabeled loss of a batch whose first samples have labels."""
    labeled = cross_entropies(labeled_logits, labels).mean() if len(labels) else 0.0
    total = 0.0
    for on_weak, on_strong in zip(weak_logits, strong_logits, strict=True):
        p = softmax(on_weak)
        if p.max() >= threshold:
            total += -math.log(softmax(on_strong)[p.argmax()])
    return labeled, total / max(len(weak_logits), 1)


def sage_target(local, server, threshold=0.95, half=0.05):
    """The soft label of one sample, and whether it counts."""
    p_l, p_g = softmax(local), softmax(server)
    one, other = np.eye(len(local))[p_l.argmax()], np.eye(len(local))[p_g.argmax()]
    distance = min(max(abs(p_l.max() - p_g.max()), 1e-6), 1)
    share = math.exp(-distance * math.log(2) / half)
    target = share * one + (1 - share) * other if p_l.max() >= threshold else other
    return target, p_l.max() >= threshold or p_g.max() >= threshold


def divergence(target, logits):
    """KL(target || prediction) of one sample."""
    q = softmax(logits)
    return sum(t * math.log(t / p) for t, p in zip(target, q, strict=True) if t > 0)


def cbafed_thresholds(counts, base=0.84, cap=0.95):
    """T(c) = min(q(c) + base - std(q), cap), q(c) the share of class c times C / 10, std with C - 1."""
    q = np.array(counts) / sum(counts) * len(counts) / 10
    return np.minimum(q + base - np.std(q, ddof=1), cap)


def cbafed_label(p, counts, lower=0.03):
    """Label of one sample and whether it is kept: the sure first class, else the second if it is a tail class."""
    q = np.array(counts) / sum(counts) * len(counts) / 10
    first = int(p.argmax())
    if p[first] > cbafed_thresholds(counts)[first]:
        return first, True
    without = p.copy()
    without[first] = 0
    second = int(without.argmax())
    return (second, True) if q[second] < lower else (first, False)


def flexible_threshold(counts, size, threshold, label):
    """FlexMatch's convex mapping, with the samples not used yet as a class of their own."""
    b = counts[label] / max(max(counts), size - sum(counts), 1)
    return threshold * b / (2 - b)


def anchored_weights(similar, confident):
    """u_i proportional to the sum over classes of 1 - s_ic / sum_j s_jc; s_ic = 1 where there are no samples."""
    s = np.where(confident > 0, similar / np.maximum(confident, 1), 1.0)
    u = (1 - s / s.sum(axis=0)).sum(axis=1)
    return u / u.sum()


def debiased(logits, mean_prediction):
    """p'(c) = p(c) / pbar(c), normalised."""
    p = softmax(logits) / mean_prediction
    return p / p.sum(axis=-1, keepdims=True)


def balancing_weights(preferences, steps=100):
    """SGD with rate 1, weight decay 0.9 and a first step of Nesterov's momentum 0.9; the softmax after each step."""
    n, classes = preferences.shape
    w = np.full(n, 1 / n)
    for _ in range(steps):
        off = (preferences * w[:, None]).sum(axis=0) - 1 / classes
        gradient = 2 * (preferences * off).sum(axis=1) / classes + 0.9 * w
        w = w - 1.0 * (gradient + 0.9 * gradient)
        w = softmax(w)
    return w


def mixup(share, logits, labels, partner_labels):
    """The share * CE(own labels) + (1 - share) * CE(partners' labels)."""
    return share * cross_entropies(logits, labels).mean() + (1 - share) * cross_entropies(logits, partner_labels).mean()
