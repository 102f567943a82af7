"""The experts that rows are routed to, and the sum of their results, in numpy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from corepipe.neuron.formats import Format, Function
from corepipe.neuron.numerics.arithmetic import F32
from corepipe.neuron.ops import Experts, Scoring
from tests.reference import arithmetic
from tests.reference.arithmetic import round_to


def weighed_sum(op: Experts, results: F32, weights: F32, fmt: Format) -> F32:
    """Sums results [rows, places, width] by weights [rows, places], unless the inputs were weighted before;
    added in the order of places, rounded once."""
    if op.scoring is Scoring.INPUT_SIGMOID:
        weights = np.where(np.isnan(weights), weights, np.float32(1))
    total = np.zeros((len(results), results.shape[2]), np.float32)
    for place in range(results.shape[1]):
        total += weights[:, place, None] * results[:, place]
    return round_to(total, fmt.compute)


def routed(op: Experts, scores: F32, correction: F32 | None = None) -> tuple[npt.NDArray[np.intp], F32]:
    """Returns the experts that each row is routed to, and their weights: [rows, top_k] each."""
    with np.errstate(invalid="ignore"):  # scores that are not finite make NaN
        judged = _judged(op, scores, correction)
        chosen = np.argsort(-judged, axis=1, kind="stable")[:, : op.top_k]
        shares = _weighed(op, scores, chosen) * np.float32(op.factor or 1)
    return chosen, np.where(np.isfinite(scores).all(axis=1, keepdims=True), shares, np.float32(np.nan))


def _judged(op: Experts, scores: F32, correction: F32 | None) -> F32:
    """Returns the scores by which experts are chosen, -inf in groups that a row does not choose from:
    [rows, experts]."""
    by_sigmoid = op.scoring.by_sigmoid
    judged = arithmetic.apply(Function.SIGMOID, scores) if by_sigmoid else scores
    if correction is not None:
        judged = judged + correction
    if op.groups is None:
        return judged
    groups = judged.reshape(len(judged), op.groups.number, -1)
    worth = np.sort(groups, axis=2)[:, :, ::-1][:, :, : 2 if by_sigmoid else 1].sum(axis=2)
    taken = np.argsort(-worth, axis=1, kind="stable")[:, : op.groups.taken]
    left = np.full_like(groups, -np.inf)
    np.put_along_axis(left, taken[:, :, None], np.take_along_axis(groups, taken[:, :, None], 1), 1)
    return left.reshape(judged.shape)


LEAST_SUM = np.float32(1e-20)
"""Added to the sum of sigmoids that each of them is divided by (DeepSeek-V3's modeling code)."""


def _weighed(op: Experts, scores: F32, chosen: npt.NDArray[np.intp]) -> F32:
    """Returns the weights of the experts of each row, before `factor`."""
    taken = np.take_along_axis(scores, chosen, axis=1)
    match op.scoring:
        case Scoring.OF_NEAR:
            return _of_near(op, scores, chosen)
        case Scoring.SIGMOID | Scoring.INPUT_SIGMOID:
            return arithmetic.apply(Function.SIGMOID, taken)
        case Scoring.SIGMOID_SHARES:
            each = arithmetic.apply(Function.SIGMOID, taken)
            total = np.zeros((len(each), 1), np.float32)
            for place in range(op.top_k):
                total += each[:, place, None]
            return np.asarray(each / (total + LEAST_SUM), np.float32)
    most = scores.max(axis=1, keepdims=True)
    weighed = scores if op.scoring is Scoring.OF_ALL else taken
    total = np.exp(weighed - most).sum(axis=1, keepdims=True)
    return np.asarray(np.exp(taken - most) / total, np.float32)


def _of_near(op: Experts, scores: F32, chosen: npt.NDArray[np.intp]) -> F32:
    """Returns for each expert of a row its share of the softmax, without the experts chosen before it and
    without scores far below its own."""
    left, shares = scores.copy(), np.empty(chosen.shape, np.float32)
    for place in range(op.top_k):
        own = chosen[:, place, None]
        top = np.take_along_axis(scores, own, axis=1)
        far = (top - scores) / np.maximum(np.abs(scores), top) > np.float32(op.nearness or 0)
        shares[:, place] = 1 / np.exp(np.where(far, -np.inf, left) - top).sum(axis=1)
        np.put_along_axis(left, own, -np.inf, axis=1)
    return shares
