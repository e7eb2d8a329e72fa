"""Examples as arrays, and batches of about equal length."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from foretell.length.bins import bin_of
from foretell.services.tagger.reading import EncoderInputs, PromptReader, padded
from foretell.tools.length.dataset import Example

_UNKNOWN_MODEL = 0.2  # share of examples whose serving model is hidden, for unknown models
_LENGTHS_TOGETHER = 0.3  # random offset of log lengths in the order of batches


@dataclass(frozen=True, slots=True)
class Examples:
    """n examples, read once."""

    sequences: list[tuple[list[int], list[int]]]
    features: NDArray[np.float32]
    models: NDArray[np.int64]
    bins: NDArray[np.int64]
    tokens: NDArray[np.int64]
    censored: NDArray[np.bool_]
    taught: NDArray[np.float32] | None = None
    """The teachers' probabilities, (n, `BINS`)."""

    def __len__(self) -> int:
        return len(self.sequences)

    def inputs(self, chosen: NDArray[np.int64], pad: int) -> EncoderInputs:
        """The inputs of the `chosen` examples."""
        sequences = [self.sequences[i] for i in chosen]
        return padded(sequences, self.features[chosen], self.models[chosen], pad)


def prepare(examples: Sequence[Example], reader: PromptReader) -> Examples:
    """The examples, tokenized and counted."""
    conversations = [example.conversation for example in examples]
    tokens = np.array([example.output_tokens for example in examples], np.int64)
    return Examples(
        reader.sequences(conversations),
        reader.features(conversations),
        reader.models([example.model_name for example in examples]),
        bin_of(tokens),
        tokens,
        np.array([example.censored for example in examples], np.bool_),
    )


def hold_out(examples: Sequence[Example], share: float) -> tuple[list[Example], list[Example]]:
    """The examples to learn from, and about `share` of the conversations for early stopping.

    Chosen by a hash of a conversation's beginning, so that a run on more data holds out the same.
    """
    kept: list[Example] = []
    held: list[Example] = []
    for example in examples:
        earlier = example.conversation.earlier
        first = earlier[0].prompt if earlier else example.conversation.prompt
        hashed = crc32(first[:200].encode(errors="replace")) / 2**32
        (held if hashed < share else kept).append(example)
    return kept, held


def batches(examples: Examples, size: int, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """All examples in random batches, each of sequences of about equal length."""
    lengths = np.log([len(ids) for ids, _ in examples.sequences])
    near = lengths + _LENGTHS_TOGETHER * rng.random(len(examples))
    order = np.argsort(near, kind="stable")
    cut = [order[begin : begin + size] for begin in range(0, len(order), size)]
    return [cut[i] for i in rng.permutation(len(cut))]


def in_order(examples: Examples, size: int) -> Iterator[NDArray[np.int64]]:
    """All examples once, the shortest first."""
    order = np.argsort([len(ids) for ids, _ in examples.sequences], kind="stable")
    for begin in range(0, len(order), size):
        yield order[begin : begin + size]


def hide_models(models: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """The serving models, with some of them made unknown."""
    return np.where(rng.random(len(models)) < _UNKNOWN_MODEL, 0, models)
