"""Estimates of the length of the next answer, from recent answers."""

import math
from array import array
from collections.abc import Iterator

from foretell.length.conversation import PLAIN, Kind
from foretell.length.estimate import clip
from foretell.length.survival import SurvivalCurve
from foretell.model import LengthEstimate

QUANTILE_LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
PRIOR_TOKENS = 256.0
"""Mean output length assumed of a cluster before anything is known."""

_LONGEST_BUCKET = 20  # prompts of 2**19 tokens and more share it
_REFIT_RATIO = 0.05  # share of a window that may be new before its curve is refitted


def prompt_bucket(prompt_tokens: int) -> int:
    """Log2-spaced: bucket b > 0 holds prompts of 2**(b-1) to 2**b - 1 tokens."""
    return min(_LONGEST_BUCKET, max(0, prompt_tokens).bit_length())


class LengthHistory:
    """Output lengths per model, kind of request and prompt-length bucket, and the estimates they
    support.

    An estimate comes from the narrowest window with enough observations: the bucket, the kind, the
    same two of plain requests, all models, and last the prior, an exponential of mean
    `prior_tokens`. Memory is bounded: each window keeps its `window` latest observations, and
    beyond `max_models` the least recently observed is evicted. Deterministic; not thread-safe.
    """

    def __init__(
        self,
        window: int = 4096,
        *,
        min_observations: int = 8,
        max_models: int = 64,
        prior_tokens: float = PRIOR_TOKENS,
    ) -> None:
        if min(window, min_observations, max_models) < 1 or prior_tokens <= 0:
            raise ValueError("window, min_observations, max_models, prior_tokens: must be positive")
        self._window = window
        self._min_observations = min(min_observations, window)
        self._max_models = max_models
        self._prior_tokens = prior_tokens
        self._prior = _Fit(SurvivalCurve((), (), prior_tokens))
        self._all = _Window(window, prior_tokens)
        self._models: dict[str, dict[Kind, _KindHistory]] = {}  # least recently observed first

    def observe(
        self,
        model_name: str,
        prompt_tokens: int,
        output_tokens: int,
        censored: bool = False,
        kind: Kind = PLAIN,
    ) -> None:
        """Learn from one answer of `output_tokens` tokens.

        `censored`: `max_tokens` or an abort ended it, so its own length is only known to exceed
        `output_tokens`. An answer without a token says nothing about length and is ignored.
        """
        if output_tokens <= 0:
            return
        kinds = self._models.pop(model_name, {})
        self._models[model_name] = kinds
        if len(self._models) > self._max_models:
            del self._models[next(iter(self._models))]
        if kind not in kinds:
            kinds[kind] = _KindHistory(self._window, self._prior_tokens)
        known = kinds[kind]
        for window in (known.bucket(prompt_bucket(prompt_tokens)), known.whole, self._all):
            window.add(output_tokens, censored)

    def estimate(
        self,
        model_name: str,
        prompt_tokens: int,
        max_tokens: int = 0,
        min_tokens: int = 0,
        kind: Kind = PLAIN,
    ) -> LengthEstimate:
        """Estimate the length of an answer; `max_tokens` 0 means that it has no limit.

        `expected_tokens` is the mean of the length clipped to `min_tokens` and `max_tokens`, at
        least 1. The quantiles are clipped, too.
        """
        for window in self._windows(model_name, prompt_bucket(prompt_tokens), kind):
            if window is not None and len(window) >= self._min_observations:
                return window.fit().estimate(max_tokens, min_tokens, "history")
        return self._prior.estimate(max_tokens, min_tokens, "prior")

    def _windows(self, model_name: str, bucket: int, kind: Kind) -> Iterator["_Window | None"]:
        """The windows for a request, the narrowest first."""
        kinds = self._models.get(model_name, {})
        for each in dict.fromkeys((kind, PLAIN)):
            if each in kinds:
                yield kinds[each].buckets.get(bucket)
                yield kinds[each].whole
        yield self._all


class _Fit:
    """A curve, and its quantiles, which are the same for every estimate."""

    __slots__ = ("_curve", "_quantiles")

    def __init__(self, curve: SurvivalCurve) -> None:
        self._curve = curve
        self._quantiles = tuple((level, curve.quantile(level)) for level in QUANTILE_LEVELS)

    def estimate(self, max_tokens: int, min_tokens: int, source: str) -> LengthEstimate:
        limit = float(max_tokens) if max_tokens > 0 else math.inf
        mean = self._curve.mean(limit)
        if min_tokens > 0:  # shorter lengths are raised to it
            mean += min_tokens - self._curve.mean(float(min_tokens))
        return clip(LengthEstimate(max(1.0, mean), self._quantiles, source), max_tokens, min_tokens)


class _Window:
    """The latest `size` observations and their curve, refitted when enough of them are new."""

    __slots__ = ("_fit", "_new", "_next", "_refit_after", "_signed", "_size", "_tail_mean")

    def __init__(self, size: int, tail_mean_tokens: float) -> None:
        self._size = size
        self._tail_mean = tail_mean_tokens
        self._signed = array("q")  # a censored length is kept negated
        self._next = 0  # oldest observation once the window is full
        self._fit: _Fit | None = None
        self._new = 0
        self._refit_after = 0.0

    def __len__(self) -> int:
        return len(self._signed)

    def add(self, output_tokens: int, censored: bool) -> None:
        signed = -output_tokens if censored else output_tokens
        if len(self._signed) < self._size:
            self._signed.append(signed)
        else:
            self._signed[self._next] = signed
            self._next = (self._next + 1) % self._size
        self._new += 1

    def fit(self) -> _Fit:
        if self._fit is None or self._new > self._refit_after:
            self._fit = _Fit(
                SurvivalCurve(
                    (length for length in self._signed if length > 0),
                    (-length for length in self._signed if length < 0),
                    self._tail_mean,
                )
            )
            self._new = 0
            self._refit_after = _REFIT_RATIO * len(self._signed)
        return self._fit


class _KindHistory:
    """The windows of one kind of a model's requests; at most `_LONGEST_BUCKET` + 1 buckets."""

    __slots__ = ("_size", "_tail_mean", "buckets", "whole")

    def __init__(self, size: int, tail_mean_tokens: float) -> None:
        self._size = size
        self._tail_mean = tail_mean_tokens
        self.whole = _Window(size, tail_mean_tokens)
        self.buckets: dict[int, _Window] = {}

    def bucket(self, index: int) -> _Window:
        if index not in self.buckets:
            self.buckets[index] = _Window(self._size, self._tail_mean)
        return self.buckets[index]
