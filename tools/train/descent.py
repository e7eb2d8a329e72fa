"""Trains the small model's layers: Adam with averaged weights, in numpy."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

Array = NDArray[np.float32]
Layers = dict[str, Array]

_EPOCHS, _BATCH, _RATE, _WARM_UP, _DECAY = 8, 256, 4e-3, 0.05, 1e-4
_MOMENTUM, _SQUARES = 0.9, 0.999
_DROPPED_INPUTS, _DROPPED = 0.05, 0.2
_AVERAGED_EVERY, _AVERAGED = 10, 0.03


@dataclass(frozen=True, slots=True)
class Examples:
    """n examples."""

    rows: Array
    """(n, features), standardised."""
    words: sparse.csr_matrix
    """(n, buckets): the weight of each word of an example."""
    targets: Array
    """(n, bins) probabilities."""


def descend(layers: Layers, examples: Examples, rng: np.random.Generator) -> Layers:
    """`layers` after all epochs: `words`, `first`, `second`, `last`, as in `small.Weights`."""
    layers = {name: weights.copy() for name, weights in layers.items()}
    averaged = {name: weights.copy() for name, weights in layers.items()}
    means = {name: np.zeros_like(weights) for name, weights in layers.items()}
    squares = {name: np.zeros_like(weights) for name, weights in layers.items()}
    count, step = len(examples.rows), 0
    total = _EPOCHS * (count // _BATCH)
    for _ in range(_EPOCHS):
        order = rng.permutation(count)
        for begin in range(0, count - _BATCH + 1, _BATCH):
            step += 1
            slopes = _slopes(layers, examples, order[begin : begin + _BATCH], rng)
            rate = _RATE * min(1.0, step / (_WARM_UP * total))
            rate *= (1.0 + np.cos(np.pi * step / total)) / 2.0
            for name, slope in slopes.items():
                means[name] += (1.0 - _MOMENTUM) * (slope - means[name])
                squares[name] += (1.0 - _SQUARES) * (slope * slope - squares[name])
                mean = means[name] / (1.0 - _MOMENTUM**step)
                scale = np.sqrt(squares[name] / (1.0 - _SQUARES**step)) + 1e-8
                decay = 0.0 if name == "words" else _DECAY
                layers[name] -= (rate * (mean / scale + decay * layers[name])).astype(np.float32)
            if step % _AVERAGED_EVERY == 0:
                for name, weights in layers.items():
                    averaged[name] += _AVERAGED * (weights - averaged[name])
    return averaged


def _slopes(
    layers: Layers, examples: Examples, chosen: NDArray[np.int64], rng: np.random.Generator
) -> Layers:
    """Gradients of a batch's mean cross entropy, by layer; some inputs and units are dropped."""
    words, width = examples.words[chosen], examples.rows.shape[1]
    inputs = np.concatenate((examples.rows[chosen], words @ layers["words"]), axis=1)
    kept = _kept(inputs.shape, _DROPPED_INPUTS, rng)
    inputs = _with_one(inputs * kept)
    first = inputs @ layers["first"]
    first_kept = (first > 0) * _kept(first.shape, _DROPPED, rng)
    hidden = _with_one(first * first_kept)
    second = hidden @ layers["second"]
    second_kept = (second > 0) * _kept(second.shape, _DROPPED, rng)
    top = _with_one(second * second_kept)
    logits = top @ layers["last"]
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    off = (shares - examples.targets[chosen]) / len(chosen)
    off_second = (off @ layers["last"][:-1].T) * second_kept
    off_first = (off_second @ layers["second"][:-1].T) * first_kept
    off_inputs = (off_first @ layers["first"][:-1].T) * kept
    return {
        "words": np.asarray(words.T @ off_inputs[:, width:], np.float32),
        "first": inputs.T @ off_first,
        "second": hidden.T @ off_second,
        "last": top.T @ off,
    }


def _kept(shape: tuple[int, ...], dropped: float, rng: np.random.Generator) -> Array:
    """The factor of each unit: 0 if dropped."""
    return ((rng.random(shape) >= dropped) / (1.0 - dropped)).astype(np.float32)


def _with_one(rows: Array) -> Array:
    return np.concatenate((rows, np.ones((len(rows), 1), np.float32)), axis=1)
