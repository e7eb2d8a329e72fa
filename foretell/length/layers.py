"""The layers of a small length model, compiled: of a few rows numpy's calls cost more."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.jit import compiled, inlined

Array = NDArray[np.float32]


@compiled
def standardise(rows: Array, mean: Array, scale: Array, most: float) -> None:
    """Standardise features (n, F) in place, none further than `most` from 0 afterwards."""
    for row in range(len(rows)):
        for i in range(len(mean)):
            rows[row, i] = min(max((rows[row, i] - mean[i]) * scale[i], -most), most)


@compiled
def sum_words(
    words: Array, numbers: NDArray[np.int64], counts: NDArray[np.int64], means: Array
) -> None:
    """Add to each of `means` (n, w) the rows of `words` that are its own, over the root of their
    number: the first `counts[0]` of `numbers` for the first, and so on."""
    at = 0
    for row in range(len(means)):
        for number in numbers[at : at + counts[row]]:
            for i in range(means.shape[1]):
                means[row, i] += words[number, i]
        at += counts[row]
        for i in range(means.shape[1]):
            means[row, i] /= math.sqrt(counts[row])


@compiled
def forward(
    rows: Array,
    words: Array,
    first: Array,
    second: Array,
    last: Array,
    hidden: NDArray[np.float64],
    shares: NDArray[np.float64],
) -> None:
    """The softmax of the last layer into `shares` (n, bins), of features and words, (n, F) and
    (n, w). The last row of each layer's weights is its bias; `hidden` (2, h) is overwritten."""
    features = rows.shape[1]
    for row in range(len(rows)):
        one, other = hidden[0], hidden[1]
        _begin(first, one)
        _add(rows[row], first[:features], one)
        _add(words[row], first[features:], one)
        _rectify(one)
        _begin(second, other)
        _add(one, second, other)
        _rectify(other)
        own = shares[row]
        _begin(last, own)
        _add(other, last, own)
        most, whole = -math.inf, 0.0
        for at in range(len(own)):
            most = max(most, own[at])
        for at in range(len(own)):
            own[at] = math.exp(own[at] - most)
            whole += own[at]
        for at in range(len(own)):
            own[at] /= whole


@inlined
def _begin(weights: Array, sums: NDArray[np.float64]) -> None:
    """The layer's bias."""
    for j in range(len(sums)):
        sums[j] = weights[len(weights) - 1, j]


@inlined
def _add(inputs: NDArray[Any], weights: Array, sums: NDArray[np.float64]) -> None:
    """Add to `sums` what `inputs` give; many of them are 0."""
    for i in range(len(inputs)):
        if inputs[i] != 0.0:
            for j in range(len(sums)):
                sums[j] += inputs[i] * weights[i, j]


@inlined
def _rectify(values: NDArray[np.float64]) -> None:
    for i in range(len(values)):
        values[i] = max(values[i], 0.0)
