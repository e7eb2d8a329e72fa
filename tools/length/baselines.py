"""Baselines for a tagger: guesses from the lengths, prompt lengths and words of other answers.

Each learns from examples and estimates others, as quantiles (n, `LEVELS`) in tokens. Answers that
were cut count with the length they have; `max_tokens` bounds all estimates.
"""

import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline

from foretell.length.bins import LEVELS
from foretell.length.history import prompt_bucket
from foretell.tools.length.dataset import Example
from foretell.tools.length.scores import Floats

Baseline = Callable[[Sequence[Example], Sequence[Example]], Floats]
"""A function of training examples and asked ones, neither empty, to quantiles of the latter."""

FOLDS = 5
_FEWEST_IN_BUCKET = 8
TERMS = 20_000
"""Most of a vocabulary: the words and pairs of words that most texts have."""
_TERM = {"ngram_range": (1, 2), "token_pattern": r"\w+"}
_PENALTY, _TOLERANCE = 3.0, 1e-3  # of the ridge; errors of its predictions are far larger


def constant_median(training: Sequence[Example], asked: Sequence[Example]) -> Floats:
    """The quantiles of all lengths, whatever is asked."""
    return np.tile(_quantiles(_lengths(training)), (len(asked), 1))


def prompt_length(training: Sequence[Example], asked: Sequence[Example]) -> Floats:
    """The quantiles of answers to prompts of about the same length, in powers of two."""
    buckets: dict[int, list[int]] = defaultdict(list)
    for example in training:
        buckets[_bucket(example)].append(example.output_tokens)
    everything = _quantiles(_lengths(training))
    known = {
        bucket: _quantiles(np.array(lengths, dtype=np.float64))
        for bucket, lengths in buckets.items()
        if len(lengths) >= _FEWEST_IN_BUCKET
    }
    return np.array([known.get(_bucket(example), everything) for example in asked])


def tfidf_ridge(training: Sequence[Example], asked: Sequence[Example]) -> Floats:
    """A linear function of the prompt's words, moved by the quantiles of its errors in training."""
    texts = _prompts(training)
    # The added word is for texts that have none: an empty vocabulary is refused.
    most_common = CountVectorizer(binary=True, max_features=TERMS, **_TERM).fit(["_", *texts])
    model = make_pipeline(
        TfidfVectorizer(vocabulary=most_common.vocabulary_, **_TERM),
        Ridge(_PENALTY, solver="sparse_cg", tol=_TOLERANCE),
    )
    lengths = _lengths(training)
    model.fit(texts, lengths)
    guessed = model.predict(_prompts(asked))
    errors = _quantiles(lengths - model.predict(texts))
    return np.asarray(np.maximum(1.0, guessed[:, None] + errors))


BASELINES: dict[str, Baseline] = {
    "constant_median": constant_median,
    "prompt_length": prompt_length,
    "tfidf_ridge": tfidf_ridge,
}


def learnt_from(
    training: Sequence[Example], baseline: Baseline, examples: Sequence[Example]
) -> Floats:
    """Estimates of every example by a baseline that has learnt from `training`."""
    return _limited(baseline(training, examples), examples)


def cross_validated(baseline: Baseline, examples: Sequence[Example]) -> Floats | None:
    """Estimates of every example by a baseline that has learnt from the other folds.

    All examples with one prompt are in one fold, so that nothing is learnt from another model's
    answer to it. None where there is only one prompt.
    """
    prompts = {example.conversation.prompt for example in examples}
    if len(prompts) == 1:
        return None
    # Dealt out in an order that has nothing to do with what the prompts say.
    order = sorted(prompts, key=lambda prompt: (zlib.crc32(prompt.encode()), prompt))
    fold_of = {prompt: i % FOLDS for i, prompt in enumerate(order)}
    folds = np.array([fold_of[example.conversation.prompt] for example in examples])
    found = np.empty((len(examples), len(LEVELS)))
    for fold in np.unique(folds):
        training = [example for example, own in zip(examples, folds, strict=True) if own != fold]
        asked = [example for example, own in zip(examples, folds, strict=True) if own == fold]
        found[folds == fold] = learnt_from(training, baseline, asked)
    return found


def _limited(quantiles: Floats, examples: Sequence[Example]) -> Floats:
    limits = np.array([example.conversation.max_tokens or np.inf for example in examples])
    return np.asarray(np.minimum(quantiles, limits[:, None]))


def _prompts(examples: Sequence[Example]) -> list[str]:
    return [example.conversation.prompt for example in examples]


def _lengths(examples: Sequence[Example]) -> Floats:
    return np.array([example.output_tokens for example in examples], dtype=np.float64)


def _quantiles(values: Floats) -> Floats:
    return np.asarray(np.quantile(values, LEVELS))


def _bucket(example: Example) -> int:
    return prompt_bucket(example.conversation.prompt_tokens)
