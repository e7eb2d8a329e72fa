"""Ridge regression on TF-IDF of words and pairs of them: a linear model of a text."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

TERMS = 20_000
"""Most of a vocabulary: the words and pairs of words that most texts have."""
_WORD = re.compile(r"\w+")
_TOLERANCE = 1e-3  # of the residual, relative; the errors of predictions are far larger
_MOST_STEPS = 200


@dataclass(frozen=True, slots=True)
class Sparse:
    """A matrix (rows, width) by its entries: values[k] stands in row rows[k], column columns[k]."""

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    values: Floats
    height: int
    width: int

    def times(self, vector: Floats) -> Floats:
        """The matrix times a vector (width,)."""
        products = self.values * vector[self.columns]
        return np.bincount(self.rows, products, self.height).astype(np.float64)

    def transposed_times(self, vector: Floats) -> Floats:
        """Its transpose times a vector (height,)."""
        products = self.values * vector[self.rows]
        return np.bincount(self.columns, products, self.width).astype(np.float64)


class TfIdf:
    """Term frequency times inverse document frequency, each row of length 1.

    The idf is log((1 + texts) / (1 + texts with the term)) + 1: as if one more text had all terms.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        """Takes the vocabulary and its idf from `texts`."""
        texts_with: Counter[str] = Counter()
        count = 0
        for text in texts:
            texts_with.update(set(_terms(text)))
            count += 1
        # By name where equally frequent, so that the result does not depend on the order of a set.
        chosen = sorted(texts_with, key=lambda term: (-texts_with[term], term))[:TERMS]
        self._column = {term: i for i, term in enumerate(chosen)}
        frequencies = np.array([texts_with[term] for term in chosen], dtype=np.float64)
        self._idf = np.log((1.0 + count) / (1.0 + frequencies)) + 1.0

    def matrix(self, texts: Sequence[str]) -> Sparse:
        """(texts, terms of the vocabulary)."""
        rows: list[int] = []
        columns: list[int] = []
        counts: list[int] = []
        for row, text in enumerate(texts):
            found = Counter(filter(self._column.__contains__, _terms(text)))
            rows.extend([row] * len(found))
            columns.extend(map(self._column.__getitem__, found))
            counts.extend(found.values())
        at_row, at_column = np.array(rows, dtype=np.int64), np.array(columns, dtype=np.int64)
        values = np.array(counts, dtype=np.float64) * self._idf[at_column]
        norms = np.sqrt(np.bincount(at_row, weights=values * values, minlength=len(texts)))
        values /= norms[at_row]
        return Sparse(at_row, at_column, values, len(texts), len(self._idf))


def _terms(text: str) -> list[str]:
    words = _WORD.findall(text.lower())
    return words + [f"{first} {second}" for first, second in pairwise(words)]


@dataclass(frozen=True, slots=True)
class Ridge:
    """target = intercept + matrix @ weights."""

    weights: Floats
    intercept: float

    def predict(self, matrix: Sparse) -> Floats:
        """(matrix.height,)"""
        return matrix.times(self.weights) + self.intercept


def fit_ridge(matrix: Sparse, target: Floats, penalty: float) -> Ridge:
    """Minimizes |target - intercept - matrix @ w|^2 + penalty |w|^2 over w and the intercept.

    The normal equations of the centred columns, by conjugate gradients; nothing is made dense.
    """
    column_means = matrix.transposed_times(np.ones(matrix.height)) / matrix.height
    mean = float(target.mean())

    def normal(w: Floats) -> Floats:
        centred = matrix.times(w) - column_means @ w
        # `centred` adds up to 0, so that centring the transposed matrix too would change nothing.
        return np.asarray(matrix.transposed_times(centred) + penalty * w)

    right = matrix.transposed_times(target - mean)
    weights = _conjugate_gradients(normal, right)
    return Ridge(weights, mean - float(column_means @ weights))


def _conjugate_gradients(apply: Callable[[Floats], Floats], right: Floats) -> Floats:
    """x with apply(x) = right; `apply` is symmetric and positive definite."""
    solution = np.zeros_like(right)
    residual = right.copy()
    direction = residual.copy()
    square = float(residual @ residual)
    enough = square * _TOLERANCE**2
    for _ in range(_MOST_STEPS):
        if square <= enough:
            break
        image = apply(direction)
        step = square / float(direction @ image)
        solution += step * direction
        residual -= step * image
        before, square = square, float(residual @ residual)
        direction = residual + (square / before) * direction
    return solution
