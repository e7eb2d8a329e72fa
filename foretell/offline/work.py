"""What requests cost: seconds of computing, seconds of reading the KV cache, and their ratio.

The ratio is the *compute density* of BlendServe (ASPLOS '26, section 4): above 1 a request needs
the GPU's arithmetic for longer than its memory, below 1 the other way round.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretell.latency.linear import StepTimeModel
from foretell.model import BatchShape
from foretell.model.batch import prefill_pairs

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_FEW, _MANY, _SEQUENCES = 1024, 2048, 128  # tokens and sequences of the steps that are compared


@dataclass(frozen=True, slots=True)
class WorkModel:
    """Seconds that tokens take on one engine, computing and reading memory apart."""

    prefill_token_s: float
    """Computing one token of a prompt, attention aside."""
    prefill_pair_s: float
    """Computing one query-key pair of a prompt's attention."""
    decode_token_s: float
    """Computing one generated token, attention aside."""
    decode_pair_s: float
    """Reading one token's keys and values for one generated token."""
    weights_s: float
    """Reading the weights, once a step."""

    def prefill_s(self, begin: Ints, end: Ints) -> Floats:
        """Seconds to compute a prompt's tokens from `begin` to `end`; those before are cached."""
        pairs = (end * (end + 1) - begin * (begin + 1)) / 2
        result: Floats = self.prefill_token_s * (end - begin) + self.prefill_pair_s * pairs
        return result

    def memory_s(self, prompt: Ints, mean: Floats, square: Floats) -> Floats:
        """Seconds to read the KV cache for an answer whose length has this mean and mean square."""
        return self.decode_pair_s * contexts(prompt, mean, square)

    def density(self, prompt: Ints, mean: Floats, square: Floats) -> Floats:
        """Compute density of requests that share no prefix."""
        compute_s = self.prefill_s(np.zeros_like(prompt), prompt)
        compute_s += self.decode_token_s * mean
        return compute_s / self.memory_s(prompt, mean, square)


def contexts(prompt: Ints, mean: Floats, square: Floats) -> Floats:
    """Tokens that an answer's steps read in all, p·E[d] + E[d²]/2.

    With E[d]² in place of E[d²] it would be too small by half the variance of the length.
    """
    return prompt * mean + square / 2


def measured_work(model: StepTimeModel) -> WorkModel:
    """Derive the costs from a measured or calibrated step time model, by differences of steps."""

    def prefill(tokens: int, computed: int) -> float:
        pairs = prefill_pairs(tokens, computed)
        return model.step_s(BatchShape(1, tokens, pairs))

    def decode(sequences: int, pairs: int) -> float:
        return model.step_s(BatchShape(decode_seqs=sequences, decode_pairs=pairs))

    pair = (prefill(_FEW, _MANY) - prefill(_FEW, 0)) / (_FEW * _MANY)
    more_pairs = prefill_pairs(_MANY, 0) - prefill_pairs(_FEW, 0)
    token = (prefill(_MANY, 0) - prefill(_FEW, 0) - pair * more_pairs) / (_MANY - _FEW)
    many, few = _SEQUENCES * _MANY, _SEQUENCES * _FEW
    read = (decode(_SEQUENCES, many) - decode(_SEQUENCES, few)) / (many - few)
    sequence = (decode(2 * _SEQUENCES, many) - decode(_SEQUENCES, many)) / _SEQUENCES
    least = 1e-12  # what a table does not resolve still takes time
    return WorkModel(
        max(token, least), max(pair, 0.0), max(sequence, 0.0), max(read, least), decode(1, 1)
    )
