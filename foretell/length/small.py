"""A small length model: hashed words and a few features, through two hidden layers.

It takes a hundredth of the time of the tagger's encoder, from which it has learned.
`tools/train/small.py` trains it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import chain
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.compiled import forward, standardise, sum_words
from foretell.length.bins import BINS, EDGES
from foretell.length.conversation import Conversation
from foretell.length.features import QUICK_NAMES, quick_features
from foretell.length.words import BUCKETS, word_numbers

SMALL = "small.npz"
FORMAT = 1
Array = NDArray[np.float32]
_MOST_FEATURE = 8.0


def shipped() -> Traversable:
    """The folder of the small model that ships with the package."""
    return resources.files("foretell.length")


@dataclass(frozen=True, slots=True)
class Weights:
    """The trained arrays; w: width of a word's vector, h: of the layers, F: number of features."""

    mean: Array
    """(F,), of the features."""
    scale: Array
    """(F,): factors on the features' distances from their means; 0: the feature never varied."""
    words: Array
    """(`words.BUCKETS`, w)."""
    first: Array
    """(F + w + 1, h); here and in the next two, the last row is the bias."""
    second: Array
    """(h + 1, h)."""
    last: Array
    """(h + 1, `bins.BINS`)."""
    temperature: np.float32
    """What log probabilities are divided by."""

    def write(self, folder: str) -> None:
        """Write the arrays into `folder`, in half precision."""
        arrays: dict[str, Any] = {
            each.name: np.asarray(getattr(self, each.name), np.float16) for each in fields(self)
        }
        arrays |= {"format": FORMAT, "edges": EDGES, "features": np.array(QUICK_NAMES)}
        np.savez_compressed(f"{folder}/{SMALL}", **arrays)

    @classmethod
    def read(cls, folder: Traversable) -> "Weights":
        """Read the arrays; ValueError or OSError unless they are a small model of this version."""
        path = folder / SMALL
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
                same = (
                    int(found["format"]) == FORMAT
                    and tuple(found["features"]) == QUICK_NAMES
                    and np.array_equal(found["edges"], EDGES)
                )
                if not same:
                    raise ValueError("trained with other features or bins; train it anew")
                weights = cls(*(found[each.name].astype(np.float32)[()] for each in fields(cls)))
        except (KeyError, BadZipFile, EOFError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from error
        if weights._shapes_differ():
            raise ValueError(f"{path}: arrays do not fit together")
        return weights

    def _shapes_differ(self) -> bool:
        width, hidden = self.words.shape[-1], self.second.shape[-1]
        return (
            self.mean.shape != (len(QUICK_NAMES),)
            or self.scale.shape != (len(QUICK_NAMES),)
            or self.words.shape != (BUCKETS, width)
            or self.first.shape != (len(QUICK_NAMES) + width + 1, hidden)
            or self.second.shape != (hidden + 1, hidden)
            or self.last.shape != (hidden + 1, BINS)
        )


class SmallModel:
    """Implements `adapted.TextEncoder`."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._layers = (weights.first, weights.second, weights.last / weights.temperature)

    def read(
        self, conversations: Sequence[Conversation], models: Sequence[str]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Probabilities (n, `BINS`), standardised features (n, F); `models` are ignored."""
        rows = standardised(self._weights, conversations)
        words = mean_of_words(self._weights.words, [word_numbers(each) for each in conversations])
        shares = np.empty((len(rows), BINS))
        forward(rows, words, *self._layers, np.empty((2, self._layers[1].shape[1])), shares)
        return shares, rows.astype(np.float64)


def standardised(
    weights: Weights, conversations: Sequence[Conversation], most: float = _MOST_FEATURE
) -> Array:
    """Standardised features (n, F), clipped to `most` either way from 0."""
    rows = np.array([quick_features(each) for each in conversations], np.float32)
    standardise(rows, weights.mean, weights.scale, most)
    return rows


def mean_of_words(words: Array, numbers: list[list[int]]) -> Array:
    """(n, w): sums of each row's word vectors over the square root of their number, never 0."""
    counts = np.array([len(row) for row in numbers])
    flat = np.fromiter(chain.from_iterable(numbers), np.int64)
    means = np.zeros((len(numbers), words.shape[1]), np.float32)
    sum_words(words, flat, counts, means)
    return means
